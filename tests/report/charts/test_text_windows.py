"""Windows of a text: constants against length and radius, relative growth, concentration and certificates."""

import math
from statistics import fmean, geometric_mean

import pytest
from drawn import WHOLE, pairs, panels_of, rows_of, section, title_of
from measured import LENGTHS, TYPICAL, changed, grid, measurement, record

from howsmooth.report.figures import draw
from howsmooth.wording import at_most, exponent


def scattered(layers=1, lengths=(4, 8, 32)):
    return [
        changed(r, lower=r.answer.lower * (1.3 if r.ask.window.index % 2 else 0.8))
        for r in grid(layers=layers, lengths=lengths)
    ]


def bent(layers=1):
    """Return records that no power law describes."""
    return [changed(r, lower=r.answer.lower * (4 if r.ask.length == 8 else 1)) for r in grid(layers=layers)]


def test_every_window_is_a_point():
    found = measurement(grid())
    points = rows_of(draw(found), series="a window")
    assert pairs(points) == [(r.ask.length, r.answer.lower) for r in found.records]


def test_a_constant_of_zero_is_left_out_but_its_layer_keeps_a_panel():
    found = measurement([*grid(layers=1), *(record(1, n, 0, lower=0.0) for n in LENGTHS)])
    rows = rows_of(draw(found))
    assert all(row["y"] > 0 for row in rows if "y" in row)
    assert {row["panel"][:7] for row in rows} == {"layer 0", "layer 1"}


def test_the_band_contains_the_fit_and_closes_at_the_centre_of_the_lengths():
    found = measurement(scattered())
    law = found.layers[0].growth
    band = rows_of(draw(found), series="power law")
    assert law.low < law.exponent < law.high
    assert all(row["low"] <= row["y"] * (1 + 1e-12) for row in band)
    assert all(row["y"] <= row["high"] * (1 + 1e-12) for row in band)
    assert [row["y"] for row in band] == pytest.approx([law.at(row["x"]) for row in band])
    (centre,) = (row for row in band if math.isclose(row["low"], row["high"]))
    assert centre["x"] == pytest.approx(geometric_mean((4, 8, 32)))
    last = band[-1]
    assert last["high"] == pytest.approx(centre["y"] * (last["x"] / centre["x"]) ** law.high)


def test_a_panel_says_the_exponent_its_interval_the_radius_and_the_bound_for_any_input():
    found = measurement(grid(layers=1))
    law = found.layers[0].growth
    (panel,) = panels_of(draw(found))
    assert panel.split("\n") == [
        "layer 0",
        f"n^{law.exponent:.2f} [{exponent(law.low)}, {exponent(law.high)}]",
        f"R ≈ 5.1, any tokens up to 9: ≤ {at_most(1234.0, 3)}",
    ]


def test_of_several_models_a_panel_says_which_and_how_the_released_quantity_grows():
    panels = panels_of(draw(WHOLE["real"], "constant_against_length"))
    assert [panel.split("\n")[0] for panel in panels] == [f"{m}, layer {k}" for m in "ab" for k in (0, 1)]
    assert all(panel.split("\n")[2] == "released: n^0.00" for panel in panels)


def test_a_law_that_does_not_fit_is_called_none_and_not_drawn():
    chart = draw(measurement(bent()))
    (panel,) = panels_of(chart)
    assert panel.split("\n")[1].startswith("no power law (n^")
    assert rows_of(chart, series="power law") == []
    assert [row["x"] for row in rows_of(chart, series="mean (no power law)")] == list(LENGTHS)
    assert title_of(chart) == "The constant follows no power law"


def test_the_title_says_no_exponent_of_a_law_that_is_doubted():
    steep = [changed(r, lower=r.answer.lower * r.ask.length**2) for r in bent(layers=2) if r.ask.layer == 1]
    chart = draw(measurement([*scattered(), *steep]))
    law = measurement(scattered()).layers[0].growth
    assert title_of(chart) == f"The constant grows like n^{law.exponent:.2f}; layer 1 follows no power law"


def test_the_title_names_the_slowest_and_the_fastest_layer():
    fast = [changed(r, lower=r.answer.lower * r.ask.length) for r in grid(layers=2) if r.ask.layer == 1]
    title = title_of(draw(measurement([*grid(layers=1), *fast])))
    assert title == "The constant grows like n^0.30 (layer 0) up to n^1.30 (layer 1)"


def test_without_a_second_length_there_is_no_law():
    found = measurement(grid(layers=1, lengths=(8,)))
    assert rows_of(draw(found), series="power law") == []
    (panel,) = panels_of(draw(found))
    assert panel.split("\n")[1] == "1.96 at 8 tokens"
    assert title_of(draw(found)) == "The constants that the windows attain"


def test_the_gain_of_random_perturbations_is_the_root_mean_square_over_windows():
    found = measurement(grid(layers=1))
    rows = rows_of(draw(found), series="random perturbations")
    for n, value in pairs(rows):
        squares = [(TYPICAL * r.answer.lower) ** 2 for r in found.at(length=n)]
        assert value == pytest.approx(fmean(squares) ** 0.5)
    assert [row["x"] for row in rows] == list(LENGTHS)
    assert rows_of(draw(measurement(grid(typical=None))), series="random perturbations") == []


def test_the_released_quantity_is_a_geometric_mean_and_absent_where_none_was_asked_for():
    assert rows_of(draw(measurement(grid())), series="released quantity") == []
    records = [changed(r, released_quantity=2.0 + r.ask.window.index) for r in grid(layers=1)]
    rows = rows_of(draw(measurement(records)), series="released quantity")
    assert pairs(rows) == [(n, pytest.approx(geometric_mean([2.0, 3.0, 4.0]))) for n in LENGTHS]


def test_certificates_stay_out_so_that_linear_axes_show_the_constants():
    chart = draw(measurement(grid(local_upper=1e6)))
    assert max(row["y"] for row in rows_of(chart) if "y" in row) < 100


def test_lines_and_points_have_legends_of_their_own_kind():
    text = draw(measurement(grid())).to_dict()["spec"]["layer"]
    stroke = next(layer["encoding"]["stroke"] for layer in text if "stroke" in layer["encoding"])
    fill = next(layer["encoding"]["fill"] for layer in text if "fill" in layer["encoding"])
    assert stroke["scale"]["domain"] == ["random perturbations", "power law"]
    assert stroke["legend"]["symbolType"] == "stroke"
    assert fill["scale"]["domain"] == ["a window"]
    assert fill["legend"]["symbolType"] == "circle"


def test_against_the_radius_every_window_is_a_point_coloured_by_its_length():
    found = measurement(grid())
    points = [row for row in rows_of(draw(found, "radius")) if "y" in row]
    assert pairs(points) == [(r.answer.mean_radius, r.answer.lower) for r in found.records]
    assert [row["n"] for row in points] == [r.ask.length for r in found.records]


def test_a_constant_of_zero_keeps_its_place_at_the_foot():
    found = measurement([*grid(layers=1), *(record(1, n, 0, lower=0.0) for n in LENGTHS)])
    rows = [row for row in rows_of(draw(found, "radius"), panel="layer 1") if "room" not in row]
    assert len(rows) == len(LENGTHS)
    assert not any("y" in row for row in rows)


def test_radii_that_hardly_differ_are_not_blown_up():
    found = measurement([changed(r, mean_radius=5.0 + 1e-6 * r.ask.window.index) for r in grid(layers=1)])
    ends = [row["x"] for row in rows_of(draw(found, "radius"), room=True)]
    assert ends == pytest.approx([5.0 / 1.02, 5.000002 * 1.02])
    wide = measurement([changed(r, mean_radius=5.0 + r.ask.window.index) for r in grid(layers=1)])
    assert rows_of(draw(wide, "radius"), room=True) == []


def test_the_title_says_how_much_radius_and_constant_vary():
    found = measurement([changed(r, mean_radius=5.0 * (1 + r.ask.window.index)) for r in grid(layers=1)])
    title = "Within a layer the radius varies up to 3-fold, the constant up to 1.67-fold"
    assert title_of(draw(found, "radius")) == title


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
