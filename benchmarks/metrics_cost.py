"""What other metrics cost beside the total norm: wanted are 1.1 times for isometries, 3 times for the largest token.

Layers of MiniLM at 64 tokens of Alice. Times are minima of process time, the metrics in turn; products are counted, and
those after isometries timed by themselves: how many a bracket takes depends on the spectrum. Products take turns with
products alone, since one after a bracket finds other numbers in the caches: in turn with brackets they came out up to a
quarter longer or a tenth shorter, as the order was.
"""

import functools
import time
from collections.abc import Callable

import claims
import torch
from timing import best_times

import howsmooth as hs
from howsmooth.linear_operators import LinearOperator
from howsmooth.metrics import as_metrics
from howsmooth.models.inputs.text import read_text
from howsmooth.spectral.metric_norms import isometric

ISOMETRIES = ("relative", "condition")
METRICS = ("total", *ISOMETRIES, "token")


def both_ways(J: LinearOperator, E: torch.Tensor) -> torch.Tensor:
    """Take one product with the operator and one with its transpose."""
    return J.vjp(J.jvp(E))


def main() -> None:
    """Measure three layers in every metric and print times, products and brackets."""
    quick = claims.quick(__doc__)
    layers, n, repeats = ((0,), 8, 1) if quick else ((0, 3, 5), 64, 12)
    torch.set_num_threads(1)
    model = hs.load("minilm")
    assert model.tokenizer is not None
    numbers = model.tokenizer.encode(read_text().content[:4000])[1 : n + 1]
    activations = model.activations(torch.tensor([numbers]))
    slowest, product, widest = dict.fromkeys(METRICS, 0.0), 0.0, 1.0
    for layer in layers:
        f, X = activations.at(layer=layer, name="attention")
        found = {metric: hs.local_lipschitz(f, X, metric=metric, seed=0) for metric in METRICS}
        assert isinstance(f, hs.Attention)
        runs: dict[str, Callable[[], object]] = {
            metric: functools.partial(hs.local_lipschitz, f, X, metric=metric, seed=0) for metric in METRICS
        }
        J, E, Y = f.jacobian(X), torch.randn_like(X), f(X)
        products: dict[str, Callable[[], object]] = {"plain": functools.partial(both_ways, J, E)}
        for metric in (*ISOMETRIES, hs.metrics.covariance(X)):
            metrics = as_metrics(metric).at(X, Y)
            after = isometric(J, metrics.input, metrics.output)
            products[metrics.name] = functools.partial(both_ways, after, E)
        best = best_times(runs, seconds=0.0, least=repeats, clock=time.process_time)
        one = best_times(products, seconds=0.0, least=20 * repeats, clock=time.process_time)
        for metric in METRICS:
            ratio, width = best[metric] / best["total"], float(found[metric].upper / found[metric].lower)
            slowest[metric] = max(slowest[metric], ratio)
            widest = max(widest, width)
            print(
                f"layer {layer} {metric:<10} {1e3 * best[metric]:6.0f} ms, {ratio:4.2f} times, "
                f"{found[metric].products} products, upper / lower {width:.4f}"
            )
        ratios = {name: one[name] / one["plain"] for name in products}
        print(f"layer {layer} products:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
        product = max(product, *ratios.values())
    claims.verdict(
        {
            f"a product after isometries costs at most 1.1 times ({product:.2f})": product <= 1.1,
            f"the largest token costs at most 3 times the total norm ({slowest['token']:.1f})": slowest["token"] <= 3,
            f"brackets are at most 1.3 wide ({widest:.4f})": widest <= 1.3,
        },
        quick=quick,
    )


if __name__ == "__main__":
    main()
