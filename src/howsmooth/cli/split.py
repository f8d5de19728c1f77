"""``howsmooth split``: does cutting an atom in two move the output more than moving whole atoms does?"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import howsmooth as hs
from howsmooth.cli.array_files import read_array, split_source
from howsmooth.cli.layer import LayerSource
from howsmooth.cli.options import OptionFigure, OptionJson, option_groups
from howsmooth.cli.printing import print_json, say
from howsmooth.errors import AssumptionError, FileError, ShapeError
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


@dataclass(frozen=True, kw_only=True)
class MeasureFiles:
    """The files of a measure: a sequence of tokens and their masses, or a saved measure."""

    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="FILE[:KEY]", help="The atoms, (n, d): a sequence.")
    ] = None
    masses: Annotated[
        str | None, typer.Option("--masses", metavar="FILE[:KEY]", help="Their masses, (n,); equal if left out.")
    ] = None
    measure: Annotated[
        str | None, typer.Option("--measure", metavar="FILE", help="A saved measure instead, .json or .safetensors.")
    ] = None

    def check(self) -> None:
        """Refuse files that are missing or too many, before any is opened."""
        if (self.tokens is None) == (self.measure is None):
            raise AssumptionError(
                "give the atoms, either --tokens FILE[:KEY], a sequence (n, d), or --measure FILE; "
                "or draw --map-1d A=-1,V=1.",
                field="tokens",
            )
        if self.masses is not None and self.measure is not None:
            raise AssumptionError("a saved measure has masses of its own; leave --masses out.", field="masses")
        for source in (self.tokens, self.masses):
            if source is not None:
                split_source(source)
        if self.measure is not None and not self.measure.endswith((".json", ".safetensors")):
            raise FileError(f"a measure is a .json or .safetensors file, got {self.measure!r}.", field="measure")
        if self.measure is not None and not Path(self.measure).is_file():
            raise FileError(f"there is no file {self.measure!r}.", field="measure")

    def read(self, *, causal: bool) -> "DiscreteMeasure":
        """Read the measure; a sequence that masked attention sees has positions too."""
        if self.measure is not None:
            return _saved(self.measure)
        points = read_array(self.tokens or "", "tokens")
        if points.ndim != 2:
            raise ShapeError(f"tokens must be a sequence, (n, d), got the shape {tuple(points.shape)}.", field="tokens")
        weights = None if self.masses is None else read_array(self.masses, "masses").to(points)
        if weights is not None and weights.shape != points.shape[:1]:
            shape = tuple(weights.shape)
            raise ShapeError(
                f"masses must have one entry for each of {len(points)} tokens, got {shape}.", field="masses"
            )
        return hs.transport.DiscreteMeasure(
            points, weights, hs.transport.DiscreteMeasure.from_sequence(points, causal=causal).positions
        )


def _saved(path: str) -> "DiscreteMeasure":
    if path.endswith(".safetensors"):
        require_size(path, "a measure", field="measure")
        return hs.transport.DiscreteMeasure.load(path)
    try:
        return hs.transport.DiscreteMeasure.from_json(read_bytes(path, "a measure", field="measure").decode())
    except UnicodeDecodeError as error:
        raise FileError(f"{path!r} cannot be read: {error}.", field="measure") from error
    except RecursionError as error:
        raise FileError(f"{path!r} is nested too deeply for a measure.", field="measure") from error
    except (OverflowError, RuntimeError) as error:  # torch says it in one way or the other
        raise FileError(f"{path!r} holds a number that is too large for a float.", field="measure") from error


@option_groups
def split(
    *,
    source: LayerSource,
    files: MeasureFiles,
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
    files.check()
    if not 0 < eps < math.inf:
        raise AssumptionError(f"eps must be positive and finite, got {eps}.", field="eps")
    attention = source.read()
    _attack(attention, files.read(causal=attention.positions.causal), eps, as_json)


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
    constants = f"split {at_least(found.split)}, move {at_least(found.move)}, constant {at_least(found.value)}"
    say(f"The measure {verdict}: {constants}.")
    ratios = f"{at_least(attack.split_ratio)} (split), {at_least(attack.move_ratio)} (move)"
    say(f"True ratios of distances at eps = {number(eps)}: {ratios}.")
    if not found.decided:
        say("The two constants agree within their error bars.")
    say(f"{attention}, {measure}.")
