"""Tiles and memory: how weights are kept or rebuilt changes no number."""

import functools
import math

import pytest
import torch
from draws import gaussian
from maps.definition import MEMORIES
from maps.matrices import plain_attention, pulled, pushed
from torch.testing import assert_close

import howsmooth as hs


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(("n", "heads"), [(300, 1), (300, 4), (257, 3), (129, 2)])
@pytest.mark.parametrize("kind", ["full", "causal", "window", "causal_window", "window1", "masks", "causal_bias"])
def test_products_are_right_for_sequences_longer_than_a_tile(rng, n, heads, kind, memory):
    d, k = 5, 3
    Q, K, V, W = (
        gaussian(rng, heads, k, d),
        gaussian(rng, heads, k, d),
        gaussian(rng, heads, k, d),
        gaussian(rng, heads, 4, k),
    )
    X = gaussian(rng, n, d)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    allowed, bias, positions = torch.ones(n, n, dtype=torch.bool), None, hs.maps.Positions()
    if kind == "causal":
        allowed, positions = j <= i, hs.maps.Positions(causal=True)
    elif kind == "window":
        allowed, positions = (i - j).abs() < 140, hs.maps.Positions(window=140)
    elif kind == "causal_window":
        allowed, positions = (j <= i) & (i - j < 37), hs.maps.Positions(causal=True, window=37)
    elif kind == "window1":
        allowed, positions = i == j, hs.maps.Positions(window=1)
    elif kind == "masks":
        padding = (torch.rand(n, generator=rng) < 0.7) | (torch.arange(n) == 0)
        per_head = (torch.rand(heads, n, n, generator=rng) < 0.5) | (j == 0)
        allowed = per_head & padding
        positions = hs.maps.Positions(padding=padding, mask=per_head)
    elif kind == "causal_bias":
        table = gaussian(rng, heads, 2 * (n + 5) - 1)
        allowed, bias = j <= i, table[:, n + 5 - 1 + j - i]
        positions = hs.maps.Positions(causal=True, relative_bias=table)
    f = hs.Attention(query=Q, key=K, value=V, output=W, positions=positions)
    oracle = lambda Z: plain_attention(Z, Q, K, V, W, allowed=allowed, bias=bias)  # noqa: E731
    E, G = gaussian(rng, n, d), gaussian(rng, n, 4)
    operator = f.jacobian(X, memory=memory)
    Y, tangent = pushed(oracle, (X,), (E,))
    pullback = pulled(oracle, X)
    assert_close(f(X), Y)
    assert_close(operator.jvp(E), tangent)
    assert_close(operator.vjp(G), pullback(G))


BUDGETS = [2**30, 2 * 300 * 300 * 8, 300 * 300 * 8, 10_000, 1, 0]


def test_the_memory_budget_does_not_change_the_products(rng):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=torch.float64, seed=rng)
    X, E = gaussian(rng, 2, 300, 6), gaussian(rng, 2, 300, 6)
    expected = f.jacobian(X)
    for memory in BUDGETS:
        operator = f.jacobian(X, memory=memory)
        assert_close(operator.jvp(E), expected.jvp(E))
        assert_close(operator.vjp(E), expected.vjp(E))


@pytest.mark.parametrize("memory", MEMORIES)
def test_per_batch_masks_reach_across_tiles(rng, memory):
    b, heads, n, d = 2, 2, 150, 4
    Q, K, V, W = (gaussian(rng, heads, d, d) for _ in range(4))
    X = gaussian(rng, b, n, d)
    mask = gaussian(rng, b, heads, n, n).masked_fill(torch.rand(b, heads, n, n, generator=rng) < 0.3, -math.inf)
    mask[..., 0] = 0.0
    padding = torch.rand(b, n, generator=rng) < 0.8
    padding[:, 0] = True
    f = hs.Attention(query=Q, key=K, value=V, output=W, positions=hs.maps.Positions(mask=mask, padding=padding))
    operator = f.jacobian(X, memory=memory)
    E, G = gaussian(rng, *X.shape), gaussian(rng, *X.shape)
    Y, Jv, Jt = f(X), operator.jvp(E), operator.vjp(G)
    for i in range(b):
        finite = mask[i] > -math.inf
        rest = {"allowed": finite & padding[i], "bias": mask[i].masked_fill(~finite, 0.0)}
        oracle = functools.partial(plain_attention, Q=Q, K=K, V=V, W=W, **rest)
        value, tangent = pushed(oracle, (X[i],), (E[i],))
        pullback = pulled(oracle, X[i])
        assert_close(Y[i], value)
        assert_close(Jv[i], tangent)
        assert_close(Jt[i], pullback(G[i]))


@pytest.mark.parametrize("memory", MEMORIES)
def test_gradients_of_the_jvp_are_right_for_sequences_longer_than_a_tile(rng, memory):
    n, d, heads = 140, 3, 2
    Q, K, V, W = (gaussian(rng, heads, d, d) for _ in range(4))
    X, E, G = gaussian(rng, n, d), gaussian(rng, n, d), gaussian(rng, n, d)
    allowed = torch.ones(n, n, dtype=torch.bool).tril()

    def ours(Z, query):
        f = hs.Attention(query=query, key=K, value=V, output=W, positions=hs.maps.Positions(causal=True))
        return (f.jacobian(Z, memory=memory).jvp(E) * G).sum()

    def oracle(Z, query):
        _value, tangent = pushed(lambda Y: plain_attention(Y, query, K, V, W, allowed=allowed), (Z,), (E,))
        return (tangent * G).sum()

    leaves = [t.clone().requires_grad_() for t in (X, Q)]
    assert_close(torch.autograd.grad(ours(*leaves), leaves), torch.autograd.grad(oracle(*leaves), leaves))


def test_a_jacobian_keeps_its_point_when_the_tokens_are_overwritten_later(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    X, E = gaussian(rng, 5, 4), gaussian(rng, 5, 4)
    for memory in MEMORIES:
        Z = X.clone()
        operator = f.jacobian(Z, memory=memory)
        expected = operator.jvp(E).clone()
        Z.zero_()
        assert_close(operator.jvp(E), expected)
