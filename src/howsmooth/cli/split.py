"""``howsmooth split``: does cutting an atom in two move the output more than moving whole atoms does?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.bounds import OptionJson
from howsmooth.cli.matrices import (
    OptionA,
    OptionCausal,
    OptionGroups,
    OptionHeads,
    OptionKey,
    OptionOutput,
    OptionQuery,
    OptionScale,
    OptionV,
    OptionValue,
    Weights,
    read_matrix,
)
from howsmooth.errors import AssumptionError, FileError, ShapeError

if TYPE_CHECKING:
    from howsmooth.transport.measures import Measure

OptionFigure = Annotated[
    str | None, typer.Option("--figure", metavar="FILE", help="Draw it: .html, .svg, .pdf or .png.")
]


def split(
    A: OptionA = None,
    V: OptionV = None,
    query: OptionQuery = None,
    key: OptionKey = None,
    value: OptionValue = None,
    output: OptionOutput = None,
    heads: OptionHeads = None,
    groups: OptionGroups = None,
    scale: OptionScale = None,
    causal: OptionCausal = False,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="FILE[:KEY]", help="The atoms, (n, d): a sequence.")
    ] = None,
    masses: Annotated[
        str | None, typer.Option("--masses", metavar="FILE[:KEY]", help="Their masses, (n,); equal if left out.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option("--measure", metavar="FILE", help="A saved measure instead, .json or .safetensors."),
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

    Example: howsmooth split --map-1d A=-1,V=1 --figure splitting.svg
    """
    if figure is not None:
        from howsmooth.report.saving import checked_target

        checked_target(figure)
    if map_1d is not None:
        _map(map_1d, span, step, as_json, figure)
        return
    if figure is not None:
        raise AssumptionError("--figure draws the map of --map-1d; without it there is nothing to draw.")
    weights = Weights(
        A=A,
        V=V,
        query=query,
        key=key,
        value=value,
        output=output,
        heads=heads,
        groups=groups,
        scale=scale,
        causal=causal,
    )
    if (tokens is None) == (measure is None):
        raise AssumptionError(
            "give the atoms, either --tokens FILE[:KEY], a sequence (n, d), or --measure FILE; "
            "or draw --map-1d A=-1,V=1."
        )
    _attack(weights, _read(tokens, masses, measure, causal), eps, as_json)


def _map(text: str, span: float, step: float, as_json: bool, figure: str | None) -> None:
    from howsmooth.search.splitting_map import splitting_map

    numbers = parse_numbers(text)
    found = splitting_map(A=numbers["A"], V=numbers.get("V", 1.0), span=span, step=step)
    if figure is not None:
        from howsmooth.report.charts import splitting_chart
        from howsmooth.report.saving import save_chart

        save_chart(splitting_chart(found), figure)
    typer.echo(found.to_json() if as_json else repr(found).removeprefix("SplittingMap: "))
    if figure is not None:
        typer.echo(f"Drawn in {figure}.", err=True)


def parse_numbers(text: str) -> dict[str, float]:
    """Read ``A=-1,V=1``."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals or name.strip() not in ("A", "V"):
            raise AssumptionError(f"--map-1d needs numbers as in A=-1,V=1, got {text!r}.")
    if "A" not in found:
        raise AssumptionError(f"--map-1d needs A, as in A=-1,V=1, got {text!r}.")
    return found


def _attack(weights: Weights, measure: "Measure", eps: float, as_json: bool) -> None:
    import torch

    import howsmooth as hs

    attention = weights.read()
    wide = torch.float64 if torch.float64 in (attention.dtype, measure.dtype) else torch.float32
    attack = hs.split_attack(attention.to(wide), measure.to(wide), eps=eps, generator=torch.Generator().manual_seed(0))
    if as_json:
        typer.echo(json.dumps(json.loads(attack.to_json()) | {"n": len(measure), "causal": weights.causal}))
        return
    found = attack.splitting
    verdict = f"splits at atom {found.atom}" if found.splits else "does not split"
    typer.echo(f"The measure {verdict}: split {found.split:.5g}, move {found.move:.5g}, constant {found.value:.5g}.")
    typer.echo(
        f"True ratios of distances at eps = {eps:g}: {attack.split_ratio:.5g} (split), {attack.move_ratio:.5g} (move)."
    )
    if not found.decided:
        typer.echo("The two constants agree within their error bars.")
    typer.echo(f"{attention}, {measure}.")


def _read(tokens: str | None, masses: str | None, measure: str | None, causal: bool) -> "Measure":
    from howsmooth.transport.measures import Measure

    if tokens is None:
        return _load(Path(measure or ""))
    points = read_matrix(tokens, "tokens")
    if points.ndim != 2:
        raise ShapeError(f"tokens must be a sequence, (n, d), got the shape {tuple(points.shape)}.")
    weights = None if masses is None else read_matrix(masses, "masses").to(points)
    if weights is not None and weights.shape != points.shape[:1]:
        raise ShapeError(f"masses must have one entry for each of {len(points)} tokens, got {tuple(weights.shape)}.")
    return Measure(points, weights, Measure.from_sequence(points, causal=causal).positions)


def _load(path: Path) -> "Measure":
    from howsmooth.transport.measures import Measure

    if path.suffix not in (".json", ".safetensors"):
        raise FileError(f"a measure is a .json or .safetensors file, got {str(path)!r}.")
    if not path.is_file():
        raise FileError(f"there is no file {str(path)!r}.")
    if path.suffix == ".safetensors":
        return Measure.load(path)
    try:
        return Measure.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{str(path)!r} cannot be read: {error}.") from error
