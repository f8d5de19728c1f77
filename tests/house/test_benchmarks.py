"""Every claim is a script that runs; its numbers count only at full size, by ``make bench``."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLAIMS = re.search(r"^CLAIMS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()


@pytest.mark.slow
@pytest.mark.usefixtures("as_readers_do")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("claim", CLAIMS)
def test_every_benchmark_runs_at_its_smallest_size(claim, monkeypatch, capsys):
    # in this process: importing torch would take most of the time
    script = str(ROOT / "benchmarks" / f"{claim}.py")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", [script, "--quick"])
    runpy.run_path(script, run_name="__main__")
    assert re.search(r"^(holds|FAILS) ", capsys.readouterr().out, re.MULTILINE)


def test_every_script_that_states_a_claim_is_listed():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert scripts - {"claims", "decoders", "mechanisms", "plain", "timing"} == set(CLAIMS)
