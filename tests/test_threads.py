"""Threads that wait for each other do not take a core meanwhile, whichever of torch and howsmooth is imported first."""

import os
import subprocess
import sys

import pytest

# Parallel regions with pauses in between: a thread that waits for the next one asleep takes no processor time.
PAUSES = """
import time
x = torch.zeros(1 << 18)
for _ in range(20):
    x.add_(1)  # teams are made on first use
began = time.process_time()
for _ in range(50):
    x.add_(1)
    time.sleep(0.005)
print(time.process_time() - began)
"""
ORDERS = {
    "torch first": "import torch; torch.zeros(1 << 18).add_(1); import howsmooth, time; time.sleep(0.2)",
    "howsmooth first": "import howsmooth; import torch",
}


def ended(code: str, **settings: str) -> str:
    """Return what a process without any choice about its threads prints; it has to end well."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))}
    run = subprocess.run([sys.executable, "-c", code], env=ours | settings, capture_output=True, check=True, text=True)
    return run.stdout


def processor_seconds(imports: str, **settings: str) -> float:
    return float(ended(imports + PAUSES, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import torch, howsmooth", "import howsmooth, torch"])
def test_an_interpreter_that_ends_at_once_ends_well(imports):
    for _again in range(3):  # a thread that is still inside of torch aborts it
        assert ended(imports) == ""


@pytest.mark.slow
@pytest.mark.clock("the processor time of threads that wait")
def test_waiting_threads_sleep():
    spinning = processor_seconds("import torch", OMP_WAIT_POLICY="ACTIVE", OMP_NUM_THREADS="2")
    for order, imports in ORDERS.items():
        assert processor_seconds(imports, OMP_NUM_THREADS="2") < spinning / 3, order
