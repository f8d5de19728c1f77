"""How far a sweep is, on a terminal: done, failed, left, the rate, and the time that is left."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from howsmooth.studies.sweep import Progress, Tally


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """Show a bar on standard error while there is a terminal to show it on."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(), TextColumn("left:"))
    bar = Progress(
        *columns,
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        work = bar.add_task("", total=1.0)
        began, before = bar.get_time(), -1

        def show(tally: "Tally") -> None:
            nonlocal began, before
            finished = tally.done + tally.failed
            if before < 0:  # what an earlier run did was not done at this rate
                began, before = bar.get_time(), finished
            rate = (finished - before) / max(bar.get_time() - began, 1e-9)
            failed = f", {tally.failed} failed" if tally.failed else ""
            text = f"{tally.done} done{failed}, {tally.left} left, {rate:.3g}/s · {tally.last}"
            bar.update(work, completed=tally.share, description=text)

        yield show
