"""The command line, run in this process: importing torch for every call would take most of the time."""

import sys
from dataclasses import dataclass

import pytest

from howsmooth.cli.app import main


@dataclass(frozen=True, kw_only=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def howsmooth(monkeypatch, capsys, tmp_path):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["howsmooth", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Result(code=stop.value.code or 0, out=captured.out, err=captured.err)

    return run
