"""Axes and titles."""

import pytest
from drawn import WHOLE
from measured import grid, measurement

from howsmooth.report.drawing.panels import titled
from howsmooth.report.drawing.scales import labelled, length_axis, round_numbers
from howsmooth.report.figures import chart_names, draw, linear


@pytest.mark.parametrize("span", [(1, 1000), (3.1, 6.9), (0.5, 0.52), (1e-3, 1e12), (0.3, 20), (7, 7.0001), (1, 2)])
def test_there_are_few_round_numbers_on_an_axis_and_none_outside(span):
    found = round_numbers(*span)
    assert 2 <= len(found) <= 7
    assert found == sorted(set(found))
    assert all(span[0] <= value <= span[1] for value in found)


def test_labels_are_written_as_everywhere_else():
    axis = labelled([0.5, 10_000, 1e9]).to_dict()
    assert axis["labelExpr"].startswith("['0.5', '10,000', '10⁹']")
    assert axis["values"] == [0.5, 10_000, 1e9]


def test_lengths_that_were_measured_are_ticks_and_many_become_round_ones():
    assert length_axis([64, 8, 16, 8]).to_dict()["values"] == [8, 16, 64]
    assert length_axis([8, 9, 128]).to_dict()["values"] == [8, 128]
    assert len(length_axis(range(2, 99, 4)).to_dict()["values"]) <= 7
    assert length_axis([8]).to_dict()["values"] == [8]


def test_axes_become_linear_and_nothing_else_changes():
    spec = draw(measurement(grid()), "length").to_dict()
    straight = linear(spec)
    axes = [c for layer in straight["spec"]["layer"] for name, c in layer["encoding"].items() if name in ("x", "y")]
    assert all(axis["scale"]["type"] == "linear" and axis["scale"]["domain"][0] == 0 for axis in axes)
    assert not any("labelExpr" in axis.get("axis", {}) for axis in axes)
    assert straight["data"] == spec["data"]
    assert [layer["mark"] for layer in straight["spec"]["layer"]] == [layer["mark"] for layer in spec["spec"]["layer"]]


@pytest.mark.slow
def test_no_line_of_a_title_is_wider_than_its_chart():
    lines = titled("word " * 60, 510).to_dict()["text"]
    assert max(map(len, lines)) <= 60
    assert titled("short", 10).to_dict()["text"] == "short"
    for name in chart_names(WHOLE["real"]):
        title = draw(WHOLE["real"], name).to_dict()["title"]["text"]
        assert all(len(line) <= 90 for line in ([title] if isinstance(title, str) else title))
