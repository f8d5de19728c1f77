"""Attention under a cap of logits: the bound holds, has no root of n, and its inverse is one."""

import math

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError


@pytest.mark.parametrize("causal", [False, True])
def test_measured_constants_stay_below_the_bound_at_their_own_cap(causal, rng):
    for n, size in ((2, 1.0), (12, 0.3), (12, 2.0), (40, 1.0)):
        A, V = torch.randn(2, 3, 3, dtype=torch.float64, generator=rng).unbind()
        f = hs.Attention.single_head(A=A, V=V, positions=hs.maps.Positions(causal=causal))
        X = size * torch.randn(n, 3, dtype=torch.float64, generator=rng)
        radius = float(X.norm(dim=-1).max())
        cap = float((X @ A.mT @ X.mT).abs().max())
        bound = hs.bounds.logit_cap(f, cap, radius=radius, n=n)
        assert float(hs.local_lipschitz(f, X).upper) <= bound.value
        assert bound.value <= hs.bounds.logit_cap(f, 2 * cap, radius=radius, n=n).value


def test_the_root_of_n_is_gone_and_a_large_cap_brings_it_back():
    identity = torch.eye(2, dtype=torch.float64)
    f = hs.Attention.single_head(A=identity, V=identity)
    free = hs.bounds.logit_cap(f, 1.0, radius=1.0).value
    assert free == pytest.approx(1 + 2 * math.e, rel=1e-6)
    assert hs.bounds.logit_cap(f, 1.0, radius=1.0, n=10**9).value <= free
    assert hs.bounds.logit_cap(f, 400.0, radius=1.0, n=100).value == pytest.approx(21.0, rel=1e-6)


def test_the_inverse_keeps_the_wanted_constant_and_says_if_it_cannot(rng):
    f = hs.Attention.random(heads=2, d=4, seed=rng)
    least = hs.bounds.logit_cap(f, 0.0, radius=1.0, n=50).value
    cap = hs.bounds.largest_logit_cap(f, 2 * least, radius=1.0, n=50)
    assert hs.bounds.logit_cap(f, cap, radius=1.0, n=50).value <= 2 * least
    assert hs.bounds.logit_cap(f, 1.001 * cap, radius=1.0, n=50).value > 2 * least
    assert hs.bounds.largest_logit_cap(f, 1e9, radius=1.0, n=50) == math.inf
    with pytest.raises(AssumptionError, match="no cap keeps"):
        hs.bounds.largest_logit_cap(f, 0.5 * least, radius=1.0, n=50)
    causal = hs.Attention.single_head(A=torch.eye(2), V=torch.eye(2), positions=hs.maps.Positions(causal=True))
    with pytest.raises(AssumptionError, match="log n"):
        hs.bounds.logit_cap(causal, 1.0, radius=1.0)
    with pytest.raises(AssumptionError, match="cap must be"):
        hs.bounds.logit_cap(f, -1.0, radius=1.0)
