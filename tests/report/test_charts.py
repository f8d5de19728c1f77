"""What every chart has: words, a table, colours that themes replace; whatever is in its folder."""

import functools
import importlib
import json
import pkgutil
import re
import sys

import pytest
from drawn import EVERY, WHOLE, rows_of

from howsmooth.report import charts as folder
from howsmooth.report.charts import charts, charts_of
from howsmooth.report.drawing.palette import FEW_TO_MANY, FIXED, ON_DARK, ON_LIGHT, VARIABLES, themed
from howsmooth.report.embedding import asset
from howsmooth.report.figures import chart_names, draw, drawings
from howsmooth.report.saving import save_chart
from howsmooth.studies.kinds import kind_names
from howsmooth.studies.plans.paper import ALSO, FIGURES

# Those of budgets and of pictures are drawn in the tests of their commands.
ELSEWHERE = {"cost_by_depth", "cost_by_token", "size_and_cost", "sensitive_patches"}
NAMES = [kind.name for kind in charts() if kind.name not in ELSEWHERE]
FILES = [module.name for module in pkgutil.iter_modules(folder.__path__)]
TOY = '''"""How many records there are."""

import altair as alt

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.tables import Numbers


def draw(section):
    dot = alt.Chart(alt.Data(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    return alt.layer(dot, title=f"{len(section.records)} records")


def table(section):
    return Numbers(head=("records",), rows=((None, (str(len(section.records)),)),))


CHARTS = (
    ChartKind(
        name="toy",
        sections=("measures",),
        rank=99,
        about="A dot, and in its title how many records there are.",
        wanted=lambda section: bool(section.records),
        draw=draw,
        table=table,
    ),
)
'''
LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14171b"


@functools.cache
def drawn(name):
    """Return a chart by its name, from the first section that has it."""
    kind = next(kind for kind in charts() if kind.name == name)
    section = next(section for section in WHOLE.values() if kind in charts_of(section))
    return kind, section, kind.draw(section, None) if kind.per_layer else kind.draw(section)


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_declares_words_sections_and_a_place(name):
    kind = next(kind for kind in charts() if kind.name == name)
    assert len(kind.about) > 40
    assert kind.about.endswith(".")
    assert kind.sections
    assert set(kind.sections) <= {"measurement", *FIGURES, *ALSO, *kind_names()}
    assert (kind.layers is not None) == kind.per_layer


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_charts_says_what_they_are(file):
    module = importlib.import_module(f"{folder.__name__}.{file}")
    assert module.__doc__
    assert set(module.CHARTS) <= set(charts())
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_chart_says_what_it_shows_and_has_its_numbers_in_a_table(name):
    kind, section, chart = drawn(name)
    title = chart.to_dict(validate=False)["title"]
    assert title["text"]
    numbers = kind.table(section)
    assert numbers.rows
    assert {len(cells) for _layer, cells in numbers.rows} == {len(numbers.head)}
    assert not any("nan" in cell.lower() or "e+" in cell for _layer, cells in numbers.rows for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_chart_takes_its_colours_from_the_palette_so_that_themes_replace_them(name):
    _kind, _section, chart = drawn(name)
    spec = chart.to_dict(validate=False)
    spec.pop("config", None)
    text = json.dumps(_without_data(spec))
    colours = set(re.findall(r'"(#[0-9a-fA-F]{3,8})"', text))
    assert colours <= VARIABLES.keys() | FIXED
    assert not re.search(r'"(white|black|red|blue|green|grey|gray)"', text)
    assert not any(colour in json.dumps(themed(spec)) for colour in VARIABLES)


@pytest.mark.parametrize("name", [name for name in NAMES if next(k for k in charts() if k.name == name).per_layer])
def test_the_rows_of_a_chart_of_one_layer_say_which_layer(name):
    kind, section, chart = drawn(name)
    if kind.on_page(section):
        assert {row["layer"] for row in rows_of(chart)} == {layer.layer for layer in kind.layers(section)}


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
def test_every_chart_of_every_section_can_be_written(case, tmp_path, capfd):
    for name in chart_names(EVERY[case]):
        save_chart(draw(EVERY[case], name), tmp_path / f"{name}.svg")
        text = (tmp_path / f"{name}.svg").read_text()
        assert text.startswith("<svg")
        assert not re.search("NaN|Infinity|undefined", text)
    assert "WARN" not in capfd.readouterr().err


def test_there_are_charts_for_every_figure_of_the_paper():
    for name in (*FIGURES, *ALSO):
        assert charts_of(WHOLE[name])


def test_every_chart_is_drawn_in_some_section():
    assert {kind.name for section in WHOLE.values() for kind in charts_of(section)} == set(NAMES)


def test_a_chart_that_would_be_empty_is_not_drawn():
    assert chart_names(EVERY["zeros only"]) == ["layers_by_length", "heads_by_layer", "bounds_ladder"]
    assert chart_names(EVERY["robustness, no shares"]) == ["robustness-relative_growth"]
    assert chart_names(EVERY["robustness, zeros at the shortest"]) == ["robustness-concentration"]


def test_a_page_has_no_chart_of_a_single_dot_or_cell_though_it_can_be_asked_for():
    assert [drawing.name for drawing in drawings(EVERY["zeros only"])] == ["layers_by_length", "bounds_ladder"]
    assert [drawing.name for drawing in drawings(EVERY["one record"])] == ["bounds_ladder"]
    assert "constant_against_length" in chart_names(EVERY["one record"])
    assert drawings(EVERY["real, one record"]) == []
    assert drawings(EVERY["monitor, one layer and step"]) == []


def test_a_series_of_one_point_is_a_point_and_no_line():
    (drawing,) = drawings(EVERY["attack, one radius, no ceiling"])
    marks = {layer["mark"]["type"] for layer in drawing.spec["spec"]["layer"]}
    assert marks == {"point"}


def test_a_chart_is_added_by_one_file(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    charts.cache_clear()
    try:
        section = WHOLE["measures"]
        assert chart_names(section) == ["measures-worst_measures", "measures-toy"]
        assert draw(section, "toy").to_dict()["title"] == "2 records"
        assert drawings(section)[1].numbers.rows == ((None, ("2",)),)
    finally:
        charts.cache_clear()
        sys.modules.pop(f"{folder.__name__}.toy", None)


def test_colours_without_a_variable_show_on_light_and_on_dark_pages():
    for colour in FEW_TO_MANY:
        assert min(contrast(colour, LIGHT_PAGE), contrast(colour, DARK_PAGE)) >= 3
    assert contrast(ON_LIGHT, "#9ecae1") >= 4.5
    assert contrast(ON_DARK, "#08519c") >= 4.5


def test_the_stylesheet_has_every_variable_in_light_dark_by_the_system_dark_by_choice_and_on_paper():
    style = asset("palette.css") + asset("report.css")
    assert all(style.count(variable[4:-1] + ":") == 4 for variable in VARIABLES.values())


def contrast(one, other):
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _without_data(part):
    if isinstance(part, dict):
        return {name: _without_data(child) for name, child in part.items() if name != "data"}
    return [_without_data(child) for child in part] if isinstance(part, list) else part
