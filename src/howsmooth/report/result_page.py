"""One result as a page of its own: a comparison of two runs, with its chart, or words that were swapped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from howsmooth.report.drawing.palette import BLUE, CONFIG, GREY, INK, ORANGE, themed
from howsmooth.report.drawing.panels import PANEL, panels
from howsmooth.report.drawing.scales import drawable, labelled, log_scale, round_numbers
from howsmooth.report.drawing.tables import Chart
from howsmooth.report.embedding import fill, in_script
from howsmooth.report.page import written
from howsmooth.studies.runs.comparison import Comparison, DifferenceVerdict, LayerDifference, bracketed
from howsmooth.studies.runs.result_table import ResultTable
from howsmooth.wording import number, percent

# A line of words, each with whether it stands out.
MarkedLine = Sequence[tuple[str, bool]]


def write_comparison(found: Comparison, command: str, path: Path) -> Path:
    """Write the report of a comparison; return where it is."""
    drawn = any(row.ratio is not None for row in found.rows)
    return write_table(
        found,
        path,
        title=f"Which layers differ? {found.second} against {found.first}",
        command=command,
        chart=differences_chart(found) if drawn else None,
        panels=len({(row.map, row.models, row.texts, row.length) for row in found.rows if row.ratio is not None}),
        caption=f"How many times the first every layer of the second is. Thin: intervals, {percent(found.confidence)} "
        "all together; thick: error bars.",
    )


def write_table(
    found: ResultTable,
    path: Path,
    *,
    title: str,
    command: str,
    chart: Chart | None = None,
    panels: int = 1,
    caption: str = "",
) -> Path:
    """Write a result that shows itself as a table, with a chart if there is one; return where it is."""
    spec = {} if chart is None else chart.to_dict()
    spec.pop("title", None)
    spec.pop("config", None)
    return write_result(
        path,
        title=title,
        lead=found.lead or (found.title,),
        columns=found.columns,
        rows=[[row[name] for name in found.columns] for row in found.cells],
        legend=found.legend,
        remarks=found.remarks,
        command=command,
        chart=None if chart is None else {"spec": themed(spec), "config": CONFIG, "panels": panels},
        caption=caption,
    )


def write_result(
    path: Path,
    *,
    title: str,
    lead: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    legend: str,
    command: str,
    remarks: Sequence[str] = (),
    lines: Sequence[MarkedLine] = (),
    chart: dict[str, Any] | None = None,
    caption: str = "",
) -> Path:
    """Write a page: the answer in words, a chart if there is one, the table, and the command that asks again."""
    page = fill(
        "result.html",
        title=title,
        lead=lead,
        lines=lines,
        columns=columns,
        rows=rows,
        legend=legend,
        remarks=remarks,
        command=command,
        caption=caption,
        chart=None if chart is None else in_script(chart),
    )
    return written(page, path)


LARGER, SMALLER, NEITHER = "larger", "smaller", "not told apart"
COLOURS = {LARGER: ORANGE, SMALLER: BLUE, NEITHER: GREY}
# An end that is farther away than this is cut off, so that ratios near 1 are still seen.
FARTHEST = 30.0
# Layers stand apart by at least so many pixels.
STEP = 12
# How much of the height is left free above and below, and with how many digits ratios near 1 are written.
MARGIN, DIGITS = 0.08, 6


def differences_chart(found: Comparison) -> Chart:
    """Draw a dot for every ratio, a thin line for its interval, and a thick one for the error bars of the constants."""
    rows = [_row(difference, found) for difference in found.rows if difference.ratio is not None]
    ends = [1.0, *(row[name] for row in rows for name in ("low", "high") if drawable(row[name]))]
    low, high = min(ends), max(ends)
    # the margin goes with the span of all intervals, as ratios may differ by a thousandth
    room = max((high / low) ** MARGIN, 1 + 1e-4)
    heights = [low / room, high * room]
    there = [name for name in COLOURS if any(row["told"] == name for row in rows)]
    scale = alt.Scale(domain=there, range=[COLOURS[name] for name in there])
    symbols: dict[str, Any] = {"symbolType": "circle", "symbolSize": 60, "symbolOpacity": 1}
    legend = alt.Legend(orient="top", labelFontSize=12, columnPadding=26, **symbols)
    base = alt.Chart().encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        color=alt.Color("told:N", title=None, scale=scale, legend=legend),
        tooltip=[
            alt.Tooltip("layer:O"),
            alt.Tooltip("ratio:Q", title="second / first", format=",.5~r"),
            alt.Tooltip("interval:N", title=percent(found.confidence)),
            alt.Tooltip("bars:N", title="error bars"),
            alt.Tooltip("windows:N"),
            alt.Tooltip("verdict:N", title="second is"),
        ],
    )

    def up(field: str) -> alt.Y:
        axis = labelled(round_numbers(*heights), DIGITS)
        return alt.Y(f"{field}:Q", title="second / first", scale=log_scale(heights), axis=axis)

    layers = [
        alt.Chart().mark_rule(color=INK, strokeWidth=1, opacity=0.6).encode(y=up("one")),
        base.mark_rule(strokeWidth=1.5).encode(y=up("low"), y2="high:Q"),
        base.mark_rule(strokeWidth=5, opacity=0.55).encode(y=up("least"), y2="most:Q"),
        base.mark_point(filled=True, size=42, opacity=1).encode(y=up("ratio")),
    ]
    wide = max(PANEL["width"], STEP * len({row["layer"] for row in rows}))
    chart = alt.LayerChart(layer=layers).properties(width=wide, height=PANEL["height"])
    title = f"{found.sentence} Thin: intervals, {percent(found.confidence)} all together. Thick: error bars."
    return panels(chart, rows, title=title)


def _row(difference: LayerDifference, found: Comparison) -> dict:
    ratio = difference.ratio
    assert ratio is not None  # the caller has left those out
    low, high = ratio.within or ratio.near
    told = {DifferenceVerdict.LARGER: LARGER, DifferenceVerdict.SMALLER: SMALLER}.get(difference.verdict, NEITHER)
    return {
        "panel": _panel(difference, found),
        "layer": difference.layer,
        "ratio": ratio.value,
        "one": 1.0,
        "low": _seen(low, ratio.value),
        "high": _seen(high, ratio.value),
        "least": _seen(ratio.near[0], ratio.value),
        "most": _seen(ratio.near[1], ratio.value),
        "told": told,
        "verdict": difference.verdict.value,
        "interval": bracketed(ratio.within),
        "bars": bracketed(ratio.near),
        "windows": ", ".join(dict.fromkeys(map(str, difference.windows))),
    }


def _panel(difference: LayerDifference, found: Comparison) -> str:
    """Name a panel by what tells it from the others."""
    parts = {
        "map": difference.map,
        "model": difference.models[1],
        "text": difference.texts[1],
        "length": "whole sequences" if difference.length is None else f"n = {number(difference.length)}",
    }
    named = [name for name in ("map", "model", "text") if name in found.columns]
    return ", ".join(parts[name] for name in (*named, "length"))


def _seen(end: float, value: float) -> float:
    return min(max(end, value / FARTHEST), value * FARTHEST) if drawable(value) else end
