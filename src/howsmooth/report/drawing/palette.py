"""The colours of charts, and how a page exchanges them for its own."""

import json
from typing import Any

# Okabe and Ito's palette, which colour-blind readers can tell apart.
INK, GREY, BLUE, ORANGE, GREEN = "#222222", "#8a8a8a", "#0072b2", "#d55e00", "#009e73"
PINK, YELLOW = "#cc79a7", "#e69f00"
HUES = (BLUE, ORANGE, GREEN, PINK, YELLOW)
# One colour for one meaning, on every page: what was measured, what random perturbations do, what no input exceeds,
# what an explicit input attains, what is proven at one input, what is fitted to the data.
MEASURED, TYPICAL, BOUND, WITNESS, CERTIFICATE, FIT = BLUE, GREY, ORANGE, GREEN, PINK, INK
# What a page writes in place of each: a variable of its stylesheet, so that dark, light and paper need no new drawing.
VARIABLES = {
    INK: "var(--ink)",
    GREY: "var(--grey)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    PINK: "var(--pink)",
    YELLOW: "var(--yellow)",
}
# From few to many. Variables cannot be mixed, so these are neither light nor dark: they show on any page.
FEW_TO_MANY = ("#2f7fc4", "#9a62b4", "#d0578a", "#cb6420")
# The grounds that cells and tokens bring along, and the two colours of text on them, whatever the page is.
SHADES, PLAIN = ("#ffffff", "#9ecae1", "#08519c"), "#e6e6e6"
ON_LIGHT, ON_DARK = "#1a1a1a", "#fefefe"
FIXED = {*FEW_TO_MANY, *SHADES, PLAIN, ON_LIGHT, ON_DARK}

TEXT, LINE, FONT = "var(--ink)", "var(--line)", "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
CONFIG: dict[str, Any] = {
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    "text": {"color": TEXT},
    "axis": {
        "labelColor": TEXT,
        "titleColor": TEXT,
        "gridColor": LINE,
        "domainColor": LINE,
        "tickColor": LINE,
        "labelFontSize": 12,
        "titleFontSize": 12.5,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": TEXT, "titleColor": TEXT, "titleFontWeight": "normal", "labelFontSize": 12},
    "header": {"labelColor": TEXT, "titleColor": TEXT},
    "title": {"color": TEXT},
}


def themed(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification with the page's colours in place of ours."""
    text = json.dumps(spec)
    for colour, variable in VARIABLES.items():
        text = text.replace(f'"{colour}"', f'"{variable}"')
    return json.loads(text)
