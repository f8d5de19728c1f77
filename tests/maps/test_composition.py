import torch
from torch.testing import assert_close

import howsmooth as hs


def test_a_chain_applies_the_first_map_first(rng):
    norm = hs.LayerNorm(gain=torch.randn(8, generator=rng))
    attention = hs.Attention.random(heads=2, d=8, generator=rng)
    X = torch.randn(5, 8, generator=rng)
    assert_close(hs.Chain(norm, attention)(X), attention(norm(X)))
    assert_close(hs.Residual(attention)(X), X + attention(X))


def test_a_composition_changes_dtype_as_a_whole(rng):
    block = hs.Residual(hs.Chain(hs.RMSNorm(gain=torch.ones(8)), hs.Attention.random(heads=2, d=8, generator=rng)))
    X = torch.randn(5, 8, dtype=torch.float64, generator=rng)
    assert block.to(torch.float64)(X).dtype == torch.float64


def test_a_constant_residual_has_constant_one():
    zero = hs.Attention.single_head(A=torch.eye(3), V=torch.zeros(3, 3))
    estimate = hs.local_lipschitz(hs.Residual(zero), torch.randn(4, 3))
    assert_close(estimate.lower, torch.tensor(1.0))
