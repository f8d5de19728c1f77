"""The engine adds less than 2 ms to an ask, and two worker processes do small ones 1.7 times faster than one."""

import time
from collections.abc import Sequence

from claims import quick, verdict
from msgspec.structs import replace

from howsmooth.models.inputs.text import read_text
from howsmooth.studies.asks import Ask
from howsmooth.studies.kinds.text import TextAsk
from howsmooth.studies.kinds.tokens_in_ball import BoundsAsk
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import Solver, Windows
from howsmooth.studies.sweep.sweep import Executor, sweep
from howsmooth.studies.sweep.workers import executor


def tiny(count: int) -> list[Ask]:
    """Theorems for a head on the line: about a millisecond each."""
    return [
        BoundsAsk(A=((-1.0,),), V=((1.0,),), length=8, radius=1.0 + i / count, solver=Solver(seed=i))
        for i in range(count)
    ]


def small(windows: int, lengths: Sequence[int], layers: int = 6) -> list[TextAsk]:
    """Windows of Alice through MiniLM, one layer and map after the other."""
    every = [*Windows(lengths=tuple(lengths), sequences=windows).each(read_text().digest)]
    return [
        TextAsk(model="minilm", layer=layer, map=part, window=window)
        for layer in range(layers)
        for part in ("attention", "residual")
        for window in every
    ]


def overhead(asks: Sequence[Ask], folder: str) -> float:
    """Return the seconds for each ask that are not spent on answering it."""
    with Store(folder) as store, executor() as execute:
        sweep(asks[:1], Store(None), execute=execute)  # what is imported on first use
        started = time.perf_counter()
        sweep(asks, store, execute=execute)
        wall = time.perf_counter() - started
        return (wall - sum(record.seconds for record in store.records())) / len(asks)


def seconds(asks: Sequence[Ask], execute: Executor) -> float:
    with Store(None) as store:
        started = time.perf_counter()
        tally = sweep(asks, store, execute=execute)
        assert not tally.failed
        return time.perf_counter() - started


def main() -> None:
    import tempfile

    fast = quick(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        extra = overhead(tiny(5 if fast else 500), folder)
    print(f"overhead of the engine: {1e3 * extra:.2f} ms for each ask")
    asks = small(1, (4,), layers=1) if fast else small(10, (16, 32, 64))
    warm_up = [replace(ask, solver=Solver(seed=1)) for ask in asks if ask.length == asks[0].length]
    times = {}
    for workers in (0,) if fast else (0, 2):  # starting processes takes longer than all the rest of the smallest size
        with executor(workers=workers) as execute:
            seconds(warm_up, execute)  # every worker loads the model once
            times[workers] = min(seconds(asks, execute) for _ in range(1 if fast else 3))
        print(f"{workers or 'no'} worker{'s' if workers > 1 else ''}: {times[workers]:6.2f} s for {len(asks)} asks")
    ratio = times[0] / times[max(times)]
    print(f"speed-up {ratio:.2f}")
    verdict(
        {"less than 2 ms for each ask": extra < 2e-3, "at least 1.7 times faster with two": ratio >= 1.7}, quick=fast
    )


if __name__ == "__main__":
    main()
