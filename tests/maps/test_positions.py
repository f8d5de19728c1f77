"""How position enters: masks, windows, padding and rotary embeddings."""

import pytest
import torch
from draws import gaussian
from maps.definition import MEMORIES, build, naive
from torch.testing import assert_close

import howsmooth as hs


def test_rotary_scores_depend_on_position_differences_only(rng):
    X, Q, K, V = gaussian(rng, 6, 4), gaussian(rng, 2, 4, 4), gaussian(rng, 2, 4, 4), gaussian(rng, 2, 4, 4)
    values = [
        hs.Attention(
            query=Q,
            key=K,
            value=V,
            positions=hs.maps.Positions(rotary=hs.maps.Rotary(positions=torch.arange(6) + shift)),
        )(X)
        for shift in (0, 17)
    ]
    default = hs.Attention(query=Q, key=K, value=V, positions=hs.maps.Positions(rotary=hs.maps.Rotary()))(X)
    assert_close(values[0], values[1])
    assert_close(values[0], default)


def test_rotary_positions_may_be_fractional_and_negative(rng):
    places = torch.tensor([-3.5, 0.25, 2.0, 7.75]).double()
    p = {
        "query": gaussian(rng, 1, 4, 3),
        "key": gaussian(rng, 1, 4, 3),
        "value": gaussian(rng, 1, 2, 3),
        "output": None,
    }
    p["positions"] = {
        "rotary": {"base": 100.0, "dim": None, "interleaved": True, "frequencies": None, "positions": places}
    }
    X = gaussian(rng, 4, 3)
    assert_close(build(p)(X), naive(X, p))


def test_a_key_bias_matters_under_rotary_embeddings_and_cancels_without(rng):
    Q, K, V, b, X = (
        gaussian(rng, 1, 4, 3),
        gaussian(rng, 1, 4, 3),
        gaussian(rng, 1, 2, 3),
        gaussian(rng, 1, 4),
        gaussian(rng, 5, 3),
    )
    rotary = hs.maps.Positions(rotary=hs.maps.Rotary())
    with_bias, without = (hs.Attention(query=Q, key=K, value=V, key_bias=c, positions=rotary)(X) for c in (b, None))
    assert (with_bias - without).abs().max() > 1e-3
    assert_close(hs.Attention(query=Q, key=K, value=V, key_bias=b)(X), hs.Attention(query=Q, key=K, value=V)(X))


def test_the_future_does_not_move_the_past_under_a_causal_mask(rng):
    f = hs.Attention.random(heads=2, d=4, causal=True, dtype=torch.float64, seed=rng)
    X, E = gaussian(rng, 200, 4), torch.zeros(200, 4).double()
    E[150] = 1.0
    for memory in MEMORIES:
        moved = f.jacobian(X, memory=memory).jvp(E)
        assert (moved[:150] == 0).all()
        assert (moved[150:].abs().sum(-1) > 0).all()


def test_a_padded_key_has_no_influence_on_other_tokens(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    padding = torch.tensor([True, True, False, True])
    masked = hs.Attention(
        query=f.query, key=f.key, value=f.value, output=f.output, positions=hs.maps.Positions(padding=padding)
    )
    X = gaussian(rng, 4, 4)
    kept = [0, 1, 3]
    assert_close(masked(X)[kept], f(X[kept]))


def test_a_batch_axis_of_weights_tokens_and_masks_broadcasts(rng):
    d, n, h = 3, 4, 2
    Q, K, V = gaussian(rng, h, d, d), gaussian(rng, h, d, d), gaussian(rng, h, d, d)
    X = gaussian(rng, 2, 1, n, d)
    padding = torch.tensor([[True, True, True, True], [True, False, True, True], [False, True, True, False]])
    f = hs.Attention(query=Q, key=K, value=V, positions=hs.maps.Positions(padding=padding))
    values, operator = f(X), f.jacobian(X)
    E = gaussian(rng, 2, 3, n, d)
    products = operator.jvp(E)
    for b in range(2):
        for c in range(3):
            single = hs.Attention(query=Q, key=K, value=V, positions=hs.maps.Positions(padding=padding[c]))
            assert_close(values[b, c], single(X[b, 0]))
            assert_close(products[b, c], single.jacobian(X[b, 0]).jvp(E[b, c]))


@pytest.mark.parametrize("memory", MEMORIES)
def test_masked_scores_of_minus_ten_to_the_thirty_are_harmless(rng, memory):
    n, d = 5, 3
    A, V, X = gaussian(rng, d, d), gaussian(rng, d, d), gaussian(rng, n, d)
    hard = torch.rand(n, n, generator=rng) < 0.4
    hard.fill_diagonal_(False)
    soft = torch.zeros(n, n).double().masked_fill(hard, torch.finfo(torch.float64).min)
    one = hs.Attention.single_head(A=A, V=V, positions=hs.maps.Positions(mask=soft))
    two = hs.Attention.single_head(A=A, V=V, positions=hs.maps.Positions(mask=~hard))
    assert_close(one(X), two(X))
    assert_close(one.jacobian(X, memory=memory).jvp(X), two.jacobian(X, memory=memory).jvp(X))
