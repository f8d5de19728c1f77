"""Layers by lengths, and heads by layers."""

from statistics import geometric_mean

import pytest
from drawn import rows_of, title_of
from measured import changed, grid, heads, measurement, record

from howsmooth.report.figures import draw


def test_a_cell_holds_the_geometric_mean_of_its_layer_and_length():
    found = measurement(grid())
    for row in rows_of(draw(found, "layers")):
        records = found.at(layer=row["layer"], length=row["column"])
        assert row["value"] == pytest.approx(geometric_mean(r.answer.lower for r in records))
        assert float(row["number"]) == pytest.approx(row["value"], rel=5e-3)


def test_the_title_of_a_heat_map_names_the_least_smooth():
    found = measurement(grid(), heads=heads())
    assert title_of(draw(found, "layers")).startswith("Layer 1 is the least smooth at 16 tokens")
    assert title_of(draw(found, "heads")).startswith("Head 2 of layer 1 is the least smooth at 16 tokens")


def test_numbers_in_cells_are_written_as_everywhere_else():
    numbers = [12345.0, 0.0123456, 42.0]
    found = measurement([record(layer, 8, 0, lower=value) for layer, value in enumerate(numbers)])
    assert [row["number"] for row in rows_of(draw(found, "layers"))] == ["12,300", "0.0123", "42"]


def test_only_the_longest_length_of_the_heads_is_drawn():
    found = measurement(grid(), heads=[*heads(), *(changed(r, lower=99.0) for r in heads(length=4))])
    cells = rows_of(draw(found, "heads"))
    assert [(row["layer"], row["column"]) for row in cells] == [(k, h) for k in range(2) for h in range(3)]
    assert cells[-1]["value"] == pytest.approx(geometric_mean([3.0, 4.0]))
