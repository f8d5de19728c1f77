"""The command line: parse, call, print. Nothing heavy is imported before a command runs."""

import io
import sys
import warnings
from typing import Annotated

import typer

from howsmooth import __version__
from howsmooth.cli.commands import COMMANDS, Commands, listed
from howsmooth.cli.printing import one_line, say
from howsmooth.cli.reach import too_large
from howsmooth.errors import HowsmoothError

MISUSE = 2

app = typer.Typer(
    cls=Commands,
    help="How smooth is attention? Measure, bound and attack its Lipschitz constant.\n\nExample: howsmooth measure",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name in COMMANDS:
    app.command(name)(listed(name))


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"howsmooth {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options that come before a command."""


def _show_warning(message: Warning | str, *_where: object, **_place: object) -> None:
    """Say what a warning says, not where in the code it was raised."""
    say(f"howsmooth: {message}", err=True)


def run() -> None:
    """Run the command line; a mistake, or more than the machine can do, ends in one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ≤ shows a question mark
    warnings.showwarning = _show_warning
    try:
        app(prog_name="howsmooth")
    except HowsmoothError as error:
        _refuse(str(error))
    except OSError as error:
        if error.filename is None:
            raise  # of a stream and not of a file, as when nobody reads what is printed
        _refuse(f"{error.filename!r} cannot be used: {error.strerror}.")
    except (MemoryError, OverflowError, RuntimeError) as error:  # RecursionError is a RuntimeError
        sentence = too_large(error)
        if sentence is None:
            raise
        _refuse(sentence)


def _refuse(sentence: str) -> None:
    say(f"howsmooth: {one_line(sentence)}", err=True)
    sys.exit(MISUSE)
