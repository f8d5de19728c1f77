"""What each study found, in one sentence from its records: as its kind sums them up, or as it is said here."""

import functools
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean
from typing import Any

from howsmooth.report.drawing.tables import extent
from howsmooth.studies.kinds import kind_named
from howsmooth.studies.records import Record
from howsmooth.studies.runs.composition import Composition, compositions
from howsmooth.studies.runs.growth import Growth
from howsmooth.studies.runs.summary import growth_of
from howsmooth.wording import at_least, count, exponent, number, percent

Records = Sequence[Record[Any, Any]]


def finding(name: str, records: Records) -> str:
    """Say what a study found: by its own name, or by the first kind of its records that has something to say."""
    kinds = list(dict.fromkeys(record.ask.kind for record in records))
    tellers = [STUDIES.get(name), *(KINDS.get(kind) or functools.partial(_summaries, kind) for kind in kinds)]
    said = (tell(records) for tell in tellers if tell is not None)
    return next(filter(None, said), "") or _held(records)


def _held(records: Records) -> str:
    kinds = sorted({record.ask.kind for record in records})
    return f"{count(len(records), 'record')} of the kind {', '.join(kinds)}." if records else "Nothing is measured yet."


def _growth(records: Records) -> str:
    laws = {place: law for place, found in _by_layer(records).items() if (law := _law(found))}
    sure = {place: law for place, law in laws.items() if not law.doubted}
    if not sure:
        return "None of the layers follows a power law." if laws else ""
    slow, fast = (choose(sure, key=lambda place: sure[place].exponent) for choose in (min, max))
    ends = f"n^{exponent(sure[slow].exponent)} ({slow}) to n^{exponent(sure[fast].exponent)} ({fast})"
    said = f"On real text the constant changes with the number of tokens n like {ends}"
    doubted = len(laws) - len(sure)
    lawless = f"; {doubted} of {len(laws)} layers {'follows' if doubted == 1 else 'follow'} no power law"
    return f"{said}{lawless if doubted else ''}."


def _nested(records: Records) -> str:
    ratios: dict[str, float] = {}
    for place, found in _by_layer(records).items():
        lengths = sorted({r.ask.length for r in found})
        first, last = ([r.answer.lower for r in found if r.ask.length == n] for n in (lengths[0], lengths[-1]))
        if len(lengths) > 1 and min(*first, *last) > 0:
            ratios[place] = geometric_mean(last) / geometric_mean(first)
    if not ratios:
        return ""
    most = max(ratios, key=lambda place: ratios[place])
    lengths = sorted({r.ask.length for r in records if r.ask.kind == "text"})
    return (
        f"Windows that grow from {number(lengths[0])} to {number(lengths[-1])} tokens at the same places have "
        f"constants {extent(ratios.values())} times as large; the most in {most}."
    )


def _certificates(records: Records) -> str:
    pairs = [(r.answer.local_upper, r.answer.lower) for r in records if r.ask.kind == "text"]
    ratios = [proven / lower for proven, lower in pairs if proven is not None and lower > 0]
    return f"Certificates prove bounds {extent(ratios)} times what is measured at the same windows." if ratios else ""


def _extremal(records: Records) -> str:
    inputs = [r for r in records if r.ask.kind == "extremal"]
    laws = {points: _exponents(r for r in inputs if r.ask.points == points) for points in ("two_point", "tied_pair")}
    values = {
        (r.ask.model, r.ask.layer, r.ask.map, r.ask.head, r.ask.length, r.ask.points): r.answer.lower for r in inputs
    }
    ratios = [
        value / values[*place, "two_point"]
        for (*place, points), value in values.items()
        if points == "tied_pair" and values.get((*place, "two_point"), 0) > 0
    ]
    if not all(laws.values()) or not ratios:
        return ""
    return (
        f"The paper's two points grow like n^{laws['two_point']}, tied pairs like n^{laws['tied_pair']}; at the same "
        f"head, length and radius tied pairs attain {extent(ratios)} times as much."
    )


def _exponents(records: Iterable[Record[Any, Any]]) -> str:
    """Write the exponents of all heads and layers: one, or the two ends."""
    groups: dict[Any, list[tuple[int, float]]] = {}
    for r in records:
        place = (r.ask.model, r.ask.layer, r.ask.map, r.ask.head, r.ask.radius)
        groups.setdefault(place, []).append((r.ask.length, r.answer.lower))
    found = [law.exponent for group in groups.values() if (law := growth_of(group))]
    return extent(found, exponent) if found else ""


def _worst(records: Records) -> str:
    ratios = []
    for r in (r for r in records if r.ask.kind == "bounds"):
        attained = [value for value in (r.answer.sharp_lower, r.answer.two_point, r.answer.tied_pair) if value]
        if attained and r.answer.sharp_upper:
            ratios.append(r.answer.sharp_upper / max(attained))
    if not ratios:
        return ""
    return f"The worst-case bound is {extent(ratios)} times what explicit inputs attain, over all lengths and radii."


def _regimes(records: Records) -> str:
    crossings = [r.answer.crossing for r in records if r.ask.kind == "regimes"]
    if not crossings:
        return ""
    return (
        f"The worst constant stops growing with the number of tokens at {extent(crossings)} tokens, where sequences "
        "become measures: it depends on the head and the radius."
    )


def _transition(records: Records) -> str:
    found = [r for r in records if r.ask.kind == "regimes" and r.answer.plateau > 0]
    if not found:
        return ""
    longest = max(r.ask.length for r in found)
    shares = [r.answer.lower / r.answer.plateau for r in found if r.ask.length == longest]
    return f"At {number(longest)} tokens the worst inputs found attain {extent(shares)} times what measures attain."


def _splitting(records: Records) -> str:
    found = [r.answer for r in records if r.ask.kind == "splitting"]
    splits, open_ends = sum(a.splits for a in found), sum(not a.decided for a in found)
    undecided = f"; {open_ends} {'is' if open_ends == 1 else 'are'} not decided" if open_ends else ""
    return (
        f"At {splits} of {count(len(found), 'window')} cutting one token in two moves the output further than any "
        f"small move of whole tokens does{undecided}."
    )


def _measures(records: Records) -> str:
    found = [r for r in records if r.ask.kind == "measures"]
    if not found:
        return ""
    worst = max(found, key=lambda r: r.answer.lower)
    rest = 1 - max(atom.mass for atom in worst.answer.atoms)
    return (
        f"The worst measure found attains {at_least(worst.answer.lower, 3)} within radius {number(worst.ask.radius)}, "
        f"and is unbalanced: of its {count(len(worst.answer.atoms), 'atom')} one holds all but {number(rest)} of the "
        "mass."
    )


def _summaries(kind: str, records: Records) -> str:
    """Let the results of a kind speak, if it declares how its records are summed up."""
    summarise = kind_named(kind).summarise
    found = [] if summarise is None else summarise(r for r in records if r.ask.kind == kind)
    return " ".join(each.sentence for each in found)


def _whole(records: Records) -> str:
    longest: dict[str, Composition] = {}
    for found in compositions(records):  # the shortest windows first
        longest[found.model] = found
    return " ".join(found.sentence for found in longest.values())


def _monitor(records: Records) -> str:
    found = [r for r in records if r.ask.kind == "monitor" and r.answer.lower is not None]
    if not found:
        return ""
    worst = max(found, key=lambda r: r.answer.lower)
    alarms = sum(bool(r.answer.alarm) for r in records if r.ask.kind == "monitor")
    last = max(found, key=lambda r: r.ask.step)
    return (
        f"Until step {number(last.ask.step)} the largest constant is {at_least(worst.answer.lower, 3)}, of layer "
        f"{worst.ask.layer} at step {number(worst.ask.step)}; {count(alarms, 'alarm')}; watching took "
        f"{percent(last.answer.overhead)} of the training time."
    )


Tell = Callable[[Records], str]
# Studies whose question is more than the kind of their records.
STUDIES: dict[str, Tell] = {"robustness": _nested, "bounds": _certificates, "transition": _transition}
KINDS: dict[str, Tell] = {
    "text": _growth,
    "extremal": _extremal,
    "bounds": _worst,
    "regimes": _regimes,
    "splitting": _splitting,
    "measures": _measures,
    "whole": _whole,
    "monitor": _monitor,
}


def _by_layer(records: Records) -> dict[str, list[Record[Any, Any]]]:
    groups: dict[str, list[Record[Any, Any]]] = {}
    for r in records:
        if r.ask.kind == "text":
            groups.setdefault(f"{r.ask.model}, layer {r.ask.layer}", []).append(r)
    return groups


def _law(records: Records) -> Growth | None:
    return growth_of((r.ask.length, r.answer.lower) for r in records)
