"""``howsmooth compare``: two runs side by side."""

from typing import Annotated

import typer

from howsmooth.cli.options import OptionJson
from howsmooth.cli.printing import say, visible_console
from howsmooth.errors import AssumptionError


def _checked_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise AssumptionError(f"--confidence must lie between 0 and 1, got {confidence}.", field="confidence")
    return confidence


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN1", help="The folder of a run: what ratios are relative to.")],
    second: Annotated[str, typer.Argument(metavar="RUN2", help="The folder of the run to compare with it.")],
    part: Annotated[
        str | None, typer.Option("--map", help="Which part of the layers, where runs hold several; all by default.")
    ] = None,
    per_head: Annotated[bool, typer.Option("--per-head", help="Compare every head by itself too.")] = False,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence", help="The probability that all intervals hold together.", callback=_checked_confidence
        ),
    ] = 0.95,
    output: Annotated[
        str | None,
        typer.Option("-o", "--out", "--output", metavar="FILE", help="Draw it: .svg, .pdf, .png or .html."),
    ] = None,
    as_json: OptionJson = False,
) -> None:
    """Compare two runs: how many times larger the constants of each layer are in the second, and what of it is real.

    Windows of the same tokens are compared each with itself; other texts as two independent samples.

    Example: howsmooth compare runs/original runs/quantised -o ratios.svg
    """
    from howsmooth.report.saving import checked_target

    target = None if output is None else checked_target(output)

    from howsmooth.studies.runs.compare import compare as find

    found = find(first, second, map=part, per_head=per_head, confidence=confidence)
    if target is not None:
        from howsmooth.report.saving import save_chart

        save_chart(found.chart(), target)
    if as_json:
        typer.echo(found.to_json())
    else:
        visible_console().print(found)
    if target is not None:
        say(f"Drawn in {target}.", err=as_json)
