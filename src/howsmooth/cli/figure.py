"""``howsmooth figure``: one picture of a run as a file."""

from typing import Annotated

import typer

NAMES = (
    "constant_against_length",
    "constant_against_radius",
    "layers_by_length",
    "heads_by_layer",
    "bounds_ladder",
    "sensitive_tokens",
)


def figure(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(NAMES)}, or as the report names it.")],
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
    from howsmooth.report.drawings import chart_named
    from howsmooth.report.saving import checked_target, save_chart
    from howsmooth.report.scales import straightened
    from howsmooth.studies.reading import read_run

    target = checked_target(output)
    chart = chart_named(read_run(run), name, layer)
    save_chart(straightened(chart) if linear else chart, target)
    typer.echo(f"{name} is in {target}.")
