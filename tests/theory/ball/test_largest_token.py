"""Theorem 14: between largest tokens one bound holds for every number of tokens."""

import dataclasses
import math

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.maps.positions import Positions, Rotary
from howsmooth.theory import tables
from howsmooth.theory.ball.largest_token import _mechanism as mechanism_upper
from howsmooth.theory.linalg.matrix_norms import norm_upper

EPS = torch.finfo(torch.float64).eps


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


def widened(x):
    """The norm of a matrix or the length of a vector with 64 rounding units for each row and column."""
    return float(torch.linalg.norm(x, 2)) * (1 + 64 * sum(x.shape) * EPS)


def other(rng, kind, *, heads=1, k=2, mixed=True, biased=True, **options):
    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    biases = {"query_bias": draw(heads, k), "key_bias": draw(heads, k), "value_bias": draw(heads, 3)}
    key = draw(heads, k, 3)
    return kind(
        query=key if options.get("tied") else draw(heads, k, 3),
        key=key,
        value=draw(heads, 3, 3),
        output=draw(heads, 3, 3) if mixed else None,
        **(biases if biased and not options.get("tied") else {}),
        **options,
    )


def l2(f, h, B, R):
    Q, K = f.query[h], f.key[h]
    s, apart = f.score_scale, 0.0 if f.query_bias is None else widened(f.query_bias[h] - f.key_bias[h])
    V = widened(s * B @ Q.mT) * widened(Q) if f.tied else widened(B)
    apart += (widened(Q) + widened(K)) * R
    return V * (1 + 2 * s * (widened(K.mT @ Q) * R + widened(K) * apart) * R)


def cosine(f, h, B, R):
    steep = f.eps**-0.5
    direct, spread = (widened(B) * steep, 1.0) if f.normalise_values else (widened(B), widened(B) * R)
    gradient = abs(f.score_scale) * steep * (widened(f.query[h]) + widened(f.key[h]))
    return abs(f.gain) * (direct + gradient * spread)


def differential(f, h, B, R):
    k, s, total = f.query.shape[-2] // 2, f.score_scale, 0.0
    for rows, factor in ((slice(k), 1.0), (slice(k, None), float(f.subtracted[h].abs()))):
        Q, K, b = f.query[h, rows], f.key[h, rows], f.query_bias[h, rows]
        A = widened(s * K.mT @ Q) + sum(Q.shape) * EPS * abs(s) * widened(Q) * widened(K)
        total += factor * (1 + (2 * A * R + abs(s) * widened(b @ K)) * R)
    return widened(B) * total


KINDS = {
    "l2": (l2, hs.maps.L2Attention, {"scale": 0.7}),
    "l2 tied": (l2, hs.maps.L2Attention, {"scale": 0.7, "tied": True}),
    "cosine": (cosine, hs.maps.CosineAttention, {"scale": -0.6, "eps": 0.09, "gain": -1.7}),
    "differential": (
        differential,
        hs.maps.DifferentialAttention,
        {"k": 4, "scale": -0.8, "subtracted": torch.tensor([-0.3], dtype=torch.float64)},
    ),
}


@pytest.mark.parametrize(("stated", "kind", "options"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("R", [0.1, 3.0])
def test_other_scores_have_the_bound_that_is_stated(stated, kind, options, R, rng):
    for mixed in (False, True):
        f = other(rng, kind, mixed=mixed, **options)
        value = f.value[0]
        expected = stated(f, 0, value, R)
        if mixed:
            W = f.output[0]
            expected = min(stated(f, 0, W @ value, R), expected * widened(W))
        assert mechanism_upper(f, R) == pytest.approx(expected, rel=2e-15, abs=0)


def test_normalised_values_stand_between_the_heads_and_their_output(rng):
    f = other(rng, hs.maps.CosineAttention, heads=2, eps=0.04, gain=0.5, normalise_values=True)
    expected = math.hypot(*(cosine(f, h, f.value[h], 1.5) for h in range(2))) * widened(torch.cat(list(f.output), -1))
    assert mechanism_upper(f, 1.5) == pytest.approx(expected, rel=2e-15, abs=0)
    apart = other(rng, hs.maps.CosineAttention, heads=2, eps=0.04, normalise_values=True, mixed=False)
    expected = math.hypot(*(cosine(apart, h, apart.value[h], 1.5) for h in range(2)))
    assert mechanism_upper(apart, 1.5) == pytest.approx(expected, rel=2e-15, abs=0)


def test_of_several_heads_the_largest_share_that_is_subtracted_counts(rng):
    shares = torch.tensor([0.2, -0.9], dtype=torch.float64)
    f = other(rng, hs.maps.DifferentialAttention, heads=2, k=4, mixed=False, subtracted=shares)
    most = dataclasses.replace(f, subtracted=shares[1:].expand(2))
    expected = math.hypot(*(differential(most, h, f.value[h], 1.5) for h in range(2)))
    assert mechanism_upper(f, 1.5) == pytest.approx(expected, rel=2e-15, abs=0)


def test_cosines_without_a_floor_have_no_bound(rng):
    assert mechanism_upper(other(rng, hs.maps.CosineAttention, eps=0.0), 1.0) == math.inf


@pytest.mark.parametrize(("stated", "kind", "options"), KINDS.values(), ids=KINDS)
def test_no_input_of_other_kinds_in_the_ball_has_a_larger_constant(stated, kind, options, rng):
    for R in (0.1, 1.0, 5.0):
        f = other(rng, kind, **options)
        for n in (1, 4):
            found = hs.local_lipschitz(f, in_ball(rng, n, 3, R), metric="token", seed=rng)
            assert found.lower <= hs.bounds.token_upper(f, radius=R).value


def test_tables_say_the_metric_and_take_its_coordinates(rng):
    f = drawn(rng, heads=2, d=3, size=0.4, output_bias=torch.ones(3, dtype=torch.float64))
    (token,) = hs.bounds.table(f, n=4, radius=1.5, metric="token").bounds
    assert token.value == hs.bounds.token_upper(f, radius=1.5).value
    assert token.domain.endswith(", largest token")
    assert "metric" not in hs.bounds.smallest_upper(f, n=4, radius=1.5).domain
    M = torch.diag(torch.tensor([1e8, 1.0, 1e-4], dtype=torch.float64))  # rounding is seen where they differ as much
    metric = hs.metrics.weighted(M)
    weighted = hs.bounds.smallest_upper(f, n=4, radius=1.5, metric=metric)
    assert "metric weighted" in weighted.domain
    R, back = metric.factor, metric.inverse
    stretch, squeeze = (norm_upper(x) for x in (R, back))
    share = 64 * 3 * EPS * stretch * squeeze
    moved = hs.Attention(query=f.query @ back.mT, key=f.key @ back.mT, value=f.value @ back.mT, output=R.mT @ f.output)
    stated = hs.bounds.smallest_upper(moved, n=4, radius=1.5 * stretch * (1 + share))
    assert weighted.log_value == pytest.approx(stated.log_value + math.log1p(share), rel=1e-11, abs=0)
    assert weighted.value == pytest.approx(stated.value * (1 + share), rel=1e-9, abs=0)
    found, size, rounding = tables._isometric(f, metric)
    assert (size, rounding) == (stretch * (1 + share), share)
    torch.testing.assert_close(found.output_bias, f.output_bias @ R)
    X = in_ball(rng, 4, 3, 1.0)
    torch.testing.assert_close(found(X @ R), f(X) @ R, rtol=1e-6, atol=1e-6)
    assert hs.bounds.smallest_upper(f, n=4, radius=1.5, metric="total").value == pytest.approx(
        min(bound.value for bound in hs.bounds.table(f, n=4, radius=1.5).bounds if bound.name.endswith("_upper")),
        rel=1e-15,
    )
