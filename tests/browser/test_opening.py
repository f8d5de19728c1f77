"""One file that opens anywhere: from the disk, without a network."""

import re

import pytest

from browser.runs import FIGURES, KINDS

MEGABYTE = 1_000_000


@pytest.mark.parametrize("run", KINDS)
def test_a_report_opens_from_a_file_and_draws_every_chart(shown, runs, run):
    assert runs.report(run).stat().st_size < 5 * MEGABYTE
    report = shown(run)
    assert report.page.url.startswith("file://")
    assert report.page.title().strip()
    assert report.find("main#report").is_visible()
    names = report.chart_names()
    assert names
    assert len(set(names)) == len(names)
    for figure in report.find("figure.chart").all():
        name, drawing = figure.get_attribute("data-chart"), figure.locator("div.drawing svg")
        assert drawing.count() == 1, name
        box = drawing.bounding_box()
        assert box is not None, name
        assert min(box["width"], box["height"]) > 50, name
        assert figure.locator("svg :is(path, rect, line, circle, text)").count() > 10, name
        drawn = figure.locator("svg g.role-mark :is(path, rect, line, text)").evaluate_all(
            "marks => marks.map(mark => mark.getBoundingClientRect()).filter(box => box.width + box.height > 0).length"
        )
        assert drawn > 0, f"{name} has axes, but nothing of the data"
        assert "NaN" not in drawing.evaluate("svg => svg.outerHTML"), name


@pytest.mark.parametrize("run", [run for run in KINDS if run != "hostile"])
def test_nothing_on_the_page_is_left_undefined(shown, run):
    report = shown(run)
    report.open_details()
    text = report.find("body").inner_text()
    for leftover in ("NaN", "undefined", "[object", "None", "null", "inf"):
        assert not re.search(rf"(?<!\w){re.escape(leftover)}(?!\w)", text), leftover


@pytest.mark.parametrize("run", ["small", "paper"])
def test_a_report_holds_everything_it_needs(shown, run):
    wanted = shown(run).page.evaluate("""() => [...document.querySelectorAll(
        "script[src], link[href], img[src], iframe, object, embed, source, video, audio, base, meta[http-equiv=refresh]"
    )].map(element => element.src || element.href || element.tagName).filter(where => !where.startsWith("data:"))""")
    assert wanted == []


def test_a_run_of_the_paper_has_a_section_for_every_figure(shown):
    report = shown("paper")
    studies = report.find("section.study")
    assert sorted(study.get_attribute("data-name") for study in studies.all()) == sorted(FIGURES)
    for study in studies.all():
        assert study.is_visible()
        assert study.locator("figure.chart").count() >= 1
        assert study.locator("h2, h3").count() >= 1
