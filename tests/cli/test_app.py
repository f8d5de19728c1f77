import dataclasses
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import howsmooth as hs
from howsmooth.cli.app import main
from howsmooth.cli.commands import COMMANDS, app
from howsmooth.cli.layer import LayerSource

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
    with pytest.raises(ImportError):
        howsmooth("bounds", "--help")


def test_a_command_that_does_not_exist_is_refused_with_the_nearest_one(howsmooth):
    result = howsmooth("measur")
    assert result.code == 2
    assert "measure" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bounds -n abc -r 1", "'--n'"),
        ("bounds -n 3", "'--radius'"),
        ("demo -n 0", "'--tokens'"),
        ("demo --heads x", "'--heads'"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused_in_one_line_that_names_it(arguments, said, howsmooth):
    result = howsmooth(*arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert said in result.err
    assert result.err.endswith(f"see howsmooth {arguments.split()[0]} --help.\n")


@pytest.mark.parametrize("command", ["bounds", "worst-case", "split", "regimes"])
def test_every_command_about_one_layer_takes_the_same_options(command, howsmooth):
    shown = howsmooth(command, "--help").out
    assert all(f"--{field.name.replace('_', '-')} " in shown for field in dataclasses.fields(LayerSource))


def test_the_demo_answers_in_its_first_line():
    result = runner.invoke(app, ["demo", "-n", "16", "-d", "24", "--heads", "3", "--causal"])
    assert result.exit_code == 0
    first, *_rest = result.output.splitlines()
    assert "≤ Lip ≤" in first
    assert "(99.9 %)" in first


def test_json_is_json_and_nothing_else():
    arguments = ["demo", "-n", "16", "-d", "24", "--heads", "3", "--json", "--seed", "5"]
    result = runner.invoke(app, arguments)
    data = json.loads(result.output)
    assert data["lower"] <= data["upper"] <= data["lower"] * 1.001
    assert len(data["token_sensitivity"]) == 16
    assert runner.invoke(app, arguments).output == result.output


def test_a_mistake_ends_in_one_sentence_and_code_two(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["howsmooth", "demo", "--heads", "5", "-d", "12"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "howsmooth: --dimension must be a multiple of --heads, got 12 and 5.\n"


def test_the_command_is_installed():
    result = subprocess.run(
        [sys.executable, "-m", "howsmooth", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("howsmooth ")
