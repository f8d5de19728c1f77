"""Charts and data inside HTML: one runtime, data apart from specifications, and nothing that can break out."""

import functools
import json
import math
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from howsmooth.report.drawing.tables import Chart, Rows
from howsmooth.wording import visible

DIGITS = 6
# Vega-Lite warns where it takes the layers of a panel for forks of the same data: they are, so this is not said.
GLOBALS = """
window.vegaEmbed = vegaEmbed;
const { warn } = console;
console.warn = (...said) => { if (!said.join(" ").includes("Detected faceted independent scales")) warn(...said); };
"""
# What ends a script element, begins a comment in one, or ends a line of JavaScript inside a string.
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def in_script(value: Any) -> Markup:
    """Return JSON that can stand in a script element, whatever its strings hold."""
    text = json.dumps(_short(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character, escaped in UNSAFE.items():
        text = text.replace(character, escaped)
    return Markup(text)


def apart(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Return the specification of a chart with names in place of data, and the data."""
    data: dict[str, Rows] = {}
    return _without_data(spec, data), data


def columns(rows: Rows) -> dict[str, Any]:
    """Return rows as one list of names and lists of values: a third of the size."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {"fields": names, "rows": [[row.get(name) for name in names] for row in rows]}


@functools.cache
def runtime() -> Markup:
    """Return the program that draws charts: Vega, Vega-Lite and Vega-Embed in one script."""
    return Markup(vl_convert.javascript_bundle(GLOBALS).replace("</script", "<\\/script"))


def fill(name: str, **values: Any) -> str:
    """Fill a template; every string is escaped unless it is markup of ours."""
    return templates().get_template(name).render(values)


def asset(name: str) -> Markup:
    """Return a stylesheet or a script of ours as it is."""
    environment = templates()
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def chart_page(chart: Chart, title: str) -> str:
    """Return one chart as a page of its own."""
    return fill("chart.html", title=title, spec=in_script(chart.to_dict()))


@functools.cache
def templates() -> Environment:
    """Return where pages come from: those that extend ``frame.html`` look alike."""
    found = Environment(
        loader=PackageLoader("howsmooth.report", "assets"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # markup is ours
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"asset": asset, "runtime": runtime}
    return found


def _without_data(spec: Any, data: dict[str, Rows]) -> Any:
    if isinstance(spec, list):
        return [_without_data(part, data) for part in spec]
    if not isinstance(spec, dict):
        return spec
    found = {name: _without_data(part, data) for name, part in spec.items() if name != "data"}
    if "data" in spec:
        name = f"data {len(data)}"
        data[name] = spec["data"]["values"]
        found["data"] = {"name": name}
    return found


def _short(value: Any) -> Any:
    """Keep the digits that a reader can see; JSON has no infinity."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _short(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_short(entry) for entry in value]
    return visible(value) if isinstance(value, str) else value
