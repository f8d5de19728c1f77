"""The worst input near a given one."""

import pytest
import torch
from cases import layer
from draws import gaussian
from oracles import constant

import howsmooth as hs
from howsmooth.search.ascent import worst_nearby


@pytest.fixture
def head(rng):
    f = layer(lambda *shape: gaussian(rng, *shape), heads=1)
    return f, 0.7 * gaussian(rng, 3, f.d)


@pytest.mark.slow
@pytest.mark.parametrize("per_token", [True, False])
def test_it_lies_near_the_given_input_and_between_its_constant_and_the_theorem(head, per_token):
    f, X = head
    found = worst_nearby(f, X, eps=0.2, metric=("total", "token")[per_token], steps=4, starts=1)
    moved = torch.tensor(found.moved, dtype=torch.float64)
    assert float(moved.max() if per_token else moved.norm()) <= 0.2 * (1 + 1e-9)
    assert constant(f, X) < constant(f, found.witness.tokens) <= found.upper.value
    assert found.witness.value == pytest.approx(float(constant(f, found.witness.tokens)), rel=1e-3)
    assert found.refused == ""
    assert 1 < found.growth <= found.witness.value / float(found.there.lower)


def test_each_token_is_told_what_it_is_worth_alone(head):
    f, X = head
    found = worst_nearby(f, X, eps=0.2, steps=2, starts=1)
    for i, value in enumerate(found.alone):
        Y = X.clone()
        Y[i] = found.witness.tokens[i]
        assert value == pytest.approx(float(constant(f, Y)), rel=2e-3)


def test_without_a_theorem_the_reason_is_told(rng, head):
    f, X = head
    module = torch.nn.Sequential(torch.nn.Linear(f.d, f.d), torch.nn.Tanh()).double()
    found = worst_nearby(module, X, eps=0.1, steps=1, starts=1)
    assert found.upper is None
    assert "closed form" in found.refused
    assert len(found.alone) == 3
    capped = hs.Attention(query=f.query, key=f.key, value=f.value, softcap=5.0)
    refused = worst_nearby(capped, X, eps=0.1, steps=1, starts=1)
    assert refused.upper is None
    assert "soft caps" in refused.refused


def test_where_nothing_moves_there_is_no_growth():
    zero = torch.zeros(2, 2, dtype=torch.float64)
    found = worst_nearby(hs.Attention.single_head(A=zero, V=zero), torch.ones(3, 2).double(), eps=0.1, steps=2)
    assert (found.witness.value, found.growth) == (0.0, None)
