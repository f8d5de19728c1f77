"""The engine adds less than 2 ms to a task, and two worker processes do small tasks 1.7 times faster than one."""

import time
from collections.abc import Sequence
from dataclasses import replace

from claims import quick, verdict

from howsmooth.models.text import read_text
from howsmooth.studies.store import Store
from howsmooth.studies.sweep import Executor, sweep
from howsmooth.studies.tasks import Task
from howsmooth.studies.workers import executor


def tiny(count: int) -> list[Task]:
    """Theorems for a head on the line: about a millisecond each."""
    return [
        Task(kind="bounds", A=((-1.0,),), V=((1.0,),), length=8, radius=1.0 + i / count, seed=i) for i in range(count)
    ]


def small(windows: int, lengths: Sequence[int]) -> list[Task]:
    """Windows of Alice through MiniLM, one layer and map after the other."""
    text = read_text()
    return [
        Task(model="minilm", text=text.name, digest=text.digest, layer=layer, map=part, length=n, window=window)
        for layer in range(6)
        for part in ("attention", "residual")
        for n in lengths
        for window in range(windows)
    ]


def overhead(tasks: Sequence[Task], folder: str) -> float:
    """Return the seconds for each task that are not spent on the task itself."""
    with Store(folder) as store, executor() as execute:
        sweep(tasks[:1], Store(None), execute=execute)  # what is imported on first use
        started = time.perf_counter()
        sweep(tasks, store, execute=execute)
        wall = time.perf_counter() - started
        return (wall - sum(record.seconds for record in store.records())) / len(tasks)


def seconds(tasks: Sequence[Task], execute: Executor) -> float:
    with Store(None) as store:
        started = time.perf_counter()
        tally = sweep(tasks, store, execute=execute)
        assert not tally.failed
        return time.perf_counter() - started


def main() -> None:
    import tempfile

    fast = quick(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        extra = overhead(tiny(20 if fast else 500), folder)
    print(f"overhead of the engine: {1e3 * extra:.2f} ms for each task")
    tasks = small(2, (8,)) if fast else small(10, (16, 32, 64))
    warm_up = [replace(task, seed=1) for task in tasks if task.length == tasks[0].length]
    times = {}
    for workers in (0, 2):
        with executor(workers=workers) as execute:
            seconds(warm_up, execute)  # every worker loads the model once
            times[workers] = min(seconds(tasks, execute) for _ in range(1 if fast else 3))
        print(f"{workers or 1} process{'es' if workers else ''}: {times[workers]:6.2f} s for {len(tasks)} tasks")
    ratio = times[0] / times[2]
    print(f"speed-up {ratio:.2f}")
    verdict(
        {"less than 2 ms for each task": extra < 2e-3, "at least 1.7 times faster with two": ratio >= 1.7}, quick=fast
    )


if __name__ == "__main__":
    main()
