"""The tokens of a window, coloured by what they do."""

import math
from itertools import combinations

import pytest

from browser.pages import numbers_in
from browser.runs import LAYERS

# How far the colour of each token is from that of the paper behind it.
STRENGTHS = """
const box = document.querySelector("div.tokens"), paper = over(behind(box));
return [...box.querySelectorAll("span.token")].map(token => {
    const colour = over(behind(token));
    return Math.hypot(...colour.map((value, place) => value - paper[place]));
});
"""


def record_of(runs, layer):
    """Return what was measured at the window that is shown: the first of the longest."""
    (found,) = [
        record
        for record in runs.records("small")
        if (record.ask.layer, record.ask.map, record.ask.length, record.ask.window.index) == (layer, "attention", 32, 0)
    ]
    return found.answer


def colour_by(report, what):
    report.find(f'section.measurement fieldset.colouring input[type=radio][value="{what}"]').check()
    report.settle()


def choose(report, place):
    report.find("section.measurement select.chosen-layer").select_option(str(LAYERS[place]))
    report.settle()


def test_the_tokens_of_a_window_are_shown_as_they_are(shown, runs):
    report = shown("small")
    shown = [token.strip() for token in report.find("div.tokens span.token").all_text_contents()]
    assert tuple(shown) == runs.measurement("small").tokens


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_stronger_colours_stand_for_larger_shares(open_report, runs, scheme):
    report = open_report("small", scheme=scheme)
    for place, layer in enumerate(LAYERS):
        choose(report, place)
        for what in ("sensitivity", "response"):
            colour_by(report, what)
            shares, strengths = getattr(record_of(runs, layer), what), report.colours(STRENGTHS)
            step = 0.05 * max(shares)  # screens have 256 levels
            told = sorted(zip(shares, strengths, strict=True))
            for (less, weak), (more, strong) in combinations(told, 2):
                assert more - less < step or strong >= weak, (what, layer, less, more)
            assert told[-1][1] > 20 + told[0][1]


def test_switching_the_colouring_and_the_layer_recolours_the_tokens(borrowed):
    report = borrowed("small")
    seen = set()
    for place in range(len(LAYERS)):
        choose(report, place)
        for what in ("sensitivity", "response"):
            colour_by(report, what)
            seen.add(tuple(report.colours(STRENGTHS)))
    assert len(seen) == 2 * len(LAYERS)


@pytest.mark.slow
def test_a_token_tells_its_share(borrowed, runs):
    report = borrowed("small")
    choose(report, 1)
    for what in ("sensitivity", "response"):
        colour_by(report, what)
        check_shares(report, runs, what)


def check_shares(report, runs, what):
    shares, tokens = getattr(record_of(runs, LAYERS[1]), what), report.find("div.tokens span.token")
    for place in (0, 7, 20, len(shares) - 1):
        report.hover(tokens.nth(place))
        text = report.tooltip("#tooltip").inner_text()
        assert any(
            math.isclose(number, unit * shares[place], rel_tol=0.03, abs_tol=6e-4 * unit)
            for number in numbers_in(text)
            for unit in (1, 100)  # a share of one, or per cent
        ), (text, shares[place])
    report.page.mouse.move(1, 1)
    report.find("#tooltip").wait_for(state="hidden")


def test_a_layer_without_this_window_has_no_colours_of_another(borrowed, runs):
    shown = len(runs.measurement("interrupted").tokens)
    assert 5 not in {record.ask.layer for record in runs.records("interrupted") if record.ask.length == shown}
    report = borrowed("interrupted")
    choose(report, LAYERS.index(5))
    if report.find("div.tokens span.token:visible").count():
        assert max(report.colours(STRENGTHS)) < 1
