"""One result as a page of its own, beside those of runs: a comparison of two runs, or words that were swapped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from howsmooth.report.differences import differences_chart
from howsmooth.report.drawing.palette import CONFIG, themed
from howsmooth.report.embedding import asset, fill, in_script, runtime
from howsmooth.report.page import written
from howsmooth.studies.runs.comparison import Comparison
from howsmooth.wording import percent

# A line of words, each with whether it stands out.
MarkedLine = Sequence[tuple[str, bool]]


def write_comparison(found: Comparison, command: str, path: Path) -> Path:
    """Write the report of a comparison; return where it is."""
    drawn = any(row.ratio is not None for row in found.rows)
    spec = differences_chart(found).to_dict() if drawn else {}
    spec.pop("title", None)
    spec.pop("config", None)
    return write_result(
        path,
        title=f"Which layers differ? {found.second} against {found.first}",
        lead=found.lead,
        columns=found.columns,
        rows=[[row[name] for name in found.columns] for row in found.cells],
        legend=found.legend,
        remarks=found.remarks,
        command=command,
        chart={"spec": themed(spec), "config": CONFIG, "panels": _panels(found)} if drawn else None,
        caption=f"How many times the first every layer of the second is. Thin: intervals, {percent(found.confidence)} "
        "all together; thick: error bars.",
    )


def _panels(found: Comparison) -> int:
    return len({(row.map, row.models, row.texts, row.length) for row in found.rows if row.ratio is not None})


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
        runtime="" if chart is None else runtime(),
        style=asset("palette.css") + asset("report.css"),
        theme=asset("theme.js"),
    )
    return written(page, path)
