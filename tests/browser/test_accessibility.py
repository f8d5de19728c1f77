"""For every eye and every hand: axe-core, headings, contrast, palettes, small screens."""

from itertools import combinations, pairwise

import pytest

from browser.pages import DESKTOP, PHONE
from browser.runs import KINDS

VIEWS = {
    "light": ("light", DESKTOP),
    "dark": ("dark", DESKTOP),
    "phone": ("light", PHONE),
}

# Labels and titles of axes and legends against what lies behind the drawing.
FAINT = """
const found = [];
for (const text of document.querySelectorAll("figure.chart svg :is(.role-axis-label, .role-axis-title, "
        + ".role-legend-label, .role-legend-title, .role-title-text) text")) {
    const style = getComputedStyle(text);
    if (Number(style.opacity) < 0.05 || !text.textContent.trim() || !text.checkVisibility()) continue;
    const svg = text.closest("svg"), sheet = svg.querySelector("path.background, rect.background");
    const paper = over([...behind(svg), ...(sheet ? [getComputedStyle(sheet).fill] : [])].filter(c => c !== "none"));
    const ratio = contrast(over([`rgb(${paper})`, style.fill]), paper);
    if (ratio < 4.5) found.push(`${text.closest("figure").dataset.chart}: ${text.textContent} ${ratio.toFixed(2)}`);
}
return found;
"""

# Dots and lines against what lies behind the drawing: their inside or their outline must stand out.
PALE = """
const found = {};
for (const mark of document.querySelectorAll("figure.chart svg g.role-mark:is(.mark-symbol, .mark-line) path")) {
    const style = getComputedStyle(mark), paper = over(behind(mark.closest("svg")));
    const seen = [["fill", style.fillOpacity], ["stroke", style.strokeOpacity]].filter(([name]) =>
        style[name] !== "none" && (name === "fill" || parseFloat(style.strokeWidth) > 0)).map(([name, opacity]) => {
            const share = Number(opacity) * Number(style.opacity), colour = over([`rgb(${paper})`, style[name]]);
            return contrast(colour.map((value, place) => share * value + (1 - share) * paper[place]), paper);
        });
    const best = Math.max(...seen), name = mark.closest("figure").dataset.chart;
    if (seen.length && best < 3) found[name] = Math.min(best, found[name] || 3).toFixed(2);
}
return found;
"""

# Machado, Oliveira, Fernandes 2009: what is left of linear RGB without one kind of cone.
BLINDNESS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def serious_violations(report):
    from axe_playwright_python.sync_playwright import Axe

    report.open_details()
    # drawings are hidden from readers of screens, and what is written in them is looked at below
    within = {"exclude": [["figure.chart svg"]]}
    found = Axe().run(report.page, context=within, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{violation['id']}: {violation['help']}: {[node['html'][:150] for node in violation['nodes'][:3]]}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(
    ("run", "view"),
    [("small", "light"), ("small", "dark"), ("small", "phone"), ("hostile", "light"), ("paper", "dark")],
)
def test_axe_finds_no_serious_violation(shown, run, view):
    scheme, size = VIEWS[view]
    assert serious_violations(shown(run, scheme=scheme, size=size)) == []


@pytest.mark.slow
def test_axe_finds_none_either_after_everything_was_switched(open_report):
    report = open_report("two maps")
    report.find("button#theme").click()
    report.find("input[name=scale][value=linear]").check()
    report.find('input[name=layer][value="2"]').uncheck()
    report.find("select#filter-map").select_option("attention")
    report.find('section.measurement:visible fieldset.colouring input[value="response"]').check()
    report.settle()
    assert serious_violations(report) == []


@pytest.mark.parametrize(("run", "scheme"), [("two maps", "dark"), ("paper", "light")])
def test_what_is_written_in_charts_can_be_read(open_report, run, scheme):
    report = open_report(run, scheme=scheme)
    assert report.find("figure.chart svg .role-axis-label text").count() > 10
    assert report.colours(FAINT) == []
    report.find("button#theme").click()
    report.settle()
    assert report.colours(FAINT) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("run", ["small", "paper"])
def test_what_is_drawn_in_charts_stands_out(shown, run, scheme):
    assert shown(run, scheme=scheme).colours(PALE) == {}


@pytest.mark.parametrize("run", KINDS)
def test_headings_are_in_order(shown, run):
    report = shown(run)
    levels = report.page.eval_on_selector_all(
        "h1, h2, h3, h4, h5, h6",
        "all => all.filter(one => one.checkVisibility()).map(one => Number(one.localName[1]))",
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert report.find("html").get_attribute("lang")
    for section in report.find("main#report section").all():
        assert section.locator("h2, h3, h4").count() >= 1


@pytest.mark.parametrize("run", ["two maps", "hostile", "paper", "interrupted"])
def test_nothing_is_wider_than_a_phone(shown, run):
    report = shown(run, size=PHONE)
    report.open_details()
    assert report.page.evaluate("() => document.documentElement.scrollWidth") <= PHONE[0]
    assert report.page.evaluate("() => document.body.scrollWidth") <= PHONE[0]
    for figure in report.find("figure.chart").all():
        assert figure.bounding_box()["width"] <= PHONE[0]


def test_values_and_legend_of_the_ladder_of_bounds_end_before_the_edge_of_a_phone(shown):
    report = shown("small", size=PHONE)
    report.open_details()
    ladder = report.find("figure.chart#bounds_ladder").first
    ladder.scroll_into_view_if_needed()
    ladder.locator("svg").first.wait_for()
    edge = ladder.bounding_box()
    written = ladder.locator("svg text").all()
    begins = {text.text_content(): text.bounding_box()["x"] for text in written}
    # under the names, which take more of the width than the axis
    assert begins["worst perturbation, measured"] < begins["Lipschitz constant"] - 50
    for box in (text.bounding_box() for text in written if text.text_content()):
        assert edge["x"] - 1 <= box["x"]
        assert box["x"] + box["width"] <= edge["x"] + edge["width"] + 1


def lab(rgb, matrix):
    """CIELAB of a colour as seen with these cones."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in rgb)]
    seen = [min(max(sum(a * b for a, b in zip(row, linear, strict=True)), 0), 1) for row in matrix]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(a * b for a, b in zip(row, seen, strict=True)) / w for row, w in zip(to_xyz, white, strict=True)]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_charts_tell_apart_by_colour_alone_differs_without_one_kind_of_cone(shown, scheme):
    report = shown("small", scheme=scheme)
    colours = report.colours("""
        const marks = document.querySelectorAll('figure.chart[data-chart$="constant_against_length"] '
            + 'svg g.role-mark:is(.mark-symbol, .mark-line) path');
        const styles = [...marks].map(mark => getComputedStyle(mark));
        const found = styles.filter(style => ["none", "1px, 0px"].includes(style.strokeDasharray)).map(style =>
            String(over([["none", "transparent"].includes(style.fill) ? style.stroke : style.fill])));
        return [...new Set(found)].map(colour => colour.split(",").map(Number));
    """)
    assert len(colours) >= 3
    for kind, matrix in BLINDNESS.items():
        for one, other in combinations(colours, 2):
            distance = sum((a - b) ** 2 for a, b in zip(lab(one, matrix), lab(other, matrix), strict=True)) ** 0.5
            assert distance > 10, (kind, one, other)
