"""Two runs in one chart."""

import math

import pytest
from drawn import panels_of, rows_of, title_of
from measured import changed, grid, heads, measurement, record

import howsmooth as hs
from howsmooth.report.drawing.palette import BLUE, GREY, ORANGE, VARIABLES, themed
from howsmooth.report.saving import save_chart


def scaled(records, factor, upper=1.001):
    return [changed(r, lower=factor * r.answer.lower, upper=upper and upper * factor * r.answer.lower) for r in records]


@pytest.fixture
def found():
    """Layer 0 is larger, layer 1 smaller, layer 2 the same."""
    before = grid(layers=3, lengths=(4, 8))
    after = [r for one in before for r in scaled([one], (1.5, 0.8, 1.0)[one.ask.layer])]
    return hs.compare(measurement(before), measurement(after))


def test_every_ratio_is_drawn_with_its_interval_one_panel_for_each_length(found):
    chart = found.chart()
    assert panels_of(chart) == ["n = 4", "n = 8"]
    rows = rows_of(chart)
    assert [(row["layer"], row["told"]) for row in rows_of(chart, panel="n = 4")] == [
        (0, "larger"),
        (1, "smaller"),
        (2, "not told apart"),
    ]
    assert [row["ratio"] for row in rows] == [row.ratio.value for row in found.rows]
    assert [(row["low"], row["high"]) for row in rows] == [row.ratio.within for row in found.rows]
    assert [(row["least"], row["most"]) for row in rows] == [row.ratio.near for row in found.rows]
    assert title_of(chart).startswith(found.sentence)


def test_the_axis_holds_1_and_every_interval_and_its_ticks_can_be_told_apart():
    before = grid(lengths=(4,))
    for factor in (1.002, 0.01, 40.0):
        spec = hs.compare(measurement(before), measurement(scaled(before, factor))).chart().to_dict()
        (y,) = {str(layer["encoding"]["y"]["scale"]["domain"]) for layer in spec["spec"]["layer"]}
        low, high = map(float, y.strip("[]").split(","))
        assert low < min(1, factor)
        assert max(1, factor) < high
        axis = spec["spec"]["layer"][0]["encoding"]["y"]["axis"]
        labels = axis["labelExpr"].partition("]")[0].split(", ")
        assert len(set(labels)) == len(axis["values"]) >= 2


def test_every_colour_follows_the_page(found):
    spec = themed(found.chart().to_dict())
    for colour in (ORANGE, BLUE, GREY):
        assert colour not in str(spec)
        assert VARIABLES[colour] in str(spec)


@pytest.mark.slow
def test_an_interval_without_end_is_cut_off_and_one_window_has_its_error_bars(tmp_path):
    opened = hs.compare(measurement(grid()), measurement(scaled(grid(), 2.0, upper=None))).chart()
    assert all(0 < row["low"] < row["ratio"] < row["high"] < math.inf for row in rows_of(opened))
    before = [record(0, 4, 0), record(1, 4, 0)]
    after = [changed(before[0], lower=0.0, upper=0.0), *scaled(before[1:], 2.0)]
    one = hs.compare(measurement(before), measurement(after)).chart()
    ((low, high),) = [(row["low"], row["high"]) for row in rows_of(one)]
    assert low < 2 < high < 2.1
    save_chart(one, tmp_path / "one.svg")
    assert "NaN" not in (tmp_path / "one.svg").read_text()


def test_heads_have_panels_of_their_own():
    before, after = (measurement(grid(lengths=(16,)), heads=heads()) for _run in range(2))
    chart = hs.compare(before, after, per_head=True).chart()
    assert panels_of(chart) == ["attention, n = 16", "head:0, n = 16", "head:1, n = 16", "head:2, n = 16"]
