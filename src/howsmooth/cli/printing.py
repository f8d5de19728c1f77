"""What goes to standard output as JSON, and how messages are kept to one line."""

import functools
from typing import TYPE_CHECKING, Any

import typer

from howsmooth.strict import strict_json
from howsmooth.wording import visible

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
