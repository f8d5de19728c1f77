"""Light, dark, and on paper."""

import pytest

from browser.pages import PHONE
from browser.test_accessibility import FAINT

CONTROLS = "form#filters, button#theme, select.chosen-layer, fieldset.colouring"
PAPER = "return luminance(over(behind(document.body)));"
INK = "return luminance(over(['white', getComputedStyle(document.querySelector('p.lead')).color]));"


def theme(report):
    return report.page.evaluate("() => document.documentElement.dataset.theme")


def is_dark(report):
    paper = report.colours(PAPER)
    assert not 0.2 < paper < 0.7, "neither light nor dark"
    assert abs(report.colours(INK) - paper) > 0.5
    return paper < 0.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_switched(open_report, scheme):
    report = open_report("single", scheme=scheme)
    assert is_dark(report) == (scheme == "dark")
    assert theme(report) in (None, scheme)
    drawing = report.drawing("bounds_ladder")
    other = {"light": "dark", "dark": "light"}[scheme]
    for expected in (other, scheme, other):
        report.find("button#theme").click()
        report.settle()
        assert theme(report) == expected
        assert is_dark(report) == (expected == "dark")
    assert report.find("figure.chart svg").count() == report.find("figure.chart").count()
    report.find("button#theme").click()
    report.settle()
    assert report.drawing("bounds_ladder").count("<path") == drawing.count("<path")


@pytest.mark.parametrize("run", ["small", "paper"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_has_no_buttons(open_report, run, scheme):
    report = open_report(run, scheme=scheme)
    assert report.find("form#filters").is_visible()
    report.page.emulate_media(media="print")
    report.settle()
    assert [control for control in report.find(CONTROLS).all() if control.is_visible()] == []
    assert report.colours(PAPER) > 0.9
    assert report.colours(INK) < 0.2
    assert report.colours(FAINT) == []
    for figure in report.find("figure.chart").all():
        assert figure.locator("svg").is_visible()
    pdf = report.page.pdf()
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 10_000
    report.page.emulate_media(media="screen")
    report.settle()
    assert report.find("form#filters").is_visible()
    assert is_dark(report) == (scheme == "dark")


def test_a_page_that_was_switched_to_dark_is_not_printed_dark(open_report):
    report = open_report("single", scheme="light")
    report.find("button#theme").click()
    report.settle()
    assert is_dark(report)
    report.page.emulate_media(media="print")
    report.settle()
    assert report.colours(PAPER) > 0.9
    assert report.colours(INK) < 0.2
    assert report.colours(FAINT) == []


def test_nothing_is_cut_off_on_paper(open_report):
    width = 718  # A4 at 96 dots per inch, without its margins
    report = open_report("two maps", size=(width, 1000))
    report.page.emulate_media(media="print")
    report.settle()
    # what is wider is printed smaller, down to two thirds; what is wider still is cut off
    assert report.page.evaluate("() => document.documentElement.scrollWidth") <= 1.5 * width


@pytest.mark.parametrize("run", ["small", "paper"])
def test_answer_and_numbers_can_be_read_without_scripts(open_report, run):
    report = open_report(run, scripts=False)
    assert report.find("h1").is_visible()
    assert report.find("section#reading").is_visible()
    assert report.find("section#provenance code.command").first.is_visible()
    if run == "small":
        assert report.find("p.lead").first.inner_text().strip()
        rows = report.find("#answer-table tbody[data-layer]")
        assert rows.count() == 3
        assert all(row.is_visible() for row in rows.all())
    for details in report.find("details.numbers").all():
        details.locator("summary").click()
        assert details.locator("table tbody td").first.is_visible()
        assert details.locator("table tbody td").first.inner_text().strip()
    assert report.find("details.numbers").count() >= 1


def test_every_table_is_on_paper_and_folds_again_afterwards(open_report):
    from playwright.sync_api import expect

    report = open_report("small")
    tables, folded = report.find("details.numbers table"), report.find("details.numbers:not([open])")
    assert tables.count() > 5
    assert not any(table.is_visible() for table in tables.all())
    report.page.emulate_media(media="print")
    # A page hears of its medium with the next frame that is drawn, so this waits for it.
    expect(folded).to_have_count(0)
    assert all(table.is_visible() for table in tables.all())
    report.page.emulate_media(media="screen")
    expect(folded).to_have_count(tables.count())
    assert not any(table.is_visible() for table in tables.all())


def test_a_theme_that_was_chosen_is_there_again_on_reload(open_report):
    report = open_report("single", scheme="light")
    report.find("button#theme").click()
    report.page.reload()
    report.settle()
    assert theme(report) == "dark"
    assert is_dark(report)


def test_where_storage_is_refused_the_theme_is_quietly_not_remembered(open_report):
    report = open_report("single", scheme="light")
    report.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() {throw new DOMException('no', 'SecurityError');}})"
    )
    report.page.reload()
    report.settle()
    report.find("button#theme").click()
    assert theme(report) == "dark"
    report.page.reload()
    report.settle()
    assert theme(report) == "light"


def test_a_narrow_window_that_becomes_wide_is_filled_again(open_report):
    report = open_report("small", size=PHONE)
    report.page.set_viewport_size({"width": 1280, "height": 900})
    # A page hears of its new size with the next frame that is drawn and draws anew a moment later; waiting for the wide
    # chart is the test, since one that is looked at again may just be drawn once more.
    report.page.wait_for_function(
        f"""() => document.querySelector('figure.chart[data-chart$="constant_against_length"] svg')
            ?.getBoundingClientRect().width > {PHONE[0]}"""
    )
