"""The command line: parse, call, print. Nothing heavy is imported before a command runs."""

import sys
from typing import Annotated

import typer

from howsmooth import __version__
from howsmooth.cli.demo import demo
from howsmooth.errors import HowsmoothError

app = typer.Typer(
    help="How smooth is attention? Measure, bound and attack its Lipschitz constant.\n\nExample: howsmooth demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)


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


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except HowsmoothError as error:
        typer.echo(f"howsmooth: {error}", err=True)
        sys.exit(2)
