"""``howsmooth regimes``: how the worst constant grows with the number of tokens, and where it stops."""

from typing import Annotated

import typer

from howsmooth.cli.bounds import OptionJson
from howsmooth.cli.matrices import (
    OptionA,
    OptionKey,
    OptionOutput,
    OptionQuery,
    OptionScale,
    OptionV,
    OptionValue,
    Weights,
)
from howsmooth.cli.split import OptionFigure
from howsmooth.errors import AssumptionError

DEFAULT = "3,10,30,100,300,1000,3000,10000,30000,100000"


def regimes(
    radius: Annotated[float, typer.Option("--radius", "-r", help="The radius of the ball.")],
    A: OptionA = None,
    V: OptionV = None,
    query: OptionQuery = None,
    key: OptionKey = None,
    value: OptionValue = None,
    output: OptionOutput = None,
    scale: OptionScale = None,
    lengths: Annotated[str, typer.Option("--lengths", help="Numbers of tokens, with commas.")] = DEFAULT,
    as_json: OptionJson = False,
    figure: OptionFigure = None,
) -> None:
    """Find the worst constants of one head in a ball against the number of tokens, with their bounds.

    Example: howsmooth regimes --A heads.npz:A --radius 2 --figure regimes.svg
    """
    if figure is not None:
        from howsmooth.report.saving import checked_target

        checked_target(figure)
    numbers = _whole_numbers(lengths)
    attention = Weights(A=A, V=V, query=query, key=key, value=value, output=output, scale=scale).read()
    from howsmooth.search.regimes import regimes as find

    found = find(attention, radius, numbers)
    if figure is not None:
        from howsmooth.report.charts import regimes_chart
        from howsmooth.report.saving import save_chart

        save_chart(regimes_chart(found), figure)
    if as_json:
        typer.echo(found.to_json())
    else:
        plateau = f"on measures it is at least {found.lower.digits}"
        typer.echo(f"The constant stops growing near n = {found.crossing:.4g}; {plateau}.")
        for row in found.rows:
            typer.echo(f"n = {row.n:>9}   {row.found:>11.5g} ≤ Lip ≤ {row.upper.digits}")
    if figure is not None:
        typer.echo(f"Drawn in {figure}.", err=True)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise AssumptionError(f"--lengths needs whole numbers, as in 10,100,1000, got {text!r}.") from error
