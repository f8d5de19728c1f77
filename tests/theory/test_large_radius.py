import math

import pytest
import torch
from oracles import constant

import howsmooth as hs


@pytest.mark.parametrize("causal", [False, True])
def test_the_constant_approaches_its_limit_as_fast_as_claimed(rng, causal):
    for _draw in range(5):
        A, V, X = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((3, 3), (2, 3), (6, 3)))
        f = hs.Attention.single_head(A=A, V=V, causal=causal)
        limit = hs.bounds.large_radius_limit(f, X)
        for radius in (1.0, 2.0, 5.0, 10.0, 30.0):
            assert abs(float(constant(f, radius * X)) - limit.value) <= limit.error(radius) + 1e-9
        assert limit.error(100 / math.sqrt(limit.gap)) == pytest.approx(0.0, abs=1e-100)
        assert float(constant(f, 100 / math.sqrt(limit.gap) * X)) == pytest.approx(limit.value)


def test_the_limit_counts_the_followers_of_the_most_attended_token():
    X = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.1], [0.0, 1.0]], dtype=torch.float64)
    f = hs.Attention.single_head(A=torch.eye(2, dtype=torch.float64), V=2 * torch.eye(2, dtype=torch.float64))
    limit = hs.bounds.large_radius_limit(f, X)
    assert limit.followers == 3
    assert limit.value == pytest.approx(2 * math.sqrt(3))


def test_a_tie_is_refused_and_names_the_pair():
    X = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    f = hs.Attention.single_head(A=torch.eye(2, dtype=torch.float64), V=torch.eye(2, dtype=torch.float64))
    with pytest.raises(hs.errors.AssumptionError, match="tied_pair"):
        hs.bounds.large_radius_limit(f, X)
