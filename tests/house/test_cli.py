import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import howsmooth as hs
from howsmooth.cli.app import app, main

runner = CliRunner()


def test_the_version_is_the_package_version():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"howsmooth {hs.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]], ids=" ".join)
def test_every_help_has_an_example(arguments):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    assert "Example: howsmooth" in result.output


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
    assert captured.err == "howsmooth: d must be a multiple of heads, or k be given; got d = 12 and heads = 5.\n"


def test_the_command_is_installed():
    result = subprocess.run(
        [sys.executable, "-m", "howsmooth", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("howsmooth ")
