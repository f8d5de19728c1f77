"""Whatever a model or a text brings in stays text."""

from itertools import pairwise

import pytest

from browser.runs import HOSTILE_ERROR, HOSTILE_MODEL, HOSTILE_TEXT, HOSTILE_TOKENS
from howsmooth.wording import visible

INTRUDERS = """() => {
    const handlers = [...document.querySelectorAll("*")].filter(
        element => [...element.attributes].some(attribute => /^on|^srcdoc$/i.test(attribute.name)));
    const links = [...document.querySelectorAll("[href], [src], [action]")].filter(element =>
        /^\\s*javascript:/i.test(element.getAttribute("href") || element.getAttribute("src") || ""));
    const strays = [...document.querySelectorAll("img, iframe, object, embed, .pwned, svg:not(figure.chart svg)")];
    return [...handlers, ...links, ...strays].map(element => element.outerHTML.slice(0, 200));
}"""

# Moves over every token; counts what a tooltip holds besides text.
OVER_EVERY_TOKEN = """() => [...document.querySelectorAll("div.tokens span.token")].map(token => {
    token.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: 9, clientY: 9}));
    const tooltip = document.getElementById("tooltip");
    return tooltip.hidden || tooltip.textContent === "" ? 1 : tooltip.children.length;
}).reduce((sum, one) => sum + one, 0)"""


def kinds_of_elements(report):
    return report.page.evaluate(
        "() => [...new Set([...document.querySelectorAll('*')].map(element => element.localName))]"
    )


def check_that_nothing_got_in(report):
    assert report.page.evaluate("() => typeof window.pwned") == "undefined"
    assert report.page.evaluate("() => typeof ({}).pwned") == "undefined"
    assert report.page.evaluate(INTRUDERS) == []


@pytest.mark.parametrize("run", ["hostile", "interrupted"])
def test_no_script_and_no_element_comes_from_outside(shown, run):
    report = shown(run)
    report.open_details()
    check_that_nothing_got_in(report)
    plain = shown("small")
    assert report.find("script, style").count() == plain.find("script, style").count()
    assert set(kinds_of_elements(report)) - set(kinds_of_elements(plain)) <= {"ul", "ol", "li", "p", "section", "h2"}


def test_tokens_made_of_tags_are_shown_as_text(shown):
    report = shown("hostile")
    tokens = report.find("div.tokens span.token")
    found = tokens.all_text_contents()
    # what turns the direction of writing, or ends a line, is shown by its number
    assert {token.strip() for token in found} >= {visible(token) for token in HOSTILE_TOKENS}
    assert all(token.is_visible() for token in tokens.all())
    assert tokens.locator("script, img, svg, b, i").count() == 0


def test_names_made_of_tags_are_shown_as_text(shown):
    report = shown("hostile")
    text = report.find("main#report").inner_text()
    assert HOSTILE_MODEL in text
    assert HOSTILE_TEXT in text
    for row in report.find("#answer-table tbody[data-layer]").all():
        assert row.get_attribute("data-model") == HOSTILE_MODEL


def test_an_error_made_of_tags_is_shown_as_text(shown):
    report = shown("interrupted")
    assert HOSTILE_ERROR in report.find("section#warnings").inner_text()


@pytest.mark.slow
def test_tooltips_show_tags_as_text(open_report):
    report = open_report("hostile")
    report.hover(report.find("div.tokens span.token").first)
    report.tooltip("#tooltip")
    assert report.page.evaluate(OVER_EVERY_TOKEN) == 0
    for mark in ("symbol", "rect"):
        for shape in report.find(f"figure.chart svg g.mark-{mark}.role-mark path").all()[::12]:
            box = shape.bounding_box()
            if box and box["width"] > 1:
                report.hover(shape)
                report.page.wait_for_timeout(20)
    report.find('fieldset.colouring input[value="response"]').check()
    report.find('input[name=layer][value="1"]').uncheck()
    report.settle()
    check_that_nothing_got_in(report)


def test_a_token_that_turns_the_direction_of_writing_turns_no_other(shown):
    report = shown("hostile")
    boxes = report.page.eval_on_selector_all(
        "div.tokens span.token",
        """all => all.map(token => {
            const range = document.createRange();
            range.selectNodeContents(token);
            const {x, y, height} = range.getBoundingClientRect();
            return {x, y, height};
        })""",
    )
    for before, after in pairwise(boxes):
        same_line = abs(before["y"] - after["y"]) < 1 and before["height"] == after["height"]
        assert not same_line or before["x"] < after["x"]


def test_nothing_gets_in_without_scripts_either(open_report):
    report = open_report("hostile", scripts=False)
    assert report.find(".pwned, img, iframe, object, embed, main script:not([type])").count() == 0
    assert HOSTILE_MODEL in report.find("main#report").inner_text()
