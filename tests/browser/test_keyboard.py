"""Without a mouse: every control can be reached, seen to be reached, and used."""

import pytest

# What Tab must reach: everything that can be used, of each group of radio buttons the one that is on.
CONTROLS = """() => {
    const all = [...document.querySelectorAll("input, select, button, summary, textarea, a[href]")].filter(element =>
        element.checkVisibility() && !element.disabled && !(element.type === "radio" && !element.checked));
    all.forEach((element, place) => element.setAttribute("data-place", place));
    return all.map(element => element.outerHTML.slice(0, 120));
}"""

FOCUS = """() => {
    const element = document.activeElement;
    if (!element || element === document.body || element === document.documentElement) return null;
    const visible = at => {
        const style = getComputedStyle(at);
        return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 || style.boxShadow !== "none";
    };
    const label = element.closest("label");
    return {
        place: element.dataset.place === undefined ? null : Number(element.dataset.place),
        ring: visible(element) || Boolean(label) && visible(label),
        what: element.outerHTML.slice(0, 120),
        shown: element.checkVisibility({opacityProperty: true, visibilityProperty: true}),
    };
}"""


@pytest.mark.parametrize("run", ["two maps", "paper"])
def test_tab_reaches_every_control_and_shows_where_it_is(open_report, run):
    report = open_report(run)
    controls = report.page.evaluate(CONTROLS)
    assert controls
    reached = []
    for _press in range(3 * len(controls) + 60):
        report.page.keyboard.press("Tab")
        at = report.page.evaluate(FOCUS)
        if at is None:
            break
        assert at["shown"], f"the focus is on something hidden: {at['what']}"
        assert at["ring"], f"no ring around {at['what']}"
        reached.append(at["place"])
    places = [place for place in reached if place is not None]
    assert [controls[place] for place in set(range(len(controls))) - set(places)] == []
    assert places == sorted(places), "Tab follows the order of the page"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ring_can_be_seen(shown, scheme):
    report = shown("small", scheme=scheme)
    for selector in ("input[name=layer]", "button#theme", "select.chosen-layer", "details.numbers summary"):
        control = report.find(selector).first
        control.scroll_into_view_if_needed()
        report.page.evaluate("() => document.activeElement.blur()")
        box = control.bounding_box()
        around = {"x": max(box["x"] - 8, 0), "y": max(box["y"] - 8, 0)} | {
            side: box[side] + 16 for side in ("width", "height")
        }
        before = report.page.screenshot(clip=around)
        report.page.keyboard.press("Shift")  # from here on the focus is that of a keyboard
        control.focus()
        assert report.page.screenshot(clip=around) != before, selector


@pytest.mark.slow
def test_filters_and_switches_work_from_the_keyboard(open_report):
    report = open_report("two maps")
    keyboard = report.page.keyboard
    layer = report.find('input[name=layer][value="2"]')
    layer.focus()
    keyboard.press("Space")
    report.settle()
    assert not layer.is_checked()
    assert not report.find('#answer-table tbody[data-layer="2"]').first.is_visible()

    report.find("select#filter-map").focus()
    keyboard.press("ArrowDown")
    report.settle()
    chosen = report.find("select#filter-map").input_value()
    assert chosen
    assert report.find("section.measurement:visible").get_attribute("data-map") == chosen

    labels = report.find("section.measurement:visible figure.chart").first.locator("svg .role-axis-label text")
    before = labels.all_text_contents()
    report.find("input[name=scale][value=log]").focus()
    keyboard.press("ArrowDown")
    report.settle()
    assert report.find("input[name=scale][value=linear]").is_checked()
    assert labels.all_text_contents() != before

    theme = report.page.evaluate("() => document.documentElement.dataset.theme")
    for key in ("Enter", "Space"):
        report.find("button#theme").focus()
        keyboard.press(key)
        report.settle()
        theme, last = report.page.evaluate("() => document.documentElement.dataset.theme"), theme
        assert theme != last


def test_the_numbers_unfold_from_the_keyboard(open_report):
    report = open_report("single")
    details = report.find("details.numbers").first
    details.locator("summary").focus()
    report.page.keyboard.press("Enter")
    assert details.evaluate("details => details.open")
    assert details.locator("table").is_visible()


def test_layer_and_colouring_are_chosen_from_the_keyboard(open_report):
    report = open_report("small")
    choice = report.find("select.chosen-layer")
    choice.focus()
    before = choice.input_value()
    report.page.keyboard.press("ArrowDown" if choice.evaluate("select => select.selectedIndex") == 0 else "ArrowUp")
    report.settle()
    assert choice.input_value() != before
    on = report.find("fieldset.colouring input:checked")
    was = on.input_value()
    on.focus()
    report.page.keyboard.press("ArrowRight")
    report.settle()
    assert report.find("fieldset.colouring input:checked").input_value() != was


def test_every_control_has_a_name(shown):
    report = shown("two maps")
    nameless = report.page.evaluate("""() => [...document.querySelectorAll("input, select, button, summary, fieldset")]
        .filter(element => element.checkVisibility()).filter(element => !(
            element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") ||
            [...(element.labels || [])].some(label => label.innerText.trim()) ||
            element.matches("button, summary") && element.innerText.trim() ||
            element.matches("fieldset") && element.querySelector(":scope > legend")?.innerText.trim()
        )).map(element => element.outerHTML.slice(0, 120))""")
    assert nameless == []
