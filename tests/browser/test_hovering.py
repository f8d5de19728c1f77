"""What the mouse finds: the value, how sure it is, and where it was measured."""

import math
import re

import pytest

from browser.pages import numbers_in
from browser.runs import LAYERS

TOOLTIP = "#vg-tooltip-element"
RANGE = re.compile(r"(\d[\d.,]*(?:e[+-]?\d+)?)\s*(?:–|-|—|to|…)\s*(\d[\d.,]*(?:e[+-]?\d+)?)")


def points(report, name, kind="symbol"):
    shapes = report.chart(name).locator(f"svg g.mark-{kind}.role-mark path")
    return [shape for shape in shapes.all() if (box := shape.bounding_box()) and box["width"] > 1]


def values(runs):
    """What a point may stand for: a window, or the mean of a layer's windows of one length."""
    records = [record for record in runs.records("small") if record.ask.map == "attention"]
    groups = {}
    for record in records:
        groups.setdefault((record.ask.layer, record.ask.length), []).append(record.answer.lower)
    return [record.answer.lower for record in records] + [sum(group) / len(group) for group in groups.values()]


@pytest.mark.parametrize("name", ["constant_against_length", "constant_against_radius"])
def test_a_point_tells_its_value_its_error_bar_and_its_sequence(shown, runs, name):
    report = shown("small")
    found = points(report, name)
    assert len(found) >= 2 * len(LAYERS)
    for point in (found[0], found[len(found) // 2], found[-1]):  # one of each layer
        report.hover(point)
        text = report.tooltip(TOOLTIP).inner_text()
        ends = RANGE.search(text)
        assert ends, f"no error bar: {text!r}"
        lower, upper = (float(end.replace(",", "")) for end in ends.groups())
        measured = [
            value
            for value in values(runs)
            if any(math.isclose(value, number, rel_tol=0.01) for number in numbers_in(text))
        ]
        assert measured, f"no value that was measured: {text!r}"
        assert any(0.99 * lower <= value <= 1.01 * upper for value in measured), text
        assert re.search(r"(window|sequence)", text, re.IGNORECASE), f"which window? {text!r}"
        assert re.search(r"layer", text, re.IGNORECASE)


@pytest.mark.parametrize("name", ["layers_by_length", "heads_by_layer"])
def test_a_cell_of_a_heat_map_tells_its_value(shown, name):
    report = shown("small")
    cells = points(report, name, kind="rect")
    assert len(cells) >= len(LAYERS) ** 2
    told = set()
    for cell in (cells[0], cells[-1]):
        report.hover(cell)
        told.add(report.tooltip(TOOLTIP).inner_text())
    assert len(told) == 2
    assert all(RANGE.search(text) and re.search("layer", text, re.IGNORECASE) for text in told), told


def test_the_tooltip_goes_away_with_the_mouse(shown):
    report = shown("small")
    report.hover(points(report, "constant_against_length")[0])
    tooltip = report.tooltip(TOOLTIP)
    report.page.mouse.move(1, 1)
    tooltip.wait_for(state="hidden")


@pytest.mark.slow
def test_charts_still_answer_after_a_filter(borrowed):
    report = borrowed("small")
    report.find('input[name=layer][value="0"]').uncheck()
    report.find("input[name=scale][value=linear]").check()
    report.settle()
    found = points(report, "constant_against_length")
    for point in (found[0], found[-1]):
        report.hover(point)
        assert RANGE.search(report.tooltip(TOOLTIP).inner_text())


def test_charts_of_the_paper_answer_too(shown):
    report = shown("paper")
    found = points(report, report.chart_names()[0])
    report.hover(found[len(found) // 2])
    assert numbers_in(report.tooltip(TOOLTIP).inner_text())
