"""Sections whose records were never found, and what a chart draws of them."""

import math

from measured import changed, grid, heads, measurement, record

from howsmooth.report.sections import Section, section_of
from howsmooth.studies.kinds.attack import AttackAnswer, AttackAsk
from howsmooth.studies.kinds.certified_radii import CertificateAnswer, CertificateAsk
from howsmooth.studies.kinds.monitor import MonitorAnswer, MonitorAsk, ProbeAnswer, ProbeAsk
from howsmooth.studies.kinds.text import SplittingAnswer, SplittingAsk, TextAnswer, WholeAsk
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
from howsmooth.studies.records import Record, this_machine
from howsmooth.studies.settings import Window

LENGTHS = (4, 8, 16, 32)
LINE, PLANE = ((-1.0,),), ((-1.0, 0.0), (0.0, -1.0))


def _record(ask, answer):
    return Record(ask=ask, answer=answer, machine=this_machine())


def built(points, part, n, *, lower, head=0, model="minilm"):
    """Return the constant at an input that is built from a head."""
    ask = ExtremalAsk(model=model, layer=2, map=part, points=points, head=head, length=n, radius=3.0)
    return _record(ask, TextAnswer(lower=lower, upper=1.001 * lower))


def inputs(points=("two_point", "tied_pair"), parts=("head:0", "attention")):
    """Return constants that grow like the root of the length."""
    rates = {"two_point": 1.5, "tied_pair": 4.0}
    return [built(p, part, n, lower=rates[p] * math.sqrt(n)) for p in points for part in parts for n in LENGTHS]


def proven(n, radius, **others):
    """Return bounds of known sizes."""
    names = ("discrete_lower", "sharp_lower", "two_point", "tied_pair", "sharp_upper", "discrete_upper")
    numbers = {name: (i + 1) * math.sqrt(n) * radius for i, name in enumerate(names)} | others
    return _record(BoundsAsk(model="minilm", layer=2, length=n, radius=radius), BoundsAnswer(**numbers))


def climbed(n, radius=12.0, lower=9.0):
    """Return what a search found."""
    return _record(AscentAsk(model="minilm", layer=2, length=n, radius=radius), AscentAnswer(lower=lower))


def regime(n, *, A=LINE, radius=2.0, crossing=100.0, plateau=10.0, **others):
    """Return a constant that rises like the root of the length until measures attain it."""
    value = plateau * min(1.0, math.sqrt(n / crossing))
    numbers = {"upper": 4 * value, "crossing": crossing, "plateau": plateau, "measures_upper": 3 * plateau} | others
    return _record(RegimesAsk(A=A, V=A, length=n, radius=radius), RegimesAnswer(lower=value, **numbers))


def two_regimes():
    """Return the regimes of two heads."""
    return [
        *(regime(n) for n in (3, 5, 10, 100, 1000, 10_000)),
        *(regime(n, A=PLANE, crossing=1e6, plateau=50.0) for n in (10, 100, 1000)),
    ]


def cut(layer, part="attention", *, move=2.0, split=1.0, w=0):
    """Return what splitting gains at a window."""
    ask = SplittingAsk(model="minilm", layer=layer, map=part, window=Window(digest="d", length=32, index=w))
    answer = SplittingAnswer(
        move=move,
        split=split,
        splits=split > move,
        decided=True,
        atom=0,
        move_ratio=1.01 * move,
        split_ratio=split,
        mean_radius=5.0,
        reach=9.0,
    )
    return _record(ask, answer)


def measure(*atoms, A=LINE, lower=165.8):
    """Return a measure by its masses and places."""
    found = tuple(Atom(mass=mass, coordinate=place, norm=abs(place)) for mass, place in atoms)
    ask = MeasuresAsk(A=A, V=A, length=len(atoms), radius=2.0)
    return _record(ask, MeasuresAnswer(lower=lower, atoms=found))


def piece(layer, part, *, lower, blocks=1, typical=0.5, length=16, model="minilm", w=0):
    """Return the constant of some blocks at a window."""
    window = Window(digest="d", length=length, index=w)
    ask = WholeAsk(model=model, layer=layer, map=part, window=window, blocks=blocks)
    return _record(ask, TextAnswer(lower=lower, upper=1.001 * lower, typical=typical))


def pieces(blocks=(4.0, 10.0, 5.0), *, together=(4.0, 6.0, 7.0), onward=(7.0, 9.0, 5.0), **place):
    """Return a whole model whose blocks have known constants."""
    found = []
    for layer, (block, to, rest) in enumerate(zip(blocks, together, onward, strict=True)):
        found.append(piece(layer, "block", lower=block, **place))
        if layer < len(blocks) - 1:
            found.append(piece(0, f"to:{layer}", lower=to, **place))
        if layer > 0:
            found.append(piece(layer, f"from:{layer}", lower=rest, **place))
    return [*found, piece(0, "model", lower=onward[0], blocks=len(blocks), **place)]


def attacks(*, lower=4.0, ceiling=50.0, eps=(0.1, 1.0, 10.0), layers=2):
    """Return attacks on layers that are linear until some radius."""
    methods = ("random", "fgsm", "pgd", "singular", "ascent")
    return [
        _record(
            AttackAsk(model="m", layer=k, window=Window(digest="d", length=8, index=w), eps=e, method=method),
            AttackAnswer(attained=lower * share * (1 + e / 20), predicted=lower, ceiling=ceiling and ceiling * e),
        )
        for k in range(layers)
        for w in range(2)
        for e in eps
        for share, method in zip((0.1, 0.8, 0.9, 0.99, 1.0), methods, strict=True)
    ]


def certificates(*, words=("a", "gripping", "film"), scale=1.0, attacked=True, together=True):
    """Return certificates of the words of a sentence: the further behind, the more may they move."""
    groups = [(i + 1,) for i in range(len(words))] + [tuple(range(1, len(words) + 1))] * together
    return [
        _record(
            CertificateAsk(model="reviews", sentence=" ".join(words), word=places),
            CertificateAnswer(
                spelled=" ".join(words[i - 1] for i in places),
                places=places,
                certified=0.01 * scale * sum(places),
                attacked=0.1 * sum(places) if attacked else None,
                linear=1.0,
                slack="classifier",
                predicted="good",
                margin=4.0,
                tokens=len(words) + 2,
            ),
        )
        for places in groups
    ]


def watched(*, layers=2, steps=(10, 20, 30), lower=2.0, alarm=""):
    """Return what a monitor read while constants grew."""
    return [
        _record(
            MonitorAsk(training="mine", step=step, layer=k),
            MonitorAnswer(
                lower=lower and lower * (k + 1) * step,
                upper=lower and 1.05 * lower * (k + 1) * step,
                alarm=alarm if step == steps[-1] else "",
                overhead=0.01,
            ),
        )
        for k in range(layers)
        for step in steps
    ]


PROBED = ("entropy", "first_token", "sensitivity", "largest_query", "mean_query", "largest_key", "mean_key", "peaked")


def probed(*, steps=(10, 20), logit=3.0):
    """Return what a probe read of two heads of two layers."""
    return [
        _record(
            ProbeAsk(training="mine", step=step, layer=k, map=f"head:{head}"),
            ProbeAnswer(
                largest_logit=logit and logit * step * (1 + head),
                alarm="doubled" if step == 20 else "",
                overhead=0.01,
                **dict.fromkeys(PROBED, 0.5),
            ),
        )
        for k in range(2)
        for head in range(2)
        for step in steps
    ]


def section(name, records=(), measured=()):
    """Return a section of a name."""
    return Section(name=name, title="t", records=tuple(records), measurements=tuple(measured), prefix=f"{name}-")


def real(model="m", **fields):
    """Return a measurement as the paper's figures ask for it."""
    return measurement(grid(lengths=LENGTHS, model=model, **fields))


WHOLE = {
    "measurement": section_of(measurement(grid(local_upper=30.0, released_quantity=0.5), heads=heads())),
    "real": section("real", measured=(real("a", released_quantity=3.0), real("b", released_quantity=3.0))),
    "adversarial": section("adversarial", inputs()),
    "worst": section(
        "worst", [*(proven(n, 12.0) for n in LENGTHS), *(proven(8, r) for r in (1.0, 2.0, 4.0, 8.0, 16.0)), climbed(4)]
    ),
    "regimes": section("regimes", two_regimes()),
    "transition": section("transition", two_regimes()),
    "splitting": section(
        "splitting", [cut(k, part, w=w) for k in range(3) for part in ("attention", "head:3") for w in range(2)]
    ),
    "measures": section("measures", [measure((0.9, 2.0), (0.1, -2.0)), measure((0.9, 2.0), (0.1, -1.0), (1e-9, -2.0))]),
    "whole": section("whole", [*pieces(), *pieces(w=1), *pieces((1e200,) * 3, model="deep", length=8)]),
    "attack": section("attack", attacks()),
    "certificate": section("certificate", [*certificates(), *certificates(words=("dull",), together=False)]),
    "robustness": section("robustness", measured=(real(stride=32),)),
    "monitor": section("monitor", [*watched(alarm="layer 1 doubled."), *probed()]),
    "bounds": section("bounds", measured=(real(local_upper=30.0),)),
}
# What is left of a section when much is missing.
PARTS = {
    "one layer": section_of(measurement(grid(layers=1), heads=heads(layers=1, count=1))),
    "one length": section_of(measurement(grid(lengths=(8,)), heads=heads(length=8))),
    "one record": section_of(measurement([record(0, 4, 0, lower=10.0)])),
    "a zero": section_of(
        measurement([*grid(windows=2), *(record(k, n, 2, lower=0.0) for k in (0, 1) for n in (4, 8))])
    ),
    "zeros only": section_of(
        measurement(grid(lower=0.0), heads=[record(0, 16, 0, part="head:0", lower=0.0)], tokens=())
    ),
    "no gains of random perturbations": section_of(measurement(grid(typical=None))),
    "real, one record": section("real", measured=(measurement([record(0, 8, 0)]),)),
    "adversarial, single head": section("adversarial", inputs(parts=("head:0",))),
    "adversarial, one kind": section("adversarial", inputs(points=("tied_pair",))),
    "adversarial, a zero": section("adversarial", [*inputs(), built("two_point", "head:0", 64, lower=0.0)]),
    "worst, ascent only": section("worst", [climbed(4), climbed(8)]),
    "worst, one record": section("worst", [proven(8, 12.0)]),
    "worst, no paper's lower": section("worst", [proven(n, 12.0, discrete_lower=None) for n in LENGTHS]),
    "worst, no bound applies": section(
        "worst", [proven(n, 1.0, sharp_upper=None, discrete_upper=None) for n in LENGTHS]
    ),
    "regimes, one record": section("regimes", [regime(10)]),
    "regimes, no upper bound": section("regimes", [regime(n, upper=None) for n in LENGTHS]),
    "regimes, beyond floats": section(
        "regimes", [changed(regime(n), crossing=None, plateau=None, upper=None) for n in LENGTHS]
    ),
    "splitting, nothing moves": section("splitting", [cut(0), cut(1, move=0.0)]),
    "measures, one atom": section("measures", [measure((1.0, 0.5))]),
    "robustness, no shares": section("robustness", measured=(real(stride=32, sensitivity=()),)),
    "robustness, zeros at the shortest": section(
        "robustness", measured=(measurement([record(0, 4, 0, lower=0.0), record(0, 8, 0)]),)
    ),
    "attack, one radius, no ceiling": section("attack", attacks(ceiling=None, eps=(1.0,), layers=1)),
    "certificate, nothing proven": section("certificate", certificates(scale=0.0)),
    "certificate, nothing found": section("certificate", certificates(attacked=False)),
    "certificate, all words alone": section("certificate", certificates()[-1:]),
    "attack, nothing moves": section("attack", attacks(lower=0.0, ceiling=None)),
    "monitor, one layer and step": section("monitor", watched(layers=1, steps=(10,))),
    "monitor, nothing finite": section("monitor", [*watched(lower=None), *probed(logit=None)]),
    "probe alone": section("monitor", probed()),
    "transition, one record": section("transition", [regime(10)]),
}
EVERY = WHOLE | PARTS


def rows_of(chart, **wanted):
    """Return the rows that a chart draws, those with the wanted fields, each once."""
    found = {tuple(sorted(row.items())): row for values in _data(chart.to_dict(validate=False)) for row in values}
    return [row for row in found.values() if all(row.get(name) == value for name, value in wanted.items())]


def pairs(rows):
    """Return where rows are drawn."""
    return [(row["x"], row["y"]) for row in rows]


def title_of(chart):
    """Return what a chart says that it shows."""
    title = chart.to_dict(validate=False)["title"]
    text = title["text"] if isinstance(title, dict) else title
    return " ".join(text) if isinstance(text, list) else text


def panels_of(chart):
    """Return the labels of the panels, in their order."""
    return chart.to_dict(validate=False)["facet"]["sort"]


def _data(part):
    if isinstance(part, dict):
        data = part.get("data") or {}
        yield from [data["values"]] if "values" in data else []
        for child in part.values():
            yield from _data(child)
    elif isinstance(part, list):
        for child in part:
            yield from _data(child)
