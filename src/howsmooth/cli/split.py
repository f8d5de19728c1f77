"""``howsmooth split``: does cutting an atom in two move the output more than moving whole atoms does?"""

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

import howsmooth as hs
from howsmooth.cli.layer import LayerSource
from howsmooth.cli.options import OptionFigure, OptionJson, option_groups
from howsmooth.cli.printing import print_json, say
from howsmooth.errors import AssumptionError, FileError
from howsmooth.files import read_bytes, require_memory, require_size
from howsmooth.report.saving import save_chart
from howsmooth.wording import at_least, number, percent

if TYPE_CHECKING:
    from howsmooth.maps.heads import MultiHead
    from howsmooth.transport.measures import DiscreteMeasure

# The norm squares numbers of the size of V·A·span²: beyond this the square is no float.
LARGEST = 1e150
# Every pair of the grid takes a matrix of 2 × 2 numbers, and a computation holds some of these at once.
PAIR = 8 * 4 * 8


def read_measure(path: str) -> "DiscreteMeasure":
    """Read a saved measure."""
    if not path.endswith((".json", ".safetensors")):
        raise FileError(f"a measure is a .json or .safetensors file, got {path!r}.", field="measure")
    if path.endswith(".safetensors"):
        require_size(path, "a measure", field="measure", missing=False)
        return hs.transport.DiscreteMeasure.load(path)
    try:
        return hs.transport.DiscreteMeasure.from_json(read_bytes(path, "a measure", field="measure").decode())
    except (UnicodeDecodeError, RecursionError, OverflowError, RuntimeError) as error:
        raise FileError(f"{path!r} cannot be read as a measure: {error}.", field="measure") from error


@option_groups
def split(
    *,
    source: LayerSource,
    measure: Annotated[
        str | None,
        typer.Option(
            "--measure",
            metavar="FILE",
            help='Atoms and masses, .json or .safetensors: {"points": [[…], …], "weights": […]}.',
        ),
    ] = None,
    eps: Annotated[float, typer.Option("--eps", help="How far the attack moves.")] = 1e-3,
    map_1d: Annotated[
        str | None, typer.Option("--map-1d", metavar="A=…,V=…", help="All pairs of equal masses on the line instead.")
    ] = None,
    span: Annotated[float, typer.Option("--span", help="With --map-1d: half the side of the square.")] = 6.0,
    step: Annotated[float, typer.Option("--step", help="With --map-1d: the step of the grid.")] = 0.3,
    as_json: OptionJson = False,
    figure: OptionFigure = None,
) -> None:
    """Tell whether a measure splits, which atom, and what a true attack gains by it.

    Of any kind of attention, with the same weights: --kind l2, --kind sigmoid, …

    Example: howsmooth split --map-1d A=-1,V=1 --figure splitting.svg
    """
    if map_1d is not None:
        form = parse_form(map_1d)
        _check_grid(*form, span, step)
        _map(*form, span, step, source.kind, as_json, figure)
        return
    if figure is not None:
        raise AssumptionError(
            "--figure draws the map of --map-1d; without it there is nothing to draw.", field="figure"
        )
    source.check()
    if measure is None:
        raise AssumptionError(
            'give the atoms and their masses as --measure FILE, JSON: {"points": [[…], …], "weights": […]}; '
            "or draw --map-1d A=-1,V=1.",
            field="measure",
        )
    if not 0 < eps < math.inf:
        raise AssumptionError(f"eps must be positive and finite, got {eps}.", field="eps")
    _attack(source.read(), read_measure(measure), eps, as_json)


def parse_form(text: str) -> tuple[float, float]:
    """Read ``A=-1,V=1``, the numbers of a head on the line; the value is 1 if left out.

    Example:
        >>> parse_form("A=-1")
        (-1.0, 1.0)
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or name.strip() not in ("A", "V") or math.isnan(found[name.strip()]):
            raise AssumptionError(f"--map-1d needs numbers as in A=-1,V=1, got {text!r}.", field="map_1d")
    if "A" not in found:
        raise AssumptionError(f"--map-1d needs A, as in A=-1,V=1, got {text!r}.", field="map_1d")
    return found["A"], found.get("V", 1.0)


def _check_grid(A: float, V: float, span: float, step: float) -> None:
    """Refuse numbers that are too large, and grids that do not fit into memory."""
    if not 0 < step <= span < math.inf:
        raise AssumptionError(f"--step and --span must be positive, step the smaller, got {step} and {span}.")
    if math.prod(max(1.0, abs(x)) for x in (A, V, span, span)) > LARGEST:
        given = f"A = {number(A)}, V = {number(V)} and --span {number(span)}"
        raise AssumptionError(f"the numbers leave the range of floats for {given}; take smaller ones.")
    pairs = (2 * int(min(span / step, LARGEST)) + 1) ** 2
    require_memory(PAIR * pairs, f"a grid with --span {number(span)} and --step {number(step)}", field="step")


def _map(A: float, V: float, span: float, step: float, kind: str, as_json: bool, figure: str | None) -> None:
    found = hs.search.splitting_map(A=A, V=V, span=span, step=step, kind=kind)
    if figure is not None:
        from howsmooth.report.charts.mass_splitting import splitting_chart

        save_chart(splitting_chart(found), figure)
    if as_json:
        print_json(json.loads(found.to_json()))
    else:
        low, high = (number(float(end)) for end in (found.grid[0], found.grid[-1]))
        form = f"A = {number(A)}, V = {number(V)}" + ("" if kind == "softmax" else f", {kind}")
        say(f"{percent(found.share)} of the pairs in [{low}, {high}]² split ({form})")
    if figure is not None:
        say(f"Drawn in {figure}.", err=True)


def _attack(attention: "MultiHead", measure: "DiscreteMeasure", eps: float, as_json: bool) -> None:
    import torch

    wide = torch.float64 if torch.float64 in (attention.dtype, measure.dtype) else torch.float32
    attack = hs.split_attack(attention.to(wide), measure.to(wide), eps=eps, seed=0)
    if as_json:
        print_json(json.loads(attack.to_json()) | {"n": len(measure), "causal": attention.positions.causal})
        return
    found = attack.splitting
    verdict = f"splits at atom {found.atom}" if found.splits else "does not split"
    if not found.decided:
        verdict = "is not decided: both constants agree within their error bars"
    constants = f"split {at_least(found.split)}, move {at_least(found.move)}, constant {at_least(found.value)}"
    say(f"The measure {verdict}: {constants}.")
    ratios = f"{at_least(attack.split_ratio)} (split), {at_least(attack.move_ratio)} (move)"
    say(f"True ratios of distances at eps = {number(eps)}: {ratios}.")
    say(f"{attention}, {measure}.")
