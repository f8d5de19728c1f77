"""Sentences and titles agree with the rows that they are about: random runs of every kind, judged from raw records.

A judge knows all that a sentence of its kind may say, as one pattern, and computes each number and each claim of order
from the records again. What no pattern has is a fault, too. Records pass through JSON, as those of a run do: an answer
that is no number is a failure, and its row is missing.
"""

import functools
import math
import random
import re
from collections import Counter
from dataclasses import replace
from statistics import fmean, geometric_mean

import numpy as np
import pytest
import torch
from drawn import section, title_of

import howsmooth as hs
from howsmooth.errors import FieldError
from howsmooth.report.figures import chart_names, draw
from howsmooth.report.sentences import finding, growth_sentence, sentence
from howsmooth.search.mean_field_context import Secant
from howsmooth.studies.json_values import from_json
from howsmooth.studies.kinds import kind_names
from howsmooth.studies.kinds.attack import AttackAnswer, AttackAsk, summarise_attacks
from howsmooth.studies.kinds.budget import BudgetAnswer, BudgetAsk, schemes_in
from howsmooth.studies.kinds.certified_radii import CertificateAnswer, CertificateAsk
from howsmooth.studies.kinds.monitor import MonitorAnswer, MonitorAsk, ProbeAnswer, ProbeAsk
from howsmooth.studies.kinds.recipe import RecipeAnswer, RecipeAsk, summarise_recipes
from howsmooth.studies.kinds.text import SplittingAnswer, SplittingAsk, TextAnswer, TextAsk, WholeAsk
from howsmooth.studies.kinds.tokens_in_ball import (
    AscentAnswer,
    AscentAsk,
    Atom,
    BoundsAnswer,
    BoundsAsk,
    ExtremalAsk,
    MeasuresAnswer,
    MeasuresAsk,
    RegimesAnswer,
    RegimesAsk,
)
from howsmooth.studies.kinds.verified import VerifyAnswer, VerifyAsk, summarise_verified
from howsmooth.studies.records import Record, this_machine
from howsmooth.studies.runs.certified_accuracy import summarise as summarise_certified
from howsmooth.studies.runs.compare import compare
from howsmooth.studies.runs.composition import compositions
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.summary import NO_BOUNDS, summarise
from howsmooth.studies.settings import Window
from howsmooth.theory.results import BoundsTable, upper_bound
from howsmooth.training.readings import AlarmRule, LayerReading

RUNS = 60
# Of so many runs the chart is drawn, too.
DRAWN = 0.3
# A number as it is written anywhere: 10,900, −0.5, 1.2·10⁻⁹, 10⁵, ∞.
N = r"−?(?:\d[\d,]*(?:\.\d+)?(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?|10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|∞)"
EXTENT = rf"(?P<low>{N})(?: to (?P<high>{N}))?"
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")


class Dice(random.Random):
    """Draws numbers as runs have them, and those at the edge."""

    def size(self, zero=0.05):
        """Return a positive number of any size, often near one or equal to an earlier one; zero now and then."""
        edge = self.random()
        if edge < zero:
            return 0.0
        if edge < 0.25:
            return self.choice((1.0, 0.9999, 1.0004, 0.97, 1.04, 3.0, 3.0, 3.14, 1e-12, 1e9))
        return 10 ** self.uniform(-3, 4)

    def broken(self, value):
        """Return a number, or now and then none that JSON has."""
        return self.choice((math.nan, math.inf)) if self.random() < 0.02 else value

    def maybe(self, value, share=0.85):
        """Return a value, or nothing."""
        return value if self.random() < share else None

    def some(self, values):
        """Return most of some values, and one at least if there is one."""
        kept = [value for value in values if value is not None and self.random() < 0.85]
        return kept or [value for value in values if value is not None][:1]


def kept(ask, answer):
    """Return a record as a run keeps it; nothing where JSON has no such number."""
    try:
        return Record(ask=ask, answer=from_json(answer.to_json(), type(answer)), machine=this_machine())
    except FieldError:
        return None


def read(text):
    """Return a written number, and what a unit of its last digit is worth."""
    if "∞" in text:
        return (-math.inf if text.startswith("−") else math.inf), 0.0
    digits, _dot, power = text.translate(RAISED).replace(",", "").partition("·10")
    if not power and re.fullmatch(r"−?10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", text):
        digits, power = ("-1" if text.startswith("−") else "1"), text.removeprefix("−")[2:].translate(RAISED)
    value = float(f"{digits}e{power or 0}")
    whole, _dot, behind = digits.partition(".")
    last = -len(behind) if behind else len(whole) - len(whole.rstrip("0")) if float(digits) else 0
    return value, float(f"1e{last + int(power or 0)}")


def is_near(text, value):
    """Tell whether a number was written for this value, rounded to the nearest."""
    shown, unit = read(text)
    return shown == value or abs(shown - value) <= 0.5001 * unit


def is_below(text, value):
    """Tell whether a number was written as a lower bound for this value."""
    shown, unit = read(text)
    return shown == value or shown * (1 - 1e-12) <= value < (shown + unit) * (1 + 1e-9)


def is_above(text, value):
    """Tell whether a number was written as an upper bound for this value."""
    shown, unit = read(text)
    return shown == value or (shown - unit) * (1 - 1e-9) < value <= shown * (1 + 1e-12)


def ends_told(found, values, told=is_near):
    """Tell whether ``low`` and ``high`` of a pattern are the smallest and the largest of some values."""
    low, high = found["low"], found["high"] or found["low"]
    return bool(values) and told(low, min(values)) and told(high, max(values))


def geometric(values):
    return geometric_mean(values) if min(values) > 0 else 0.0


def grouped(records, by):
    groups = {}
    for r in records:
        groups.setdefault(by(r), []).append(r)
    return groups


def slope_of(records):
    """Return the exponent of a power law; none with a zero or at one length."""
    lengths, values = [r.ask.length for r in records], [r.answer.lower for r in records]
    if len(set(lengths)) < 2 or min(values) <= 0:
        return None
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def judged(said, pattern):
    """Return the parts of a sentence, and what is wrong if it says something else."""
    found = re.fullmatch(pattern, said)
    return found, [] if found else [f"nobody judges {said!r}"]


def claims(**checks):
    """Return the names of the claims that are false."""
    return [name.replace("_", " ") for name, holds in checks.items() if not holds]


# What a factor does to a perturbation.
GROWS = rf"(?:grows (?P<up>{N})-fold|shrinks to (?P<down>{N}) of its size|keeps its size)"


def grows_as_told(found, factor, up="up", down="down"):
    """Tell whether a perturbation grows, shrinks or keeps its size as a factor says."""
    if found[up] is not None:
        return factor > 1 and found[up] != "1" and is_near(found[up], factor)
    if found[down] is not None:
        return factor < 1 and found[down] != "1" and is_near(found[down], factor)
    return is_near("1", factor) or abs(factor - 1) <= 0.005


# Windows of a text


def text_answer(dice, base=None, typical=True):
    lower = dice.size() if base is None else base * dice.choice((1.0, 1.0, 1.01, dice.uniform(0.5, 2)))
    upper = dice.maybe(lower * dice.choice((1.0, 1.001, 1.05)), 0.9)
    gain = dice.maybe(lower * dice.random(), 0.9) if typical else None
    ends = (None, None) if gain is None or dice.random() < 0.1 else (0.9 * gain, min(1.1 * gain, lower))
    return TextAnswer(
        lower=dice.broken(lower),
        upper=upper,
        status="converged",
        mean_radius=dice.uniform(1, 5),
        reach=dice.uniform(5, 9),
        relative=dice.maybe(dice.size()),
        typical=gain,
        typical_low=ends[0],
        typical_high=ends[1],
        probes=8,
        dimensions=1000,
        local_upper=dice.maybe(lower * dice.uniform(1.1, 30), 0.8),
        sensitivity=(0.5, 0.5),
        response=(0.5, 0.5),
    )


def text_records(dice, model="m", stride=0, lengths=None):
    lengths = lengths or sorted(dice.sample((4, 8, 16, 32), dice.randint(1, 3)))
    windows, layers = dice.randint(1, 3), dice.randint(1, 3)
    found, planned = [], 0
    alike, power = dice.maybe(dice.size(), 0.3), dice.choice((0.0, 0.3))
    for layer in range(layers):
        base = alike or dice.size()
        for n in lengths:
            for w in range(windows):
                planned += 1
                cut = Window(text="t", digest="d", length=n, index=w, stride=stride)
                ask = TextAsk(model=model, layer=layer, window=cut, certificate=True)
                found.append(kept(ask, text_answer(dice, base * (n / 4) ** power)))
    return (dice.some(found) if dice.random() < 0.5 else [r for r in found if r]), planned


def as_measurement(dice, records, planned):
    most = max((r.answer.upper or r.answer.lower for r in records), default=1.0) or 1.0
    ceiling = upper_bound(math.log(most * dice.choice((1.0, 1.2, 1e9))), "sharp_upper", "a ball", "a theorem")
    ladder = dice.choice((NO_BOUNDS, BoundsTable(bounds=(ceiling,))))
    layers = summarise(records, lambda _layer, _length, _radius: ladder) if records else ()
    fields = {"model": "m", "text": "t", "map": "attention", "planned": planned}
    return Measurement(records=tuple(records), layers=layers, **fields)


def at_common_length(records):
    """Return the records of each layer at the longest length that all have, and the length; none if there is none."""
    layers = grouped(records, lambda r: r.ask.layer)
    common = set.intersection(*({r.ask.length for r in some} for some in layers.values()))
    if not common:
        return None, None
    n = max(common)
    return {layer: [r.answer for r in some if r.ask.length == n] for layer, some in layers.items()}, n


RANDOM = (
    rf", a random one (?:grows (?:≈ )?(?P<rup>{N})-fold|shrinks to (?:≈ )?(?P<rdown>{N}) of its size|keeps its size)"
    rf"(?: \[(?P<rlow>{N}), (?P<rhigh>{N})\])?(?P<squares> \(root mean square over \w+, of the worst the geometric "
    rf"mean\))?"
)
ANSWER = (
    rf"(?P<sofar>So far, )?[Aa]t (?P<n>{N}) tokens? the worst small perturbation of what enters layer (?P<layer>\d+) "
    rf"{GROWS}"
    rf"(?:{RANDOM})?"
    rf"(?:; for any (?P<m>{N}) tokens? no longer than (?P<longest>{N}), the longest here, at most (?P<any>{N})-fold)?"
    rf"(?:; the layers are alike, none is below (?P<floor>{N})|; the smoothest is layer (?P<best>\d+), with "
    rf"(?P<least>{N}))?\."
)


def judge_measurement(dice):
    records, planned = text_records(dice)
    records = [] if dice.random() < 0.03 else records
    measured = as_measurement(dice, records, planned)
    said = sentence(measured)
    if not records:
        return claims(nothing_is_there=said == "Nothing is measured yet.")
    here, n = at_common_length(records)
    if here is None:
        return claims(no_length=said.startswith("The layers have no length in common yet"))
    found, wrong = judged(said, ANSWER)
    if found is None:
        return wrong
    constants = {layer: geometric([a.lower for a in some]) for layer, some in here.items()}
    most, least = max(constants.values()), min(constants.values())
    answers = here[int(found["layer"])]
    wrong += claims(
        the_length=read(found["n"])[0] == n,
        so_far=(found["sofar"] is not None) == (planned > len(records)),
        the_least_smooth=constants[int(found["layer"])] >= most * (1 - 1e-12),
        the_worst_grows=grows_as_told(found, constants[int(found["layer"])]),
        a_bound_below_what_is_attained=found["any"] is None
        or read(found["any"])[0] >= max(a.lower for a in answers) * (1 - 1e-12),
        a_token_is_longer=found["longest"] is None or read(found["longest"])[0] >= max(a.reach for a in answers),
    )
    gains = [a.typical for a in answers if a.typical is not None]
    if ", a random one" in said:
        gain = math.sqrt(fmean(gain**2 for gain in gains))
        wrong += claims(
            random_grows=grows_as_told(found, gain, "rup", "rdown") or "≈" in said,
            random_beyond_its_interval=found["rlow"] is None
            or read(found["rlow"])[0] <= read(found["rup"] or found["rdown"] or "1")[0] <= read(found["rhigh"])[0],
            random_is_worse_than_the_worst=gain <= constants[int(found["layer"])] or found["squares"] is not None,
        )
    else:
        wrong += claims(random_is_left_out=not gains)
    alike = most <= 1.05 * least
    if found["best"] is not None:
        smoothest = constants[int(found["best"])]
        wrong += claims(the_smoothest=smoothest <= least * (1 + 1e-12) and is_near(found["least"], smoothest))
        wrong += claims(layers_that_are_alike=not alike)
    elif found["floor"] is not None:
        wrong += claims(alike=alike, none_is_below=read(found["floor"])[0] <= least * (1 + 1e-12))
    else:
        wrong += claims(the_smoothest_is_left_out=most <= least * (1 + 1e-12))
    return wrong + _judge_worth(measured, here) + _judge_growth(measured, records)


def _judge_worth(measured, here):
    """Judge how near the table says that its constants are to the truth, and the range of each layer."""
    wrong, brackets = [], [(r.answer.lower, r.answer.upper) for r in measured.records]
    for text in (measured.legend, measured.accuracy):
        if claim := re.search(rf"within a factor of (?P<f>{N}) of the truth", text):
            factor = read(claim["f"])[0] * (1 + 1e-12)
            wrong += claims(nearness=all(high is not None and high <= factor * low for low, high in brackets))
    for layer in measured.layers:
        cell, answers = layer.cells["range"], here[layer.layer]
        low, high = min(a.lower for a in answers), [a.upper for a in answers]
        ends = re.fullmatch(rf"(?P<open>≥ )?(?P<low>{N})(?: – (?P<high>{N}))?", cell)
        wrong += claims(
            a_range_without_end=(ends["open"] is not None) == (None in high),
            the_range=read(ends["low"])[0] <= low * (1 + 1e-12)
            and (None in high or read(ends["high"] or ends["low"])[0] >= max(high) * (1 - 1e-12)),
        )
    return wrong


def _judge_growth(measured, records):
    said = growth_sentence(measured)
    layers = grouped(records, lambda r: f"layer {r.ask.layer}")
    slopes = {name: slope for name, some in layers.items() if (slope := slope_of(some)) is not None}
    doubted = {f"layer {s.layer}" for s in measured.layers if s.growth is not None and s.growth.doubted}
    return _judge_laws(
        said,
        "With the number of tokens n this factor",
        {name: slope for name, slope in slopes.items() if name not in doubted},
        len(doubted),
        "Nothing is known about growth, which takes several lengths.",
    )


def _judge_laws(said, begins, slopes, doubted, nothing):
    if not slopes and not doubted:
        return claims(no_law=said == nothing)
    if not slopes:
        return claims(no_power_law=said.startswith(f"{begins} follows no power law"))
    law = rf"n\^(?P<{{0}}>{N})(?: \((?P<{{0}}_at>.*?)\))?"
    found, wrong = judged(
        said,
        rf"{begins} (?P<verb>grows|changes) like {law.format('slow')}(?: up to {law.format('fast')})?"
        r"(?:; (?:.*?) follows? no power law)?\.",
    )
    if found is None:
        return wrong
    low, high = min(slopes.values()), max(slopes.values())
    return claims(
        the_slowest=abs(read(found["slow"])[0] - low) <= 0.0051,
        the_fastest=abs(read(found["fast"] or found["slow"])[0] - high) <= 0.0051,
        who_is_slowest=found["slow_at"] is None or slopes[found["slow_at"]] <= low + 0.0101,
        who_is_fastest=found["fast_at"] is None or slopes[found["fast_at"]] >= high - 0.0101,
        it_grows=found["verb"] != "grows" or low > 0,
        who_is_doubted=(" no power law" in said) == (doubted > 0),
    )


def judge_real(dice):
    records = [r for model in ("a", "b")[: dice.randint(1, 2)] for r in text_records(dice, model)[0]]
    if not records:
        return claims(nothing_is_there=finding("real", records) == "Nothing is measured yet.")
    said, places = finding("real", records), grouped(records, lambda r: f"{r.ask.model}, layer {r.ask.layer}")
    slopes = {name: slope for name, some in places.items() if (slope := slope_of(some)) is not None}
    if said.startswith("With") and "no power law" in said:
        return []  # which of them are doubted, the other judge asks
    nothing = f"{len(records):,} record{'s' * (len(records) != 1)} of the kind text."
    return _judge_laws(said, "With the number of tokens n the constant on real text", slopes, 0, nothing)


def judge_robustness(dice):
    records = [r for model in ("a", "b")[: dice.randint(1, 2)] for r in text_records(dice, model, stride=32)[0]]
    said = finding("robustness", records)
    lengths, ratios = sorted({r.ask.length for r in records}), {}
    for place, some in grouped(records, lambda r: f"{r.ask.model}, layer {r.ask.layer}").items():
        at = {(r.ask.length, r.ask.window.index): r.answer.lower for r in some}
        both = [w for (n, w) in at if n == lengths[0] and (lengths[-1], w) in at]
        pairs = [(at[lengths[0], w], at[lengths[-1], w]) for w in both]
        if len(lengths) > 1 and pairs and min(min(pair) for pair in pairs) > 0:
            ratios[place] = geometric([last for _f, last in pairs]) / geometric([first for first, _l in pairs])
    if not ratios:
        return claims(nothing_to_say="same places" not in said)
    found, wrong = judged(
        said,
        rf"Windows that grow from (?P<a>{N}) to (?P<b>{N}) tokens at the same places have constants {EXTENT} times as "
        r"large; the most in (?P<most>.*)\.",
    )
    return wrong or claims(
        the_lengths=[read(found[end])[0] for end in "ab"] == [lengths[0], lengths[-1]],
        the_ratios=ends_told(found, ratios.values()),
        who_grows_most=ratios.get(found["most"], -1) >= max(ratios.values()) * (1 - 1e-12),
    )


def judge_bounds(dice):
    records, _planned = text_records(dice)
    pairs = [(r.answer.local_upper, r.answer.lower) for r in records]
    ratios = [bound / lower for bound, lower in pairs if bound is not None and lower > 0]
    found, wrong = judged(
        finding("bounds", records),
        rf"Certificates prove bounds {EXTENT} times what is measured at the same windows\.|With .*|.* of the kind "
        rf"text\.",
    )
    if found is None or found["low"] is None:
        return wrong + claims(certificates_are_left_out=not ratios)
    return claims(the_ratios=ends_told(found, ratios))


# Tokens in a ball

HEAD = {"A": ((-1.0,),), "V": ((1.0,),)}


def judge_extremal(dice):
    records = dice.some(
        [
            kept(
                ExtremalAsk(model="m", layer=2, points=points, head=head, length=n, radius=3.0),
                TextAnswer(lower=dice.broken(dice.size())),
            )
            for points in ("two_point", "tied_pair")[: dice.randint(1, 2)]
            for head in range(dice.randint(1, 2))
            for n in dice.sample((4, 8, 16), dice.randint(1, 3))
        ]
    )
    said = finding("adversarial", records)
    by_points = {
        points: grouped([r for r in records if r.ask.points == points], lambda r: r.ask.head)
        for points in ("two_point", "tied_pair")
    }
    slopes = {p: [s for some in by.values() if (s := slope_of(some)) is not None] for p, by in by_points.items()}
    at = {(r.ask.points, r.ask.head, r.ask.length): r.answer.lower for r in records}
    ratios = [
        value / at["two_point", *place]
        for (points, *place), value in at.items()
        if points == "tied_pair" and at.get(("two_point", *place), 0) > 0
    ]
    if not all(slopes.values()) or not ratios:
        return claims(nothing_to_say=said.endswith(" of the kind extremal."))
    found, wrong = judged(
        said,
        rf"The paper's two points (?P<verb>grow|change) like n\^(?P<a>{N})(?: to (?P<b>{N}))?, tied pairs "
        rf"(?:like|grow like|"
        rf"change like) n\^(?P<c>{N})(?: to (?P<d>{N}))?; at the same head, length and radius tied pairs attain "
        rf"{EXTENT} "
        r"times as much\.",
    )
    if found is None:
        return wrong
    two, tied = slopes["two_point"], slopes["tied_pair"]
    exact = (min(two), max(two), min(tied), max(tied))
    shown = (found["a"], found["b"] or found["a"], found["c"], found["d"] or found["c"])
    return claims(
        the_exponents=all(abs(read(a)[0] - b) <= 0.0051 for a, b in zip(shown, exact, strict=True)),
        they_grow="grow" not in said or min(two) > 0 or "change" in said,
        the_ratios=ends_told(found, ratios),
        both_grow=min(*two, *tied) > 0 or "change like" in said,
    )


def judge_worst(dice):
    names = ("discrete_upper", "sharp_upper", "discrete_lower", "sharp_lower", "two_point", "tied_pair")
    records = []
    for n in dice.sample((4, 8, 16), dice.randint(1, 3)):
        lowers = {name: dice.maybe(dice.size()) for name in names[2:]}
        most = max((x for x in lowers.values() if x is not None), default=1.0)
        uppers = {name: dice.maybe(most * dice.uniform(1, 50)) for name in names[:2]}
        records.append(kept(BoundsAsk(length=n, radius=2.0, **HEAD), BoundsAnswer(**uppers, **lowers)))
    records += [kept(AscentAsk(length=4, radius=2.0, **HEAD), AscentAnswer(lower=dice.size()))]
    ratios = []
    for r in records[:-1]:
        lowers = [x for x in (r.answer.sharp_lower, r.answer.two_point, r.answer.tied_pair) if x]
        if lowers and r.answer.sharp_upper:
            ratios.append(r.answer.sharp_upper / max(lowers))
    found, wrong = judged(
        finding("worst", records),
        rf"The worst-case bound is {EXTENT} times what explicit inputs attain, over all lengths and radii\.|"
        r"\d+ records? of the kind ascent, bounds\.",
    )
    if found is None or found["low"] is None:
        return wrong + claims(bounds_are_left_out=not ratios)
    return claims(the_ratios=ends_told(found, ratios))


def judge_regimes(dice):
    records = []
    for a in (1.0, 2.0)[: dice.randint(1, 2)]:
        attained, plateau, crossing = dice.size(), dice.size(), dice.maybe(10 ** dice.uniform(1, 5))
        beyond = dice.random() < 0.1  # of any float
        for n in sorted(dice.sample((3, 10, 100, 1000, 10**5), dice.randint(1, 4))):
            attained *= dice.choice((1.0, 1.005, 1.3, 2.0))
            known = {
                "plateau": None if beyond else plateau,
                "crossing": None if beyond else crossing,
                "measures_upper": None if beyond else 9 * max(attained, plateau),
            }
            ask = RegimesAsk(A=((-a,),), V=((1.0,),), length=n, radius=2.0)
            records.append(
                kept(ask, RegimesAnswer(lower=attained, upper=dice.maybe(attained * dice.uniform(1, 5)), **known))
            )
    records = dice.some(records)
    heads = [sorted(some, key=lambda r: r.ask.length) for some in grouped(records, lambda r: r.ask.A).values()]
    return _judge_regimes(records, heads) + _judge_transition(records, heads)


def _judge_regimes(records, heads):
    said = finding("regimes", records)
    heads = [some for some in heads if len(some) > 1 and min(r.answer.lower for r in some) > 0]
    if not heads:
        return claims(nothing_to_say=said.endswith("of the kind regimes."))
    found, wrong = judged(
        said,
        rf"From (?:(?P<a>{N}) to (?P<b>{N}) tokens|the shortest to the longest sequences) the worst constant found is "
        rf"multiplied by {EXTENT}; it (?:(?P<still>still grows there)|(?P<over>no longer grows there)|still grows "
        rf"there "
        rf"for (?P<some>{N}|none) of (?P<all>{N}) heads and radii)\.",
    )
    if found is None:
        return wrong
    ends = {(some[0].ask.length, some[-1].ask.length) for some in heads}
    rising = [some[-1].answer.lower > 1.01 * max(r.answer.lower for r in some[:-1]) for some in heads]
    many = 0 if found["some"] == "none" else int(read(found["some"] or "0")[0])
    return claims(
        the_lengths=ends == {(read(found["a"])[0], read(found["b"])[0])} if found["a"] else len(ends) > 1,
        the_factors=ends_told(found, [some[-1].answer.lower / some[0].answer.lower for some in heads]),
        who_still_grows=rising == [True]
        if found["still"]
        else rising == [False]
        if found["over"]
        else many == sum(rising),
        how_many_heads=found["all"] is None or int(found["all"]) == len(heads),
    )


def _judge_transition(records, heads):
    shares, plateaus = {}, {}
    for some in heads:
        # what one length attains measures do
        known = [r.answer for r in some if r.answer.plateau is not None]
        most = max((max(a.plateau, a.lower) for a in known), default=0.0)
        if most > 0:
            plateaus |= {r.ask.key: most for r in some}
            shares |= {r.ask.key: r.answer.lower / most for r in some}
    said = finding("transition", records)
    if not shares:
        return claims(nothing_to_say=not said.startswith("At "))
    found, wrong = judged(
        said, rf"At (?P<n>{N}) tokens the worst inputs found attain {EXTENT} times what measures are known to attain\."
    )
    if found is None:
        return wrong
    longest = max(r.ask.length for r in records if r.ask.key in shares)
    wrong += claims(
        the_length=read(found["n"])[0] == longest,
        the_shares=ends_told(
            found, [shares[r.ask.key] for r in records if r.ask.length == longest and r.ask.key in shares]
        ),
        more_than_measures=read(found["high"] or found["low"])[0] <= 1,
    )
    return wrong


def judge_measures(dice):
    records = []
    for radius in (1.0, 2.0)[: dice.randint(1, 2)]:
        for atoms in dice.sample((1, 2, 3), dice.randint(1, 2)):
            masses = [dice.choice((1.0, 1e-3, 1e-9, dice.random())) for _ in range(atoms)]
            places = [dice.choice((-radius, 0.3, radius)) for _ in range(atoms)]
            found = tuple(
                Atom(mass=mass / sum(masses), coordinate=place, norm=abs(place))
                for mass, place in sorted(zip(masses, places, strict=True), reverse=True)
            )
            ask = MeasuresAsk(length=atoms, radius=radius, **HEAD)
            records.append(kept(ask, MeasuresAnswer(lower=dice.size(), atoms=found)))
    said = finding("measures", records)
    found, wrong = judged(
        said,
        rf"The worst measure found attains (?P<value>{N}) within radius (?P<r>{N})(?P<unbalanced>, and is "
        rf"unbalanced)?: of its "
        rf"(?P<n>{N}) atoms? (?:one holds all but (?P<rest>{N}) of the mass|the heaviest holds (?P<share>{N}) % of "
        rf"the mass)\.",
    )
    if found is None:
        return wrong
    most = max(r.answer.lower for r in records)
    worst = [r for r in records if r.answer.lower == most and r.ask.radius == read(found["r"])[0]]
    worst = [r for r in worst if len(r.answer.atoms) == read(found["n"])[0]]
    heaviest = [max(atom.mass for atom in r.answer.atoms) for r in worst]
    wrong += claims(
        the_worst=bool(worst) and is_below(found["value"], most),
        unbalanced=not found["unbalanced"] or any(mass > 0.5 for mass in heaviest),
        the_heaviest=any(
            is_near(found["rest"], 1 - mass) if found["rest"] else is_near(found["share"], 100 * mass)
            for mass in heaviest
        ),
    )
    if dice.random() > DRAWN:
        return wrong
    title = title_of(draw(section("measures", records), "worst_measures"))
    at_one_place = []
    for r in records:
        places = Counter()
        for atom in r.answer.atoms:
            places[atom.coordinate] += atom.mass
        at_one_place.append(max(places.values()))
    claim = re.search(rf"({N}) %", title)
    wrong += claims(
        the_title=read(claim[1])[0] <= 100 * min(at_one_place) * (1 + 1e-9),
        the_title_calls_them_unbalanced="unbalanced" not in title or min(at_one_place) > 0.5,
    )
    return wrong


# Parts, heads and whole models at windows


def judge_splitting(dice):
    records = []
    for layer in range(dice.randint(1, 3)):
        for w in range(dice.randint(1, 3)):
            move, split = dice.size(), dice.size()
            answer = SplittingAnswer(
                move=move,
                split=split,
                splits=split > move,
                decided=dice.random() < 0.7,
                atom=0,
                move_ratio=move * dice.uniform(0.9, 1),
                split_ratio=split * dice.uniform(0.9, 1),
                mean_radius=1.0,
                reach=2.0,
            )
            records.append(
                kept(SplittingAsk(model="m", layer=layer, window=Window(digest="d", length=8, index=w)), answer)
            )
    found, wrong = judged(
        finding("splitting", records),
        rf"At (?P<many>{N}) of (?P<all>{N}) windows? cutting one token in two moves the output further than any "
        rf"small move "
        rf"of whole tokens does(?:; (?P<open>{N}) (?:is|are) not decided)?\.",
    )
    if found is None:
        return wrong
    sure = sum(r.answer.split > r.answer.move and r.answer.decided for r in records)
    wrong += claims(
        how_many_split=int(found["many"]) == sure,
        how_many_windows=int(found["all"]) == len(records),
        how_many_are_open=int(found["open"] or 0) == sum(not r.answer.decided for r in records),
    )
    if dice.random() > DRAWN:
        return wrong
    part = section("splitting", records)
    if "splitting-splitting_on_text" in chart_names(part):
        title = title_of(draw(part, "splitting_on_text"))
        wrong += claims(the_title=re.search(rf"in ({N}) of ({N})", title).groups() == (str(sure), str(len(records))))
    if "splitting-split_attack" in chart_names(part):
        claim = re.search(rf"within ({N}) %", title_of(draw(part, "split_attack")))
        pairs = [(a.move_ratio, a.move) for a in (r.answer for r in records)]
        pairs += [(a.split_ratio, a.split) for a in (r.answer for r in records)]
        off = [abs(true / exact - 1) for true, exact in pairs if true > 0 and exact > 0]
        wrong += claims(the_attack=read(claim[1])[0] >= 100 * max(off) * (1 - 1e-9))
    return wrong


def judge_whole(dice):
    records, depth = [], dice.randint(1, 4)
    for n in (8, 16)[: dice.randint(1, 2)]:
        for w in range(dice.randint(1, 3)):
            parts = [("block", layer, layer) for layer in range(depth)]
            parts += [(f"to:{layer}", 0, layer) for layer in range(depth - 1)]
            parts += [(f"from:{layer}", layer, layer) for layer in range(1, depth)] + [("model", 0, depth)]
            for name, layer, size in parts:
                cut = Window(text="t", digest="d", length=n, index=w)
                blocks = depth if name == "model" else 1
                del size
                answer = text_answer(dice)
                records.append(kept(WholeAsk(model="m", layer=layer, map=name, window=cut, blocks=blocks), answer))
    records = dice.some(records) if dice.random() < 0.5 else [r for r in records if r]
    wrong = []
    for each in compositions(records):
        found, unknown = judged(
            each.sentence,
            rf"At (?P<n>{N}) tokens? the constants of (?:the first (?P<first>{N}) of (?P<of>{N}) blocks|the "
            rf"(?P<k>{N}) blocks?) "
            rf"of m multiply to (?P<product>{N}); through the whole model the worst perturbation {GROWS}\.",
        )
        if found is None:
            wrong += unknown
            continue
        at = grouped([r for r in records if r.ask.length == each.length], lambda r: (r.ask.map, r.ask.layer))
        shared = set.intersection(*({r.ask.window.index for r in some} for some in at.values()))
        told = int(found["first"] or found["k"])
        of = {
            place: geometric([r.answer.lower for r in some if r.ask.window.index in shared])
            for place, some in at.items()
        }
        blocks = [of["block", layer] for layer in range(told)]
        wrong += claims(
            all_blocks=(told == depth) if found["k"] else (told < depth and int(found["of"]) == depth),
            the_product=is_near(found["product"], math.prod(blocks)),
            the_whole=grows_as_told(found, of["model", 0]),
            the_windows=each.windows == len(shared),
        )
        for shown in each.depths:
            wrong += claims(
                the_gap=shown.to == 0
                or shown.log_product == -math.inf
                or math.isclose(10**shown.log_gap, math.prod(blocks[: shown.layer + 1]) / shown.to, rel_tol=1e-6)
            )
        drawn = dice.random() < DRAWN and len(grouped(records, lambda r: r.ask.length)) == 1
        if drawn and each.depths[-1].to > 0 and each.depths[-1].block > 0:
            title = title_of(draw(section("whole", records), "layers_do_not_multiply"))
            wrong += claims(layers_do_multiply="Layers do not multiply" not in title or each.depths[-1].log_gap > 1e-3)
    return wrong


def judge_attack(dice):
    records = []
    classes = dice.random() < 0.4
    predicted = {(layer, w): dice.size(0.15) for layer in range(2) for w in range(3)}
    many, idle = dice.randint(1, 3), dice.random() < 0.1
    for eps in (0.1, 1.0, 10.0)[: dice.randint(1, 3)]:
        off = dice.choice((1.0, 1.0, 1.05, 1.2, 0.5))
        for w in range(many):
            for method in ("random", "ascent")[: dice.randint(1, 2)]:
                sigma = 0.0 if idle else predicted[0, w]
                attained = sigma * off * (0.1 if method == "random" else 1.0)
                answer = AttackAnswer(
                    attained=dice.broken(attained),
                    predicted=sigma,
                    ceiling=dice.maybe(9 * attained),
                    flipped=(dice.random() < 0.3) if classes else None,
                )
                cut = Window(digest="d", length=8, index=w)
                part = "classes" if classes else "attention"
                records.append(
                    kept(AttackAsk(model="m", layer=0, map=part, window=cut, eps=eps, method=method), answer)
                )
    records = dice.some(records)
    (found,) = summarise_attacks(records)
    wrong = []
    means, lines = {}, grouped(records, lambda r: (r.ask.eps, r.ask.method))
    for (eps, method), some in lines.items():
        means[eps, method] = (fmean(r.answer.attained for r in some), fmean(r.answer.predicted for r in some))
    best = {eps: max(v for (e, _m), v in means.items() if e == eps) for eps in sorted({eps for eps, _m in means})}
    near = [attained == sigma or (sigma > 0 and abs(attained / sigma - 1) <= 0.1) for attained, sigma in best.values()]
    parsed, unknown = judged(
        found.sentence.removeprefix(found.class_changes),
        rf"m, .*?: (?:(?P<stays>what is attained stays within 10 % of what is predicted up to ε = "
        rf"(?P<last>{N}))|(?P<off>what "
        rf"is attained is more than 10 % from what is predicted at ε = (?P<first>{N}))|linearity ends at ε ≈ "
        rf"(?P<ends>{N}), "
        r"where what is attained leaves σ by 10 %|(?P<still>nothing that was tried moves the output))\.",
    )
    wrong += unknown
    if parsed is not None:
        eps = list(best)
        upto = next((eps[i] for i, ok in enumerate(near) if not ok), None)
        before = max((e for e in eps if upto is not None and e < upto), default=None)
        wrong += claims(
            it_stays=parsed["stays"] is None or (all(near) and read(parsed["last"])[0] == eps[-1]),
            it_is_off=parsed["off"] is None or (not near[0] and read(parsed["first"])[0] == eps[0]),
            it_ends=parsed["ends"] is None
            or (upto is not None and before is not None and 0.95 * before <= read(parsed["ends"])[0] <= 1.05 * upto),
            nothing_moves=parsed["still"] is None or not any(attained for attained, _sigma in best.values()),
        )
    for many_flip, all_windows, e in re.findall(rf"in (\d+) of (\d+) windows? at ε = ({N})", found.class_changes):
        here = [r for r in records if r.ask.eps == read(e)[0]]
        flipped = {r.ask.window.index for r in here if r.answer.flipped}
        wrong += claims(
            how_many_flip=int(many_flip) == len(flipped),
            of_how_many=int(all_windows) == len({r.ask.window.index for r in here}),
        )
    if "No attack changes" in found.class_changes:
        wrong += claims(none_flips=not any(r.answer.flipped for r in records))
    told = finding("attack", records)
    if claim := re.search(rf"move the output {EXTENT} times as far as the input", told):
        wrong += claims(the_best=ends_told(claim, [attained for attained, _sigma in best.values()], is_below))
    else:
        wrong += claims(
            moved="nothing that was tried moves the output" in told and not any(v[0] for v in best.values())
        )
    return wrong


# Sentences of a classifier


def judge_certificate(dice):
    records, labelled, idle = [], dice.random() < 0.5, dice.random() < 0.15
    for i in range(dice.randint(1, 5)):
        wrong_class = labelled and dice.random() < 0.3
        text, expected = f"word{i} film", "good" if labelled else ""
        shared = {"predicted": "bad" if wrong_class else "good", "margin": dice.size(), "tokens": 4}
        if wrong_class:
            answer = CertificateAnswer(spelled="", places=(), certified=0.0, **shared)
            records.append(kept(CertificateAsk(model="m", sentence=text, expected=expected), answer))
            continue
        for places in ((1,), (2,), (1, 2))[: dice.randint(1, 3)]:
            certified = 0.0 if idle else dice.size(0.2)
            answer = CertificateAnswer(
                spelled=" ".join(f"w{place}" for place in places),
                places=places,
                certified=dice.broken(certified),
                attacked=None if idle else dice.maybe(certified * dice.uniform(1, 9) or 0.5),
                linear=1.0,
                **shared,
            )
            records.append(kept(CertificateAsk(model="m", sentence=text, word=places, expected=expected), answer))
    records = dice.some(records)
    if not records:
        return []
    (found,) = summarise_certified(records)
    each = found.sentences if hasattr(found, "sentences") else (found,)
    wrong = [claim for one in each for claim in _judge_sentence(one, records)]
    return wrong + (_judge_set(found, each) if hasattr(found, "sentences") else [])


def _judge_sentence(one, records):
    rows = [r.answer for r in records if r.ask.sentence == one.text and r.answer.places]
    alone = [a for a in rows if len(a.places) == 1] or rows[-1:]
    parsed, unknown = judged(
        one.sentence,
        rf"'.*?' is classified as '\w+' by m(?:, not '\w+': misclassified, so not certified|: moving (?:'.*?'(?: "
        rf"together)?|one "
        rf"word) by less than (?P<safe>{N}) cannot change that(?:, whichever it is)?; (?:(?P<none>nothing that does "
        rf"was found)|"
        rf"moving '(?P<word>.*?)'(?: together)? by (?P<flip>{N}) does))\.",
    )
    if parsed is None or parsed["safe"] is None:
        return unknown + claims(misclassified=parsed is None or not alone)
    attacked = [a.attacked for a in alone if a.attacked is not None]
    return claims(
        the_safe_move=is_below(parsed["safe"], min(a.certified for a in alone)),
        nothing_found=(parsed["none"] is not None) == (not attacked),
        the_flip=parsed["flip"] is None or is_above(parsed["flip"], min(attacked)),
        the_word=parsed["word"] is None
        or any(a.spelled == parsed["word"] and a.attacked == min(attacked) for a in alone),
    )


def _judge_set(found, each):
    parsed, unknown = judged(
        found.sentence,
        rf"(?:Clean accuracy (?P<clean>{N}) %)?(?:(?:, c|C)ertified (?P<sure>{N}) % and under attack (?P<attack>{N}) "
        rf"% at ε = "
        rf"(?P<eps>{N})|(?:, n|N)othing is certified and no attack succeeds)?: m on (?P<all>{N}) sentences, (?:one "
        rf"word moves|"
        rf"words that move together), ℓ₂ of embeddings(?:; (?P<wrong>{N}) misclassified and not certified)?\.",
    )
    if parsed is None:
        return unknown
    right = [one for one in each if one.expected in ("", one.predicted)]
    share = functools.partial(lambda many, total: 100 * many / total, total=len(each))
    wrong = claims(
        says_something=parsed["clean"] or parsed["sure"] or "othing is certified" in found.sentence,
        the_clean=parsed["clean"] is None or abs(read(parsed["clean"])[0] - share(len(right))) <= 0.0501,
        how_many=int(parsed["all"]) == len(each),
        how_many_are_wrong=int(parsed["wrong"] or 0) == len(each) - len(right),
    )
    if parsed["eps"] is not None:
        eps = read(parsed["eps"])[0]
        sure = sum(one.certified >= eps * (1 - 1e-9) for one in right)
        left = sum(one.attacked is None or one.attacked > eps * (1 + 1e-9) for one in right)
        wrong += claims(
            the_certified=abs(read(parsed["sure"])[0] - share(sure)) <= 0.0501,
            under_attack=abs(read(parsed["attack"])[0] - share(left)) <= 0.0501,
            more_certified_than_attacked=sure <= left,
        )
    return wrong


# Errors inside of a model


def judge_budget(dice):
    names, windows, records = [f"layers.{i}.w" for i in range(dice.randint(1, 4))], dice.randint(1, 2), []
    embeddings, labels = dice.random() < 0.3, dice.random() < 0.3
    idle = dice.random() < 0.15
    for scheme, bits in (("int4", 4.5), ("int8", 8.5))[: dice.randint(1, 2)]:
        for w in range(windows):
            tokens = () if labels else tuple(f"t{i}" for i in range(dice.randint(1, 25)))
            truth = tuple(dice.size(0.3) * 1e-3 for _ in tokens or (0,))
            if embeddings and dice.random() < 0.3:
                truth = (-1e-17, *truth[1:])  # one less a cosine, rounded
            margins = () if embeddings else tuple(dice.size() for _ in truth)
            answer = BudgetAnswer(
                cost="half the squared displacement" if embeddings else "nats a token",
                names=tuple(names),
                numbers=tuple(100 for _ in names),
                bits=tuple(bits for _ in names),
                products=tuple(
                    tuple(0.0 if idle else dice.gauss(0, dice.size(0)) for _ in names) for _pass in range(4)
                ),
                positions=len(truth),
                squares=tuple(1.0 for _ in names),
                truth=truth,
                before=margins,
                after=tuple(m * dice.choice((1.0, -0.5)) for m in margins),
                tokens=tokens or ("a", "b", "c"),
            )
            cut = Window(digest="d", length=8, index=w)
            records.append(kept(BudgetAsk(model="m", window=cut, scheme=scheme), answer))
    wrong = []
    for each in schemes_in([r for r in records if r]):
        wrong += _judge_budget(each, [r.answer for r in records if r.ask.scheme == each.scheme])
    return wrong


def _judge_budget(each, answers):
    said, truth = each.sentence, [cost for a in answers for cost in a.truth]
    costs = {}
    for i, name in enumerate(answers[0].names):
        squares = [fmean(row[i] ** 2 for row in a.products) for a in answers]
        costs[name] = fmean(squares) / (2 * answers[0].positions)
    wrong, total = [], sum(costs.values())
    if "changes nothing" in said:
        return claims(it_changes_nothing=total == 0 and fmean(truth) == 0 and "changes at" not in said)
    found, unknown = judged(
        said,
        rf"m: \w+ everywhere costs (?P<whole>{N}) .*?\((?P<low>{N}) to (?P<high>{N})(?:, ± {N} over windows)?; run "
        rf"truly "
        rf"(?P<truth>{N})\)(?:; one by one, half of the cost sits in (?P<half>{N}) of (?P<all>{N}) \w+(?:; keeping "
        rf"these in "
        rf"(?P<to>16 bits|\w+) takes (?P<more>{N}) % of the full size more and leaves (?P<rest>{N})(?P<offset> \({N} "
        rf"to {N}\): "
        r"errors offset each other here)?)?)?\.(?P<outputs> .*)?",
    )
    if found is None:
        return unknown
    whole = each.budget.together(scheme=each.scheme)
    wrong += claims(
        the_cost=is_near(found["whole"], whole.kl) and is_near(found["truth"], fmean(truth)),
        the_interval=read(found["low"])[0] <= read(found["whole"])[0] <= read(found["high"])[0],
        offsets=(found["offset"] is None) or read(found["rest"])[0] >= read(found["whole"])[0],
    )
    if found["half"] is not None:
        ranked, half = sorted(costs.values(), reverse=True), int(found["half"])
        wrong += claims(
            half_of_it=sum(ranked[:half]) >= total / 2 * (1 - 1e-9)
            and (half == 1 or sum(ranked[: half - 1]) < total / 2),
            of_all=int(found["all"]) == len(costs),
        )
    outputs = found["outputs"] or ""
    if claim := re.search(
        rf"changes at ({N}) % of positions; (?:(\d+) of them|a tenth of them) bears? ({N}) % of the cost", outputs
    ):
        after = [m for a in answers for m in a.after]
        ranked = sorted(truth, reverse=True)
        few = int(claim[2]) if claim[2] else len(ranked) / 10
        wrong += claims(
            flips=is_near(claim[1], 100 * sum(m < 0 for m in after) / len(after)),
            a_tenth=few == int(few) and is_near(claim[3], 100 * sum(ranked[: int(few)]) / (sum(ranked) or 1)),
        )
    elif claim := re.search(
        rf"Margins go from ({N}) to ({N}) in the mean; (?:(\d+|none) of (\d+)) labels flips?\.", outputs
    ):
        before, after = ([m for a in answers for m in getattr(a, name)] for name in ("before", "after"))
        many = 0 if claim[3] == "none" else int(claim[3])
        wrong += claims(
            margins=is_near(claim[1], fmean(before)) and is_near(claim[2], fmean(after)),
            labels=many == sum(m < 0 for m in after) and int(claim[4]) == len(after),
        )
    elif claim := re.search(rf"move by ({N}) in the mean, at most ({N})", outputs):
        moved = [math.sqrt(2 * max(cost, 0.0)) for cost in truth]
        wrong += claims(moves=is_near(claim[1], fmean(moved)) and is_near(claim[2], max(moved)))
    elif outputs:
        wrong.append(f"nobody judges {outputs!r}")
    return wrong


def judge_recipe(dice):
    chosen = tuple(dice.choice(("int4", "int8", "keep")) for _ in range(dice.randint(1, 6)))
    rules = ("uniform", "weight error")[: dice.randint(0, 2)]
    low, fresh, high = sorted(dice.size() for _ in range(3))
    answer = RecipeAnswer(
        cost="nats a token",
        names=tuple(f"w{i}" for i in range(len(chosen))),
        chosen=chosen,
        bits=dice.uniform(2, 16),
        share=dice.random(),
        predicted=dice.size(),
        fresh=fresh,
        fresh_low=low,
        fresh_high=high,
        measured=dice.size(),
        rules=rules,
        by_rules=tuple(dice.size() for _ in rules),
    )
    ask = RecipeAsk(model="m", window=Window(digest="d", length=8), schemes=("int4", "int8"), size=0.3)
    (found,) = summarise_recipes([kept(ask, answer)])
    parsed, unknown = judged(
        found.sentence,
        rf"m, size 0.3: (?P<parts>.*?) cost (?P<measured>{N}) nats a token, measured on held-out text \(on fresh draws "
        rf"(?P<fresh>{N}), (?P<low>{N}) to (?P<high>{N}); by the draws that chose (?P<predicted>{N})\) at "
        rf"(?P<bits>{N}) bits a "
        rf"number, (?P<share>{N}) % of 16(?:; recipes of this size by rules of thumb: (?P<rules>.+))?\.",
    )
    if parsed is None:
        return unknown
    counts = Counter({part.split()[1]: int(part.split()[0]) for part in parsed["parts"].split(", ")})
    others = [rule.rpartition(" ") for rule in (parsed["rules"] or "").split(", ") if rule]
    return claims(
        how_many_of_each=counts == Counter("kept" if name == "keep" else name for name in chosen),
        the_numbers=is_near(parsed["measured"], answer.measured)
        and is_near(parsed["fresh"], fresh)
        and is_near(parsed["predicted"], answer.predicted)
        and is_near(parsed["bits"], answer.bits)
        and is_near(parsed["share"], 100 * answer.share),
        the_interval=read(parsed["low"])[0] <= read(parsed["fresh"])[0] <= read(parsed["high"])[0],
        the_rules=[rule for rule, _space, _cost in others] == list(rules)
        and all(is_near(cost, exact) for (_r, _s, cost), exact in zip(others, answer.by_rules, strict=True)),
    )


def judge_verified(dice):
    names = tuple(f"w{i}" for i in range(dice.randint(1, 5)))
    predicted = tuple(dice.size() for _ in names)
    measured = tuple(x * dice.choice((1.0, 1.5, 0.1)) for x in predicted)
    answer = VerifyAnswer(
        cost="nats a token",
        names=names,
        predicted=predicted,
        low=tuple(0.8 * x for x in predicted),
        high=tuple(1.2 * x for x in predicted),
        measured=measured,
        at_half=tuple(x * dice.choice((1.0, 2.0)) for x in measured),
        worst=tuple(dice.maybe(x * dice.choice((0.7, 2.0, 9.0)), 0.8) for x in predicted)
        if dice.random() < 0.8
        else (),
    )
    ask = VerifyAsk(model="m", window=Window(digest="d", length=8), schemes=("int4",), count=2)
    (found,) = summarise_verified([kept(ask, answer)])
    parsed, unknown = judged(
        found.sentence,
        rf"m, int4: (?P<many>{N}) errors run truly, (?:rank correlation (?P<rank>−?-?[\d.]+); )?(?P<inside>{N}) "
        rf"inside of their "
        rf"intervals(?:; the error of (?P<first>w\d) costs (?P<cost>{N}), the worst of its size would cost "
        rf"(?P<least>at least )?"
        rf"(?P<worst>{N}) to second order)?(?:; second order ends here: (?P<beyond>.*))?\.",
    )
    if parsed is None:
        return unknown
    inside = sum(a <= x <= b for a, x, b in zip(answer.low, answer.measured, answer.high, strict=True))
    wrong = claims(
        how_many=int(parsed["many"]) == len(names),
        how_many_are_inside=int(parsed["inside"]) == inside,
        a_rank_of_one=(parsed["rank"] is None) == (len(set(predicted)) < 2 or len(set(measured)) < 2),
    )
    if parsed["first"] is not None:
        told = is_below if parsed["least"] else is_near
        wrong += claims(
            the_worst=told(parsed["worst"], answer.worst[0]) and is_near(parsed["cost"], measured[0]),
            # to second order, and not in truth: what was found is no maximum
            the_worst_is_less=parsed["least"] is not None or answer.worst[0] >= measured[0],
        )
    return wrong


# Training


def judge_monitor(dice):
    records = []
    steps, alarming = (10, 20, 30, 40)[: dice.randint(1, 4)], dice.random() < 0.4
    for step in steps:
        for layer in range(dice.randint(1, 2)):
            lower = dice.maybe(dice.size(), 0.85)
            answer = MonitorAnswer(
                lower=lower,
                upper=lower,
                alarm="doubled." if alarming and dice.random() < 0.3 else "",
                overhead=step / 1e3,
            )
            records.append(kept(MonitorAsk(training="t", step=step, layer=layer), answer))
    if dice.random() < 0.5:
        names = (
            "entropy",
            "first_token",
            "sensitivity",
            "largest_query",
            "mean_query",
            "largest_key",
            "mean_key",
            "peaked",
        )
        for step in steps:
            answer = ProbeAnswer(
                largest_logit=dice.maybe(dice.size(), 0.85), overhead=step / 1e3, **dict.fromkeys(names, 0.5)
            )
            records.append(kept(ProbeAsk(training="t", step=step, layer=0, map="head:1"), answer))
    records = dice.some(records)
    layers = [r for r in records if r.ask.kind == "monitor" and r.answer.lower is not None]
    heads = [r for r in records if r.ask.kind == "probe" and r.answer.largest_logit is not None]
    lost = [r for r in records if r not in layers and r not in heads]
    parsed, unknown = judged(
        finding("monitor", records),
        rf"Until step (?P<step>{N}) the largest (?:constant is (?P<c>{N}), of layer (?P<k>\d) at step "
        rf"(?P<s>{N}))?(?:; the largest )?"
        rf"(?:logit is (?P<l>{N}), of layer (?P<j>\d) head \d at step (?P<t>{N}))?(?:; (?P<lost>{N}) readings? "
        rf"(?:is|are) not finite,"
        rf" the first at step (?P<from>{N}))?; (?P<alarms>{N}) alarms?; watching took (?P<overhead>{N}) % of the "
        rf"training time\."
        r"|.* of the kinds? monitor(?:, probe)?\.|.* of the kind probe\.",
    )
    if parsed is None or parsed["step"] is None:
        return unknown + claims(readings_are_left_out=parsed is None or not (layers or heads))
    last = {r.ask.kind: r.answer.overhead for r in sorted(layers + heads, key=lambda r: r.ask.step)}
    at = {(r.ask.kind, r.ask.layer, r.ask.step): r.answer for r in records}
    wrong = claims(
        the_step=read(parsed["step"])[0] == max(r.ask.step for r in layers + heads),
        how_many_alarms=int(parsed["alarms"]) == sum(bool(r.answer.alarm) for r in records),
        the_overhead=is_near(parsed["overhead"], 100 * sum(last.values())),
        what_is_not_finite=int(parsed["lost"] or 0) == len(lost),
        when_it_began=not lost or read(parsed["from"] or "0")[0] == min(r.ask.step for r in lost),
        constants_are_left_out=(parsed["c"] is None) == (not layers),
        logits_are_left_out=(parsed["l"] is None) == (not heads),
    )
    if parsed["c"]:
        most = max(r.answer.lower for r in layers)
        here = at["monitor", int(parsed["k"]), int(parsed["s"])].lower
        wrong += claims(the_largest=here == most and is_below(parsed["c"], most))
    if parsed["l"]:
        most = max(r.answer.largest_logit for r in heads)
        wrong += claims(the_largest_logit=at["probe", int(parsed["j"]), int(parsed["t"])].largest_logit == most)
    return wrong


# Two runs


def judge_compare(dice):
    sides = []
    lengths = sorted(dice.sample((4, 8, 16), dice.randint(1, 2)))
    for _side in range(2):
        records, planned = text_records(dice, lengths=lengths)
        sides.append(as_measurement(dice, records, planned))
    if not all(side.records for side in sides):
        return []
    try:
        found = compare(*sides)
    except Exception as error:  # nothing in common
        return claims(in_common="nothing in common" in str(error))
    said = f"{found.sentence} {found.suffered}".strip()
    parsed, unknown = judged(
        found.sentence,
        rf"No difference is real: of (?P<all>{N}) ratios?, none is told apart from 1(?:; at (?P<zero>{N}) places? a "
        rf"constant is 0)?"
        rf"\.|No difference is real: at (?P<zeros>{N}) places? a constant is 0\."
        rf"|(?P<sure>{N}) differences? of (?P<rows>{N}) (?:is|are) real: (?P<place>.*?) differs most, (?P<most>{N}) "
        rf"times the "
        rf"first \[(?P<low>{N}), (?P<high>{N})\](?:; at (?P<none>{N}) places? a constant is 0)?\.",
    )
    if parsed is None:
        return unknown
    real = [
        row
        for row in found.rows
        if row.ratio and row.ratio.within and not row.ratio.within[0] <= 1 <= row.ratio.within[1]
    ]
    zero = sum(row.ratio is None for row in found.rows)
    wrong = claims(
        none_is_real=(parsed["sure"] is None) == (not real),
        how_many_are_zero=int(parsed["zero"] or parsed["zeros"] or parsed["none"] or 0) == zero,
        how_many_ratios=parsed["all"] is None or int(parsed["all"]) == len(found.rows) - zero,
    )
    if parsed["sure"] is not None:
        far = max(abs(math.log(row.ratio.value)) for row in real)
        most = read(parsed["most"])[0]
        wrong += claims(
            how_many=(int(parsed["sure"]), int(parsed["rows"])) == (len(real), len(found.rows) - zero),
            who_differs_most=any(
                is_near(parsed["most"], row.ratio.value)
                and row.place == parsed["place"]
                and abs(math.log(row.ratio.value)) >= far * (1 - 1e-9)
                for row in real
            ),
            the_interval=read(parsed["low"])[0] <= most <= read(parsed["high"])[0],
            one_is_inside=not read(parsed["low"])[0] <= 1 <= read(parsed["high"])[0],
        )
    if "not told apart" in said:
        apart = re.search(r"not told apart: layers? ([\d, ]+)", said, re.IGNORECASE)[1]
        open_rows = [row for row in found.rows if row.ratio is not None and row not in real]
        wrong += claims(who_is_not_told_apart={int(k) for k in apart.split(", ")} == {row.layer for row in open_rows})
    return wrong


# What stands by itself


@functools.cache
def _one_splitting():
    one = torch.ones(1, 1, dtype=torch.float64)
    return hs.splitting(hs.Attention.single_head(A=-one, V=one), hs.transport.DiscreteMeasure(5 * one), seed=0)


def judge_one_splitting(dice):
    base = dice.size()
    ends = [(low, low * dice.choice((1.0, 1.01, 2.0))) for low in (base, base * dice.choice((1.0, 1.005, 3.0)))]
    moving, split = (
        replace(_one_splitting().moving, lower=torch.tensor(low).double(), upper=torch.tensor(high).double())
        for low, high in ends
    )
    far = dice.maybe(Secant(atom=7, place=torch.ones(1), slope=dice.size()), 0.5)
    found = replace(_one_splitting(), moving=moving, splitting=split, secant=far)
    parsed, unknown = judged(
        repr(found),
        rf"Splitting: move (?P<move>{N}), split (?P<split>{N})(?:, far (?P<far>{N}))?; (?:atom (?P<atom>\d) "
        rf"splits|no atom "
        r"splits)(?P<open> \(within the error bars\))?",
    )
    if parsed is None:
        return unknown
    (move, above), (low, high) = [(float(torch.tensor(a)), float(torch.tensor(b))) for a, b in ends]
    apart = max(low, far.slope if far else 0.0)
    return claims(
        the_numbers=is_below(parsed["move"], move) and is_below(parsed["split"], low),
        it_splits=(parsed["atom"] is not None) == (apart > move),
        which_atom=parsed["atom"] is None or (parsed["atom"] == "7") == (far is not None and far.slope > low),
        it_is_open=(parsed["open"] is None) == (apart > above or move >= max(apart, high)),
    )


@functools.cache
def _one_audit():
    one = torch.ones(1, 1, dtype=torch.float64)
    f = hs.Attention.single_head(A=-one, V=one)
    return hs.audit(f, claimed=1.0, n=2, domain=hs.domains.Ball(1.0), starts=1, steps=1, seed=0)


def judge_audit(dice):
    claimed = dice.size(0)
    ratio = dice.choice((claimed * (1 + 1e-9), claimed * 1.00001, dice.size(), claimed))
    pair = replace(_one_audit().pair, ratio=ratio, upper=ratio * dice.choice((1.0, 3.0)))
    found = replace(_one_audit(), claimed=claimed, pair=pair)
    parsed, unknown = judged(
        found.summary,
        rf"(?:refuted: (?P<more>{N}) at an input on .*?, claimed (?P<claimed>{N})|not refuted: largest found "
        rf"(?P<less>{N}) on "
        rf".*? after (?P<products>{N}) products)(?:; the derivative says (?P<slope>{N}), .*)?",
    )
    if parsed is None:
        return unknown
    told = parsed["more"] or parsed["less"]
    return claims(
        refuted=(parsed["more"] is not None) == (ratio > claimed),
        what_was_found=is_below(told, ratio),
        more_than_claimed=parsed["more"] is None or read(told)[0] > read(parsed["claimed"])[0],
    )


def judge_alarm(dice):
    lower, limit = dice.size(0), dice.size(0)
    lower = dice.choice((lower, limit * (1 + 1e-7), limit * 1.001))
    at = {"step": 9, "layer": 1, "map": "attention", "radius": 1.0, "sequences": 1, "length": 4}
    before = LayerReading(lower=limit, upper=limit * 1.01, **at | {"step": 3})
    rule = AlarmRule(window=9, limit=limit)
    alarms = [*rule.alarms(before), *rule.alarms(LayerReading(lower=lower, upper=lower, **at))]
    wrong = []
    for alarm in alarms:
        parsed, unknown = judged(
            str(alarm),
            rf"layer 1 \(attention\) at step 9: the constant is (?P<now>{N}), (?:at least (?P<times>{N}) times the "
            rf"(?P<before>{N}) of step 3|above the limit of (?P<limit>{N})); 4 tokens\.",
        )
        wrong += unknown or claims(
            the_constant=is_below(parsed["now"], lower),
            above_the_limit=parsed["limit"] is None or read(parsed["now"])[0] > read(parsed["limit"])[0],
            so_many_times=parsed["times"] is None
            or (
                read(parsed["times"])[0] * before.upper <= lower * (1 + 1e-12)
                and is_above(parsed["before"], before.upper)
            ),
        )
    return wrong


JUDGES = {
    "measurement": judge_measurement,
    "real": judge_real,
    "robustness": judge_robustness,
    "bounds at windows": judge_bounds,
    "extremal": judge_extremal,
    "bounds and ascent": judge_worst,
    "regimes": judge_regimes,
    "measures": judge_measures,
    "splitting": judge_splitting,
    "whole": judge_whole,
    "attack": judge_attack,
    "certificate": judge_certificate,
    "budget": judge_budget,
    "recipe": judge_recipe,
    "verified": judge_verified,
    "monitor and probe": judge_monitor,
    "compare": judge_compare,
    "splitting of one measure": judge_one_splitting,
    "audit": judge_audit,
    "alarm": judge_alarm,
}


@pytest.mark.parametrize("name", JUDGES)
def test_the_answer_agrees_with_its_rows(name):
    wrong = {run: found for run in range(RUNS) if (found := JUDGES[name](Dice(f"{name} {run}")))}
    assert wrong == {}


def test_every_kind_has_a_judge():
    assert set(kind_names()) <= {"text", *" ".join(JUDGES).replace(" and ", " ").split()}
