"""Colours of charts on a page: variables of its stylesheet, so that dark, light and paper need no new drawing."""

import json
from typing import Any

from howsmooth.report.charts import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, YELLOW

VARIABLES = {
    INK: "var(--ink)",
    GREY: "var(--grey)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    PINK: "var(--pink)",
    SKY: "var(--sky)",
    YELLOW: "var(--yellow)",
}
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
