import dataclasses
import math

import pytest
from drawn import rows_of, title_of
from measured import grid, measurement, summary

from howsmooth.report.charts.bounds_ladder import rungs, table
from howsmooth.report.figures import draw, section_of
from howsmooth.theory.results import BoundsTable, NotApplicable, lower_bound, upper_bound
from howsmooth.wording import at_most


def bound(build, value, name):
    return build(math.log(value), name, "tokens in a ball", "a theorem")


def laddered(*bounds, refused=()):
    """Return the summary of one layer with these bounds."""
    found = summary(grid(layers=1, local_upper=50.0))
    return dataclasses.replace(found, ladder=BoundsTable(bounds=bounds, refused=refused))


def test_this_text_comes_first_and_each_lane_from_the_lowest_to_the_highest():
    # a certificate above what some input attains: the two are about different inputs
    layer = laddered(bound(lower_bound, 20.0, "sharp_lower"), bound(upper_bound, 1234.0, "sharp_upper"))
    assert [(row["lane"], row["name"]) for row in rungs(layer)] == [
        ("At these inputs", "typical (mean)"),
        ("At these inputs", "worst (mean)"),
        ("At these inputs", "certificate (mean)"),
        ("Any input", "tied pair"),
        ("Any input", "worst-case bound"),
    ]


def test_every_lane_has_a_heading_above_its_rungs():
    found = measurement(grid(layers=1))
    rows = sorted(rows_of(draw(found, "ladder")), key=lambda row: row["order"])
    assert [row["name"] for row in rows if "log10" not in row] == ["At these inputs", "Any input"]
    assert rows[0]["name"] == "At these inputs"
    assert [row["order"] for row in rows] == list(range(len(rows)))


def test_numbers_stand_on_the_side_that_has_room():
    rows = rows_of(draw(measurement(grid(layers=1)), "ladder"))
    assert {row["name"]: row["right"] for row in rows if "log10" in row} == {
        "typical (mean)": False,
        "worst (mean)": False,
        "worst-case bound": True,
    }


def test_a_theorem_without_a_label_does_not_break_the_chart():
    layer = laddered(bound(upper_bound, 1234.0, "brand_new_upper"))
    assert rungs(layer)[-1]["name"] == "brand new upper"
    refused = laddered(refused=(NotApplicable(name="brand_new_upper", reason="no reason."),))
    m = dataclasses.replace(measurement(grid(layers=1)), layers=(refused,))
    assert table(section_of(m)).rows[-1][1][2:] == ("brand new upper", "does not apply", "—", "no reason.")


def test_a_bound_beyond_floats_is_drawn_and_an_infinite_one_is_not():
    layer = laddered(upper_bound(5000.0, "sharp_upper", "a ball", "a theorem"))
    assert rungs(layer)[-1]["log10"] == pytest.approx(5000.0 / math.log(10))
    assert len(rungs(laddered(upper_bound(math.inf, "sharp_upper", "a ball", "a theorem")))) == 3


def test_the_title_speaks_of_the_smallest_proven_bound():
    found = measurement(grid(layers=1))
    room = 1234.0 / found.layers[0].constant
    said = f"Layer 0: the smallest proven bound is {at_most(room, 3)} times what this text attains"
    assert title_of(draw(found, "ladder")) == said
    bare = dataclasses.replace(found, layers=(dataclasses.replace(found.layers[0], ladder=BoundsTable(bounds=())),))
    assert title_of(draw(bare, "ladder")).endswith("no theorem covers this map")
