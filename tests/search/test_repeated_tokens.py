"""Regimes of every mechanism: the worst long sequences on a few places."""

import dataclasses
import json

import pytest
import torch
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.search import length_regimes
from howsmooth.search.length_regimes import shapes, spread, stretched, worst_repeated_tokens
from howsmooth.search.mechanisms import COUNTING, MECHANISMS, of_kind

ONE = torch.ones(1, 1, dtype=torch.float64)
OTHERS = [kind for kind in MECHANISMS if kind != "softmax"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(length_regimes, "STEPS", 2)
    monkeypatch.setattr(length_regimes, "RUNS", 4)
    monkeypatch.setattr(length_regimes, "PATTERNS", 1)


def of(kind: str, count: float) -> hs.Attention:
    f = of_kind(hs.Attention.single_head(A=-ONE, V=ONE), kind)
    return dataclasses.replace(f, count=count) if kind in COUNTING else f


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_found_is_attained_by_a_sequence_in_the_ball(kind):
    f = of(kind, 7.0)
    found = worst_repeated_tokens(f, 7, 1.0, [])
    assert sum(found.counts) == 7
    assert float(found.points.abs().max()) <= 1.0
    X = found.points.repeat_interleave(torch.tensor(found.counts), dim=0)
    assert float(constant(of_kind(hs.Attention.single_head(A=-ONE, V=ONE), kind), X)) >= found.value * (1 - 1e-6)


@pytest.mark.parametrize("kind", OTHERS)
def test_regimes_lie_below_the_bound_for_so_many_tokens(kind):
    found = hs.regimes(of(kind, 5.0), 1.0, [40, 3])
    assert [row.n for row in found.rows] == [40, 3]
    for row in found.rows:
        assert sum(row.shape) == row.n
        assert 0 < row.found <= row.upper.value
    assert (found.upper, found.lower, found.crossing) == (None, None, None)
    assert "crossing" not in repr(found)
    assert "crossing" not in found._repr_html_()
    assert json.loads(found.to_json())["crossing"] is None


def test_a_sink_starts_where_the_softmax_is_worst():
    f = hs.Attention.single_head(A=-ONE, V=ONE, sink=-30.0)
    plain = hs.regimes(hs.Attention.single_head(A=-ONE, V=ONE), 2.0, [400])
    # a sink that nobody looks at
    assert hs.regimes(f, 2.0, [400]).rows[0].found >= 0.999 * plain.rows[0].found


def test_several_heads_with_a_sink_are_searched_from_patterns(rng):
    f = hs.Attention.random(heads=2, d=2, k=1, dtype=torch.float64, seed=rng)
    f = dataclasses.replace(f, sink=torch.zeros(2, dtype=torch.float64))
    (row,) = hs.regimes(f, 1.0, [9]).rows
    assert 0 < row.found <= row.upper.value


@pytest.mark.parametrize("kind", COUNTING)
def test_what_counts_tokens_says_that_it_needs_their_number(kind):
    f = of_kind(hs.Attention.single_head(A=-ONE, V=ONE), kind)
    with pytest.raises(hs.errors.AssumptionError, match="counts tokens, so on measures it needs count="):
        hs.regimes(f, 1.0, [3])


def test_masks_and_lengths_are_refused_before_any_search():
    masked = hs.maps.L2Attention.single_head(Q=ONE, K=ONE, V=ONE, causal=True)
    with pytest.raises(hs.errors.AssumptionError, match="regimes does not cover a causal mask"):
        hs.regimes(masked, 1.0, [3])
    f = hs.maps.L2Attention.single_head(Q=ONE, K=ONE, V=ONE)
    with pytest.raises(hs.errors.AssumptionError, match="at least 3"):
        hs.regimes(f, 1.0, [2])
    with pytest.raises(hs.errors.AssumptionError, match="radius"):
        hs.regimes(f, 0.0, [3])


@pytest.mark.parametrize("n", [3, 4, 10, 10**15])
def test_shapes_add_up(n):
    found = list(shapes(n))
    m = min(n, length_regimes.PLACES)
    assert (n - m + 1, *[1] * (m - 1)) in found
    assert all(sum(shape) == n and min(shape) >= 1 and len(shape) == m for shape in found)


def test_a_sequence_is_stretched_with_all_its_places():
    assert list(stretched((1, 5, 2), 20)) == [(1, 17, 2), (2, 14, 4)]


def test_few_places_are_told_as_many():
    points, counts = spread(torch.tensor([[1.0], [2.0]]), (1, 6))
    assert sum(counts) == 7
    assert len(counts) == 7
    assert_close(points, torch.tensor([[1.0], *[[2.0]] * 6]))
