import pytest
from drawn import pairs, rows_of, title_of
from measured import LENGTHS, changed, grid, measurement, record

from howsmooth.report.figures import draw


def test_every_window_is_a_point_coloured_by_its_length():
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


def test_the_title_says_how_much_both_vary():
    found = measurement([changed(r, mean_radius=5.0 * (1 + r.ask.window.index)) for r in grid(layers=1)])
    title = "Within a layer the radius varies up to 3.00-fold, the constant up to 1.67-fold"
    assert title_of(draw(found, "radius")) == title
