"""Charts by their names, and every chart of a section with its words and numbers."""

import dataclasses

import pytest
from drawn import WHOLE, rows_of, title_of
from measured import grid, heads, measurement, record

import howsmooth as hs
from howsmooth.report import charts, figures
from howsmooth.report.figures import chart_names, draw, drawings, section_of, straightened, thinned
from howsmooth.studies.runs.run import Run

ALWAYS = ["constant_against_length", "constant_against_radius", "layers_by_length"]


def run_with(*measured):
    records = tuple(r for m in measured for r in m.records)
    return Run(records=records, failures=(), plans=(), measurements=measured, commands=())


def test_a_section_has_the_charts_that_it_has_data_for():
    every = section_of(measurement(grid(local_upper=9.0), heads=heads()))
    assert chart_names(every) == [*ALWAYS, "heads_by_layer", "certificates", "bounds_ladder", "sensitive_tokens"]
    assert chart_names(section_of(measurement(grid(), tokens=()))) == [*ALWAYS, "bounds_ladder"]
    nothing = dataclasses.replace(measurement(grid()), records=(), layers=())
    assert chart_names(section_of(nothing)) == []


@pytest.mark.slow
def test_drawings_are_what_a_page_shows_each_with_its_words_and_numbers():
    found = drawings(section_of(measurement(grid(), heads=heads()), "prefix."))
    assert [d.name for d in found] == [f"prefix.{d.chart_name}" for d in found]
    assert [d.chart_name for d in found if d.per_layer] == ["bounds_ladder"]
    # the page has the tokens as text
    assert "sensitive_tokens" not in {d.chart_name for d in found}
    for drawing in found:
        assert drawing.caption == title_of(drawing.chart)
        assert drawing.numbers.rows
        assert len(drawing.about) > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("length", "constant_against_length"),
        ("radius", "constant_against_radius"),
        ("layers", "layers_by_length"),
        ("heads", "heads_by_layer"),
        ("ladder", "bounds_ladder"),
        ("tokens", "sensitive_tokens"),
        ("certif", "certificates"),
    ],
)
def test_a_part_of_a_name_is_enough(short, whole):
    m = WHOLE["measurement"].measurements[0]
    assert draw(m, short).to_dict(validate=False) == draw(m, whole).to_dict(validate=False)


def test_a_measurement_draws_itself():
    m = measurement(grid())
    assert title_of(m.chart()) == title_of(draw(m, "constant_against_length"))
    assert title_of(m.chart("ladder", layer=0)).startswith("Layer 0: ")


def test_one_chart_is_drawn_and_no_other(monkeypatch):
    drawn = []
    kinds = [dataclasses.replace(kind, draw=_noted(kind, drawn)) for kind in charts.charts()]
    monkeypatch.setattr(charts, "charts", lambda: tuple(kinds))
    draw(measurement(grid(), heads=heads()), "layers")
    assert drawn == ["layers_by_length"]


def _noted(kind, drawn):
    def noted(*arguments):
        drawn.append(kind.name)
        return kind.draw(*arguments)

    return noted


def test_an_unknown_chart_is_refused_with_those_there_are():
    with pytest.raises(
        hs.errors.AssumptionError, match="no figure 'x'; there are constant_against_length, "
    ) as refused:
        draw(run_with(measurement(grid())), "x")
    assert refused.value.field == "name"
    with pytest.raises(hs.errors.AssumptionError, match="there are none"):
        draw(run_with(), "length")


def test_a_name_that_several_charts_have_is_asked_about():
    two = run_with(measurement(grid(layers=1)), measurement(grid(layers=1, model="other")))
    with pytest.raises(hs.errors.AssumptionError, match=r"may be m-attention\.constant_against_length, other-"):
        draw(two, "length")
    assert rows_of(draw(two, "other-attention.length"))
    assert rows_of(draw(two, "other-attention.constant_against_length"))


def test_a_layer_is_refused_where_there_is_none():
    run = run_with(measurement(grid()))
    with pytest.raises(hs.errors.AssumptionError, match="layer 9 was not measured; there are 0, 1") as refused:
        draw(run, "ladder", layer=9)
    assert refused.value.field == "layer"
    with pytest.raises(hs.errors.AssumptionError, match="layers_by_length shows all layers, got layer 1"):
        draw(run, "layers", layer=1)


def test_the_least_smooth_layer_is_shown_where_none_is_named():
    m = measurement(grid())
    assert title_of(draw(m, "ladder")).startswith("Layer 1: ")
    assert title_of(draw(m, "ladder", layer=0)).startswith("Layer 0: ")
    assert title_of(draw(m, "tokens")).startswith("Layer 1: ")


@pytest.mark.slow
def test_a_chart_without_logarithmic_axes_cannot_be_straightened():
    m = measurement(grid())
    with pytest.raises(hs.errors.AssumptionError, match="no axes that can be linear"):
        straightened(draw(m, "ladder"))
    assert '"type": "log"' not in straightened(draw(m, "length")).to_json()


def test_of_many_windows_a_page_draws_some_and_its_tables_hold_all(monkeypatch):
    monkeypatch.setattr(figures, "MOST_DOTS", 40)
    m = measurement(grid(windows=20))
    assert len(thinned(m).records) <= 40
    assert thinned(m).layers == m.layers
    drawing = drawings(section_of(m))[0]
    assert len(rows_of(drawing.chart, series="a window")) == len(thinned(m).records)
    assert {cells[2] for _layer, cells in drawing.numbers.rows} == {"20"}
    few = measurement([record(0, 4, 0)])
    assert thinned(few) is few
