"""What each mechanism is known for: closed forms that can be checked in the head, and symmetries."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from maps.mechanisms import plain
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.maps.mechanisms.linear import CHUNK


def matrices(rng, k=3, d=4, v=2):
    return {"Q": gaussian(rng, k, d), "K": gaussian(rng, k, d), "V": gaussian(rng, v, d)}


def test_tied_attention_by_distance_is_that_of_kim(rng):
    """Head h is softmax(−|x_iW − x_jW|²/√k) X A W_V with A = W Wᵀ/√k."""
    heads, d, k = 2, 4, 2
    W, W_V, W_O = gaussian(rng, heads, d, k), gaussian(rng, heads, d, k), gaussian(rng, heads * k, d)
    X = gaussian(rng, 5, d)
    parts = []
    for h in range(heads):
        q = X @ W[h]
        P = torch.softmax(-torch.cdist(q, q).square() / math.sqrt(k), dim=-1)
        parts.append(P @ X @ (W[h] @ W[h].mT / math.sqrt(k)) @ W_V[h])
    f = hs.maps.L2Attention(
        query=W.mT, key=W.mT, value=W_V.mT, output=W_O.mT.unflatten(1, (heads, k)).movedim(1, 0), tied=True
    )
    assert_close(f(X), torch.cat(parts, dim=-1) @ W_O)


def test_weights_of_tied_distances_do_not_see_translations(rng):
    M = matrices(rng)
    f = hs.maps.L2Attention.single_head(**M | {"K": M["Q"]})
    X, shift = gaussian(rng, 6, 4), gaussian(rng, 4)
    assert_close(f(X + shift), f(X) + M["V"] @ shift)


def test_a_sink_is_a_token_whose_key_and_value_are_zero(rng):
    M, X = matrices(rng), gaussian(rng, 6, 4)
    off_by_one = hs.Attention.single_head(**M, sink=0.0)
    plain_one = hs.Attention.single_head(**M)
    with_zero = torch.cat((X, torch.zeros(1, 4).double()))
    assert_close(off_by_one(X), plain_one(with_zero)[:-1])
    assert_close(hs.Attention.single_head(**M, sink=-1000.0)(X), plain_one(X))


def test_one_token_with_a_sink_is_halved():
    eye = torch.eye(1)
    assert_close(hs.Attention.single_head(A=0 * eye, V=eye, sink=0.0)(2 * eye), eye)


def test_many_tokens_of_sigmoid_attention_are_exponentials(rng):
    """N σ(s − log N) tends to eˢ."""
    M, X = matrices(rng), gaussian(rng, 6, 4) / 4
    f = hs.maps.SigmoidAttention.single_head(**M, count=1e9)
    S = (X @ M["Q"].mT) @ (X @ M["K"].mT).mT
    assert_close(f(X), S.exp() @ X @ M["V"].mT / 6, rtol=1e-5, atol=1e-5)  # e⁻ˢ/N is left out


def test_sparsemax_far_from_ties_is_the_largest():
    eye = torch.eye(1).double()
    X, E, moved = torch.tensor([[[1.0], [3.0], [-2.0]], [[0.0], [1.0], [0.0]], [[1.0], [1.0], [0.0]]]).double()
    f = hs.maps.EntmaxAttention.single_head(Q=eye, K=eye, V=eye, alpha=2.0)
    assert_close(f(X), torch.tensor([[3.0], [3.0], [-2.0]]).double())
    assert_close(f.jacobian(X).jvp(E), moved)


def test_entmax_of_equal_scores_is_uniform(rng):
    zero, X = torch.zeros(2, 4).double(), gaussian(rng, 5, 4)
    for alpha in (1.5, 2.0):
        f = hs.maps.EntmaxAttention.single_head(Q=zero, K=zero, V=torch.eye(4).double(), alpha=alpha)
        assert_close(f(X), X.mean(0).expand(5, 4))


def test_balanced_weights_are_doubly_stochastic(rng):
    X, a = gaussian(rng, 9, 4), gaussian(rng, 9).exp()
    for weights in (None, a):
        f = hs.maps.SinkhornAttention.single_head(**matrices(rng), weights=weights)
        ((weighting, _slope),) = f.jacobian(X).pattern.kept
        P = weighting.P[0]
        masses = torch.full((9,), 1 / 9).double() if weights is None else weights / weights.sum()
        assert_close(P.sum(-1), torch.ones(9).double())
        assert_close(masses @ P, masses)
        assert 0 < weighting.balanced.steps <= 60


def test_steep_scores_are_balanced_by_newtons_method(rng):
    """Sinkhorn's iteration alone would take thousands of steps here."""
    X = gaussian(rng, 12, 4)
    f = hs.maps.SinkhornAttention.single_head(**{name: 2.5 * M for name, M in matrices(rng).items()})
    ((weighting, _slope),) = f.jacobian(X).pattern.kept
    assert weighting.balanced.solves > 0
    assert_close(weighting.P[0].sum(0), torch.ones(12).double())


def test_half_subtracted_from_itself_is_half(rng):
    M, X = matrices(rng), gaussian(rng, 6, 4)
    twice = {name: torch.cat((M[name], M[name])) for name in "QK"} | {"V": M["V"]}
    assert_close(
        hs.maps.DifferentialAttention.single_head(**twice, subtracted=0.5)(X), hs.Attention.single_head(**M)(X) / 2
    )


def test_cosines_do_not_see_lengths(rng):
    M, X = matrices(rng), gaussian(rng, 6, 4)
    f = hs.maps.CosineAttention.single_head(**M, eps=0.0, scale=5.0, normalise_values=True)
    lengths = gaussian(rng, 6, 1).exp()
    assert_close(f(lengths * X), f(X))
    assert f(X).norm(dim=-1).max() <= 1 + 1e-12


@pytest.mark.parametrize("n", [CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_sums_over_the_past_of_long_sequences(n, rng):
    f = hs.maps.LinearAttention.single_head(**matrices(rng), causal=True)
    X, E = gaussian(rng, n, 4), gaussian(rng, n, 4)
    assert_close(f(X), plain(f)(X))
    masked = dataclasses.replace(f, positions=hs.maps.Positions(mask=torch.ones(n, n, dtype=torch.bool).tril()))
    J, other = f.jacobian(X), masked.jacobian(X)
    assert_close(J.jvp(E), other.jvp(E))
    assert_close(J.vjp(E[:, :2].contiguous()), other.vjp(E[:, :2].contiguous()))


def test_linear_attention_takes_long_sequences(rng):
    f = hs.maps.LinearAttention.single_head(**{name: M.float() for name, M in matrices(rng).items()})
    X = torch.randn(200_000, 4, generator=rng)  # a matrix of weights would take 160 GB
    J = f.jacobian(X)
    assert_close((J.jvp(X) * f(X)).sum(), (J.vjp(f(X)) * X).sum(), rtol=1e-3, atol=1e-3)  # float32 sums


def test_features_far_below_zero_still_have_a_mean():
    eye = torch.eye(1).double()
    f = hs.maps.LinearAttention.single_head(Q=eye, K=eye, V=eye)
    X = torch.tensor([[-50.0], [-52.0]]).double()
    assert_close(f(X), torch.full((2, 1), -(50 + 52 * math.exp(-2)) / (1 + math.exp(-2))).double())
