"""Radii, relative growth, concentration and certificates against the length."""

from statistics import geometric_mean

import pytest
from drawn import pairs, panels_of, rows_of, section, title_of
from measured import grid, measurement, record

from howsmooth.report.figures import draw


def drawn(name, chart, *records):
    return draw(section(name, measured=(measurement(records),)), chart)


def test_every_window_has_its_radius_and_every_length_the_mean():
    records = grid(layers=1, lengths=(4, 8))
    chart = drawn("real", "radius_against_length", *records)
    assert pairs(rows_of(chart, series="a window")) == [(r.ask.length, r.answer.mean_radius) for r in records]
    mean = pytest.approx(geometric_mean([5.0, 5.1, 5.2]))
    assert pairs(rows_of(chart, series="geometric mean")) == [(4, mean), (8, mean)]


def test_layers_stand_in_the_order_of_their_numbers():
    records = [record(layer, 4, 0) for layer in (10, 2)]
    assert panels_of(drawn("real", "radius_against_length", *records)) == ["layer 2", "layer 10"]


def test_growth_is_relative_to_the_same_window_at_the_shortest_length():
    records = [record(0, 4, 0, lower=2.0, stride=9), *(record(0, 8, w, lower=6.0, stride=9) for w in (0, 1))]
    chart = drawn("robustness", "relative_growth", *records)
    # the second window was not measured at four tokens
    assert pairs(rows_of(chart, series="a window")) == [(4, 1.0), (8, 3.0)]
    assert pairs(rows_of(chart, series="geometric mean")) == [(4, 1.0), (8, pytest.approx(3.0))]
    assert title_of(chart).endswith("changes by a factor 3")


def test_windows_of_two_models_are_not_compared_with_each_other():
    measured = (measurement([record(0, 4, 0, lower=2.0), record(0, 8, 0, lower=6.0)]),)
    measured += (measurement([record(0, n, 0, lower=5.0, model="n") for n in (4, 8)]),)
    chart = draw(section("robustness", measured=measured), "relative_growth")
    assert pairs(rows_of(chart, series="a window")) == [(4, 1.0), (8, 3.0), (4, 1.0), (8, 1.0)]


def test_concentration_counts_the_tokens_that_share_the_perturbation():
    records = [record(0, 4, 0, sensitivity=(0.25,) * 4), record(0, 8, 0, sensitivity=(1.0, 0.0, 0.0))]
    chart = drawn("robustness", "concentration", *records)
    assert pairs(rows_of(chart, series="a window")) == [(4, pytest.approx(4.0)), (8, 1.0)]
    assert title_of(chart) == "At n = 8 the worst perturbation rests on 1 tokens"


def test_certificates_are_compared_with_geometric_means():
    records = [record(0, 4, 0, lower=1.0, local_upper=10.0), record(0, 4, 1, lower=4.0, local_upper=10.0)]
    chart = drawn("bounds", "certificates", *records)
    assert pairs(rows_of(chart, series="measured")) == [(4, pytest.approx(2.0))]
    assert pairs(rows_of(chart, series="certificate")) == [(4, pytest.approx(10.0))]
    assert panels_of(chart) == ["layer 0\nlooser by a factor 5"]
    assert title_of(chart) == "The certificate is 6.25 times the constant (median)"
