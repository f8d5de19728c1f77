"""A run as one HTML file that holds everything it needs: same records, same bytes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howsmooth.errors import FileError
from howsmooth.files import whole
from howsmooth.report.answer import answer_rows, sentences
from howsmooth.report.drawings import Drawing, measurement_drawings, own_measurements, prefixes, study_drawings, thinned
from howsmooth.report.embedding import apart, asset, columns, fill, in_script, runtime
from howsmooth.report.facts import WorstInput, facts, warnings, worst_inputs
from howsmooth.report.scales import linear
from howsmooth.report.themes import CONFIG, themed
from howsmooth.report.token_shares import Shares, Word, shares, words_of
from howsmooth.studies.measurement import Measurement, least_smooth
from howsmooth.studies.paper import title_and_protocol
from howsmooth.studies.reading import Run, read_run

FILE = "report.html"


@dataclass(frozen=True, kw_only=True)
class MeasurementPart:
    """What the page says about one measurement."""

    map: str
    heading: str
    legend: str
    drawings: list[Drawing]
    layers: list[int]
    chosen: int
    tokens: int
    words: list[Word]
    shares: list[Shares]
    worst_inputs: list[WorstInput]


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """What the page says about one figure of the paper."""

    name: str
    title: str
    protocol: str
    drawings: list[Drawing]


def write_report(folder: str | os.PathLike[str], target: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a run, ``report.html`` in its folder by default; return where it is.

    Raises:
        FileError: If the folder holds no run, or the file cannot be written.
    """
    path = Path(folder) / FILE if target is None else Path(target)
    if target is not None and not path.parent.is_dir():
        raise FileError(f"there is no folder {os.fspath(path.parent)!r} to write the report to.")
    page = render(read_run(folder))
    try:
        with whole(path) as partial:
            partial.write_text(page, encoding="utf-8")
    except OSError as error:
        raise FileError(f"the report cannot be written to {os.fspath(path)!r}: {error.strerror or error}.") from error
    return path


def render(run: Run) -> str:
    """Return the page of a run."""
    answer = answer_rows(run)
    measured = own_measurements(run)
    parts = [_measurement(m, prefix) for m, prefix in zip(measured, prefixes(measured), strict=True)]
    studies = [_study(name, run) for name in run.figures]
    shown = [row.measurement for row in answer]
    drawings = [d for part in parts for d in part.drawings] + [d for study in studies for d in study.drawings]
    layers = {row.layer.layer for row in answer} | {layer for m in measured for layer in _layers(m)}
    return fill(
        "report.html",
        title=_title(run),
        lead=sentences(answer, run),
        answer=answer,
        many_models=len({m.model for m in shown}) > 1,
        many_texts=len({m.text for m in shown}) > 1,
        many_maps=len({m.map for m in shown}) > 1,
        warnings=warnings(run),
        layers=sorted(layers),
        maps=sorted({part.map for part in parts}),
        measurements=parts,
        studies=[study for study in studies if study.drawings],
        facts=facts(run),
        commands=run.commands,
        style=asset("report.css"),
        script=asset("report.js"),
        runtime=runtime(),
        data=in_script(
            {
                "charts": {drawing.name: _chart(drawing) for drawing in drawings},
                "tokens": [{row.layer: row.as_dict() for row in part.shares} for part in parts],
                "config": CONFIG,
            }
        ),
    )


def _measurement(m: Measurement, prefix: str) -> MeasurementPart:
    worst = least_smooth(m.layers).layer
    found = shares(m)
    return MeasurementPart(
        map=m.map,
        heading=f"{m.model} on {m.text}: {m.map}",
        legend=m.legend + _left_out(m),
        drawings=measurement_drawings(m, prefix),
        layers=_layers(m),
        chosen=worst,
        tokens=len(m.tokens),
        words=words_of(m, next((row for row in found if row.layer == worst), None)),
        shares=found,
        worst_inputs=worst_inputs(m),
    )


def _left_out(m: Measurement) -> str:
    shown, found = len(thinned(m).records), len(m.records)
    return "" if shown == found else f" Dots are drawn for {shown} of {found} windows; the tables hold all."


def _study(name: str, run: Run) -> StudyPart:
    title, protocol = title_and_protocol(name)
    return StudyPart(name=name, title=title, protocol=protocol, drawings=study_drawings(name, run.figures[name]))


def _chart(drawing: Drawing) -> dict[str, Any]:
    spec, data = apart(drawing.spec)
    spec.pop("title", None)  # the caption says it
    spec.pop("config", None)
    straight = linear(spec)
    return {
        "log": themed(spec),
        "linear": None if straight == spec else themed(straight),
        "data": {name: columns(rows) for name, rows in data.items()},
        "one": drawing.kind == "bounds_ladder",
    }


def _title(run: Run) -> str:
    models = list(dict.fromkeys(m.model for m in run.measurements))
    if not models:
        return "How smooth is attention?"
    return f"How smooth is attention in {_listed(models)}?"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _layers(m: Measurement) -> list[int]:
    return [layer.layer for layer in m.layers]
