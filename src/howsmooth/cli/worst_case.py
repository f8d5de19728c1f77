"""``howsmooth worst-case``: the input where attention is least smooth, and how near it comes to the proven maximum."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.bounds import (
    OptionJson,
    OptionN,
    OptionRadius,
    OptionSave,
    OptionSearch,
    ascent_bar,
    check_task,
    print_json,
    require_range,
    save_witness,
    seeded,
    within_reach,
)
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
)
from howsmooth.cli.model_layers import BESIDES, OptionLayer, OptionModel, OptionPart
from howsmooth.errors import AssumptionError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from howsmooth.maps.attention import Attention
    from howsmooth.theory.results import Bound, Witness

STEPS, STARTS = 100, 4
OptionSteps = Annotated[int | None, typer.Option("--steps", help=f"Steps of the ascent; {STEPS} if left out.")]
OptionStarts = Annotated[int | None, typer.Option("--starts", help=f"Starts of the ascent; {STARTS} if left out.")]
OptionSeed = Annotated[int, typer.Option("--seed", help="The seed of starts and solver.")]
# What is special about the inputs that the theory builds.
ORIGINS = {
    "equal_tokens": "all tokens at the origin (equal tokens)",
    "two_point": "one token far from all others, along an eigenvector (two point, the paper's)",
    "quiet_token": "a token at the origin sees the others at both ends of a diameter (quiet token)",
    "tied_pair": "two tokens tie for the attention of all others (tied pair)",
}


def worst_case(
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
    steps: OptionSteps = None,
    starts: OptionStarts = None,
    seed: OptionSeed = 0,
    as_json: OptionJson = False,
    save: OptionSave = None,
) -> None:
    """Find n tokens in a ball where attention is least smooth, and how near they come to the proven maximum.

    Of a layer of a model, or of weights: FILE, or FILE:KEY. Rows are outputs, as in torch.nn.Linear.

    Example: howsmooth worst-case --model minilm --layer 4 --map head:3 -n 64 -r 9
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
    _check_search(search, steps, starts)
    check_task(weights, n, radius, save)
    generator = seeded(seed)
    attention = weights.read()

    import howsmooth as hs
    from howsmooth.theory.discrete import in_ball

    with within_reach(n, radius):
        bracket = hs.bracket(attention, n=n, radius=radius, generator=generator)
        witness, origin = bracket.lower, ORIGINS.get(bracket.lower.name, _name(bracket.lower))
        if search:
            witness, origin = _climb(attention, witness, radius, steps or STEPS, starts or STARTS, generator)
        require_range(witness)
        if as_json:
            result = {"witness": witness.as_dict(), "upper": bracket.upper.as_dict()}
            share = _share(witness, bracket.upper)
            print_json(result | {"share": share, "n": n, "radius": radius, "causal": attention.positions.causal})
        else:
            _print_witness(repr(attention), witness, bracket.upper, f"{in_ball(n, radius)}; {origin}")
    if save is not None:
        save_witness(witness, save, weights, quiet=as_json)


def _check_search(search: bool, steps: int | None, starts: int | None) -> None:
    for name, many in (("steps", steps), ("starts", starts)):
        if many is not None and not search:
            raise AssumptionError(f"--{name} is for the ascent; add --search, or leave --{name} out.")
        if many is not None and many < 1:
            raise AssumptionError(f"--{name} must be at least 1, got {many}.")


def _climb(
    attention: "Attention", known: "Witness", radius: float, steps: int, starts: int, generator: "torch.Generator"
) -> "tuple[Witness, str]":
    """Search from the inputs of the theory and from random ones; return the worst input and where it comes from."""
    import howsmooth as hs

    with ascent_bar(True, steps) as progress:
        found = hs.maximise(
            attention,
            n=known.tokens.shape[-2],
            domain=hs.Ball(radius),
            starts=starts,
            steps=steps,
            generator=generator,
            progress=progress,
        )
    taken = len(found.trace) - 1
    begin = f"{_name(known)} ({_digits(known.value)}) and {starts} random input{'s' if starts > 1 else ''}"
    ascent = f"{taken} step{'s' if taken > 1 else ''} of ascent from {begin}"
    if found.value > known.value:
        return found, ascent
    return known, f"{ORIGINS.get(known.name, _name(known))}; {ascent} found nothing worse"


def _share(witness: "Witness", upper: "Bound") -> float | None:
    """Return value / upper bound, which is all that a Lipschitz constant can still gain; ``None`` for 0 / 0."""
    return math.exp(min(0.0, math.log(witness.value) - upper.log_value)) if witness.value > 0 else None


def _print_witness(attention: str, witness: "Witness", upper: "Bound", origin: str) -> None:
    from rich.console import Console

    from howsmooth.theory.results import Side, safe_digits

    console = Console(highlight=False, markup=False, soft_wrap=True)
    measured = witness.measured
    low, high = _digits(float(measured.lower)), safe_digits(float(measured.upper), math.inf, Side.UPPER)
    console.print(_answer(witness, upper), style="bold")
    console.print(attention)
    console.print(f"Input: {origin}.")
    console.print(f"Measured there: {low} to {high} ({100 * measured.confidence:.10g} %).")
    console.print(f"Most sensitive: {_largest(measured.token_sensitivity)} of the worst direction.")
    console.print(f"Most moved: {_largest(measured.token_response)} of the response.")


def _answer(witness: "Witness", upper: "Bound") -> str:
    value, share = _digits(witness.value), _share(witness, upper)
    if share is None or share < 1e-3:
        return f"Lip ≥ {value}; the proven maximum is {upper.digits}"
    return f"Lip ≥ {value}, at least {math.floor(1000 * share) / 10:.1f} % of the proven maximum {upper.digits}"


def _digits(value: float) -> str:
    from howsmooth.theory.results import Side, safe_digits

    return safe_digits(value, math.inf, Side.LOWER)


def _name(witness: "Witness") -> str:
    return witness.name.replace("_", " ")


def _largest(shares: "Tensor") -> str:
    """Name the tokens whose share is at least half of the largest; if there are many, how many they are."""
    order = shares.argsort(descending=True, stable=True).tolist()
    leading = [token for token in order if shares[token] >= shares[order[0]] / 2]
    if len(leading) > 3:
        return f"{len(leading)} tokens alike, token {leading[0]} with {100 * float(shares[leading[0]]):.1f} %"
    return ", ".join(f"token {token} with {100 * float(shares[token]):.1f} %" for token in sorted(leading))
