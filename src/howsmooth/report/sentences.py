"""What a report says in sentences: how smooth layers are, how that grows with the length, what each study found."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean
from typing import Any

from howsmooth.models.map_names import MapName
from howsmooth.report.drawing.tables import extent
from howsmooth.studies.kinds import kind_named
from howsmooth.studies.kinds.attack import summarise_attacks
from howsmooth.studies.kinds.budget import summarise_budgets
from howsmooth.studies.kinds.tokens_in_ball import by_head
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.composition import Composition, compositions
from howsmooth.studies.runs.growth import Growth
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.summary import LayerSummary, growth_of
from howsmooth.wording import at_least, count, exponent, grows, number, percent

NO_LAW = "no power law"
# Layers whose constants differ by less are not told apart; the worst of one head that do are told as one.
ALIKE, FLAT = 1.05, 1.01

Records = Sequence[Record[Any, Any]]
Tell = Callable[[Records], str]


def sentence(measurement: Measurement) -> str:
    """Say in one sentence how smooth the layers are: the least smooth one, its scale, and the smoothest."""
    if not measurement.layers:
        return "Nothing is measured yet."
    if not measurement.comparable:
        return "The layers have no length in common yet, so none of them is called the least smooth."
    worst = least_smooth(measurement.layers)
    smoothest = min(measurement.layers, key=lambda layer: layer.constant)
    enters = "the sum of the embeddings" if measurement.map == "network" else f"what enters layer {worst.layer}"
    through = f" through {measurement.map!r}" if MapName.parse(measurement.map).spans_layers else ""
    typical = "" if worst.typical is None else worst.typical.said
    if worst.typical is not None and worst.typical.value > worst.constant:  # means of another kind
        typical += f" (root mean square over {measurement.thing}s, of the worst the geometric mean)"
    clauses = [f"the worst small perturbation of {enters} {grows(worst.constant, through)}{typical}"]
    if worst.any_input is not None and not math.isinf(worst.any_input.log_value):
        tokens = f"any {count(worst.length, 'token')} no longer than {worst.cells['longest']}, the longest here,"
        clauses.append(f"for {tokens} at most {worst.any_input.rounded(3)}-fold")
    if worst.constant <= ALIKE * smoothest.constant:
        if smoothest is not worst:
            clauses.append(f"the layers are alike, none is below {at_least(smoothest.constant, 3)}")
    elif smoothest is not worst:
        clauses.append(f"the smoothest is layer {smoothest.layer}, with {number(smoothest.constant)}")
    where = f"Over {count(worst.windows, measurement.thing)} of {worst.lengths} tokens"
    where = f"At {count(worst.length, 'token')}" if worst.shortest == worst.length else where
    said = f"{where} {'; '.join(clauses)}."
    return said if measurement.complete else f"So far, {said[0].lower()}{said[1:]}"


def growth_sentence(measurement: Measurement) -> str:
    """Say in one sentence how that factor grows with the number of tokens, and where it follows no law."""
    said = laws_in_words((f"layer {layer.layer}", layer.growth) for layer in measurement.layers)
    if not said:
        return "Nothing is known about growth, which takes several lengths."
    return f"With the number of tokens n this factor {said}."


def growth_words(measurement: Measurement, layer: LayerSummary) -> str:
    """Say how one layer grows in a few words; nothing if it was measured at one length."""
    if layer.growth is None:
        return ""
    if layer.growth.doubted:
        lengths = [record.ask.length for record in measurement.at(layer=layer.layer)]
        return f"follows {NO_LAW} between {number(min(lengths))} and {number(max(lengths))} tokens"
    return f"{_verb(layer.growth)} like {law_in_words(layer.growth)}"


def law_in_words(law: Growth | None) -> str:
    """Write an exponent with its interval, where that shows any scatter; or that no power law describes the data."""
    if law is None:
        return "one length"
    if law.doubted:
        return f"{NO_LAW} (n^{exponent(law.exponent)} at best)"
    sharp = math.isclose(law.low, law.high, abs_tol=1e-9)
    return f"n^{exponent(law.exponent)}" + ("" if sharp else f" [{exponent(law.low)}, {exponent(law.high)}]")


def laws_in_words(laws: Iterable[tuple[str, Growth | None]]) -> str:
    """Say in a clause how something grows at several places: the slowest and the fastest, and who follows no law."""
    found = [(name, law) for name, law in laws if law is not None]
    doubted = [name for name, law in found if law.doubted]
    sure = sorted(((name, law) for name, law in found if not law.doubted), key=lambda pair: pair[1].exponent)
    if not sure:
        return f"follows {NO_LAW}" + (" anywhere" if len(found) > 1 else "") if found else ""
    ends = {exponent(law.exponent): name for name, law in (sure[-1], sure[0])}
    each = [f"n^{slope}" + (f" ({name})" if len(ends) > 1 else "") for slope, name in ends.items()]
    said = f"{_verb(sure[0][1])} like {' up to '.join(reversed(each))}"
    if not doubted:
        return said
    who = f"{doubted[0]} follows" if len(doubted) == 1 else f"{len(doubted)} of {len(found)} layers follow"
    return f"{said}; {who} {NO_LAW}"


def _verb(law: Growth) -> str:
    return "grows" if round(law.exponent, 2) > 0 else "changes"


def finding(name: str, records: Records) -> str:
    """Say what a study found: by its own name, or by the first kind of its records that has something to say."""
    kinds = list(dict.fromkeys(record.ask.kind for record in records))
    tellers = [STUDIES.get(name), *(KINDS.get(kind) or functools.partial(_summaries, kind) for kind in kinds)]
    said = (tell(records) for tell in tellers if tell is not None)
    held = f"{count(len(records), 'record')} of the kind {', '.join(sorted(kinds))}."
    return next(filter(None, said), held if records else "Nothing is measured yet.")


def _growth(records: Records) -> str:
    laws = (
        (place, growth_of((r.ask.length, r.answer.lower) for r in some)) for place, some in _by_layer(records).items()
    )
    said = laws_in_words(laws)
    return f"With the number of tokens n the constant on real text {said}." if said else ""


def _nested(records: Records) -> str:
    ratios: dict[str, float] = {}
    lengths = sorted({r.ask.length for r in records if r.ask.kind == "text"})
    for place, found in _by_layer(records).items():
        # the same windows, short and long
        first, last = (
            {r.ask.window.index: r.answer.lower for r in found if r.ask.length == n} for n in (lengths[0], lengths[-1])
        )
        grown = [last[index] / first[index] for index in first.keys() & last.keys() if first[index] > 0]
        if len(lengths) > 1 and grown and min(grown) > 0:
            ratios[place] = geometric_mean(grown)
    if not ratios:
        return ""
    return (
        f"Windows that grow from {number(lengths[0])} to {number(lengths[-1])} tokens at the same places have "
        f"constants {extent(ratios.values())} times as large; the most in {max(ratios, key=ratios.__getitem__)}."
    )


def _by_layer(records: Records) -> dict[str, list[Record[Any, Any]]]:
    return grouped((r for r in records if r.ask.kind == "text"), lambda r: f"{r.ask.model}, layer {r.ask.layer}")


def _certificates(records: Records) -> str:
    pairs = [(r.answer.local_upper, r.answer.lower) for r in records if r.ask.kind == "text"]
    ratios = [proven / lower for proven, lower in pairs if proven is not None and lower > 0]
    return f"Certificates prove bounds {extent(ratios)} times what is measured at the same windows." if ratios else ""


def _extremal(records: Records) -> str:
    groups: dict[str, dict[tuple[Any, ...], list[tuple[int, float]]]] = {"two_point": {}, "tied_pair": {}}
    for r in records:
        if r.ask.kind == "extremal":
            place = (r.ask.model, r.ask.layer, r.ask.map, r.ask.head, r.ask.radius)
            groups[r.ask.points].setdefault(place, []).append((r.ask.length, r.answer.lower))
    slopes = {
        points: [law.exponent for some in found.values() if (law := growth_of(some))]
        for points, found in groups.items()
    }
    two_points = {(place, n): value for place, some in groups["two_point"].items() for n, value in some if value > 0}
    ratios = [
        value / two_points[place, n]
        for place, some in groups["tied_pair"].items()
        for n, value in some
        if (place, n) in two_points
    ]
    if not all(slopes.values()) or not ratios:
        return ""
    two_point, tied_pair = (extent(each, exponent) for each in slopes.values())
    grow = "grow" if min(min(each) for each in slopes.values()) > 0 else "change"
    return (
        f"The paper's two points {grow} like n^{two_point}, tied pairs like n^{tied_pair}; at the same head, "
        f"length and radius tied pairs attain {extent(ratios)} times as much."
    )


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
    heads = [
        some
        for some in by_head(r for r in records if r.ask.kind == "regimes")
        if some[0].ask.length < some[-1].ask.length and min(r.answer.lower for r in some) > 0
    ]
    if not heads:
        return ""
    ends = {(some[0].ask.length, some[-1].ask.length) for some in heads}
    span = "the shortest to the longest sequences"
    span = " to ".join(map(number, ends.pop())) + " tokens" if len(ends) == 1 else span
    grown = [some[-1].answer.lower / some[0].answer.lower for some in heads]
    rising = sum(some[-1].answer.lower > FLAT * max(r.answer.lower for r in some[:-1]) for some in heads)
    still = f"still grows there for {rising or 'none'} of {len(heads)} heads and radii"
    if len(heads) == 1:
        still = "still grows there" if rising else "no longer grows there"
    return f"From {span} the worst constant found is multiplied by {extent(grown)}; it {still}."


def _transition(records: Records) -> str:
    every = (r for some in by_head(r for r in records if r.ask.kind == "regimes") for r in some)
    found = [r for r in every if r.answer.plateau]
    if not found:
        return ""
    longest = max(r.ask.length for r in found)
    shares = [r.answer.lower / r.answer.plateau for r in found if r.ask.length == longest]
    return (
        f"At {number(longest)} tokens the worst inputs found attain {extent(shares)} times what measures are known to "
        "attain."
    )


def _splitting(records: Records) -> str:
    found = [r.answer for r in records if r.ask.kind == "splitting"]
    splits, open_ends = sum(a.splits and a.decided for a in found), sum(not a.decided for a in found)
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
    heaviest = max(atom.mass for atom in worst.answer.atoms)
    return (
        f"The worst measure found attains {at_least(worst.answer.lower, 3)} within radius {number(worst.ask.radius)}: "
        f"of its {count(len(worst.answer.atoms), 'atom')} the heaviest holds {percent(heaviest)} of the mass."
    )


def _attacks(records: Records) -> str:
    said, in_short = [], functools.partial(at_least, digits=3)
    for each in summarise_attacks(r for r in records if r.ask.kind == "attack"):
        ends, noise = each.linear_until, [line.attained for line in each.lines if line.method == "random"]
        if not any(line.attained for line in each.lines):
            said.append(each.sentence)
            continue
        attained = extent((line.attained for line in each.best), in_short)
        random = f", random ones {extent(noise, in_short)} times" if noise else ""
        predicted = "the derivative predicts this within 10 % "
        predicted += "at every ε that was tried" if ends is None else f"up to ε ≈ {number(ends, 2)}"
        if ends == 0:
            predicted = "already at the smallest ε the derivative is off by more than 10 %"
        moved = f"the best perturbations move the output {attained} times as far as the input{random}"
        said.append(f"{each.class_changes}{each.name}: {moved}; {predicted}.")
    return " ".join(said)


def _summaries(kind: str, records: Records) -> str:
    """Let the results of a kind speak, if it declares how its records are summed up."""
    summarise = kind_named(kind).summarise
    found = [] if summarise is None else summarise([r for r in records if r.ask.kind == kind])
    return " ".join(each.sentence for each in found)


def _whole(records: Records) -> str:
    longest: dict[str, Composition] = {}
    for found in compositions(records):  # the shortest windows first
        longest[found.model] = found
    return " ".join(found.sentence for found in longest.values())


def _monitor(records: Records) -> str:
    every = [r for r in records if r.ask.kind in ("monitor", "probe")]
    layers = [r for r in every if r.ask.kind == "monitor" and r.answer.lower is not None]
    heads = [r for r in every if r.ask.kind == "probe" and r.answer.largest_logit is not None]
    largest = []
    if layers:
        r = max(layers, key=lambda r: r.answer.lower)
        largest.append(
            f"constant is {at_least(r.answer.lower, 3)}, of layer {r.ask.layer} at step {number(r.ask.step)}"
        )
    if heads:
        r = max(heads, key=lambda r: r.answer.largest_logit)
        head = r.ask.map.replace(":", " ")
        largest.append(
            f"logit is {number(r.answer.largest_logit)}, of layer {r.ask.layer} {head} at step {number(r.ask.step)}"
        )
    if not largest:
        return ""
    lost = [r.ask.step for r in every if r not in layers and r not in heads]
    if lost:
        are = "reading is" if len(lost) == 1 else "readings are"
        largest[-1] += f"; {number(len(lost))} {are} not finite, the first at step {number(min(lost))}"
    # the monitor and the probe each count their own time
    last = {r.ask.kind: r for r in sorted(layers + heads, key=lambda r: r.ask.step)}
    alarms = sum(bool(r.answer.alarm) for r in every)
    return (
        f"Until step {number(max(r.ask.step for r in last.values()))} the largest {'; the largest '.join(largest)}; "
        f"{count(alarms, 'alarm')}; watching took {percent(sum(r.answer.overhead for r in last.values()))} of the "
        "training time."
    )


# Studies whose question is more than the kind of their records.
STUDIES: dict[str, Tell] = {
    "robustness": _nested,
    "bounds": _certificates,
    "transition": _transition,
    "budget": lambda records: " ".join(each.sentence for each in summarise_budgets(records)),
}
# Kinds that do not declare how their records are summed up.
KINDS: dict[str, Tell] = {
    "text": _growth,
    "extremal": _extremal,
    "bounds": _worst,
    "regimes": _regimes,
    "splitting": _splitting,
    "measures": _measures,
    "whole": _whole,
    "attack": _attacks,
    "monitor": _monitor,
    "probe": _monitor,
}
