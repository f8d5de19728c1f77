"""``howsmooth bounds`` and ``howsmooth regimes``: what is proven about one layer, for n tokens, and as n grows."""

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

import howsmooth as hs
from howsmooth.cli.array_files import require_writable, save_witness
from howsmooth.cli.layer import LayerSource
from howsmooth.cli.memory_errors import require_range, require_room, within_reach
from howsmooth.cli.options import (
    LENGTH,
    OptionFigure,
    OptionJson,
    OptionMetric,
    OptionN,
    OptionRadius,
    OptionSave,
    OptionSearch,
    option_groups,
    whole_numbers,
)
from howsmooth.cli.printing import ascent_bar, go_on, print_json, visible_console
from howsmooth.report.saving import save_chart
from howsmooth.search.mechanisms import COUNTING, is_plain_softmax, require_count
from howsmooth.wording import at_least, number, percent

if TYPE_CHECKING:
    from rich.table import Table

    from howsmooth.search.length_regimes import Regime, Regimes
    from howsmooth.theory.results import BoundsTable, Bracket, Witness


@option_groups
def bounds(
    *,
    source: LayerSource,
    n: OptionN,
    radius: OptionRadius,
    metric: OptionMetric = "total",
    search: OptionSearch = False,
    as_json: OptionJson = False,
    save: OptionSave = None,
) -> None:
    """Bound the Lipschitz constant of attention on n tokens in a ball: every theorem, and a measured input.

    Of a layer of a model, or of weights in a file.

    Example: howsmooth bounds minilm --layer 4 --map head:3 -n 64 -r 9
    """
    source.check()
    require_room(n)
    if save is not None:
        require_writable(save, source.paths)
    attention = source.read()
    require_room(n, attention.d)

    from howsmooth.search.ascent import STEPS
    from howsmooth.search.brackets import bracket_below
    from howsmooth.theory.tables import smallest_in

    go_on("Applying every theorem")
    with within_reach(n, radius):
        ladder = hs.bounds.table(attention, n=n, radius=radius, metric=metric)
        go_on("Looking for the worst input")
        with ascent_bar(search or not is_plain_softmax(attention), STEPS) as progress:
            bracket = bracket_below(
                smallest_in(ladder, n=n, radius=radius),
                attention,
                n=n,
                radius=radius,
                search=search,
                metric=metric,
                progress=progress,
            )
        require_range(bracket.lower)
        if as_json:
            found = {"bracket": json.loads(bracket.to_json())} | json.loads(ladder.to_json())
            about = {"n": n, "radius": radius, "metric": metric, "causal": attention.positions.causal}
            print_json(found | about)
        else:
            _print_ladder(repr(attention), ladder, bracket, bracket.upper.domain)
    if save is not None:
        save_witness(bracket.lower, save, source.about, quiet=as_json)


def _print_ladder(attention: str, ladder: "BoundsTable", bracket: "Bracket", domain: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from howsmooth.theory.results import label_of

    console = visible_console()
    ratio = f" (ratio {number(bracket.ratio)})" if bracket.ratio < 1000 else ""
    answer = f"{at_least(bracket.lower.value)} ≤ Lip ≤ {bracket.upper.digits} on {domain}{ratio}"
    console.print(answer, style="bold", soft_wrap=True)
    console.print(attention, soft_wrap=True)
    console.print()
    console.print(_bounds_table(ladder, bracket.lower, domain))
    if ladder.refused:
        console.print("\nDo not apply:", style="dim")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column()
        for refused in ladder.refused:
            table.add_row(Text(label_of(refused.name)), Text(refused.reason), style="dim")
        console.print(table)


def _bounds_table(ladder: "BoundsTable", witness: "Witness", domain: str) -> "Table":
    """Show every bound and the measured input, from the lowest to the highest."""
    from rich.table import Table
    from rich.text import Text

    from howsmooth.theory.results import Side

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("bound")
    table.add_column("Lip", no_wrap=True, justify="right")
    table.add_column("what it is worth")
    log_value = math.log(witness.value) if witness.value > 0 else -math.inf
    measured = (witness.label, f"{Side.LOWER} {at_least(witness.value)}", "measured at a stored input")
    # sorted is stable: of two equal values the measured one comes after the theorem that it confirms
    rows = []
    for bound in ladder.bounds:
        elsewhere = "" if bound.domain == domain else f"; on {bound.domain}"
        probably = "" if bound.confidence == 1 else f", with probability {percent(bound.confidence)}"
        cells = bound.label, f"{bound.side} {bound.digits}", f"{bound.source}{probably}{elsewhere}"
        rows.append(((bound.side is Side.UPPER, bound.log_value), cells, ""))
    rows.append(((False, log_value), measured, "bold green"))
    for _place, cells, style in sorted(rows, key=lambda row: row[0]):
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


LENGTHS = "3,10,30,100,300,1000,3000,10000,30000,100000"
# Fewer tokens have no place for the inputs that are compared.
LEAST = 3


@option_groups
def regimes(
    *,
    source: LayerSource,
    radius: OptionRadius,
    lengths: Annotated[str, typer.Option(*LENGTH, metavar="3,10,…", help="How many tokens.")] = LENGTHS,
    count: Annotated[
        float | None,
        typer.Option("--count", help=f"How many tokens unit mass represents, with --kind {' or '.join(COUNTING)}."),
    ] = None,
    as_json: OptionJson = False,
    figure: OptionFigure = None,
) -> None:
    """Find the worst constants of one head in a ball against the number of tokens, with their bounds.

    Attention of another kind is searched, below the bound for so many tokens.

    Example: howsmooth regimes head.npz --radius 2 --figure regimes.svg
    """
    source.check()
    numbers = whole_numbers(lengths, "--lengths", least=LEAST)
    require_count(source.kind, count)
    attention = source.read()

    from howsmooth.search.mean_field_context import counting

    found = hs.regimes(attention if count is None else counting(attention, count), radius, numbers)
    if figure is not None:
        from howsmooth.report.charts.transition import regimes_chart

        save_chart(regimes_chart(found), figure)
    if as_json:
        print_json(json.loads(found.to_json()))
    else:
        _print_regimes(found)
    if figure is not None:
        typer.echo(f"Drawn in {figure}.", err=True)


def _print_regimes(found: "Regimes") -> None:
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
    rising = [row for row in found.rows if found.crossing is None or row.n <= found.crossing]
    if len(rising) > 1 and 0 < rising[0].found < math.inf and rising[0].n < rising[-1].n:
        first, last = rising[0], rising[-1]
        power, before = _power(first, last), rising[-2]
        late = f", from {number(before.n, 4)} on like n^{_power(before, last):.2f}" if len(rising) > 2 else ""
        typer.echo(f"From n = {sizes[0]} to {number(last.n, 4)} the largest found grows like n^{power:.2f}{late}.")


def _power(first: "Regime", last: "Regime") -> float:
    return math.log(last.found / first.found) / math.log(last.n / first.n)
