"""Runs to report on, of every kind: made up, so that a page is there in a second and its numbers are known."""

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from measured import measurement, record, run_of

from howsmooth.report.page import render
from howsmooth.studies.kinds.tokens_in_ball import Atom, MeasuresAnswer, MeasuresAsk, RegimesAnswer, RegimesAsk
from howsmooth.studies.records import Failure, Record, plan_of, this_machine
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.run import Run
from howsmooth.theory.results import BoundsTable, NotApplicable, lower_bound, upper_bound

LAYERS, LENGTHS, WINDOWS, HEADS = (0, 2, 5), (8, 16, 32), 3, 4
FIGURES = ("regimes", "measures")
TEXT = "alice was beginning to get very tired of sitting by her sister on the bank , and of having nothing to do : "
TOKENS = tuple((TEXT + "once or twice she had peeped into the book").split())[:32]

# As names of files they may not hold a slash; everything else goes.
HOSTILE_MODEL = '<img src=x onerror="window.pwned=1" class=pwned>'
HOSTILE_TEXT = '<b class="pwned">&"x.txt'
HOSTILE_ERROR = "RuntimeError: no room left </script><script>window.pwned=1</script><b class=pwned>"
HOSTILE_TOKENS = (
    "<script>window.pwned=1</script>",
    "</script><img src=x onerror=window.pwned=1 class=pwned>",
    "<!--",
    "<!--<script>",
    "]]>",
    '"><svg onload=window.pwned=1 class=pwned>',
    "'><b class=pwned>",
    "</title></style></textarea><i class=pwned>",
    "&lt;b&gt;&#x3c;",
    "\\u003cb class=pwned>",
    "{{7*7}}",
    "${window.pwned=1}",
    "javascript:window.pwned=1",
    "__proto__",
    "constructor",
    "a\u2028b",
    "\u202eevil",
    "W" * 300,
)
LADDER = BoundsTable(
    bounds=(
        lower_bound(math.log(2559.0), "sharp_lower", "tokens in a ball", "a theorem"),
        upper_bound(math.log(14942.0), "sharp_upper", "tokens in a ball", "a theorem"),
    )
)
NO_LADDER = BoundsTable(
    bounds=(), refused=(NotApplicable(name="all", reason="the theorems are about attention alone."),)
)
COMMAND = "howsmooth measure minilm --layers 0,2,5 --lengths 8,16,32 --sequences 3"


def _shares(layer: int, length: int, turn: int) -> tuple[float, ...]:
    """Return shares that differ from token to token and from layer to layer."""
    raw = [1.0 + ((7 * i + 3 * layer + turn) % length) ** 2 for i in range(length)]
    return tuple(share / sum(raw) for share in raw)


def _at(layer: int, length: int, window: int, *, part: str = "attention", model: str = "minilm") -> Record:
    wave = 1 + 0.04 * math.sin(3 * window + layer + length)
    scale = 1.0 + int(part.partition(":")[2] or 0)
    return record(
        layer,
        length,
        window,
        part=part,
        model=model,
        lower=scale * (2 + layer) * length ** (0.05 * (1 + layer)) * wave,
        sensitivity=_shares(layer, length, 0),
        response=_shares(layer, length, 5),
        mean_radius=(9 + layer) * wave,
    )


def _measured(*, part: str = "attention", heads: bool = False, ladder: BoundsTable = LADDER) -> Measurement:
    records = [_at(layer, n, w, part=part) for layer in LAYERS for n in LENGTHS for w in range(WINDOWS)]
    single = [
        _at(layer, LENGTHS[-1], w, part=f"head:{head}")
        for layer in LAYERS
        for head in range(HEADS if heads else 0)
        for w in range(WINDOWS)
    ]
    openings = {(n, w): TOKENS[w : w + 8] for n in LENGTHS for w in range(WINDOWS)}
    found = measurement(records, heads=single, tokens=TOKENS, text="alice", map=part, openings=openings)
    return with_ladder(found, ladder)


def with_ladder(found: Measurement, ladder: BoundsTable) -> Measurement:
    """Return a measurement all of whose layers have the same bounds."""
    return dataclasses.replace(found, layers=tuple(dataclasses.replace(layer, ladder=ladder) for layer in found.layers))


def _small() -> Run:
    """Three layers of a model on a text, every head too."""
    return run_of(_measured(heads=True), commands=(COMMAND,))


def _two_maps() -> Run:
    """The same, and another map beside it."""
    other = _measured(part="residual", ladder=NO_LADDER)
    return run_of(_measured(), other, commands=(COMMAND, f"{COMMAND} --map residual"))


def _single() -> Run:
    """One layer, one length, one window: nothing grows."""
    return run_of(measurement([_at(0, 16, 0)], text="alice", tokens=TOKENS[:16]), commands=(COMMAND,))


def _hostile() -> Run:
    """Names and tokens made of HTML and script tags."""
    records = [_at(layer, n, w, model=HOSTILE_MODEL) for layer in (0, 1) for n in (8, 32) for w in (0, 1)]
    single = [
        _at(layer, 32, w, part=f"head:{h}", model=HOSTILE_MODEL) for layer in (0, 1) for h in range(3) for w in (0, 1)
    ]
    tokens = (HOSTILE_TOKENS * 2)[:32]
    openings = {(n, w): tokens[w : w + 8] for n in (8, 32) for w in (0, 1)}
    found = measurement(records, heads=single, text=HOSTILE_TEXT, tokens=tokens, openings=openings)
    return run_of(with_ladder(found, LADDER), commands=(f"howsmooth measure '{HOSTILE_MODEL}'",))


def _paper() -> Run:
    """Two figures of the paper."""
    head = {"A": ((-1.0,),), "V": ((1.0,),)}
    first = [
        (RegimesAsk(length=n, radius=radius, **head), min(n**0.5, 30.0 * radius), 40.0 * radius)
        for radius in (1.5, 2.0)
        for n in (3, 10, 100, 1000, 10_000, 100_000)
    ]
    walked = [
        Record(
            ask=ask,
            answer=RegimesAnswer(lower=low, upper=3 * low, crossing=900.0, plateau=plateau, measures_upper=2 * plateau),
            machine=this_machine(),
        )
        for ask, low, plateau in first
    ]
    found = [
        Record(
            ask=MeasuresAsk(length=atoms, radius=2.0, **head),
            answer=MeasuresAnswer(
                lower=10.0 + atoms,
                atoms=tuple(
                    Atom(mass=mass, coordinate=place, norm=abs(place))
                    for mass, place in ((0.9, 2.0), (0.1 / (atoms - 1), -2.0), (0.1 / (atoms - 1), 0.5))[:atoms]
                ),
            ),
            machine=this_machine(),
        )
        for atoms in (2, 3)
    ]
    command = f"howsmooth paper {' '.join(FIGURES)} --quick"
    plans = [
        plan_of(tuple(r.ask for r in some), figure=name, command=command)
        for name, some in zip(FIGURES, (walked, found), strict=True)
    ]
    return run_of(records=(*walked, *found), plans=plans, commands=(command,))


def _interrupted() -> Run:
    """The small run, stopped before its end: the longest windows of layer 5 are missing, one of them failed."""
    (whole,) = _small().measurements
    lost = [r for r in whole.records if r.ask.layer == 5 and r.ask.length == 32]
    kept = [r for r in whole.records if r not in lost]
    single = [r for r in whole.heads if r.ask.layer != 5]
    found = measurement(kept, heads=single, text="alice", tokens=TOKENS, openings=whole.openings, planned=whole.planned)
    failure = Failure(ask=lost[0].ask, error=HOSTILE_ERROR)
    return run_of(with_ladder(found, LADDER), failures=(failure,), commands=(COMMAND,))


def _apart() -> Run:
    """Two layers that were stopped so early that they have no length in common."""
    records = [_at(layer, n, w) for layer, n in ((0, 8), (2, 16)) for w in range(2)]
    return run_of(measurement(records, text="alice", tokens=TOKENS[:16], planned=12), commands=(COMMAND,))


KINDS: dict[str, Callable[[], Run]] = {
    "small": _small,
    "two maps": _two_maps,
    "single": _single,
    "hostile": _hostile,
    "paper": _paper,
    "interrupted": _interrupted,
    "apart": _apart,
}
MEASURED = tuple(name for name in KINDS if name != "paper")


@dataclasses.dataclass(frozen=True)
class Made:
    """A run and its page."""

    run: Run
    path: Path

    @cached_property
    def report(self) -> Path:
        """The page, written when it is first asked for."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(render(self.run), encoding="utf-8")
        return self.path


class Runs:
    """Every run, made when it is first asked for."""

    def __init__(self, place: Path) -> None:
        self._made = {name: Made(make(), place / f"run {name} #1 &amp; 100%.html") for name, make in KINDS.items()}

    def report(self, name: str) -> Path:
        """Return the page of a run."""
        return self._made[name].report

    def measurement(self, name: str, place: int = 0) -> Measurement:
        """Return a measurement of a run."""
        return self._made[name].run.measurements[place]

    def measurements(self, name: str) -> tuple[Measurement, ...]:
        """Return all of them."""
        return self._made[name].run.measurements

    def records(self, name: str) -> tuple[Record, ...]:
        """Return the records of a run."""
        return self._made[name].run.records
