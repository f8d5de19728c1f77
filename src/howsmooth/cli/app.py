"""The command line: parse, call, print. Nothing heavy is imported before a command runs."""

import io
import sys
import warnings
from typing import Annotated

import typer

from howsmooth import __version__
from howsmooth.cli.bounds import bounds
from howsmooth.cli.demo import demo
from howsmooth.cli.export import export
from howsmooth.cli.figure import figure
from howsmooth.cli.measure import measure
from howsmooth.cli.models import models
from howsmooth.cli.paper import paper
from howsmooth.cli.regimes import regimes
from howsmooth.cli.report import report
from howsmooth.cli.runs import runs, show
from howsmooth.cli.split import split
from howsmooth.cli.sweep import sweep
from howsmooth.cli.worst_case import worst_case
from howsmooth.errors import HowsmoothError

app = typer.Typer(
    help="How smooth is attention? Measure, bound and attack its Lipschitz constant.\n\nExample: howsmooth measure",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(measure)
app.command()(sweep)
app.command()(paper)
app.command()(runs)
app.command()(show)
app.command()(report)
app.command()(figure)
app.command()(export)
app.command()(models)
app.command()(demo)
app.command()(bounds)
app.command("worst-case")(worst_case)
app.command()(split)
app.command()(regimes)


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
    typer.echo(f"howsmooth: {message}", err=True)


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ≤ shows a question mark
    warnings.showwarning = _show_warning
    try:
        app()
    except HowsmoothError as error:
        typer.echo(f"howsmooth: {error}", err=True)
        sys.exit(2)
