"""The answer on top, and around it what is needed to believe it."""

import math
import re

import pytest

from browser.pages import numbers_in
from browser.runs import HOSTILE_ERROR, LAYERS, LENGTHS, MEASURED, WINDOWS

MEASUREMENT = {"constant_against_length", "constant_against_radius", "layers_by_length", "bounds_ladder"}


def shows(text, value):
    """Tell whether a text shows a number to two or more digits that count."""
    return any(math.isclose(number, value, rel_tol=0.02, abs_tol=0.006) for number in numbers_in(text))


@pytest.mark.parametrize("run", MEASURED)
def test_the_answer_comes_first_in_a_sentence_and_one_table(shown, run):
    report = shown(run)
    assert report.find("main#report section").first.get_attribute("id") == "answer"
    answer = report.find("section#answer")
    assert "layer" in answer.locator("p.lead").first.inner_text().lower()
    assert answer.locator("table").count() == 1
    table = answer.locator("table#answer-table")
    assert table.is_visible()
    assert table.locator("caption").count() == 1
    assert table.locator("thead th[scope=col]").count() >= 3
    assert table.locator("tbody[data-layer][data-map][data-model]").count() > 0


@pytest.mark.parametrize("run", ["small", "two maps"])
def test_the_table_tells_typical_worst_growth_and_bounds_of_every_layer(shown, runs, run):
    report = shown(run)
    measured = runs.measurements(run)
    assert report.find("#answer-table tbody[data-layer]").count() == sum(len(m.layers) for m in measured)
    for m in measured:
        for layer in m.layers:
            row = report.find(
                f'#answer-table tbody[data-layer="{layer.layer}"][data-map="{m.map}"][data-model="{m.model}"]'
            )
            text = row.inner_text()
            assert str(layer.typical) in text
            for value in (layer.constant, layer.growth.exponent, layer.growth.low, layer.radius):
                assert shows(text, value), (value, text)
            if layer.any_input is not None:
                assert layer.any_input.rounded(3) in text


def test_heads_of_columns_are_explained_to_the_eye_to_the_pointer_and_to_the_ear(shown):
    report = shown("small")
    for head in report.find("#answer-table thead th[title]").all():
        assert head.locator("small").inner_text().strip()
        assert head.get_attribute("title").endswith(".")
        assert report.find(f"#{head.get_attribute('aria-describedby')}").inner_text().strip()


def test_a_strip_shows_the_numbers_of_a_layer_in_their_order(shown):
    report = shown("small")
    for strip in report.find("#answer-table .strip").all():
        keys = strip.locator(".key").all()
        places = [key.bounding_box()["x"] for key in keys]
        assert places == sorted(places)
        assert [key.get_attribute("class") for key in keys] == ["key typical", "key worst", "key any"]


def test_a_single_constant_is_told_without_a_law_of_growth(shown, runs):
    (layer,) = runs.measurement("single").layers
    report = shown("single")
    row = report.find("#answer-table tbody[data-layer]")
    assert row.count() == 1
    assert shows(row.inner_text(), layer.constant)
    assert "n^" not in report.find("section#answer").inner_text()
    assert report.find("select#filter-map").count() == 0


def test_an_unfinished_run_says_so_first_and_compares_at_a_common_length(shown):
    report = shown("interrupted")
    answer = report.find("section#answer")
    assert "Unfinished" in answer.locator("p").first.inner_text()
    assert "So far, at 16 tokens" in answer.inner_text()
    apart = shown("apart").find("section#answer").inner_text()
    assert "cannot be compared" in apart
    assert "smoothest" not in apart


def test_a_measurement_has_its_charts(shown):
    report = shown("small")
    assert report.find("section.measurement").count() == 1
    assert report.find("section.measurement").get_attribute("data-map") == "attention"
    assert {name for name in report.chart_names() if "token" not in name} >= MEASUREMENT | {"heads_by_layer"}
    assert not [name for name in shown("single").chart_names() if name.endswith("heads_by_layer")]


def test_charts_of_several_measurements_have_names_of_their_own(shown):
    report = shown("two maps")
    for part in ("attention", "residual"):
        section = report.find(f'section.measurement[data-map="{part}"]')
        assert section.count() == 1
        for name in MEASUREMENT - {"bounds_ladder"}:  # no theorem bounds the whole residual layer
            assert section.locator(f'figure.chart:is([data-chart$="-{name}"], [data-chart$=".{name}"])').count() == 1


@pytest.mark.parametrize("run", ["small", "two maps", "paper", "interrupted"])
def test_every_chart_has_words_and_a_table_behind_it(shown, run):
    report = shown(run)
    report.open_details()
    for figure in report.find("figure.chart").all():
        name = figure.get_attribute("data-chart")
        assert figure.locator("figcaption").inner_text().strip(), name
        assert figure.locator("svg").first.evaluate(
            "svg => Boolean((svg.closest('[role=img], [role=graphics-document]') || svg).getAttribute('aria-label') "
            "|| svg.closest('figure').querySelector('figcaption').innerText.trim())"
        ), name
        table = figure.locator("details.numbers table")
        assert table.count() >= 1, name
        for one in table.all():
            assert one.locator("caption").inner_text().strip(), name
            assert one.locator("th[scope=col]").count() >= 2, name
            assert one.locator("th:not([scope])").count() == 0, name
            assert one.locator("tbody tr").count() >= 1, name
            assert numbers_in(one.locator("tbody").inner_text()), name


def test_the_table_behind_a_chart_holds_what_was_measured(shown, runs):
    report = shown("small")
    shown = [number for row in report.numbers("constant_against_length") for number in numbers_in(" ".join(row))]
    records = [record for record in runs.records("small") if record.ask.map == "attention"]
    for layer in LAYERS:
        for length in LENGTHS:
            values = [r.answer.lower for r in records if (r.ask.layer, r.ask.length) == (layer, length)]
            assert len(values) == WINDOWS
            mean = sum(values) / WINDOWS
            assert any(math.isclose(number, mean, rel_tol=0.005) for number in shown) or all(
                any(math.isclose(number, value, rel_tol=0.005) for number in shown) for value in values
            ), (layer, length, mean)


@pytest.mark.parametrize("run", ["small", "single", "paper"])
def test_a_report_tells_how_to_read_it_and_what_was_run(shown, runs, run):
    report = shown(run)
    for name in ("reading", "provenance"):
        assert report.find(f"section#{name}").is_visible()
        assert report.find(f"section#{name} :is(h2, h3)").count() >= 1
    assert len(report.find("section#reading").inner_text().split()) > 50
    told, machine = report.find("section#provenance").inner_text(), runs.records(run)[0].machine
    for version in (machine.howsmooth, machine.torch, machine.transformers, machine.python):
        assert version in told
    assert "seed" in told.lower()
    command = report.find("section#provenance code.command").first.inner_text()
    assert command.startswith("howsmooth paper" if run == "paper" else "howsmooth measure minilm")


def test_a_run_of_the_paper_answers_with_a_sentence_for_each_study(shown):
    report = shown("paper")
    leads = report.find("section#answer p.lead")
    assert leads.count() == 2
    for lead in leads.all():
        assert numbers_in(lead.inner_text())
        assert report.find(lead.locator("a").get_attribute("href")).is_visible()


def test_warnings_are_there_only_if_something_went_wrong(shown):
    assert shown("small").find("section#warnings").count() == 0
    told = shown("interrupted").find("section#warnings")
    assert told.is_visible()
    text = told.inner_text()
    assert HOSTILE_ERROR in text
    assert re.search(r"layer\s*5", text)
    assert "32" in text
