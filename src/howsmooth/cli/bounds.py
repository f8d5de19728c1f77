"""``howsmooth bounds``: every theorem about one layer, and the input that comes nearest to them."""

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    split_source,
)
from howsmooth.cli.model_layers import BESIDES, OptionLayer, OptionModel, OptionPart
from howsmooth.errors import AssumptionError, FileError

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from howsmooth.theory.results import Bound, Bracket, Ladder, Witness

OptionN = Annotated[int, typer.Option("--n", "-n", help="How many tokens.", show_default=False)]
OptionRadius = Annotated[float, typer.Option("--radius", "-r", help="The radius of the ball.", show_default=False)]
OptionSearch = Annotated[bool, typer.Option("--search", help="Look for a worse input by gradient ascent; slower.")]
OptionJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
OptionSave = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Keep the worst input found, as .safetensors.", show_default=False),
]
Progress = Callable[[int, float], None]


def bounds(
    *,
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
    model: OptionModel = None,
    layer: OptionLayer = None,
    part: OptionPart = "attention",
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
        model=model,
        layer=layer,
        part=part,
        besides=BESIDES,
    )
    check_task(weights, n, radius, save)
    attention = weights.read()

    import howsmooth as hs
    from howsmooth.theory.discrete import in_ball

    with within_reach(n, radius):
        ladder = hs.bounds.table(attention, n=n, radius=radius)
        with ascent_bar(search) as progress:
            bracket = hs.bracket(attention, n=n, radius=radius, search=search, generator=seeded(0), progress=progress)
        require_range(bracket.lower)
        if as_json:
            found = {"bracket": json.loads(bracket.to_json())} | json.loads(ladder.to_json())
            print_json(found | {"n": n, "radius": radius, "causal": attention.positions.causal})
        else:
            _print_ladder(repr(attention), ladder, bracket, in_ball(n, radius))
    if save is not None:
        save_witness(bracket.lower, save, weights, quiet=as_json)


def check_task(weights: Weights, n: int, radius: float, save: Path | None) -> None:
    """Refuse what cannot work, before any file is read and anything is computed."""
    from howsmooth.theory.assumptions import require_size

    require_size(n, radius)
    if save is not None:
        _require_writable(save, weights)


def _require_writable(target: Path, weights: Weights) -> None:
    if target.suffix != ".safetensors":
        raise FileError(f"--save writes a .safetensors file, got {target.name!r}; change the ending.")
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {str(target.parent)!r} to save to; make it first.")
    if target.exists():
        if not target.is_file() or not os.access(target, os.W_OK):
            raise FileError(f"{str(target)!r} cannot be written over; save under another name.")
        for source in weights.sources.values():
            path, _key = split_source(source)
            if path.samefile(target):
                raise FileError(f"--save {str(target)!r} would write over the weights; save under another name.")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise FileError(f"nothing can be saved to {str(target.parent)!r}: {error.strerror}.") from error


def save_witness(witness: "Witness", target: Path, weights: Weights, *, quiet: bool) -> None:
    """Keep the input and say where; the talk goes to stderr where stdout is for JSON."""
    from safetensors import SafetensorError

    try:
        witness.save(target, about=weights.about)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{str(target)!r} could not be written: {error}") from error
    typer.echo(f"Saved tokens, direction and response to {target}.", err=quiet)


def seeded(seed: int) -> "torch.Generator":
    """Return the source of randomness."""
    import torch

    if not 0 <= seed < 2**63:
        raise AssumptionError(f"--seed must be between 0 and 2^63 - 1, got {seed}.")
    return torch.Generator().manual_seed(seed)


@contextmanager
def within_reach(n: int, radius: float) -> Iterator[None]:
    """Say it in one sentence if the task is too much for this machine or for its numbers."""
    out_of_range = (
        f"the numbers leave the range of floats for n = {n} and radius = {radius:g}; rescale tokens or weights."
    )
    out_of_memory = f"n = {n} tokens do not fit into memory; take fewer."
    try:
        yield
    except ArithmeticError as error:
        raise AssumptionError(out_of_range) from error
    except MemoryError as error:
        raise AssumptionError(out_of_memory) from error
    except RuntimeError as error:
        # torch tells these apart by their text alone
        if "linalg." in str(error):
            raise AssumptionError(out_of_range) from error
        if re.search("allocate|size calculation|overflow", str(error), re.IGNORECASE):
            raise AssumptionError(out_of_memory) from error
        raise


def require_range(witness: "Witness") -> None:
    """Refuse a lower bound that has overflowed: it would claim more than was shown."""
    if not math.isfinite(witness.value):
        raise OverflowError(f"the value of {witness.name} is {witness.value}")


@contextmanager
def ascent_bar(wanted: bool, steps: int | None = None) -> Iterator[Progress | None]:
    """Show the best value so far on stderr, if a search runs and someone is looking."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("ascent", total=steps)

        def show(step: int, best: float) -> None:
            bar.update(task, completed=step, description=f"ascent, step {step}: Lip ≥ {best:.5g}")

        yield show


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object; what is not finite becomes null, since JSON has no infinity."""
    typer.echo(json.dumps(_finite(data), allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(x) for name, x in data.items()}
    if isinstance(data, list):
        return [_finite(x) for x in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _print_ladder(attention: str, ladder: "Ladder", bracket: "Bracket", domain: str) -> None:
    from rich.console import Console

    from howsmooth.theory.results import Side, safe_digits

    console = Console(highlight=False, markup=False)
    low = safe_digits(bracket.lower.value, math.inf, Side.LOWER)
    ratio = f" (ratio {bracket.ratio:.2f})" if bracket.ratio < 1000 else ""
    console.print(f"{low} ≤ Lip ≤ {bracket.upper.digits} on {domain}{ratio}", style="bold", soft_wrap=True)
    console.print(attention, soft_wrap=True)
    console.print()
    console.print(_table(ladder, bracket.lower, domain))
    if ladder.refused:
        console.print("\nDo not apply:", style="dim")
        console.print(_refusals(ladder))


def _table(ladder: "Ladder", witness: "Witness", domain: str) -> "Table":
    """Show every bound and the measured input, from the lowest to the highest."""
    from rich.table import Table
    from rich.text import Text

    from howsmooth.theory.results import Side, safe_digits

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("bound", no_wrap=True)
    table.add_column("Lip", no_wrap=True, justify="right")
    table.add_column("what it is worth")
    value = safe_digits(witness.value, math.inf, Side.LOWER)
    log_value = math.log(witness.value) if witness.value > 0 else -math.inf
    measured = (witness.name, f"{Side.LOWER} {value}", "measured at a stored input")
    # sorted is stable: of two equal values the measured one comes after the theorem that it confirms
    rows = [((b.side is Side.UPPER, b.log_value), _row(b, domain), "") for b in ladder.rungs]
    rows.append(((False, log_value), measured, "bold green"))
    for _place, cells, style in sorted(rows, key=lambda row: row[0]):
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _row(bound: "Bound", domain: str) -> tuple[str, str, str]:
    elsewhere = "" if bound.domain == domain else f"; on {bound.domain}"
    probably = "" if bound.confidence == 1 else f", with probability {100 * bound.confidence:.12g} %"
    return bound.name, f"{bound.side} {bound.digits}", f"{bound.source}{probably}{elsewhere}"


def _refusals(ladder: "Ladder") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for refused in ladder.refused:
        table.add_row(Text(refused.name), Text(refused.reason), style="dim")
    return table
