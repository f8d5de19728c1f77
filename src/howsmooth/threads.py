"""How the threads of torch wait for each other: asleep, so that other jobs cost no more than their share."""

import os
import sys
from threading import Event, Thread

# Whoever has set one of these has chosen.
CHOICES = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"


def wait_passively() -> None:
    """Let the OpenMP threads of this process sleep while they wait, whether torch is loaded already or not.

    By default a thread that waits spins for milliseconds: beside other jobs on a core that the thread it waits for
    needs, so that a call takes ten times as long.

    Before torch is loaded, an environment variable settles it. Afterwards nothing can be set any more; but libgomp
    documents that threads spin a thousand times less as soon as there are more of them than processors, so a second
    team of threads, which sleeps for ever, has the same effect.
    """
    if any(name in os.environ for name in CHOICES):
        return
    if "torch" not in sys.modules:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        return
    held = Event()
    Thread(target=_hold_a_team, args=(held,), name="howsmooth-idle-team", daemon=True).start()
    # An interpreter that ends while a thread is inside of torch is aborted; what follows is a wait in Python.
    held.wait(timeout=5.0)


def _hold_a_team(held: Event) -> None:
    """Start a team of OpenMP threads with this thread as its first, and keep it."""
    import torch

    try:
        torch.zeros(1 << 18).add_(1)  # large enough to be shared among threads
    finally:
        held.set()
    Event().wait()
