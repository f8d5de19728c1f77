"""Beside as many busy processes as the machine has cores, nothing takes more than 2.5 times its time alone."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from claims import quick, verdict

# From Python, torch first: by then its threads can no longer be told how to wait. Only the call is timed.
CALLS = {
    "certify": 'hs.certify("reviews", "a gripping film", word=2)',
    "bracket": "hs.bracket(f, n=64, radius=13.0)",
    "local_lipschitz": "hs.local_lipschitz(f, X)",
}
SCRIPT = """
import time
import torch
torch.zeros(1 << 20).add_(1)
import howsmooth as hs
hs.local_lipschitz(hs.Attention.single_head(A=torch.eye(2), V=torch.eye(2)), torch.eye(2))
if {needs_model}:
    model = hs.load("minilm")
    tokens = torch.randint(1000, 20000, (1, 256), generator=torch.Generator().manual_seed(0))
    f, X = model.activations(tokens).at(layer=4)
began = time.perf_counter()
{call}
print(time.perf_counter() - began)
"""
# From the shell, the whole command is timed.
COMMANDS = {
    "howsmooth certify": ["certify", "reviews", "--sentence", "a gripping film"],
    "howsmooth measure": ["measure", "minilm", "--lengths", "32,64", "--sequences", "4"],
}
SMALLEST = {"a small layer": "hs.local_lipschitz(hs.Attention.random(heads=1, d=8, k=4), torch.randn(4, 8))"}
LIMIT = 2.5


def call_seconds(call: str) -> float:
    script = SCRIPT.format(call=call, needs_model="(f," in call)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(run.stdout.split()[-1])


def command_seconds(words: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "howsmooth", *words, "--out", f"{folder}/run"]
        subprocess.run(command, capture_output=True, check=True)
        return time.perf_counter() - began


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many cores busy; the processes end with the block, or by themselves after ten minutes."""
    spin = "import time\nend = time.time() + 600\nwhile time.time() < end: pass"
    jobs = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def main() -> None:
    fast = quick(__doc__)
    repeats, cores = (1, 1) if fast else (3, len(os.sched_getaffinity(0)))
    jobs = {name: partial(call_seconds, call) for name, call in (SMALLEST if fast else CALLS).items()}
    if not fast:
        jobs |= {name: partial(command_seconds, words) for name, words in COMMANDS.items()}
    ratios = {}
    for name, seconds in jobs.items():
        alone, beside = [], []
        for _ in range(repeats):
            alone.append(seconds())
            with busy(cores):
                beside.append(seconds())
        ratios[name] = min(beside) / min(alone)
        times = f"alone {min(alone):6.2f} s   beside {cores} busy processes {min(beside):6.2f} s"
        print(f"{name:20} {times}   ratio {ratios[name]:.2f}", flush=True)
    verdict({f"{name}: at most {LIMIT} times": ratio <= LIMIT for name, ratio in ratios.items()}, quick=fast)


if __name__ == "__main__":
    main()
