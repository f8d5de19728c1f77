"""Where something was measured, and how it grows there: layers of models, with the laws that were fitted."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from howsmooth.report.drawing.scales import drawable
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.growth import Growth
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.wording import exponent, number

# What is drawn of a window.
Value = Callable[[TextRecord], float | None]
NO_LAW = "no power law"


def constant(record: TextRecord) -> float:
    """Return what the worst perturbation is multiplied by."""
    return record.answer.lower


def radius(record: TextRecord) -> float:
    """Return the mean radius of the tokens."""
    return record.answer.mean_radius


def certificate(record: TextRecord) -> float | None:
    """Return what is proven at the window."""
    return record.answer.local_upper


def released(record: TextRecord) -> float | None:
    """Return what the paper's released scripts compute."""
    return record.answer.released_quantity


@dataclass(frozen=True, kw_only=True)
class Place:
    """A layer that was measured.

    Attributes:
        name: What to call it.
        measurement: Where its numbers come from.
        summary: The answer for it.
        records: Every window, shorter ones first.
    """

    name: str
    measurement: Measurement
    summary: LayerSummary
    records: tuple[TextRecord, ...]

    @property
    def lengths(self) -> list[int]:
        """The lengths that were measured there."""
        return sorted({record.ask.length for record in self.records})

    def means(self, value: Value) -> list[tuple[int, float]]:
        """Return the geometric mean over windows of something at each length that has it."""
        found = []
        for n in self.lengths:
            here = (value(r) for r in self.records if r.ask.length == n)
            positive = [v for v in here if v is not None and drawable(v)]
            found += [(n, geometric_mean(positive))] if positive else []
        return found

    def change(self, value: Value) -> list[float]:
        """Return the mean at the longest length over that at the shortest, or nothing."""
        means = self.means(value)
        return [means[-1][1] / means[0][1]] if len(means) > 1 else []


def places(section: Section) -> list[Place]:
    """Return every layer of every measurement of a section; models and maps are named where there are several."""
    told = [part for part in ("model", "map", "text") if len({getattr(m, part) for m in section.measurements}) > 1]
    return [
        Place(
            name=", ".join((*(_short(getattr(m, part)) for part in told), f"layer {summary.layer}")),
            measurement=m,
            summary=summary,
            records=tuple(sorted(m.at(layer=summary.layer), key=lambda r: (r.ask.length, r.ask.window.index))),
        )
        for m in section.measurements
        for summary in m.layers
    ]


def law_in_words(law: Growth | None) -> str:
    """Write an exponent with its interval, where that shows any scatter; or that no power law describes the data."""
    if law is None:
        return "one length"
    if law.doubted:
        return f"{NO_LAW} (n^{exponent(law.exponent)} at best)"
    sharp = math.isclose(law.low, law.high, abs_tol=1e-9)
    return f"n^{exponent(law.exponent)}" + ("" if sharp else f" [{exponent(law.low)}, {exponent(law.high)}]")


def laws_in_words(laws: Iterable[tuple[str, Growth | None]]) -> str:
    """Say in a clause how something changes at several places: the slowest and the fastest, and who follows no law."""
    found = [(name, law) for name, law in laws if law is not None]
    told = sorted(((law.exponent, name) for name, law in found if not law.doubted), key=lambda pair: pair[0])
    doubted = [name for name, law in found if law.doubted]
    said = []
    if told:
        ends = {exponent(slope): name for slope, name in (told[-1], told[0])}
        named = len(found) > 1
        each = [f"n^{slope}" + (f" ({name})" if named and len(ends) > 1 else "") for slope, name in ends.items()]
        said.append(f"changes like {' to '.join(reversed(each))}")
    if doubted and told:
        many = f"{len(doubted)} of {len(found)} follow"
        said.append(f"{f'{doubted[0]} follows' if len(doubted) == 1 else many} {NO_LAW}")
    elif doubted:
        said.append(f"follows {NO_LAW}" + ("" if len(found) == 1 else " anywhere"))
    return "; ".join(said)


def factors(found: Sequence[float]) -> str:
    """Write by which factors something changes."""
    if not found:
        return "an unknown factor"
    return "a factor " + " to ".join(dict.fromkeys(number(end) for end in (min(found), max(found))))


def _short(name: str) -> str:
    """Return the last part of a path or of a name on a hub."""
    return name.rstrip("/").rpartition("/")[2] or name
