"""What goes to standard output and standard error: JSON, lines, rich tables, and how far an ascent is."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from howsmooth.strict import strict_json
from howsmooth.wording import at_least, visible

if TYPE_CHECKING:
    from rich.console import Console


LONGEST = 600


def print_json(data: Any) -> None:
    """Print one JSON value; a number without end becomes null, since JSON has no infinity."""
    typer.echo(strict_json(data))


def say(text: str, *, err: bool = False) -> None:
    """Print a line; what a terminal would obey in place of showing it is written by its number."""
    typer.echo(visible(text), err=err)


@functools.cache
def _console_class() -> Any:
    """Return a rich console that obeys nothing of what it is given to show."""
    from rich.console import Console

    class VisibleConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

    return VisibleConsole


def visible_console(**options: Any) -> "Console":
    """Return a console for results that show themselves: names in them are no markup and no commands."""
    return _console_class()(highlight=False, markup=False, **options)


def one_line(text: str) -> str:
    r"""Bring a message to one line, without the middle of what is too long to read.

    Example:
        >>> one_line("two\nlines")
        'two lines'
    """
    line = visible(" ".join(text.splitlines()))
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}"


AscentProgress = Callable[[int, float], None]


@contextmanager
def ascent_bar(wanted: bool, steps: int | None = None) -> Iterator[AscentProgress | None]:
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
