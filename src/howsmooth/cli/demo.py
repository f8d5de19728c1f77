"""``howsmooth demo``: measure a randomly initialised attention layer."""

import json
from typing import Annotated

import typer


def demo(
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="How many tokens.", min=1)] = 128,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="The dimension of a token.", min=1)] = 768,
    heads: Annotated[int, typer.Option(help="How many heads.", min=1)] = 12,
    causal: Annotated[bool, typer.Option(help="Whether a token sees only itself and the past.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of weights, tokens and solver.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure the local Lipschitz constant of a randomly initialised attention layer at random tokens.

    Example: howsmooth demo --tokens 256 --causal
    """
    import torch

    import howsmooth as hs

    generator = torch.Generator().manual_seed(seed)
    attention = hs.Attention.random(heads=heads, d=dimension, causal=causal, generator=generator)
    X = torch.randn(tokens, dimension, generator=generator)
    estimate = hs.local_lipschitz(attention, X, generator=generator)
    if as_json:
        typer.echo(json.dumps({"tokens": tokens, "seed": seed} | json.loads(estimate.to_json())))
        return
    _print_estimate(attention, tokens, estimate)


def _print_estimate(attention: object, tokens: int, estimate: object) -> None:
    from rich.console import Console

    import howsmooth as hs

    assert isinstance(estimate, hs.NormEstimate)
    console = Console(highlight=False)
    console.print(estimate)
    console.print(f"{attention} at {tokens} Gaussian tokens; {estimate.products} products with the Jacobian.")
    moved, moves = estimate.token_sensitivity, estimate.token_response
    console.print(f"Most sensitive token: {int(moved.argmax())}, with {float(moved.max()):.1%} of the worst direction.")
    console.print(f"Most moved token: {int(moves.argmax())}, with {float(moves.max()):.1%} of the response.")
