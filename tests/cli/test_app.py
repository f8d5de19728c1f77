import dataclasses
import os
import re
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import howsmooth as hs
from howsmooth.cli import printing
from howsmooth.cli.commands import COMMANDS, app
from howsmooth.cli.layer import LayerSource
from howsmooth.models.map_names import MAPS
from howsmooth.studies.plans.paper import ALSO, FIGURES

runner = CliRunner()


def test_the_version_is_the_package_version():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"howsmooth {hs.__version__}\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_has_an_example(command):
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: howsmooth {command}" in result.output


def test_the_help_lists_every_command_and_imports_none_of_them():
    before = set(sys.modules)
    result = runner.invoke(app, ["--help"])
    assert all(f" {name} " in result.output for name in COMMANDS)
    assert not {f"howsmooth.cli.{name}" for name in COMMANDS} & (set(sys.modules) - before)


def test_a_command_that_cannot_be_imported_breaks_no_other(monkeypatch, howsmooth):
    monkeypatch.setitem(sys.modules, "howsmooth.cli.layer_bounds", None)  # as if its file were broken
    assert howsmooth("models").code == 0
    assert "bounds" in howsmooth("--help").out
    failed = howsmooth("bounds", "--help")
    assert failed.code == 70  # a fault of the library: 1 is the answer of some commands
    assert "import of howsmooth.cli.layer_bounds halted" in failed.err


def test_a_command_that_does_not_exist_is_refused_with_the_nearest_one(howsmooth):
    result = howsmooth("measur")
    assert result.code == 2
    assert result.err.startswith("howsmooth: No such command 'measur'. Did you mean 'measure'")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bounds -n abc -r 1", "'--n'"),
        ("bounds -n 3", "'--radius'"),
        ("bounds minilm -n 3 -r 1 --threads 0", "'--threads'"),
        ("compare one two --confidence x", "'--confidence'"),
        ("measure --lenghts 8", "No such option: --lenghts"),
        ("show", "Missing argument 'RUN'"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused_in_one_line_that_names_it(arguments, said, howsmooth):
    result = howsmooth(*arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert said in result.err
    assert result.err.endswith(f"See howsmooth {arguments.split()[0]} --help.\n")


def test_nothing_at_all_asks_for_help(howsmooth):
    assert howsmooth().out == howsmooth("--help").out
    assert howsmooth().code == 0


def test_types_and_ranges_of_options_are_words(howsmooth):
    for command in COMMANDS:
        said = howsmooth(command, "--help").out
        assert not re.search(r"<int|<str|<float|<list|x>=", said), command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("show", "howsmooth runs"), ("figure RUN", "layers_by_length"), ("swap", "howsmooth models")],
)
def test_what_is_missing_says_where_to_find_it(arguments, said, howsmooth):
    assert said in howsmooth(*arguments.split()).err


@pytest.mark.parametrize("command", ["bounds", "worst-case", "split", "regimes"])
def test_every_command_about_one_layer_takes_the_same_options(command, howsmooth):
    shown = howsmooth(command, "--help").out
    names = {field.name for field in dataclasses.fields(LayerSource)} - {"model"}
    assert "[MODEL]" in shown
    assert all(f"--{name}" in shown for name in names)


def test_a_help_of_80_columns_has_room_for_sentences_and_headings(howsmooth, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = howsmooth("bounds", "--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  --layer, --layers <number>  Which layer." in lines
    assert {"Arguments:", "A layer of a model:", "A file of weights in place of a model:", "Options:"} <= set(lines)


def test_the_help_names_every_map_and_every_figure(howsmooth):
    for command, names in (("measure", MAPS), ("attack", MAPS), ("swap", MAPS), ("paper", (*FIGURES, *ALSO))):
        said = howsmooth(command, "--help").out
        assert [name for name in names if name not in said] == []


def test_every_command_that_computes_takes_threads_and_json(howsmooth):
    for command in ("measure", "attack", "certify", "sweep", "paper", "bounds", "worst-case", "regimes", "split"):
        assert all(option in howsmooth(command, "--help").out for option in ("--threads", "--json"))
    for command in ("swap", "audit"):
        assert all(option in howsmooth(command, "--help").out for option in ("--threads", "--json", "--device"))


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("howsmooth meas", "measure"),
        ("howsmooth measure --len", "--lengths"),
        ("howsmooth measure m", "minilm mine mine.gguf"),
        ("howsmooth bounds min", "minilm mine mine.gguf"),
        ("howsmooth swap r", "reviews"),
        ("howsmooth paper re", "real regimes reviews"),
        ("howsmooth measure nowhere", ""),
    ],
)
def test_a_shell_completes_commands_options_and_models(typed, completed, howsmooth, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    (tmp_path / "mine.gguf").write_bytes(b"")
    (tmp_path / "mine.txt").write_text("no model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_HOWSMOOTH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    assert howsmooth().out.split() == completed.split()


def test_bash_itself_completes_what_is_typed(tmp_path):
    name = "howsmooth"
    (tmp_path / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m howsmooth "$@"\n')
    (tmp_path / name).chmod(0o755)
    script = f"""eval "$({name} --show-completion bash)"
        COMP_WORDS=({name} certify re) COMP_CWORD=2
        _howsmooth_completion {name}
        echo "${{COMPREPLY[@]}}" """
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True, check=True
    )
    assert found.stdout == "reviews\n"


def test_what_goes_on_is_said_at_once_and_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    monkeypatch.setattr(printing, "EVERY", 0.01)
    with printing.saying_stages():
        printing.begin("Reading a model")
        time.sleep(0.2)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Reading a model …"
    assert said[1].startswith("howsmooth: Reading a model, ")
    with printing.saying_stages():
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_search_says_now_and_then_how_far_it_is_and_how_long_it_takes_at_most(monkeypatch, capsys):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    monkeypatch.setattr(printing, "EVERY", 0.2)
    with printing.saying_stages(), printing.ascent_bar(True, 1000) as progress:
        time.sleep(0.1)
        progress(10, 2.5)
        time.sleep(0.3)
    said = capsys.readouterr().err.splitlines()
    assert re.match(r"howsmooth: Ascent, Lip ≥ 2.5\d* after 10 of 1000 steps, at most \d+ seconds left, \d", said[0])
    with printing.ascent_bar(False, 1000) as progress:
        assert progress is None


def test_a_mistake_ends_in_one_sentence_and_code_two(howsmooth):
    done = howsmooth("measure", "--rtol", "-1")
    assert (done.code, done.out) == (2, "")
    assert done.err == "howsmooth: --rtol must be at least 7.1e-15 in float64, got -1.0.\n"


def test_the_command_is_installed():
    result = subprocess.run(
        [sys.executable, "-m", "howsmooth", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("howsmooth ")
