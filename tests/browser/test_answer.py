"""The answer on top, and around it what is needed to believe it."""

import json
import math
import re
import shlex
from dataclasses import replace

import pytest

from browser.pages import numbers_in
from browser.runs import HOSTILE_ERROR, LAYERS, LENGTHS, MEASURED, WINDOWS, records_in

MEASUREMENT = {"constant_against_length", "constant_against_radius", "layers_by_length", "bounds_ladder"}


def shows(text, value):
    """Tell whether a text shows a number to two or more digits that count."""
    return any(math.isclose(number, value, rel_tol=0.02, abs_tol=0.006) for number in numbers_in(text))


@pytest.mark.parametrize("run", MEASURED)
def test_the_answer_comes_first_in_two_sentences_and_one_table(shown, run):
    report = shown(run)
    assert report.find("main#report section").first.get_attribute("id") == "answer"
    answer = report.find("section#answer")
    lead = " ".join(answer.locator("p.lead").all_inner_texts()).strip()
    if run != "hostile":  # the name of its model may look like the end of a sentence
        assert len(re.findall(r"[.!?](?=\s|$)", lead)) == 2, lead
    assert "layer" in lead.lower()
    assert answer.locator("table").count() == 1
    table = answer.locator("table#answer-table")
    assert table.is_visible()
    assert table.locator("caption").count() == 1
    assert table.locator("thead th[scope=col]").count() >= 4
    rows = table.locator("tbody tr")
    assert rows.count() == table.locator("tbody tr[data-layer][data-map][data-model]").count() > 0


@pytest.mark.parametrize("run", ["small", "two maps"])
def test_the_table_tells_constant_growth_and_headroom_of_every_layer(shown, runs, howsmooth, run):
    found = json.loads(howsmooth("show", str(runs.folder(run)), "--json"))
    report = shown(run)
    rows = report.find("#answer-table tbody tr")
    assert rows.count() == sum(len(measurement["layers"]) for measurement in found)
    for measurement in found:
        for layer in measurement["layers"]:
            row = report.find(
                f'#answer-table tr[data-layer="{layer["layer"]}"][data-map="{measurement["map"]}"]'
                f'[data-model="{measurement["model"]}"]'
            )
            text = row.inner_text()
            for name in ("constant", "exponent", "exponent_low", "exponent_high"):
                assert shows(text, layer[name]), (name, layer[name], text)
            if (bound := layer["sharp_upper"]) is not None:
                assert shows(text, bound) or shows(text, bound / layer["constant"]), text


def test_a_single_constant_is_told_without_a_law_of_growth(shown, runs, howsmooth):
    (layer,) = json.loads(howsmooth("show", str(runs.folder("single")), "--json"))[0]["layers"]
    report = shown("single")
    row = report.find("#answer-table tbody tr")
    assert row.count() == 1
    assert shows(row.inner_text(), layer["constant"])
    assert "—" in row.inner_text()
    assert report.find("select#filter-map").count() == 0


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
    records = [record for record in runs.records("small") if record.task.map == "attention"]
    for layer in LAYERS:
        for length in LENGTHS:
            values = [record.lower for record in records if (record.task.layer, record.task.length) == (layer, length)]
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
    told, setting = report.find("section#provenance").inner_text(), runs.records(run)[0].setting
    for version in (setting.howsmooth, setting.torch, setting.transformers, setting.python):
        assert version in told
    assert "seed" in told.lower()
    command = report.find("section#provenance code.command").first.inner_text()
    assert command.startswith("howsmooth ")
    if run == "paper":
        assert "paper" in command
    else:
        assert "minilm" in told
        assert "alice" in told.lower()
        assert "measure minilm" in command


def test_the_command_to_repeat_a_run_gives_its_records(shown, runs, howsmooth, tmp_path):
    command = shlex.split(shown("single").find("section#provenance code.command").first.inner_text())
    assert command[0] == "howsmooth"
    if "--out" in command:
        place = command.index("--out")
        del command[place : place + 2]
    howsmooth(*command[1:], "--out", str(tmp_path / "again"))
    before, after = runs.records("single"), records_in(tmp_path / "again")
    assert [replace(record, seconds=0.0) for record in after] == [replace(record, seconds=0.0) for record in before]


def test_warnings_are_there_only_if_something_went_wrong(shown):
    assert shown("small").find("section#warnings").count() == 0
    told = shown("interrupted").find("section#warnings")
    assert told.is_visible()
    text = told.inner_text()
    assert HOSTILE_ERROR in text
    assert re.search(r"layer\s*5", text)
    assert "32" in text
