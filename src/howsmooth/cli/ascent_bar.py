"""How far a gradient ascent is, on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from howsmooth.wording import at_least

Progress = Callable[[int, float], None]


@contextmanager
def ascent_bar(wanted: bool, steps: int | None = None) -> Iterator[Progress | None]:
    """Show the best value so far on standard error, if a search runs and someone is looking."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("ascent", total=steps)

        def show(step: int, best: float) -> None:
            bar.update(task, completed=step, description=f"ascent, step {step}: Lip ≥ {at_least(best)}")

        yield show
