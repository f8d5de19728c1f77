"""What goes to standard output as JSON, and how messages are kept to one line."""

from typing import Any

import typer

from howsmooth.strict import strict_json

LONGEST = 600


def print_json(data: Any) -> None:
    """Print one JSON value; a number without end becomes null, since JSON has no infinity."""
    typer.echo(strict_json(data))


def one_line(text: str) -> str:
    r"""Bring a message to one line, without the middle of what is too long to read.

    Example:
        >>> one_line("two\nlines")
        'two lines'
    """
    line = " ".join(text.splitlines())
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}"
