"""A run as one HTML file that holds everything it needs: same records, same bytes."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from howsmooth.errors import FileError
from howsmooth.files import whole
from howsmooth.report.answer import AnswerRow, answer_rows, columns_of, terms
from howsmooth.report.charts.sensitive_tokens import window_records
from howsmooth.report.drawing.palette import CONFIG, themed
from howsmooth.report.drawing.token_text import words
from howsmooth.report.embedding import apart, asset, columns, fill, in_script, runtime
from howsmooth.report.facts import facts, gaps, warnings, worst_inputs
from howsmooth.report.figures import Drawing, drawings, linear, sections, thinned
from howsmooth.report.sections import MEASUREMENT, Section
from howsmooth.report.sentences import finding, growth_sentence, sentence
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.run import Run, read_run
from howsmooth.wording import percent

# How many tokens a cell names.
NAMED_TOKENS = 8
# How many tokens of a long window are shown.
SHOWN_TOKENS = 1024
FILE = "report.html"
# What a page is called, by the kind of its records: the first that is there.
TITLES = {
    "whole": "How smooth is {models} as a whole?",
    "attack": "Attacks on {models}",
    "budget": "Where does {models} tolerate an error?",
    "certificate": "How far may words move before {models} decides otherwise?",
    "monitor": "How smooth is {models} while it is trained?",
    "text": "How smooth is {map} in {models}?",
}
# Every section of a run with its charts.
Drawn = Mapping[Section, Sequence[Drawing]]


@dataclass(frozen=True, kw_only=True)
class LayerDetail:
    """One layer of a measurement, more closely: whichever the reader chooses."""

    layers: list[int]  # those that can be chosen, the least smooth first
    drawings: list[Drawing]  # charts of one layer
    # the command that builds an input that is worse than any text, for each layer that has one
    worst_inputs: dict[int, str]
    tokens: int  # how many tokens the window has whose words are shown
    # whether a space comes before each of them, the word, and how dark the first layer has it, from 0 to 1
    words: list[tuple[bool, str, float]]
    # how much of the worst perturbation and of the response each token holds, by layer
    shares: dict[int, dict[str, Sequence[float]]]
    largest: dict[int, tuple[str, str]]  # the tokens that hold most of both, in words, by layer


@dataclass(frozen=True, kw_only=True)
class SectionView:
    """What the page says about one section."""

    name: str  # which section it is
    map: str  # the map that was measured; nothing for a study
    title: str  # what it shows
    legend: str  # how it was made, and what the numbers are worth
    said: str  # what was found, in a sentence
    more: str  # what is said about growth
    drawings: list[Drawing]  # charts of all layers
    closer: LayerDetail | None  # one layer, where the section is about one measurement

    @property
    def charts(self) -> list[Drawing]:
        """Every chart of the section."""
        return self.drawings + (self.closer.drawings if self.closer else [])


def write_report(folder: str | os.PathLike[str], target: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a run, ``report.html`` in its folder by default; return where it is.

    Raises:
        FileError: If the folder holds no run, or the file cannot be written.
    """
    if target is not None and not Path(target).parent.is_dir():
        raise FileError(f"there is no folder {os.fspath(Path(target).parent)!r} for the report.", field="target")
    run = read_run(folder)
    return written(render(run), Path(folder) / FILE if target is None else Path(target))


def write_page(run: Run, drawn: Drawn, folder: str | os.PathLike[str]) -> Path:
    """Write the report of a run that was read, and whose charts were drawn, into its folder; return where it is."""
    return written(_page(run, drawn), Path(folder) / FILE)


def render(run: Run) -> str:
    """Return the page of a run."""
    return _page(run, {section: drawings(section) for section in sections(run)})


def written(page: str, path: Path) -> Path:
    """Write a page whole or not at all; return where it is."""
    try:
        with whole(path) as partial:
            partial.write_text(page, encoding="utf-8")
    except OSError as error:
        raise FileError(f"the report cannot be written to {os.fspath(path)!r}: {error.strerror or error}.") from error
    return path


def _page(run: Run, drawn: Drawn) -> str:
    found = list(drawn)
    parts = [_part(section, drawn[section]) for section in found]
    measured = _answered(found, parts)
    rows = answer_rows(measured)
    shown = [m for _place, m in measured]
    return fill(
        "report.html",
        title=_title(run),
        gaps=gaps(run),
        rows=rows,
        columns=columns_of(rows),
        differing=[name for name in ("model", "text", "map", "metric") if len({getattr(m, name) for m in shown}) > 1],
        length=_common_length(rows),
        warnings=warnings(run, shown),
        layers=sorted({row.layer.layer for row in rows}),
        maps=sorted({part.map for part in parts if part.map}),
        parts=parts,
        terms=terms(shown, {record.ask.kind for record in run.records}),
        facts=facts(run),
        commands=run.commands,
        style=asset("palette.css") + asset("report.css"),
        theme=asset("theme.js"),
        script=asset("report.js"),
        runtime=runtime(),
        data=in_script(_data(parts)),
    )


def _part(section: Section, drawn: Sequence[Drawing]) -> SectionView:
    own = section.measurements[0] if section.name == MEASUREMENT else None
    left_out = "".join(map(_left_out, section.measurements))
    return SectionView(
        name=section.name,
        map=own.map if own else "",
        title=section.title,
        legend=(own.accuracy if own else section.protocol) + left_out,
        drawings=[drawing for drawing in drawn if own is None or not drawing.per_layer],
        said=sentence(own) if own else finding(section.name, section.records),
        more=growth_sentence(own) if own else "",
        closer=_closer(own, [drawing for drawing in drawn if drawing.per_layer]) if own else None,
    )


def _closer(m: Measurement, drawn: list[Drawing]) -> LayerDetail:
    # the order of roughness: where the reader chose nothing, or hid what was chosen, the first is shown
    order = [layer.layer for layer in sorted(m.layers, key=lambda layer: (-layer.constant, layer.layer))]
    answers = {layer: record.answer for layer, record in window_records(m).items()}
    shown = answers[order[0]].sensitivity if order[0] in answers else (0.0,) * len(m.tokens)
    most = max(shown, default=0.0) or 1.0
    spelled = list(words(m.tokens))
    return LayerDetail(
        layers=order,
        drawings=drawn,
        worst_inputs=worst_inputs(m),
        tokens=len(m.tokens),
        words=[
            (space, text, math.sqrt(share / most))
            for (space, text), share in islice(zip(spelled, shown, strict=True), SHOWN_TOKENS)
        ]
        if answers
        else [],
        shares={
            layer: {"sensitivity": a.sensitivity[:SHOWN_TOKENS], "response": a.response[:SHOWN_TOKENS]}
            for layer, a in answers.items()
        },
        largest={
            layer: (_largest(a.sensitivity, spelled), _largest(a.response, spelled)) for layer, a in answers.items()
        },
    )


def _largest(shares: Sequence[float], spelled: Sequence[tuple[bool, str]]) -> str:
    order = sorted(range(len(shares)), key=lambda i: -shares[i])[:NAMED_TOKENS]
    return ", ".join(f"“{spelled[i][1]}” ({i}, {percent(shares[i])})" for i in order)


def _answered(found: Sequence[Section], parts: Sequence[SectionView]) -> list[tuple[int | None, Measurement]]:
    """Return the measurements that the answer is about, with the section that looks at their layers, if one does.

    Windows that grow in place are no sample of the text: where a study asks for them, its own sentence speaks of them.
    """
    told: list[tuple[int | None, Measurement]] = []
    for place, (section, part) in enumerate(zip(found, parts, strict=True)):
        for m in section.measurements:
            sampled = section.name == MEASUREMENT or not m.records[0].ask.window.stride
            if sampled and not any(m is other for _place, other in told):
                told.append((place if part.closer else None, m))
    return told


def _common_length(rows: Sequence[AnswerRow]) -> int | None:
    lengths = {row.layer.length for row in rows}
    return lengths.pop() if len(lengths) == 1 else None


def _left_out(m: Measurement) -> str:
    shown, found = len(thinned(m).records), len(m.records)
    return "" if shown == found else f" Dots are drawn for {shown:,} of {found:,} windows; the tables hold all."


def _data(parts: Sequence[SectionView]) -> dict[str, Any]:
    return {
        "charts": {drawing.name: _chart(drawing) for part in parts for drawing in part.charts},
        "tokens": [part.closer.shares if part.closer else {} for part in parts],
        "config": CONFIG,
    }


def _chart(drawing: Drawing) -> dict[str, Any]:
    spec, data = apart(drawing.spec)
    spec.pop("title", None)  # the caption says it
    spec.pop("config", None)
    straight = linear(spec)
    return {
        "log": themed(spec),
        "linear": None if straight == spec else themed(straight),
        "data": {name: columns(rows) for name, rows in data.items()},
    }


def _title(run: Run) -> str:
    """Return the question of a run, and the models that it asks about."""
    if run.figures:
        return f"How smooth is attention? The paper's figures: {_listed(list(run.figures))}"
    kinds = {record.ask.kind for record in run.records}
    question = next((asked for kind, asked in TITLES.items() if kind in kinds), "How smooth is attention?")
    asks = [record.ask for record in run.records if TITLES.get(record.ask.kind) == question]
    models = _listed(list(dict.fromkeys(getattr(ask, "model", "") or getattr(ask, "training", "") for ask in asks)))
    maps = {ask.map for ask in asks if ask.kind == "text" and not ask.map.startswith("head:")} or {"attention"}
    layers = sorted({ask.layer for ask in asks if ask.kind == "attack"})
    where = f", layer{'s' * (len(layers) > 1)} {_listed(list(map(str, layers)))}" if layers else ""
    return question.format(models=models, map=maps.pop() if len(maps) == 1 else "attention") + where


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
