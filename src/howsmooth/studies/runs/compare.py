"""Two runs side by side: what is compared with what, and what to say where that is nothing, or not clear."""

import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.comparison import Comparison, LayerDifference, independent_ratio, paired_ratio
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.run import Run, read_run
from howsmooth.studies.runs.summary import mean_constant
from howsmooth.studies.settings import Window
from howsmooth.wording import count

Subject = str | os.PathLike[str] | Run | Measurement
# A part of a layer at a length; at none for sequences that are measured whole, each with its own.
Place = tuple[str, int, int | None]
# So many measurements are named one by one.
NAMED = 3


def compare(
    first: Subject,
    second: Subject,
    *,
    map: str | None = None,  # noqa: A002 what `measure` calls it
    per_head: bool = False,
    confidence: float = 0.95,
) -> Comparison:
    """Tell how many times larger the constants of one run are than those of another, and which differences are real.

    Windows of the same tokens are pairs: each is compared with itself, so that what differs from window to window
    drops out. Where the texts differ, or are cut into other tokens, the windows are two independent samples. Windows
    are taken for independent draws from a text. How intervals are made of them and of the error bar of each constant:
    :func:`~howsmooth.studies.runs.comparison.paired_ratio` and
    :func:`~howsmooth.studies.runs.comparison.independent_ratio`.

    All intervals hold together with the probability ``confidence``, each with 1 − (1 − ``confidence``)/k where there
    are k of them (Bonferroni). Why not Holm's procedure, which finds a little more: it has no intervals that agree with
    what it finds.

    Args:
        first: What the ratios are relative to: the folder of a run, what :func:`read_run` returned, or a measurement.
        second: What is compared with it.
        map: Which part of the layers, where the runs hold several; all of them by default.
        per_head: Whether to compare single heads that were measured beside whole layers too.
        confidence: The probability with which all intervals hold together.

    Raises:
        AssumptionError: If the runs have nothing in common, or it is not clear what to compare with what.
        FileError: If a folder holds no run.
    """
    if not 0 < confidence < 1:
        raise AssumptionError(f"confidence must lie strictly between 0 and 1, got {confidence}.", field="confidence")
    left, right = _measured(first, "first"), _measured(second, "second")
    names = _name(first, left), _name(second, right)
    matches = [
        _Match(before=a, after=b, per_head=per_head)
        for part in shared_maps(left, right, map, names)
        for a, b in matched([m for m in left if m.map == part], [m for m in right if m.map == part], part, names)
    ]
    samples = [sample for match in matches for sample in match.samples()]
    if not samples:
        raise AssumptionError(nothing_shared(names, left, right), field="second")
    intervals = sum(sample.has_interval for sample in samples)
    # with each interval this sure, all of them hold together, however they depend on each other
    each = 1 - (1 - confidence) / max(1, intervals)
    return Comparison(
        first=names[0],
        second=names[1],
        rows=tuple(sample.difference(each) for sample in samples),
        confidence=confidence,
        notes=tuple(dict.fromkeys(note for match in matches for note in match.notes())),
    )


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """The windows of one part of a layer at one length, in two runs; of pairs, those that both have."""

    models: tuple[str, str]
    texts: tuple[str, str]
    place: Place
    paired: bool
    windows: tuple[Sequence[TextRecord], Sequence[TextRecord]]

    @property
    def positive(self) -> bool:
        return all(record.answer.lower > 0 for records in self.windows for record in records)

    @property
    def has_interval(self) -> bool:
        """Whether there are windows enough for an interval."""
        return self.positive and min(map(len, self.windows)) > 1

    def difference(self, confidence: float) -> LayerDifference:
        ratio = paired_ratio if self.paired else independent_ratio
        part, layer, length = self.place
        before, after = self.windows
        ends = ([(r.answer.lower, r.answer.upper or math.inf) for r in records] for records in self.windows)
        return LayerDifference(
            models=self.models,
            texts=self.texts,
            map=part,
            layer=layer,
            length=length,
            windows=(len(before), len(after)),
            paired=self.paired,
            constants=(mean_constant(before), mean_constant(after)),
            ratio=ratio(*ends, confidence=confidence) if self.positive else None,
        )


@dataclass(frozen=True, kw_only=True)
class _Match:
    """Two measurements of the same part of layers."""

    before: Measurement
    after: Measurement
    per_head: bool

    @property
    def mismatch(self) -> str:
        """Why windows with the same number are no pairs; nothing if they are."""
        if cut(self.before) != cut(self.after):
            same = self.before.records[0].ask.window.digest == self.after.records[0].ask.window.digest
            return "the text is cut in two ways" if same else "the texts differ"
        if self.before.records[0].ask.window.whole:  # a sentence is the same one, whatever its tokens are
            return ""
        shared = self.before.openings.keys() & self.after.openings.keys()
        pairs = ((self.before.openings[place], self.after.openings[place]) for place in shared)
        return "the tokens differ" if any(a != b for a, b in pairs if a and b) else ""

    @property
    def places(self) -> "list[dict[Place, dict[int, TextRecord]]]":
        """The windows of both, by place and number."""
        return [by_place(measurement, self.per_head) for measurement in (self.before, self.after)]

    def samples(self) -> Iterator[_Sample]:
        (left, right), paired = self.places, not self.mismatch
        for place in (place for place in left if place in right):
            both = left[place].keys() & right[place].keys()
            before, after = (
                [some[i] for i in sorted(both if paired else some)] for some in (left[place], right[place])
            )
            if before and after:
                yield _Sample(
                    models=(self.before.model, self.after.model),
                    texts=(self.before.text, self.after.text),
                    place=place,
                    paired=paired,
                    windows=(before, after),
                )

    def notes(self) -> Iterator[str]:
        if self.mismatch:
            yield f"{self.mismatch}, so windows are no pairs: intervals are of two independent samples, and wider"
        left, right = self.places
        for whose, alone in (("first", left.keys() - right.keys()), ("second", right.keys() - left.keys())):
            if alone:
                yield f"{count(len(alone), 'place')} of the {whose} run alone: {places_in_words(alone)}"
        for whose, measurement in (("first", self.before), ("second", self.after)):
            if not measurement.complete:
                yield f"the {whose} run is unfinished"


def _measured(subject: Subject, name: str) -> tuple[Measurement, ...]:
    if isinstance(subject, Measurement):
        return (subject,) if subject.records else ()
    if isinstance(subject, str | os.PathLike):
        subject = read_run(subject)
    if not isinstance(subject, Run):
        raise DtypeError(f"{name} must be a folder, a run or a measurement, got {type(subject).__name__}.", field=name)
    return tuple(m for m in subject.measurements if m.records)


def _name(subject: Subject, measurements: Sequence[Measurement]) -> str:
    """Call a run by its folder; what was never kept by what it measured."""
    if isinstance(subject, str | os.PathLike):
        return os.fspath(subject)
    runs = list(dict.fromkeys(m.run or f"{m.model} on {m.text}" for m in measurements))
    return ", ".join(runs) or "an empty run"


def shared_maps(
    left: Sequence[Measurement], right: Sequence[Measurement], wanted: str | None, names: tuple[str, str]
) -> list[str]:
    """Return the parts of layers that both runs hold; or the one that is wanted, if both do."""
    shared = sorted({m.map for m in left} & {m.map for m in right})
    if not shared:
        raise AssumptionError(nothing_shared(names, left, right), field="second")
    if wanted is None:
        return shared
    if wanted not in shared:
        raise AssumptionError(f"the runs do not both hold {wanted!r}; they share {', '.join(shared)}.", field="map")
    return [wanted]


def matched(
    left: list[Measurement], right: list[Measurement], part: str, names: tuple[str, str]
) -> list[tuple[Measurement, Measurement]]:
    """Find what is to be compared with what: those that agree in most, as long as there is no choice."""
    found = []
    agree: tuple[Callable[[Measurement], Hashable], ...] = (
        lambda m: (m.model, cut(m)),
        cut,
        lambda m: m.model,
        lambda _m: None,
    )
    for agreement in agree:
        for key in dict.fromkeys(agreement(m) for m in left):
            ours, theirs = ([m for m in some if agreement(m) == key] for some in (left, right))
            if len(ours) == len(theirs) == 1:
                found.append((ours[0], theirs[0]))
                left, right = (
                    [m for m in some if m is not taken] for some, taken in ((left, ours[0]), (right, theirs[0]))
                )
    if left and right:
        raise AssumptionError(
            f"it is not clear which measurements of {part!r} to compare: {_holds(names[0], left)}; "
            f"{_holds(names[1], right)}. Compare two of them in Python: "
            "hs.compare(hs.read_run(RUN1).measurements[0], hs.read_run(RUN2).measurements[0]).",
            field="second",
        )
    return found


def cut(measurement: Measurement) -> Window:
    """Return what tells the windows of one measurement from those of another: the text, and how it is cut."""
    return replace(measurement.records[0].ask.window, text="", length=1, index=0)


def by_place(measurement: Measurement, per_head: bool) -> dict[Place, dict[int, TextRecord]]:
    """Return the windows of each part of a layer and length by their numbers; single heads only if they are wanted."""
    found: dict[Place, dict[int, TextRecord]] = {}
    for record in (*measurement.records, *(measurement.heads if per_head else ())):
        ask = record.ask
        length = None if ask.window.whole else ask.length
        found.setdefault((ask.map, ask.layer, length), {})[ask.window.index] = record
    return found


def nothing_shared(names: tuple[str, str], left: Sequence[Measurement], right: Sequence[Measurement]) -> str:
    """Refuse two runs that share nothing: say what each holds."""
    held = f"{_holds(names[0], left)}; {_holds(names[1], right)}"
    return f"the runs have nothing in common: {held}. Measure the same part, layers and lengths in both."


def _holds(name: str, measurements: Sequence[Measurement]) -> str:
    held = [f"{m.map} of {m.model} on {m.text} ({places_in_words(by_place(m, False))})" for m in measurements[:NAMED]]
    held += [f"{len(measurements) - NAMED} more"] if len(measurements) > NAMED else []
    return f"{name!r} holds {', '.join(held) or 'no measurement at a text'}"


def places_in_words(places: Iterable[Place]) -> str:
    """Say which layers and lengths some places are."""
    found = list(places)
    layers = sorted({layer for _map, layer, _n in found})
    lengths = sorted({n for _map, _layer, n in found if n is not None})
    where = f"n = {_listed(lengths)}" if lengths else "whole sequences"
    return f"layers {_listed(layers)} at {where}"


def _listed(numbers: Sequence[int]) -> str:
    whole = list(range(numbers[0], numbers[-1] + 1))
    if len(numbers) > 2 and list(numbers) == whole:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))
