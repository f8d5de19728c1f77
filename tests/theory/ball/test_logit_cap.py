"""Attention under a cap of logits: the bound holds, has no root of n, and its inverse is one."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.theory.ball.logit_cap import LARGEST_CAP, _log_column_sum


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3), (True, 3)])
def test_measured_constants_stay_below_the_bound_at_their_own_cap(causal, window, rng):
    positions = hs.maps.Positions(causal=causal, window=window)
    for n, size in ((2, 1.0), (12, 0.3), (12, 2.0), (40, 1.0)):
        A, V = torch.randn(2, 3, 3, dtype=torch.float64, generator=rng).unbind()
        f = hs.Attention.single_head(A=A, V=V, positions=positions)
        X = size * torch.randn(n, 3, dtype=torch.float64, generator=rng)
        radius = float(X.norm(dim=-1).max())
        cap = float((X @ A.mT @ X.mT).abs().max())
        bound = hs.bounds.logit_cap(f, cap, radius=radius, n=n)
        assert float(hs.local_lipschitz(f, X).upper) <= bound.value
        assert bound.value <= hs.bounds.logit_cap(f, 2 * cap, radius=radius, n=n).value


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_sums_of_columns_of_capped_weights_stay_below_their_bound(causal, window, rng):
    """Scores of ±τ, one column of which attracts every row: the worst sum that a cap allows."""
    positions = hs.maps.Positions(causal=causal, window=window)
    i, j = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    allowed = ((j <= i) | (not causal)) & ((i - j).abs() < (window or 99))
    for cap in (0.0, 0.7, 3.0):
        worst = 0.0
        for column in range(12):
            S = torch.full((12, 12), -cap, dtype=torch.float64)
            S[:, column] = cap
            P = S.masked_fill(~allowed, -math.inf).softmax(-1)
            worst = max(worst, float(P[:, column].sum()))
        bound = math.exp(_log_column_sum(cap, 12, positions))
        assert worst <= bound * (1 + 1e-12)
        assert bound <= 2.1 * worst
        if window is not None:
            assert _log_column_sum(cap, 12, positions) <= _log_column_sum(cap, None, positions) + 1e-12


def test_a_soft_cap_is_a_cap_at_every_input_and_sinks_count(rng):
    A, V = torch.randn(2, 3, 3, dtype=torch.float64, generator=rng).unbind()
    f = hs.Attention.single_head(A=A, V=V, softcap=0.5)
    bound = hs.bounds.logit_cap(f, radius=2.0)
    assert bound.value == hs.bounds.logit_cap(f, 9.0, radius=2.0).value
    X = torch.randn(30, 3, dtype=torch.float64, generator=rng)
    X *= 2.0 / X.norm(dim=-1).max()
    assert float(hs.local_lipschitz(f, X).upper) <= bound.value
    sunk = dataclasses.replace(f, softcap=None, sink=torch.zeros(1, dtype=torch.float64))
    cap = float((X @ A.mT @ X.mT).abs().max())
    assert float(hs.local_lipschitz(sunk, X).upper) <= hs.bounds.logit_cap(sunk, cap, radius=2.0).value
    with pytest.raises(AssumptionError, match="give cap"):
        hs.bounds.logit_cap(sunk, radius=2.0)
    norm = hs.maps.RMSNorm(gain=torch.ones(3, dtype=torch.float64))
    with pytest.raises(AssumptionError, match="query or key norms"):
        hs.bounds.logit_cap(dataclasses.replace(f, query_norm=norm), radius=1.0)
    masked = hs.maps.Positions(mask=torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(AssumptionError, match="another mask"):
        hs.bounds.logit_cap(dataclasses.replace(f, positions=masked), radius=1.0)


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


@pytest.mark.parametrize("cap", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_columns_of_capped_weights_sum_to_no_more_and_the_worst_ones_to_as_much(cap, n):
    S = torch.full((n, n), -cap, dtype=torch.float64)
    S[:, 0] = cap
    worst = float(S.softmax(-1)[:, 0].sum())
    assert math.exp(_log_column_sum(cap, n, hs.maps.Positions(causal=False))) == pytest.approx(worst)
    assert _log_column_sum(cap, None, hs.maps.Positions(causal=False)) == 2 * cap
    masked = S.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    worst = float(masked.softmax(-1)[:, 0].sum())
    found = math.exp(_log_column_sum(cap, n, hs.maps.Positions(causal=True)))
    # an integral in place of a sum of decreasing terms, between 1 and the least of them too large
    assert worst <= found * (1 + 1e-12)
    assert found <= worst + 1
    assert found == pytest.approx(min(n, 1 + math.exp(2 * cap) * math.log1p((n - 1) * math.exp(-2 * cap))))


def test_a_cap_beyond_floats_is_none(rng):
    for causal in (False, True):
        assert _log_column_sum(1e4, 9, hs.maps.Positions(causal=causal)) == pytest.approx(math.log(9))
    assert _log_column_sum(LARGEST_CAP, 9, hs.maps.Positions(causal=True)) == pytest.approx(math.log(9))


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_every_term_counts_for_every_head(rng, mixed, sink):
    cap, n, radius = 0.6, 7, 1.3
    f = hs.Attention(
        query=gaussian(rng, 2, 3, 4),
        key=gaussian(rng, 2, 3, 4),
        value=gaussian(rng, 2, 5, 4),
        output=gaussian(rng, 2, 4, 5) if mixed else None,
        query_bias=gaussian(rng, 2, 3),
        key_bias=4 * gaussian(rng, 2, 3),
        value_bias=9 * gaussian(rng, 2, 5),
        sink=torch.zeros(2).double() if sink else None,
        scale=1.0,
    )
    c = n / (1 + (n - 1) * math.exp(-2 * cap))

    def one(h, W):
        A, V = f.key[h].mT @ f.query[h], W @ f.value[h]
        norm, bias = torch.linalg.matrix_norm(V, 2).item(), (W @ f.value_bias[h]).norm().item()
        query = torch.linalg.matrix_norm(A, 2).item() * radius
        key = query + (f.query_bias[h] @ f.key[h]).norm().item()
        spread = norm * radius
        if sink:  # of score zero and value zero
            query = max(query, (query + (f.key_bias[h] @ f.query[h]).norm().item()) / 2)
            spread = max(spread, (spread + bias) / 2)
        return norm * math.sqrt(c) + spread * (query + key * math.sqrt(c))

    stacked = math.hypot(*(one(h, torch.eye(5).double()) for h in range(2)))
    if mixed:
        wide = torch.linalg.matrix_norm(torch.cat(tuple(f.output), 1), 2).item()
        stacked = min(wide * stacked, sum(one(h, f.output[h]) for h in range(2)))
    assert hs.bounds.logit_cap(f, cap, radius=radius, n=n).value == pytest.approx(stacked, rel=1e-9)


def test_the_inverse_is_exact_to_nine_digits_and_takes_what_it_is_asked_for():
    identity = torch.eye(2, dtype=torch.float64)
    f = hs.Attention.single_head(A=identity, V=identity)
    # 1 + 2e^τ for any number of tokens in the unit ball
    assert hs.bounds.largest_logit_cap(f, 1 + 2 * math.e**2, radius=1.0) == pytest.approx(2.0, rel=2e-9)
    least = hs.bounds.logit_cap(f, 0.0, radius=1.0, n=3).value
    assert 0 <= hs.bounds.largest_logit_cap(f, least, radius=1.0, n=3) < 1e-6
    most = hs.bounds.logit_cap(f, LARGEST_CAP, radius=1.0, n=3).value
    assert hs.bounds.largest_logit_cap(f, most, radius=1.0, n=3) == math.inf


def test_a_window_and_a_soft_cap_count_as_they_are(rng):
    wide = hs.maps.Positions(window=3)  # five rows see a token, and a row at the end sees three
    assert _log_column_sum(0.7, 50, wide) == pytest.approx(math.log(5) - math.log1p(2 * math.exp(-1.4)))
    f = hs.Attention.single_head(A=gaussian(rng, 3, 3), V=gaussian(rng, 3, 3))
    stated = hs.bounds.logit_cap(f, 0.6, radius=1.3, n=7).value
    soft = dataclasses.replace(f, softcap=0.6)
    for cap in (None, 2.0):
        assert hs.bounds.logit_cap(soft, cap, radius=1.3, n=7).value == pytest.approx(stated)
