"""Heads and layers of every kind that a theorem may meet."""

import dataclasses
import math

import torch
from draws import gaussian, orthogonal, symmetric

import howsmooth as hs

ROUNDING = 1 + 1e-10  # an inequality between two floats, each rounded


def matrix_norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


def normal(rng, d):
    """A normal matrix with complex eigenvalues and, in odd dimension, one real one."""
    blocks = torch.zeros(d, d, dtype=torch.float64)
    for a in range(0, d - 1, 2):
        s, t = gaussian(rng, 2).tolist()
        blocks[a : a + 2, a : a + 2] = torch.tensor([[s, -t], [t, s]], dtype=torch.float64)
    if d % 2:
        blocks[-1, -1] = -1.0
    U = orthogonal(rng, d)
    return U @ blocks @ U.mT


def rotation(d):
    return torch.kron(torch.eye(d // 2), torch.tensor([[0.0, -1.0], [1.0, 0.0]])).double()


def form(A, V=None, *, causal=False):
    return hs.Attention.single_head(A=A, V=torch.eye(len(A), dtype=torch.float64) if V is None else V, causal=causal)


def low_rank(rng, d, k, v=None):
    v = k if v is None else v
    return hs.Attention(query=gaussian(rng, 1, k, d), key=gaussian(rng, 1, k, d), value=gaussian(rng, 1, v, d))


def random_layer(rng, *, heads=3, groups=None, d=4, k=2, v=3, out=5, mixed=True, **options):
    groups = heads if groups is None else groups
    return hs.Attention(
        query=gaussian(rng, heads, k, d),
        key=gaussian(rng, groups, k, d),
        value=gaussian(rng, groups, v, d),
        output=gaussian(rng, heads, out, v) if mixed else None,
        **options,
    )


def copies(f, signs):
    """The same head several times, summed with signs."""
    count = len(signs)
    out = f.value.shape[-2]
    return dataclasses.replace(
        f,
        query=f.query.expand(count, -1, -1),
        key=f.key.expand(count, -1, -1),
        value=f.value.expand(count, -1, -1),
        output=torch.tensor(signs).double()[:, None, None] * torch.eye(out, dtype=torch.float64),
    )


HEADS = {
    "−1 on a line": lambda g: form(-torch.eye(1).double()),
    "identity": lambda g: form(torch.eye(2).double()),
    "minus identity": lambda g: form(-torch.eye(2).double()),
    "no scores": lambda g: form(torch.zeros(3, 3).double(), gaussian(g, 3, 3)),
    "quarter turn": lambda g: form(rotation(2)),
    "rotation of six coordinates": lambda g: form(orthogonal(g, 6), gaussian(g, 6, 6)),
    "nilpotent": lambda g: form(torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()),
    "nilpotent of order five": lambda g: form(torch.triu(gaussian(g, 5, 5), 1), gaussian(g, 5, 5)),
    "symmetric": lambda g: form(symmetric(g, 4), gaussian(g, 4, 4)),
    "normal": lambda g: form(normal(g, 5), gaussian(g, 5, 5)),
    "gaussian": lambda g: form(gaussian(g, 3, 3), gaussian(g, 3, 3)),
    "V wide": lambda g: form(gaussian(g, 6, 6), gaussian(g, 2, 6)),
    "V tall": lambda g: form(gaussian(g, 3, 3), gaussian(g, 7, 3)),
    "V of rank one": lambda g: form(gaussian(g, 4, 4), gaussian(g, 4, 1) @ gaussian(g, 1, 4)),
    "rank one": lambda g: low_rank(g, 8, 1),
    "rank two of ten": lambda g: low_rank(g, 10, 2, 3),
}


WIDE = {
    "symmetric": lambda g: form(symmetric(g, 16), gaussian(g, 16, 16)),
    "nilpotent": lambda g: form(torch.triu(gaussian(g, 24, 24), 1), gaussian(g, 24, 24)),
    "rotation": lambda g: form(orthogonal(g, 32), gaussian(g, 8, 32)),
    "low rank": lambda g: low_rank(g, 64, 8),
}


LAYERS = {
    "mixed heads": lambda g: random_layer(g),
    "concatenated heads": lambda g: random_layer(g, mixed=False),
    "grouped queries": lambda g: random_layer(g, heads=4, groups=2),
    "grouped queries, concatenated": lambda g: random_layer(g, heads=4, groups=1, mixed=False),
    "heads that add up": lambda g: copies(form(gaussian(g, 3, 3), gaussian(g, 3, 3)), [1.0, 1.0, 1.0]),
    "heads that cancel": lambda g: copies(form(gaussian(g, 3, 3), gaussian(g, 3, 3)), [1.0, -1.0]),
    "copies side by side": lambda g: dataclasses.replace(copies(form(gaussian(g, 3, 3)), [1.0, 1.0]), output=None),
    "one head, mixed": lambda g: random_layer(g, heads=1),
    "query bias": lambda g: random_layer(g, query_bias=3 * gaussian(g, 3, 2)),
    "query bias alone": lambda g: random_layer(g, heads=1, query_bias=10 * gaussian(g, 1, 2)),
    "all biases": lambda g: random_layer(
        g, heads=4, groups=2, query_bias=gaussian(g, 4, 2), key_bias=9 * gaussian(g, 2, 2), output_bias=gaussian(g, 5)
    ),
    "rotary": lambda g: random_layer(g, k=4, positions=hs.maps.Positions(rotary=hs.maps.Rotary())),
    "causal rotary": lambda g: random_layer(
        g, k=4, positions=hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(base=3.0))
    ),
    "rotary, key bias": lambda g: random_layer(
        g, heads=1, key_bias=20 * gaussian(g, 1, 2), positions=hs.maps.Positions(rotary=hs.maps.Rotary())
    ),
    "rotary, query bias": lambda g: random_layer(
        g, heads=1, query_bias=20 * gaussian(g, 1, 2), positions=hs.maps.Positions(rotary=hs.maps.Rotary())
    ),
    "soft cap": lambda g: random_layer(g, softcap=1.0),
    "soft cap, biases": lambda g: random_layer(
        g, heads=1, softcap=2.0, query_bias=3 * gaussian(g, 1, 2), key_bias=3 * gaussian(g, 1, 2)
    ),
    "negative scale": lambda g: random_layer(g, scale=-2.0),
    "one visible token": lambda g: random_layer(g, positions=hs.maps.Positions(padding=torch.arange(5) == 2)),
    "window": lambda g: random_layer(g, positions=hs.maps.Positions(window=2)),
    "relative bias": lambda g: random_layer(g, positions=hs.maps.Positions(relative_bias=4 * gaussian(g, 3, 9))),
    "position bias": lambda g: random_layer(g, positions=hs.maps.Positions(position_bias=4 * gaussian(g, 3, 5))),
    "token weights": lambda g: random_layer(g, weights=torch.tensor([1.0, 1e-3, 1e-3, 10.0, 0.1]).double()),
}


def with_mask(f, causal):
    return dataclasses.replace(f, positions=hs.maps.Positions(causal=causal))


def bilinear(f):
    """A of a single head."""
    return f.score_scale * f.key[0].mT @ f.query[0]


def scaled_to(f, c, radius):
    """The head with its scores rescaled so that ‖A‖R² = c (where A is not zero)."""
    size = matrix_norm(bilinear(f)) * radius**2
    return f if size == 0 else dataclasses.replace(f, query=f.query * (c / size))


def turn(degrees, d=2):
    t = math.radians(degrees)
    block = torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]).double()
    return torch.kron(torch.eye(d // 2).double(), block)
