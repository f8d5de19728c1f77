"""How far a sweep is: a bar on a terminal and in a notebook, and a line now and then where there is neither."""

import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

from howsmooth.studies.sweep.sweep import Progress, Tally
from howsmooth.wording import duration

# On narrower terminals the bar leaves, and then the words: the time that is left is what people look for.
WIDE, MEDIUM = 100, 70
# How many seconds lie between two lines, where there is no terminal.
EVERY = 30.0


@contextmanager
def watching() -> Iterator[Progress]:
    """Show how far a sweep is while it runs, as well as the place allows: on standard error, or in a notebook."""
    console = Console(stderr=True)
    place = _on_a_terminal(console) if console.is_terminal else _in_lines(EVERY)
    with _in_a_notebook() if console.is_jupyter else place as show:
        yield show


class _Clock:
    """What was done since the first report, and how long the rest takes at this rate."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.tally: Tally | None = None
        self._first: tuple[float, Tally] | None = None
        self._last = self.began

    def note(self, tally: Tally) -> None:
        # what an earlier run did was not done at this rate
        self._last = time.monotonic()
        self._first = self._first or (self._last, tally)
        self.tally = tally

    @property
    def left(self) -> float | None:
        """How many seconds are left; none as long as nobody knows.

        Between reports it counts down, until the piece of work at hand has taken as long as was left to all of it:
        then as long again.
        """
        if self._first is None or self.tally is None:
            return None
        when, first = self._first
        done, since = self.tally.share - first.share, time.monotonic() - self._last
        return max((self._last - when) * (1 - self.tally.share) / done - since, since) if done > 0 else None

    @property
    def rate(self) -> float:
        """How many asks are done in a second."""
        if self._first is None or self.tally is None:
            return 0.0
        when, first = self._first
        return (self.tally.finished - first.finished) / max(time.monotonic() - when, 1e-9)


@contextmanager
def _on_a_terminal(console: Console) -> Iterator[Progress]:
    words = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    bar = Bar(
        TextColumn("{task.percentage:>3.0f} %"),
        *([BarColumn(bar_width=24)] if console.width >= WIDE else []),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
        *([words] if console.width >= MEDIUM else []),
        console=console,
        transient=True,
        expand=True,
    )
    clock = _Clock()
    with bar:
        work = bar.add_task("", total=1.0)

        def show(tally: Tally) -> None:
            clock.note(tally)
            pace = f", {clock.rate:.3g}/s · {tally.last}" if tally.last else ""
            text = f"{tally.done} done{tally.failures}, {tally.left} left{pace}"
            bar.update(work, completed=tally.share, description=text)

        yield show


@contextmanager
def _in_lines(every: float) -> Iterator[Progress]:
    """Print a line now and then, also while one long piece of work goes on: a thread of its own keeps the time."""
    clock, over = _Clock(), threading.Event()

    def talk() -> None:
        while not over.wait(every):
            print(line(clock), file=sys.stderr, flush=True)

    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    try:
        yield clock.note
    finally:
        over.set()
        talking.join()


def line(clock: _Clock) -> str:
    """Say in one plain line how far the work is."""
    so_far = f"{duration(time.monotonic() - clock.began)} so far"
    tally = clock.tally
    if tally is None:
        return f"howsmooth: at the first piece of work, {so_far}"
    rest = "" if clock.left is None else f", about {duration(clock.left)} left"
    done = f"{tally.finished} of {tally.finished + tally.left} done{tally.failures}"
    return f"howsmooth: {done}, {so_far}{rest}" + (f"; last {tally.last}" if tally.last else "")


@contextmanager
def _in_a_notebook() -> Iterator[Progress]:
    """Draw a bar where the cell prints: a widget, or text where there are none; rich draws widgets alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are no widgets
        from tqdm.auto import tqdm
    clock = _Clock()
    with tqdm(total=1.0, bar_format="{percentage:3.0f} %{bar}{desc}") as bar:

        def show(tally: Tally) -> None:
            clock.note(tally)
            bar.set_description_str(line(clock).removeprefix("howsmooth: "), refresh=not tally.left)
            bar.update(tally.share - bar.n)

        yield show


def shown_by(given: Progress | bool | None) -> Any:
    """Return what to call after each step, as a context: what was given, a bar if one was asked for, or nothing."""
    return watching() if given is True else nullcontext(given or None)
