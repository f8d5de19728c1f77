"""The paper's figures, and the checks that its readers ask for: from the records of each study to its charts."""

from collections.abc import Callable, Sequence

from howsmooth.report.charts import Chart
from howsmooth.report.length_charts import (
    adversarial,
    certificates,
    concentration,
    constant_against_length,
    constant_against_radius,
    radius_against_length,
    relative_growth,
)
from howsmooth.report.scales import drawable
from howsmooth.report.worst_case_charts import (
    attack,
    regimes_panels,
    splitting_on_text,
    splitting_on_the_line,
    transition,
    worst_case,
    worst_measures,
)
from howsmooth.studies.records import Record

Draw = Callable[[Sequence[Record]], Chart]
# From the records of a study, its charts by name.
Study = Callable[[Sequence[Record]], dict[str, Chart]]


def _study(charts: dict[str, Draw], wanted: Callable[[Record], bool]) -> Study:
    """Return what draws these charts of the wanted records; none of them if nothing can be drawn."""

    def draw(records: Sequence[Record]) -> dict[str, Chart]:
        found = [r for r in records if wanted(r)]
        drawn = {name: chart(found) for name, chart in charts.items()} if any(drawable(r.lower) for r in found) else {}
        return {name: chart for name, chart in drawn.items() if getattr(chart.data, "values", True)}

    return draw


def _regime(record: Record) -> bool:
    return record.task.kind == "regime" and {"crossing", "plateau"} <= dict(record.numbers).keys()


def _nested(record: Record) -> bool:
    return record.task.kind == "local" and record.task.stride > 0


def _robustness(records: Sequence[Record]) -> dict[str, Chart]:
    grown = _study({"relative_growth": relative_growth}, _nested)
    spread = _study({"concentration": concentration}, lambda r: _nested(r) and any(r.sensitivity))
    return grown(records) | spread(records)


def _adversarial(records: Sequence[Record]) -> dict[str, Chart]:
    heads = _study({"single_head": adversarial}, lambda r: r.task.kind == "extremal" and r.task.map.startswith("head"))
    layers = _study({"whole_layer": adversarial}, lambda r: r.task.kind == "extremal" and r.task.map == "attention")
    return heads(records) | layers(records)


# For each figure of the paper, what draws its charts from its records.
CHARTS: dict[str, Study] = {
    "real": _study(
        {
            "constant_against_length": constant_against_length,
            "constant_against_radius": constant_against_radius,
            "radius_against_length": radius_against_length,
        },
        lambda r: r.task.kind == "local" and r.task.stride == 0,
    ),
    "adversarial": _adversarial,
    "worst": _study({"worst_case": worst_case}, lambda r: r.task.kind in ("bounds", "ascent")),
    "regimes": _study({"regimes": regimes_panels}, _regime),
    "splitting": _study(
        {"line": splitting_on_the_line, "text": splitting_on_text, "attack": attack},
        lambda r: r.task.kind == "splitting" and {"move", "split", "splits"} <= dict(r.numbers).keys(),
    ),
    "measures": _study(
        {"worst_measures": worst_measures}, lambda r: r.task.kind == "measure" and "mass 0" in dict(r.numbers)
    ),
    "robustness": _robustness,
    "bounds": _study({"certificates": certificates}, lambda r: r.task.kind == "local"),
    "transition": _study({"transition": transition}, _regime),
}
