"""``howsmooth demo``, ``howsmooth models`` and ``howsmooth lab``: what needs neither a model nor a run."""

import importlib.util
import json
from typing import TYPE_CHECKING, Annotated, Any

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


# What a kind of model needs beside its weights.
TEXT = "a tokenizer in its folder, or --tokenizer, or --token-ids"
IMAGES = "--images with a folder of pictures"


def models(as_json: OptionJson = False) -> None:
    """List built-in models, families that are read exactly, families that go by autograd, and what each of them needs.

    Example: howsmooth models
    """
    found = _found()
    if as_json:
        print_json(found)
        return
    typer.echo("Built in:")
    for row in found["built_in"]:
        state = "installed" if row["installed"] else f"not installed; run: {row['install']}"
        typer.echo(f"  {row['name']:<9} {row['about']} ({state})")
    pictures = set(found["pictures"])
    typer.echo(f"Read exactly, on text: {', '.join(name for name in found['families'] if name not in pictures)}.")
    typer.echo(f"  need {TEXT}.")
    typer.echo(f"Read exactly, on pictures: {', '.join(found['pictures'])}.")
    typer.echo(f"  need {IMAGES}.")
    typer.echo(f"By autograd: {', '.join(found['by_autograd'])}.")
    typer.echo("  and others of the transformers library, as far as their parts are found; what is not is refused.")
    typer.echo("Any of these as a folder or a hub id; random:FAMILY has random weights, for those read exactly.")
    state = "installed" if found["gguf"]["installed"] else f"not installed; run: {found['gguf']['install']}"
    typer.echo(f"GGUF files of these need gguf and accelerate ({state}).")


def _found() -> dict[str, Any]:
    from howsmooth.models.families.registry import FAMILIES, PICTURES, TRIED
    from howsmooth.models.loading.names import BUILT_IN

    gguf = all(importlib.util.find_spec(part) is not None for part in ("gguf", "accelerate"))
    return {
        "built_in": [
            {"name": name, "about": known.about, "installed": known.home is not None, "install": known.install}
            for name, known in BUILT_IN.items()
        ],
        "families": sorted(FAMILIES),
        "pictures": sorted(PICTURES),
        "by_autograd": sorted(TRIED),
        "needs": {"text": TEXT, "pictures": IMAGES},
        "gguf": {"installed": gguf, "install": "pip install howsmooth[gguf]"},
    }


def lab(
    output: Annotated[str, typer.Option("-o", "--out", "--output", metavar="FILE", help="Where it goes.")] = "lab.html",
) -> None:
    """Write one HTML file where tokens are dragged by hand, and the constant, its bounds and worst inputs follow.

    It needs no network and no model: open it in a browser.

    Example: howsmooth lab -o lab.html
    """
    from howsmooth.lab.page import write_lab

    typer.echo(f"The lab is {write_lab(output)}.")
