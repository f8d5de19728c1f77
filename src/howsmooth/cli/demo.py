"""``howsmooth demo``: measure a randomly initialised attention layer."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.options import OptionJson, OptionSeed
from howsmooth.cli.printing import print_json
from howsmooth.errors import AssumptionError
from howsmooth.memory import require_memory
from howsmooth.wording import number, percent

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.maps.attention import Attention
    from howsmooth.spectral.estimates import NormEstimate

# Queries, keys, values and output; tokens, a direction, a response and what they are made from: float32 each.
MATRICES, COPIES, FLOAT = 4, 4, 4


def demo(
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="How many tokens.", min=1)] = 128,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="The dimension of a token.", min=1)] = 768,
    heads: Annotated[int, typer.Option(help="How many heads.", min=1)] = 12,
    causal: Annotated[bool, typer.Option(help="Whether a token sees only itself and the past.")] = False,
    seed: OptionSeed = 0,
    as_json: OptionJson = False,
) -> None:
    """Measure the local Lipschitz constant of a randomly initialised attention layer at random tokens.

    Example: howsmooth demo --tokens 256 --causal
    """
    if dimension % heads:
        raise AssumptionError(
            f"--dimension must be a multiple of --heads, got {dimension} and {heads}.", field="dimension"
        )
    needed = FLOAT * dimension * (MATRICES * dimension + COPIES * tokens)
    require_memory(needed, f"a layer of dimension {number(dimension)} with {number(tokens)} tokens", field="tokens")

    import torch

    import howsmooth as hs

    generator = torch.Generator().manual_seed(seed)
    attention = hs.Attention.random(heads=heads, d=dimension, causal=causal, generator=generator)
    X = torch.randn(tokens, dimension, generator=generator)
    estimate = hs.local_lipschitz(attention, X, generator=generator)
    if as_json:
        print_json({"tokens": tokens, "seed": seed} | json.loads(estimate.to_json()))
    else:
        _print_estimate(attention, tokens, estimate)


def _print_estimate(attention: "Attention", tokens: int, estimate: "NormEstimate") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(estimate)
    console.print(f"{attention} at {number(tokens)} Gaussian tokens; {estimate.products} products with the Jacobian.")
    console.print(f"Most sensitive token: {_largest(estimate.token_sensitivity)} of the worst direction.")
    console.print(f"Most moved token: {_largest(estimate.token_response)} of the response.")


def _largest(shares: "Tensor") -> str:
    return f"{int(shares.argmax())}, with {percent(round(float(shares.max()), 3))}"
