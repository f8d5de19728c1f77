"""A run as one HTML file that holds everything it needs: same records, same bytes."""

import functools
import math
import os
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from howsmooth.errors import FileError
from howsmooth.files import whole
from howsmooth.report.charts.sensitive_tokens import window_records
from howsmooth.report.drawing.palette import CONFIG, themed
from howsmooth.report.drawing.token_text import words
from howsmooth.report.embedding import apart, asset, columns, fill, in_script
from howsmooth.report.figures import Drawing, drawings, linear, sections, thinned
from howsmooth.report.sections import MEASUREMENT, Section
from howsmooth.report.sentences import finding, growth_sentence, growth_words, sentence
from howsmooth.studies.json_values import columns as settings_in
from howsmooth.studies.kinds.text import BOUND_COLUMNS
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.run import Run, read_run
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.studies.settings import command
from howsmooth.theory.results import Side
from howsmooth.wording import at_most, count, number, percent

# How many tokens a cell names.
NAMED_TOKENS = 8
# How many tokens of a long window are shown.
SHOWN_TOKENS = 1024
FILE = "report.html"
# How many failures are said in full.
FAILURES = 5
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
    lengths = {row.layer.length for row in rows}
    data = {
        "charts": {drawing.name: _chart(drawing) for part in parts for drawing in part.charts},
        "tokens": [part.closer.shares if part.closer else {} for part in parts],
        "config": CONFIG,
    }
    return fill(
        "report.html",
        title=_title(run),
        gaps=gaps(run),
        rows=rows,
        columns=columns_of(rows),
        differing=[name for name in ("model", "text", "map", "metric") if len({getattr(m, name) for m in shown}) > 1],
        length=lengths.pop() if len(lengths) == 1 else None,
        warnings=warnings(run, shown),
        layers=sorted({row.layer.layer for row in rows}),
        maps=sorted({part.map for part in parts if part.map}),
        parts=parts,
        terms=terms(shown, {record.ask.kind for record in run.records}),
        facts=facts(run),
        commands=run.commands,
        data=in_script(data),
    )


def _part(section: Section, drawn: Sequence[Drawing]) -> SectionView:
    own = section.measurements[0] if section.name == MEASUREMENT else None
    left_out = ""
    for m in section.measurements:
        kept, found = len(thinned(m).records), len(m.records)
        if kept < found:
            left_out += f" Dots are drawn for {kept:,} of {found:,} windows; the tables hold all."
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
    maps = {ask.map for ask in asks if ask.kind == "text" and ask.map_name.head is None} or {"attention"}
    layers = sorted({ask.layer for ask in asks if ask.kind == "attack" and not ask.map_name.spans_layers})
    where = f", layer{'s' * (len(layers) > 1)} {_listed(list(map(str, layers)))}" if layers else ""
    return question.format(models=models, map=maps.pop() if len(maps) == 1 else "attention") + where


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def gaps(run: Run) -> list[str]:
    """Return what is not there yet: a reader has to know it before the first number."""
    told = [(m, gap) for m in run.measurements for gap in m.gaps]
    said = [
        f"{m.model}, {m.map}: {gap}." if len(run.measurements) > 1 else f"{gap[0].upper()}{gap[1:]}." for m, gap in told
    ]
    missing = run.planned - len(run.records)
    if missing > sum(m.missing for m in run.measurements):
        said.insert(
            0, f"Unfinished: {missing} of {count(run.planned, 'record')} are missing; the same command goes on."
        )
    return said


def warnings(run: Run, answered: Sequence[Measurement]) -> list[str]:
    """Return what to know before trusting the numbers; of measurements that the answer is not about, their notes."""
    said = []
    for m in run.measurements:
        doubts = m.doubts if any(m is other for other in answered) else m.notes
        said += [f"{m.model}: {doubt}." for doubt in doubts]
    said += [f"Failed: {failure.ask.label}: {failure.error}" for failure in run.failures[:FAILURES]]
    if len(run.failures) > FAILURES:
        said.append(f"Failed: {len(run.failures) - FAILURES} more.")
    return list(dict.fromkeys(said))


def facts(run: Run) -> list[tuple[str, str]]:
    """Return what was run, name by name."""
    told = [(f"{m.model} on {m.text}, {m.map}", _setup(m)) for m in run.measurements]
    machines = [record.machine for record in run.records]
    versions = {
        f"howsmooth {m.howsmooth}, torch {m.torch}, transformers {m.transformers}, Python {m.python}" for m in machines
    }
    processors = {f"{m.processor}, {count(m.threads, 'thread')}" for m in machines}
    seconds = sum(record.seconds for record in run.records)
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    seeds = {str(row["seed"]) for row in (settings_in(record.ask) for record in run.records) if "seed" in row}
    return [
        *told,
        ("Versions", "; ".join(sorted(versions)) or "—"),
        ("Machine", "; ".join(sorted(processors)) or "—"),
        ("Seeds", _whole_numbers(map(int, seeds))),
        ("Records", f"{count(len(run.records), 'record')} in {took} of work, {len(run.failures)} failed"),
    ]


def worst_inputs(m: Measurement) -> dict[int, str]:
    """Return, for each layer that the theory has an input for, the command that builds it and keeps it."""
    found = {}
    for layer in m.layers:
        if any(bound.side is Side.LOWER for bound in layer.ladder.bounds):
            words = [m.model, "--layer", str(layer.layer), "--map", m.map]
            words += ["--n", str(layer.length), "--radius", f"{layer.ball:g}", "--save", "worst.safetensors"]
            found[layer.layer] = command("worst-case", *words)
    return found


def _setup(m: Measurement) -> str:
    ask = m.records[0].ask
    window, where, solver = ask.window, ask.where, ask.solver
    worth = f"brackets to {number(solver.rtol)} at {percent(solver.confidence)}"
    parts = [
        *_grids(m),
        "every head by itself too" if m.heads else "",
        f"fingerprint of the text {window.digest}",
        f"one beginning every {window.stride} tokens" if window.stride else "",
        "with special tokens" if window.special_tokens else "",
        f"in {where.dtype}" if where.dtype else "",
        f"on {where.device}" if where.device else "",
        worth if solver.certify else "without upper ends",
    ]
    return "; ".join(part for part in parts if part)


def _grids(m: Measurement) -> list[str]:
    """Say which windows were measured, once for all layers that share them."""
    shared: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for layer in sorted({record.ask.layer for record in m.records}):
        sizes = ((n, len(m.at(layer=layer, length=n))) for n in m.lengths)
        shared.setdefault(tuple((n, size) for n, size in sizes if size), []).append(layer)
    said = []
    for grid, layers in shared.items():
        alike: dict[int, list[int]] = {}
        for length, size in grid:
            alike.setdefault(size, []).append(length)
        windows = (f"{count(size, 'window')} of {_whole_numbers(lengths)} tokens" for size, lengths in alike.items())
        said.append(f"layer{'s' * (len(layers) > 1)} {_whole_numbers(layers)}: {', '.join(windows)}")
    return said


def _whole_numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values)))) or "—"


@functools.cache
def glossary() -> dict[str, list[dict[str, Any]]]:
    """Return the words of a report: the columns of its table, and the terms that it explains."""
    return tomllib.loads(asset("glossary.toml"))


def columns_of(rows: "Sequence[AnswerRow]") -> list[dict[str, Any]]:
    """Return the columns in which some row has a number."""
    return [column for column in glossary()["columns"] if any(row.cells[column["cell"]] != "—" for row in rows)]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The numbers of one layer on a line that all rows of a table share, logarithmic, from 0 to 1."""

    marks: tuple[tuple[str, float], ...]  # what each number is, and where it stands
    low: float  # where the smallest constant of a window stands
    high: float  # where the largest stands
    one: float | None  # where perturbations neither grow nor shrink; none if that is beyond the line


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """What is known about one layer, and of which measurement."""

    measurement: Measurement  # where the numbers come from
    section: int | None  # the place of the section that draws it closely; none if no section does
    layer: LayerSummary  # the numbers
    mark: str  # what stands out about it, if anything
    strip: Strip | None  # the numbers as a picture; none if nothing can be drawn

    @property
    def cells(self) -> dict[str, str]:
        """The numbers in words, by what to call them; the typical one with its interval."""
        return self.layer.cells | {"typical": str(self.layer.typical or "—")}

    @property
    def more(self) -> list[str]:
        """What stands on the second line: the range, the growth, the radius, the room below the bound."""
        layer = self.layer
        windows = count(layer.windows, self.measurement.thing)
        said = [
            "" if self.measurement.comparable else f"at {count(layer.length, 'token')}",
            f"{layer.cells['range']} over {windows}" if layer.windows > 1 else "",
            growth_words(self.measurement, layer),
            f"radius {number(layer.radius)}, longest token {number(layer.ball, 4)}",
            "" if layer.headroom is None else f"bound {at_most(layer.headroom, 2)} times the worst",
            self._overlap,
        ]
        return [part for part in said if part]

    @property
    def _overlap(self) -> str:
        """Whether the windows at hand tell this layer apart from the least smooth one."""
        layer, worst = self.layer, least_smooth(self.measurement.layers)
        close = layer is not worst and layer.windows > 1 and layer.most >= worst.least
        return f"range overlaps that of layer {worst.layer}" if close and self.measurement.comparable else ""


def answer_rows(measurements: Sequence[tuple[int | None, Measurement]]) -> list[AnswerRow]:
    """Return a row for each layer of each measurement; a number says which section draws it closely."""
    found = [(place, m, layer) for place, m in measurements for layer in m.layers]
    values = [value for _place, _m, layer in found for _name, value in _numbers(layer)]
    ends = (min(values), max(values)) if values else (1.0, 1.0)
    rows = []
    for place, m, layer in found:
        constants = [other.constant for other in m.layers]
        marks = {min(constants): "smoothest", max(constants): "least smooth"}
        mark = marks.get(layer.constant, "") if len(m.layers) > 1 and m.comparable else ""
        rows.append(AnswerRow(measurement=m, section=place, layer=layer, mark=mark, strip=_strip(layer, ends)))
    return rows


def _numbers(layer: LayerSummary) -> Iterator[tuple[str, float]]:
    given = {
        "typical": None if layer.typical is None else layer.typical.value,
        "worst": layer.constant,
        **{head: layer.proven.get(name) for name, head in BOUND_COLUMNS.items()},
        "any": None if layer.any_input is None else layer.any_input.value,
    }
    yield from ((name, value) for name, value in given.items() if value is not None and 0 < value < math.inf)


def _strip(layer: LayerSummary, ends: tuple[float, float]) -> Strip | None:
    low, high = map(math.log, ends)
    if low == high or not 0 < layer.least <= layer.most < math.inf:
        return None

    def place(value: float) -> float:
        return min(1.0, max(0.0, (math.log(value) - low) / (high - low)))

    return Strip(
        marks=tuple((name, place(value)) for name, value in _numbers(layer)),
        low=place(layer.least),
        high=place(layer.most),
        one=place(1.0) if low < 0 < high else None,
    )


def terms(measurements: Collection[Measurement], kinds: Collection[str]) -> list[dict[str, Any]]:
    """Return the words that a report on these measurements and kinds of questions uses."""
    used = {key for m in measurements for key in _used_by(m)}
    return [term for term in glossary()["terms"] if term["key"] in used or {*term["kinds"]} & {*kinds}]


def _used_by(m: Measurement) -> set[str]:
    layers = m.layers
    told = {
        "typical": any(layer.typical is not None for layer in layers),
        "relative": any(layer.relative is not None for layer in layers),
        "growth": any(layer.growth is not None for layer in layers),
        **{head: any(name in layer.proven for layer in layers) for name, head in BOUND_COLUMNS.items()},
        "any": any(layer.any_input is not None for layer in layers),
        "inputs": any(bound.side is Side.LOWER for layer in layers for bound in layer.ladder.bounds),
        "tokens": bool(m.tokens),
    }
    return {key for key, used in told.items() if used}
