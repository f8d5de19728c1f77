"""Norms over the queries or keys of all heads: one head moves with all of them, and no theorem claims to cover it."""

import dataclasses

import pytest
import torch
from cases import JOINT, D, N, layer, layer_norm
from oracles import attention_by_loops, constant, dense_jacobian
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.at_input.local import local_upper


def gauss(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_definition(f, h):
    """What head ``h`` puts out, from the definition of the whole layer."""

    def head(X):
        heads = attention_by_loops(dataclasses.replace(f, output=None, output_bias=None), X)
        return heads.unflatten(-1, (f.layout.heads, -1))[:, h] @ f.output[h].mT

    return head


@pytest.mark.slow
@pytest.mark.parametrize("case", JOINT, ids=str)
def test_a_head_alone_moves_with_the_queries_of_all(case, rng):
    f, X = case.build(rng)
    together = f.per_head().jacobian(X)
    E, G = gauss(N, D), gauss(N, f.out)
    for h in (0, f.layout.heads - 1):
        alone, J = f.head(h), dense_jacobian(by_definition(f, h), X)
        assert_close(alone(X), by_definition(f, h)(X))
        assert_close(f.per_head()(X)[h], alone(X))
        own = alone.jacobian(X)
        assert_close(own.jvp(E).flatten(), J @ E.flatten())
        assert_close(own.vjp(G).flatten(), J.mT @ G.flatten())
        (picked,) = together.take(torch.tensor([h])).jvp(E[None])
        assert_close(picked.flatten(), J @ E.flatten())
        # and so it does not matter that its own projections are fewer than the coordinates of a token
        assert_close(hs.local_lipschitz(alone, X, rtol=1e-9, seed=rng).lower, torch.linalg.matrix_norm(J, 2))


def test_a_narrow_head_is_not_restricted_to_its_own_projections(rng):
    f = layer(gauss, heads=3, k=1, v=1, query_norm=hs.maps.RMSNorm(gain=gauss(3), eps=0.1))
    X = gauss(N, D)
    estimate = hs.local_lipschitz(f.head(1), X, rtol=1e-9, seed=rng)
    assert_close(estimate.lower, constant(by_definition(f, 1), X))


def test_the_heads_of_a_batch_of_sequences_are_one_batch(rng):
    f, _X = JOINT[2].build(rng)
    X = gauss(2, N, D)
    assert_close(f.per_head()(X[:, None]).sum(1) + f.output_bias, f(X))


@pytest.mark.parametrize("case", JOINT, ids=str)
def test_no_theorem_covers_them(case, rng):
    f, X = case.build(rng)
    for bound in (
        lambda: hs.bounds.sharp_upper(f, n=4, radius=1.0),
        lambda: local_upper(f, X),
        lambda: local_upper(f.head(1), X),
        lambda: hs.bounds.neighbourhood_upper(f, X, eps=0.1),
        lambda: f.query_side(X),
        lambda: hs.bounds.table(f, n=4, radius=1.0),
    ):
        with pytest.raises(hs.errors.AssumptionError, match="norms over") as caught:
            bound()
        assert caught.value.field == "attention"


def test_a_gain_of_another_size_is_refused():
    with pytest.raises(hs.errors.ShapeError, match=r"\(4,\) for each head or \(12,\) for all, got \(8,\)") as caught:
        layer(gauss, query_norm=hs.maps.RMSNorm(gain=gauss(8)))
    assert caught.value.field == "query_norm"


def test_a_layer_norm_over_all_heads_is_refused():
    with pytest.raises(hs.errors.AssumptionError, match=r"must be an hs\.maps\.RMSNorm") as caught:
        layer(gauss, key_norm=layer_norm(gauss, 12))
    assert caught.value.field == "key_norm"


def test_a_norm_that_divides_by_nothing_is_refused():
    f = layer(gauss, biases=False, query_norm=hs.maps.RMSNorm(gain=gauss(12), eps=0.0))
    with pytest.raises(hs.errors.AssumptionError, match="without spread"):
        f(torch.zeros(N, D, dtype=torch.float64))
