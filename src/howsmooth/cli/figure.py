"""``howsmooth figure``: one picture of a run as a file."""

from typing import Annotated

import typer

from howsmooth.cli.printing import say


def figure(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="As the report names it, or a part of that: length.")],
    output: Annotated[
        str, typer.Option("-o", "--out", "--output", metavar="FILE", help="Where it goes: .svg, .pdf, .png or .html.")
    ],
    layer: Annotated[
        int | None, typer.Option("--layer", help="Which layer, for figures of one layer; the least smooth by default.")
    ] = None,
    linear: Annotated[bool, typer.Option("--linear", help="Linear axes in place of logarithmic ones.")] = False,
) -> None:
    """Draw one figure of a run.

    Example: howsmooth figure runs/minilm-attention-1a2b3c constant_against_length -o growth.pdf
    """
    from howsmooth.report.saving import checked_target

    target = checked_target(output)

    from howsmooth.report.drawing.scales import straightened
    from howsmooth.report.figures import draw
    from howsmooth.report.saving import save_chart
    from howsmooth.studies.runs.reading import read_run

    chart = draw(read_run(run), name, layer=layer)
    save_chart(straightened(chart) if linear else chart, target)
    say(f"{name} is in {target}.")
