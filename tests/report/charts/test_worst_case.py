"""Inputs that are built from one head, on the head and on the layer; and bounds on the worst case."""

import math
from statistics import geometric_mean

import pytest
from drawn import LENGTHS, WHOLE, built, inputs, pairs, panels_of, rows_of, section, title_of

from howsmooth.report.figures import chart_names, draw


def test_the_multiple_of_the_root_of_n_is_the_geometric_mean():
    values = {4: 3.0, 16: 20.0}
    chart = draw(
        section("adversarial", [built("two_point", "head:0", n, lower=v) for n, v in values.items()]), "single_head"
    )
    c = geometric_mean([3.0 / 2, 20.0 / 4])
    assert pairs(rows_of(chart, series="two points")) == list(values.items())
    assert pairs(rows_of(chart, series="c√n, two points")) == [(4, pytest.approx(2 * c)), (16, pytest.approx(4 * c))]
    slope = math.log(20 / 3) / math.log(4)
    assert panels_of(chart) == [f"minilm, layer 2, head 0\ntwo points: {c:.3g}√n, fit n^{slope:.2f}"]


def test_the_title_says_how_each_kind_of_input_grows():
    title = title_of(draw(section("adversarial", inputs()), "single_head"))
    assert title == "At two points the constant grows like n^0.50. At tied pairs the constant grows like n^0.50"


def test_single_heads_and_whole_layers_are_apart():
    names = ["adversarial-single_head", "adversarial-whole_layer"]
    assert chart_names(section("adversarial", inputs())) == names
    assert chart_names(section("adversarial", inputs(parts=("attention",)))) == names[1:]


@pytest.mark.slow
def test_bounds_are_drawn_against_the_length_at_the_commonest_radius_and_the_other_way_round():
    along_n, along_r = (draw(WHOLE["worst"], f"bounds_against_{axis}") for axis in ("length", "radius"))
    assert panels_of(along_n) == ["R = 12"]
    assert panels_of(along_r) == ["n = 8"]
    assert pairs(rows_of(along_n, series="worst-case bound")) == [(n, 5 * math.sqrt(n) * 12.0) for n in LENGTHS]
    radii = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0]
    assert [x for x, _y in pairs(rows_of(along_r, series="tied pair attains"))] == radii
    assert pairs(rows_of(along_n, series="search")) == [(4, 9.0)]
    assert title_of(along_n) == "At n = 32 and R = 12 bounds leave: ours a factor 1.25, the paper's a factor 6"
