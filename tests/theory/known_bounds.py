"""What every theorem says about heads and layers of every kind, as ``known_bounds.json`` holds it.

With another version of the theorems the file is written anew: ``PYTHONPATH=tests python -m theory.known_bounds``.
"""

import itertools
import json
import math
from pathlib import Path

import torch
from draws import gaussian
from theory.example_layers import HEADS, LAYERS, random_layer, with_mask

import howsmooth as hs
from howsmooth.markup import finite
from howsmooth.search.mechanisms import MECHANISMS, of_kind
from howsmooth.theory.tables import VERSION

FILE = Path(__file__).with_suffix(".json")
SEED, N = 7, 5  # layers with a mask or a bias for every token have five
# A ball where all tokens count, and one where one of them has all the weight.
SMALL, LARGE = 0.7, 4.0


def biased(g, **options):
    """Three heads with biases of queries, keys and values."""
    biases = {"query_bias": gaussian(g, 3, 2), "key_bias": gaussian(g, 3, 2), "value_bias": gaussian(g, 3, 3)}
    return random_layer(g, out=4, **biases, **options)


MORE = {
    "biases": biased,
    "sink": lambda g: random_layer(g, sink=gaussian(g, 3)),
    "sink, biases": lambda g: biased(g, sink=gaussian(g, 3)),
}


def tables():
    """Yield what every table is about: its name, the map, how many tokens, the radius and the metric."""
    made = {name: make(torch.Generator().manual_seed(SEED)) for name, make in (HEADS | LAYERS | MORE).items()}
    made |= {f"{name}, causal": with_mask(made[name], True) for name in HEADS}
    for name, kind in itertools.product(("gaussian", "mixed heads", "biases"), MECHANISMS):
        made[f"{name}, {kind}"] = of_kind(made[name], kind)
    for name, f in made.items():
        yield f"{name}, R = {SMALL}", f, N, SMALL, "total"
        yield f"{name}, R = {LARGE}", f, N - 1 if name in HEADS else N, LARGE, "total"
        yield f"{name}, token", f, N, SMALL, "token"
        if f.out == f.d:
            form = torch.diag(torch.linspace(0.5, 2.0, f.d, dtype=torch.float64))
            yield f"{name}, weighted", f, N, SMALL, hs.metrics.weighted(form)


def computed():
    """Return the logarithm of every bound, by its function; none if it is infinite."""
    return {
        name: {bound.name: logarithm(bound) for bound in hs.bounds.table(f, n=n, radius=radius, metric=metric).bounds}
        for name, f, n, radius, metric in tables()
    }


def logarithm(bound):
    """Return that of the value, which readers see, or the one that is kept beside it where no float holds the value."""
    return math.log(bound.value) if 0 < bound.value < math.inf else finite(bound.log_value)


if __name__ == "__main__":
    FILE.write_text(json.dumps({"version": VERSION, "bounds": computed()}, indent=0) + "\n", encoding="utf-8")
