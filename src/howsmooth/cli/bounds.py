"""``howsmooth bounds``: every theorem about one layer, and the input that comes nearest to them."""

import json
import math
from typing import TYPE_CHECKING

from howsmooth.cli.ascent_bar import ascent_bar
from howsmooth.cli.layer import LayerSource, takes_a_layer
from howsmooth.cli.options import OptionJson, OptionN, OptionRadius, OptionSave, OptionSearch
from howsmooth.cli.printing import print_json, visible_console
from howsmooth.cli.reach import require_range, require_room, within_reach
from howsmooth.cli.witnesses import require_writable, save_witness
from howsmooth.wording import at_least, number, percent

if TYPE_CHECKING:
    from rich.table import Table

    from howsmooth.theory.results import Bound, BoundsTable, Bracket, Witness


@takes_a_layer
def bounds(
    *,
    source: LayerSource,
    n: OptionN,
    radius: OptionRadius,
    search: OptionSearch = False,
    as_json: OptionJson = False,
    save: OptionSave = None,
) -> None:
    """Bound the Lipschitz constant of attention on n tokens in a ball: every theorem, and a measured input.

    Of a layer of a model, or of weights: FILE, or FILE:KEY. Rows are outputs, as in torch.nn.Linear.

    Example: howsmooth bounds --model minilm --layer 4 --map head:3 -n 64 -r 9
    """
    source.check()
    require_room(n)
    if save is not None:
        require_writable(save, source.paths)
    attention = source.read()
    require_room(n, attention.d)

    import torch

    import howsmooth as hs
    from howsmooth.domains.ball import in_ball

    generator = torch.Generator().manual_seed(0)
    with within_reach(n, radius):
        ladder = hs.bounds.table(attention, n=n, radius=radius)
        with ascent_bar(search) as progress:
            bracket = hs.bracket(attention, n=n, radius=radius, search=search, generator=generator, progress=progress)
        require_range(bracket.lower)
        if as_json:
            found = {"bracket": json.loads(bracket.to_json())} | json.loads(ladder.to_json())
            print_json(found | {"n": n, "radius": radius, "causal": attention.positions.causal})
        else:
            _print_ladder(repr(attention), ladder, bracket, in_ball(n, radius))
    if save is not None:
        save_witness(bracket.lower, save, source.about, quiet=as_json)


def _print_ladder(attention: str, ladder: "BoundsTable", bracket: "Bracket", domain: str) -> None:

    console = visible_console()
    ratio = f" (ratio {number(bracket.ratio)})" if bracket.ratio < 1000 else ""
    answer = f"{at_least(bracket.lower.value)} ≤ Lip ≤ {bracket.upper.digits} on {domain}{ratio}"
    console.print(answer, style="bold", soft_wrap=True)
    console.print(attention, soft_wrap=True)
    console.print()
    console.print(_table(ladder, bracket.lower, domain))
    if ladder.refused:
        console.print("\nDo not apply:", style="dim")
        console.print(_refusals(ladder))


def _table(ladder: "BoundsTable", witness: "Witness", domain: str) -> "Table":
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
    rows = [((b.side is Side.UPPER, b.log_value), _row(b, domain), "") for b in ladder.bounds]
    rows.append(((False, log_value), measured, "bold green"))
    for _place, cells, style in sorted(rows, key=lambda row: row[0]):
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _row(bound: "Bound", domain: str) -> tuple[str, str, str]:
    elsewhere = "" if bound.domain == domain else f"; on {bound.domain}"
    probably = "" if bound.confidence == 1 else f", with probability {percent(bound.confidence)}"
    return bound.label, f"{bound.side} {bound.digits}", f"{bound.source}{probably}{elsewhere}"


def _refusals(ladder: "BoundsTable") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from howsmooth.theory.results import label_of

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    for refused in ladder.refused:
        table.add_row(Text(label_of(refused.name)), Text(refused.reason), style="dim")
    return table
