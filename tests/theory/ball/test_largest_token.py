"""Theorem 14: between largest tokens one bound holds for every number of tokens."""

import math

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.maps.positions import Positions, Rotary


def drawn(rng, *, heads, d, size, **options):
    def draw(*shape):
        return size * torch.randn(*shape, generator=rng, dtype=torch.float64)

    weights = {"query": draw(heads, d, d), "key": draw(heads, d, d), "value": draw(heads, d, d)}
    return hs.Attention(**weights, output=draw(heads, d, d), **options)


def in_ball(rng, n, d, radius):
    X = torch.randn(n, d, generator=rng, dtype=torch.float64)
    return radius * X / X.norm(dim=-1, keepdim=True) * torch.rand(n, 1, generator=rng, dtype=torch.float64) ** 0.2


CASES = {
    "plain": {},
    "causal": {"positions": Positions(causal=True)},
    "rotary": {"positions": Positions(rotary=Rotary())},
    "capped": {"softcap": 3.0},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(12))
def test_no_input_in_the_ball_has_a_larger_constant(case, seed):
    rng = torch.Generator().manual_seed(seed)
    n, heads = 1 + seed % 6, 1 + seed % 2
    f = drawn(rng, heads=heads, d=2, size=(0.3, 1.0, 2.0)[seed % 3], **CASES[case])
    radius = 0.2 + 4 * float(torch.rand((), generator=rng))
    found = hs.local_lipschitz(f, in_ball(rng, n, 2, radius), metric="token", seed=rng)
    assert found.lower <= hs.bounds.token_upper(f, radius=radius).value


@pytest.mark.parametrize("biased", ["query_bias", "key_bias", "value_bias"])
@pytest.mark.parametrize("sink", [None, 2.0])
def test_biases_and_sinks_are_covered(biased, sink, rng):
    for size in (0.5, 5.0, 50.0):
        bias = {biased: size * torch.randn(1, 2, generator=rng, dtype=torch.float64)}
        at = {} if sink is None else {"sink": torch.tensor([sink], dtype=torch.float64)}
        f = drawn(rng, heads=1, d=2, size=1.0, **bias, **at)
        for n in (1, 3):
            found = hs.local_lipschitz(f, in_ball(rng, n, 2, 1.5), metric="token", seed=rng)
            assert found.lower <= hs.bounds.token_upper(f, radius=1.5).value


@pytest.mark.parametrize("radius", [2.0, 6.0, 20.0])
def test_two_crowds_that_tie_for_one_token_come_near_the_bound(radius):
    # The scores of the last token, which is orthogonal to its gradient, tie between two crowds of the same size. Its
    # own move serves the key term or the query term, not both, and it is one of 25 tokens.
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    f = hs.Attention.single_head(A=quarter, V=torch.eye(2, dtype=torch.float64))
    crowds = torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64).repeat(12, 1)
    X = radius * torch.cat((crowds, crowds[:1]))
    attained = float(hs.local_lipschitz(f, X, metric="token", rtol=1e-2).lower)
    bound = hs.bounds.token_upper(f, radius=radius).value
    assert attained <= bound <= 1.2 * attained


def test_each_term_counts():
    # one token attends to itself alone: only the values are left
    V = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    f = hs.Attention.single_head(A=torch.zeros(2, 2, dtype=torch.float64), V=V)
    X = torch.ones(1, 2, dtype=torch.float64)
    assert math.isclose(float(hs.local_lipschitz(f, X, metric="token").lower), 3.0, rel_tol=1e-9)
    assert math.isclose(hs.bounds.token_upper(f, radius=7.0).value, 3.0, rel_tol=1e-9)
    twice = hs.Attention.single_head(A=2 * torch.eye(2, dtype=torch.float64), V=V)
    assert math.isclose(hs.bounds.token_upper(twice, radius=0.5).value, 3.0 * (1 + 2 * 2 * 0.25), rel_tol=1e-9)


def test_what_the_theorem_does_not_cover_is_refused(rng):
    f = drawn(rng, heads=1, d=2, size=1.0)
    with pytest.raises(AssumptionError, match="radius"):
        hs.bounds.token_upper(f, radius=-1.0)
