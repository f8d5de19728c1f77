"""Every claim is a script that runs; its numbers count only at full size, by ``make bench``."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLAIMS = re.search(r"^CLAIMS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS)
def test_every_benchmark_runs_at_its_smallest_size(claim):
    command = [sys.executable, str(ROOT / "benchmarks" / f"{claim}.py"), "--quick"]
    # one thread: the other core has tests of its own, and waiting for it costs more than it brings
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^(holds|FAILS) ", result.stdout, re.MULTILINE)


def test_every_script_that_states_a_claim_is_listed():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert scripts - {"claims", "plain", "timing"} == set(CLAIMS)
