"""Regimes, and the transition between them."""

import pytest
import torch
from drawn import LINE, WHOLE, pairs, panels_of, regime, rows_of, section, title_of, two_regimes
from measured import changed

import howsmooth as hs
from howsmooth.report.charts.transition import regimes_chart
from howsmooth.report.figures import chart_names, draw
from howsmooth.search.length_regimes import Regime, Regimes
from howsmooth.wording import number

ONE = torch.ones(1, 1, dtype=torch.float64)


def test_a_regime_has_its_bound_its_plateau_and_its_crossing_where_the_lengths_reach_it():
    chart = draw(WHOLE["regimes"], "regimes-regimes")
    line, plane = panels_of(chart)
    assert (line, plane) == ("A = −1, R = 2: n* ≈ 100", "A = −1·I (2×2), R = 2: n* ≈ 1,000,000")
    assert [row["panel"] for row in rows_of(chart, series="crossing n*")] == [line]
    assert {row["y"] for row in rows_of(chart, series="measures attain", panel=line)} == {10.0}
    found = [r for r in two_regimes() if r.ask.A == LINE]
    at = {"panel": line}
    assert pairs(rows_of(chart, series="worst found", **at)) == [(r.ask.length, r.answer.lower) for r in found]
    assert pairs(rows_of(chart, series="worst-case bound", **at)) == [(r.ask.length, r.answer.upper) for r in found]


@pytest.mark.slow
def test_the_regimes_of_one_head_are_drawn_by_themselves_with_their_crossing():
    found = hs.regimes(hs.Attention.single_head(A=-ONE, V=ONE), 1.5, [3, 30, 300, 3000])
    chart = regimes_chart(found)
    assert panels_of(chart) == [f"R = 1.5: n* ≈ {number(found.crossing)}"]
    assert pairs(rows_of(chart, series="worst found")) == [(row.n, row.found) for row in found.rows]


def test_where_no_theorem_tells_a_plateau_none_is_drawn():
    upper = hs.bounds.sharp_upper(hs.Attention.single_head(A=ONE, V=ONE), n=9, radius=2.0)
    rows = tuple(Regime(n=n, found=float(n), shape=(n,), upper=upper) for n in (3, 9))
    chart = regimes_chart(Regimes(rows=rows, radius=1.5))
    assert panels_of(chart) == ["R = 1.5"]
    assert {row["series"] for row in rows_of(chart)} == {"worst found", "worst-case bound"}
    assert pairs(rows_of(chart, series="worst found")) == [(3, 3.0), (9, 9.0)]
    assert title_of(chart) == "At n = 9 the largest constant found is 9 and still grows"


def test_a_crossing_and_a_plateau_that_fit_no_float_are_left_out():
    records = [changed(regime(n), crossing=None, plateau=None) for n in (3, 5)]
    chart = draw(section("regimes", records), "regimes-regimes")
    assert panels_of(chart) == ["A = −1, R = 2"]
    assert {row["series"] for row in rows_of(chart)} == {"worst found", "worst-case bound"}
    assert chart_names(section("transition", records)) == []


def test_measures_attain_what_any_length_does():
    # earlier versions kept a plateau below what longer sequences attain
    records = [regime(3, plateau=10.0), changed(regime(3000, plateau=10.0), lower=57.0, upper=80.0)]
    chart = draw(section("regimes", records), "regimes-regimes")
    assert {row["y"] for row in rows_of(chart, series="measures attain")} == {57.0}
    assert panels_of(chart) == ["A = −1, R = 2: n* ≈ 3,000"]
    shares = [y for _x, y in pairs(rows_of(draw(section("transition", records), "transition"), series="A = −1, R = 2"))]
    assert max(shares) == 1


def test_matrices_of_one_size_are_told_apart():
    turns = [((0.0, -a), (a, 0.0)) for a in (1.0, 2.0)]
    chart = draw(section("regimes", [regime(n, A=A) for A in turns for n in (3, 30)]), "regimes-regimes")
    assert panels_of(chart) == ["A = 2×2, R = 2 (1): n* ≈ 100", "A = 2×2, R = 2 (2): n* ≈ 100"]


def test_the_transition_is_in_units_of_plateau_and_crossing():
    chart = draw(WHOLE["transition"], "transition")
    assert pairs(rows_of(chart, series="A = −1, R = 2"))[-2:] == [(10.0, 1.0), (100.0, 1.0)]
    # ten tokens are 1e-5 of the crossing: too far to be drawn
    assert [x for x, _y in pairs(rows_of(chart, series="A = −1·I (2×2), R = 2"))] == pytest.approx([1e-4, 1e-3])
    assert title_of(chart) == "Well below n* the worst found grows like n^0.50; well above it is 1 of the plateau"


def test_lengths_far_from_the_crossing_make_no_transition():
    assert chart_names(section("transition", [regime(3, crossing=1e9)])) == []
