"""Heads that have extremal inputs, and what every witness must keep."""

import dataclasses
import math

import torch
from draws import gaussian, number, orthogonal, symmetric
from theory.example_layers import ROUNDING, form, low_rank, random_layer, turn
from torch.testing import assert_close

import howsmooth as hs

MEASURED = 1 + 1e-3  # how far apart the two ends of a measurement may be


def cancelling(rng):
    """Two equal heads with opposite output projections: the map is zero."""
    f = random_layer(rng, d=6, k=4, heads=1)
    pair = {name: getattr(f, name).expand(2, -1, -1) for name in ("query", "key", "value")}
    return dataclasses.replace(f, **pair, output=torch.cat([f.output, -f.output]))


HEADS = {
    "identity": lambda g: form(torch.eye(2).double()),
    "minus identity": lambda g: form(-torch.eye(3).double()),
    "quarter turn": lambda g: form(turn(90)),
    "turn by 120 degrees": lambda g: form(turn(120, 4), gaussian(g, 4, 4)),
    "orthogonal": lambda g: form(orthogonal(g, 8), gaussian(g, 8, 8)),
    "nilpotent": lambda g: form(torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()),
    "nilpotent of order six": lambda g: form(torch.triu(gaussian(g, 6, 6), 1), gaussian(g, 6, 6)),
    "symmetric": lambda g: form(symmetric(g, 5), gaussian(g, 5, 5)),
    "positive definite": lambda g: form(symmetric(g, 4) @ symmetric(g, 4).mT + torch.eye(4).double()),
    "gaussian": lambda g: form(gaussian(g, 3, 3), gaussian(g, 3, 3)),
    "V wide": lambda g: form(gaussian(g, 6, 6), gaussian(g, 2, 6)),
    "V tall": lambda g: form(gaussian(g, 3, 3), gaussian(g, 7, 3)),
    "low rank": lambda g: low_rank(g, 32, 4, 4),
    "rank one": lambda g: low_rank(g, 8, 1, 1),
    "wide": lambda g: low_rank(g, 64, 16, 8),
}


def assert_honest(f, witness, n, generator):
    """Shapes, the measurement once more, and that no claim exceeds it."""
    assert witness.tokens.shape == (n, f.d)
    assert witness.tokens.dtype == f.dtype
    again = hs.local_lipschitz(f, witness.tokens, rtol=1e-6, seed=generator)
    assert witness.measured.lower <= again.upper * ROUNDING
    assert witness.measured.upper >= again.lower / ROUNDING
    assert witness.value <= again.upper.item() * ROUNDING
    assert witness.value >= witness.measured.lower.item()
    if witness.formula is not None:
        assert 0 <= witness.formula <= again.upper.item() * ROUNDING
    assert witness.name
    assert witness.domain


def assert_in_ball(tokens, radius):
    assert tokens.norm(dim=-1).max() <= radius * ROUNDING


def assert_on_image(tokens, norm):
    z = (tokens - (0 if norm.bias is None else norm.bias)) / norm.gain
    d = z.shape[-1]
    assert_close(z.norm(dim=-1), number(math.sqrt(d)).expand(len(z)))
    if isinstance(norm, hs.maps.LayerNorm):
        assert_close(z.sum(-1), torch.zeros(len(z)).double(), rtol=0.0, atol=1e-6 * d)
