"""``howsmooth report``: a run as one page to read, share and print."""

from typing import Annotated

import typer

from howsmooth.cli.printing import say


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")],
    output: Annotated[
        str | None,
        typer.Option("-o", "--out", "--output", metavar="FILE", help="Where it goes; RUN/report.html by default."),
    ] = None,
) -> None:
    """Write one HTML file with the answer, the pictures and how to read them; it needs no network.

    Example: howsmooth report runs/minilm-attention-1a2b3c
    """
    from howsmooth.report.page import write_report

    say(f"The report is {write_report(run, output)}.")
