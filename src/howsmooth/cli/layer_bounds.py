"""``howsmooth bounds`` and ``howsmooth regimes``: what is proven about one layer, for n tokens, and as n grows."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

import howsmooth as hs
from howsmooth.cli.array_files import require_writable, save_witness
from howsmooth.cli.kept_answers import answer_file, keep_answer, kept_answer
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
from howsmooth.cli.printing import ascent_bar, go_on, print_json, say, visible_console
from howsmooth.markup import strict_json
from howsmooth.report.saving import save_chart
from howsmooth.search.mechanisms import COUNTING, is_plain_softmax, require_count
from howsmooth.studies.json_values import JsonValue
from howsmooth.wording import at_least, number, percent

if TYPE_CHECKING:
    from howsmooth.maps.heads import MultiHead
    from howsmooth.search.length_regimes import Regime, Regimes
    from howsmooth.theory.results import BoundsTable, Bracket


class PrintedBounds(JsonValue, frozen=True, kw_only=True):
    """What ``bounds`` prints, as JSON and in words."""

    document: str  # what --json prints
    line: str  # the bracket in one line
    attention: str  # what it is about
    # the name of each bound, its side and value, and what it is worth; from the lowest to the highest
    rows: tuple[tuple[str, str, str], ...]
    measured: int  # the index of the measured input among them
    refused: tuple[tuple[str, str], ...]  # the names of theorems that do not apply, and why

    @classmethod
    def of(
        cls, attention: "MultiHead", ladder: "BoundsTable", bracket: "Bracket", about: dict[str, Any]
    ) -> "PrintedBounds":
        """Write down what was found."""
        from howsmooth.theory.results import Side, label_of

        witness, domain = bracket.lower, bracket.upper.domain
        log_value = math.log(witness.value) if witness.value > 0 else -math.inf
        measured = (witness.label, f"{Side.LOWER} {at_least(witness.value)}", "measured at a stored input")
        # sorted is stable: of two equal values the measured one comes after the theorem that it confirms
        rows = []
        for bound in ladder.bounds:
            elsewhere = "" if bound.domain == domain else f"; on {bound.domain}"
            probably = "" if bound.confidence == 1 else f", with probability {percent(bound.confidence)}"
            cells = bound.label, f"{bound.side} {bound.digits}", f"{bound.source}{probably}{elsewhere}"
            rows.append(((bound.side is Side.UPPER, bound.log_value), cells))
        rows.append(((False, log_value), measured))
        ordered = tuple(cells for _place, cells in sorted(rows, key=lambda row: row[0]))
        ratio = f" (ratio {number(bracket.ratio)})" if bracket.ratio < 1000 else ""
        found = {"bracket": json.loads(bracket.to_json())} | json.loads(ladder.to_json())
        return cls(
            document=strict_json(found | about),
            line=f"{at_least(witness.value)} ≤ Lip ≤ {bracket.upper.digits} on {domain}{ratio}",
            attention=repr(attention),
            rows=ordered,
            measured=ordered.index(measured),
            refused=tuple((label_of(refused.name), refused.reason) for refused in ladder.refused),
        )

    def print(self, *, as_json: bool) -> None:
        """Print it, as JSON or for a reader."""
        if as_json:
            typer.echo(self.document)
            return
        from rich.table import Table
        from rich.text import Text

        console = visible_console()
        console.print(self.line, style="bold", soft_wrap=True)
        console.print(self.attention, soft_wrap=True)
        console.print()
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("bound")
        table.add_column("Lip", no_wrap=True, justify="right")
        table.add_column("what it is worth")
        for index, cells in enumerate(self.rows):
            table.add_row(*map(Text, cells), style="bold green" if index == self.measured else "")
        console.print(table)
        if self.refused:
            console.print("\nDo not apply:", style="dim")
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column()
            for name, reason in self.refused:
                table.add_row(Text(name), Text(reason), style="dim")
            console.print(table)


@option_groups
def bounds(
    *,
    source: LayerSource,
    n: OptionN,
    radius: OptionRadius,
    metric: OptionMetric = "total",
    search: OptionSearch = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Compute it anew, and keep nothing in the cache folder.")
    ] = False,
    as_json: OptionJson = False,
    save: OptionSave = None,
) -> None:
    """Bound the Lipschitz constant of attention on n tokens in a ball: every theorem, and a measured input.

    Of a layer of a model, or of weights in a file. The answer is kept in a cache folder, and found again as long as
    nobody writes to the weights.

    Example: howsmooth bounds minilm --layer 4 --map head:3 -n 64 -r 9
    """
    source.check()
    require_room(n)
    if save is not None:
        require_writable(save, source.paths)
    question = ["bounds", asdict(source), n, radius, metric, search]
    file = None if no_cache else answer_file(source.model or "", question)
    # the input itself is not kept
    if save is None and (before := kept_answer(file, PrintedBounds)) is not None:
        say("Computed before, and found again; --no-cache computes it anew.", err=True)
        before.print(as_json=as_json)
        return
    attention = source.read()
    require_room(n, attention.d)

    from howsmooth.search.ascent import STEPS
    from howsmooth.search.brackets import bracket_below
    from howsmooth.spectral.estimates import Status
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
        about = {"n": n, "radius": radius, "metric": metric, "causal": attention.positions.causal}
        answer = PrintedBounds.of(attention, ladder, bracket, about)
    # Not what came with a warning, which nobody would see again; nor if somebody has written to the weights meanwhile.
    converged = bracket.lower.measured.status not in (Status.MAX_STEPS, Status.INCONSISTENT)
    if file is not None and converged and file == answer_file(source.model or "", question):
        keep_answer(file, answer)
    answer.print(as_json=as_json)
    if save is not None:
        save_witness(bracket.lower, save, source.about, quiet=as_json)


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
    typer.echo(found.sentence)
    sizes = [number(row.n, 4) for row in found.rows]
    values = [at_least(row.found) for row in found.rows]
    for size, value, row in zip(sizes, values, found.rows, strict=True):
        left = f"n = {size:>{max(map(len, sizes))}}   {value:>{max(map(len, values))}}"
        typer.echo(f"{left} ≤ Lip ≤ {row.upper.digits}")
    first, *later = found.rising
    if later and first.found > 0 and later[-1].found < math.inf:
        *_between, before, last = found.rising
        late = f", from {number(before.n, 4)} on like n^{_power(before, last):.2f}" if len(later) > 1 else ""
        grows = f"grows like n^{_power(first, last):.2f}{late}"
        typer.echo(f"From n = {number(first.n, 4)} to {number(last.n, 4)} the largest found {grows}.")


def _power(first: "Regime", last: "Regime") -> float:
    return math.log(last.found / first.found) / math.log(last.n / first.n)
