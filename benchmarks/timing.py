"""Fair timing on a noisy machine: candidates take turns, and the fastest turn of each counts."""

import time
from collections.abc import Callable, Mapping


def best_times(
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    least: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Run the candidates in turn for so many seconds, at least ``least`` times each; return the minima in seconds."""
    for run in candidates.values():
        run()
    best = dict.fromkeys(candidates, float("inf"))
    rounds, stop = 0, time.perf_counter() + seconds
    while rounds < least or time.perf_counter() < stop:
        for name, run in candidates.items():
            start = clock()
            run()
            best[name] = min(best[name], clock() - start)
        rounds += 1
    return best
