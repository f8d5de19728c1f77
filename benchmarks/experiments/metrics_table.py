"""The constant of attention in every metric: worst, typical and bound, at windows of Alice.

A row for each layer, length and metric, as Markdown. Typical is the root mean square over random perturbations of size
one; the bound is that of all inputs as long whose tokens are no longer than the longest here, where a theorem is known.
"""

import argparse
import contextlib
import math
import time
from typing import Any

import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual
from howsmooth.maps.mlp import MLP
from howsmooth.maps.norms import Norm
from howsmooth.models.inputs.text import read_text

SAMPLES = 16


def main() -> None:
    """Measure three layers of a model in every metric."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="minilm")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--whole", type=int, metavar="N", help="every block and the model at N tokens instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = hs.load(given.model)
    if given.whole:
        whole(model, given.whole)
        return
    layers = sorted({0, len(model.layers) // 2, len(model.layers) - 1})
    print("| n | layer | metric | worst | upper / lower | typical | any input | products | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for n in given.lengths:
        activations = model.activations(model.windows(read_text(), length=n, count=1))
        for layer in layers:
            f, batch = activations.at(layer=layer, name="attention")
            assert isinstance(f, Attention)
            for metric in ("total", "token", "relative", "condition", "entries", "sum", hs.metrics.covariance(batch)):
                row(f, batch[0], n, layer, metric)


def whole(model: hs.Transformer, n: int) -> None:
    """Print the constants of blocks and their product beside that of the model, in two metrics; first those proven."""
    activations = model.activations(model.windows(read_text(), length=n, count=1))
    places = [(layer, "block") for layer in range(len(model.layers))] + [(0, "model")]
    _f, batch = activations.at(layer=0, name="block")
    for what, X in (("any tokens", None), ("norms as at this window", batch[0])):
        proven, radius = [], float(batch.norm(dim=-1).max())
        for layer, name in places[:-1]:
            constant, radius, X = n_free(activations.at(layer=layer, name=name)[0], radius, X)
            proven.append(constant)
        print(f"token, for every n, {what}: blocks {', '.join(f'{x:.3g}' for x in proven)}, ", end="")
        print(f"product 10^{sum(map(math.log10, proven)):.1f}", flush=True)
    for metric in ("total", "token"):
        found = []
        for layer, name in places:
            f, batch = activations.at(layer=layer, name=name)
            found.append(hs.local_lipschitz(f, batch[0], metric=metric, rtol=1e-2, seed=0))
        *blocks, last = (float(each.lower) for each in found)
        width = max(float(each.upper / each.lower) for each in found)
        print(f"{metric}: blocks {', '.join(f'{x:.3g}' for x in blocks)}, product {math.prod(blocks):.3g};", end=" ")
        print(f"model {last:.3g}; brackets within {width:.3f}")


def n_free(f: Any, radius: float, X: torch.Tensor | None) -> tuple[float, float, torch.Tensor | None]:
    """Return a constant of a map on tokens no longer than a radius, for every n, how long its outputs are, and these.

    Norms have the constant of any tokens, or that at the given ones.
    """
    Y = None if X is None else f(X)
    if isinstance(f, Chain):
        total = 1.0
        for part in f.maps:
            constant, radius, X = n_free(part, radius, X)
            total *= constant
        return total, radius, Y
    if isinstance(f, Residual):
        constant, length, _Z = n_free(f.map, radius, X)
        return 1 + constant, radius + length, Y
    if isinstance(f, Norm):
        gain = float(f.gain.abs().max())
        constant = gain / math.sqrt(f.eps) if X is None else float(hs.local_lipschitz(f, X, metric="token").upper)
        return constant, f.image.radius, Y
    if isinstance(f, Attention):
        constant = hs.bounds.token_upper(f, radius=radius).value
    elif isinstance(f, MLP):
        steepest = {"gelu": 1.13, "gelu_tanh": 1.13, "relu": 1.0, "silu": 1.1}[
            str(getattr(f.activation, "name", f.activation))
        ]
        constant = steepest * float(torch.linalg.matrix_norm(f.up, 2) * torch.linalg.matrix_norm(f.down, 2))
    else:
        raise TypeError(f"no constant of {type(f).__name__} is known for every n.")
    return constant, math.inf, Y  # whatever follows is a norm, whose outputs are as long for all inputs


def row(f: Attention, X: torch.Tensor, n: int, layer: int, metric: str | hs.Metric) -> None:
    """Measure one layer in one metric, and print what was found."""
    # a covariance is one of the tokens that enter: what leaves is measured in total
    given = metric if isinstance(metric, str) else hs.Metrics(input=metric, output=hs.metrics.total)
    start = time.process_time()
    found = hs.local_lipschitz(f, X, metric=given, rtol=1e-2, seed=0)
    seconds, generator = time.process_time() - start, torch.Generator().manual_seed(0)
    metrics = hs.metrics.as_metrics(given).at(X, f(X))
    J = f.jacobian(X)
    sizes = [metrics.output.size(J.jvp(metrics.input.draw(X, generator))).square() for _sample in range(SAMPLES)]
    typical = float(torch.stack(sizes).mean().sqrt())
    bound, radius = "—", float(X.norm(dim=-1).max())
    if isinstance(metric, str):
        with contextlib.suppress(AssumptionError):  # not every metric has a theorem
            bound = f"{hs.bounds.smallest_upper(f, n=n, radius=radius, metric=metric).value:.3g}"
    name = metric if isinstance(metric, str) else "covariance → total"
    width = float(found.upper / found.lower)
    print(
        f"| {n} | {layer} | {name} | {float(found.lower):.4g} | {width:.3f} | {typical:.3g} | {bound} "
        f"| {found.products} | {seconds:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
