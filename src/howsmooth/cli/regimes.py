"""``howsmooth regimes``: how the worst constant grows with the number of tokens, and where it stops."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.layer import LayerSource, takes_a_layer
from howsmooth.cli.numbers import whole_numbers
from howsmooth.cli.options import OptionFigure, OptionJson, OptionRadius
from howsmooth.cli.printing import print_json
from howsmooth.search.mechanisms import COUNTING, require_count
from howsmooth.wording import at_least, number

if TYPE_CHECKING:
    from howsmooth.search.regimes import Regimes

LENGTHS = "3,10,30,100,300,1000,3000,10000,30000,100000"
# Fewer tokens have no place for the inputs that are compared.
LEAST = 3


@takes_a_layer
def regimes(
    *,
    source: LayerSource,
    radius: OptionRadius,
    lengths: Annotated[str, typer.Option("--lengths", help="Numbers of tokens, with commas.")] = LENGTHS,
    count: Annotated[
        float | None,
        typer.Option("--count", help=f"How many tokens all mass stands for, with --kind {' or '.join(COUNTING)}."),
    ] = None,
    as_json: OptionJson = False,
    figure: OptionFigure = None,
) -> None:
    """Find the worst constants of one head in a ball against the number of tokens, with their bounds.

    Attention of another kind is searched, below the bound for so many tokens.

    Example: howsmooth regimes --A heads.npz:A --radius 2 --figure regimes.svg
    """
    source.check()
    numbers = whole_numbers(lengths, "--lengths", least=LEAST)
    require_count(source.kind, count)
    attention = source.read()

    from howsmooth.search.mean_field_context import counting
    from howsmooth.search.regimes import regimes as find

    found = find(attention if count is None else counting(attention, count), radius, numbers)
    if figure is not None:
        from howsmooth.report.charts.regimes import regimes_chart
        from howsmooth.report.saving import save_chart

        save_chart(regimes_chart(found), figure)
    if as_json:
        print_json(json.loads(found.to_json()))
    else:
        _print(found)
    if figure is not None:
        typer.echo(f"Drawn in {figure}.", err=True)


def _print(found: "Regimes") -> None:
    if found.crossing is None or found.lower is None:
        typer.echo("The largest constants that a search found; where they stop growing no theorem says.")
    else:
        plateau = f"on measures it is at least {found.lower.digits}"
        typer.echo(f"The constant stops growing near n = {number(found.crossing, 4)}; {plateau}.")
    sizes = [number(row.n, 4) for row in found.rows]
    values = [at_least(row.found) for row in found.rows]
    for size, value, row in zip(sizes, values, found.rows, strict=True):
        left = f"n = {size:>{max(map(len, sizes))}}   {value:>{max(map(len, values))}}"
        typer.echo(f"{left} ≤ Lip ≤ {row.upper.digits}")
