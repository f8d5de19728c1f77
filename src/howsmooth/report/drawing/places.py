"""Where something was measured: windows of a text, layers of models with fitted laws, explicit heads in a ball."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import altair as alt

from howsmooth.report.drawing.palette import BLUE, ORANGE
from howsmooth.report.drawing.panels import Mark, Style, points, series_panels
from howsmooth.report.drawing.scales import drawable, length_axis
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, extent
from howsmooth.report.drawing.token_text import running_text
from howsmooth.report.sections import Section
from howsmooth.studies.asks import AboutHead, Matrix
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.records import Record
from howsmooth.studies.runs.growth import Growth
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.wording import exponent, interval, number, percent

TOLD = (
    alt.Tooltip("layer:Q", title="layer"),
    alt.Tooltip("error:N", title="error bar"),
    alt.Tooltip("radius:Q", title="mean radius", format=",.4~r"),
    alt.Tooltip("window:Q", title="window"),
    alt.Tooltip("begins:N", title="sequence"),
)


def described(measurement: Measurement, record: TextRecord) -> dict[str, Any]:
    """Return what is told of one window: the error bar of its constant, and which sequence it is."""
    opening = measurement.openings.get((record.ask.length, record.ask.window.index), ())
    return {
        "layer": record.ask.layer,
        "window": record.ask.window.index,
        "error": error_bar(record),
        "radius": record.answer.mean_radius,
        "begins": f"{running_text(opening)} …" if opening else "—",
    }


def error_bar(record: TextRecord) -> str:
    """Write both ends of one constant, and with which probability the upper one holds."""
    answer = record.answer
    worth = "" if answer.upper is None else f" ({percent(record.ask.solver.confidence)})"
    return f"{interval(answer.lower, answer.upper, 5)}{worth}"


# What is drawn of a window.
WindowValue = Callable[[TextRecord], float | None]
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
class MeasuredLayer:
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

    def means(self, value: WindowValue) -> list[tuple[int, float]]:
        """Return the geometric mean over windows of something at each length that has it."""
        found = []
        for n in self.lengths:
            here = (value(r) for r in self.records if r.ask.length == n)
            positive = [v for v in here if v is not None and drawable(v)]
            found += [(n, geometric_mean(positive))] if positive else []
        return found

    def change(self, value: WindowValue) -> list[float]:
        """Return the mean at the longest length over that at the shortest, or nothing."""
        means = self.means(value)
        return [means[-1][1] / means[0][1]] if len(means) > 1 else []


def places(section: Section) -> list[MeasuredLayer]:
    """Return every layer of every measurement of a section; models and maps are named where there are several."""
    told = [part for part in ("model", "map", "text") if len({getattr(m, part) for m in section.measurements}) > 1]
    return [
        MeasuredLayer(
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
    return "a factor " + extent(found)


def _short(name: str) -> str:
    """Return the last part of a path or of a name on a hub."""
    return name.rstrip("/").rpartition("/")[2] or name


WINDOW, MEAN = "a window", "geometric mean"


def window_panels(found: Sequence[MeasuredLayer], value: WindowValue, *, mark: Mark, up: str, title: str) -> Chart:
    """Draw a panel for each layer."""
    rows: Rows = []
    for place in found:
        at = {"panel": place.name, "layer": place.summary.layer}
        for r in place.records:
            rows += points([(r.ask.length, value(r))], series=WINDOW, **at | described(place.measurement, r))
        rows += points(place.means(value), series=MEAN, **at)
    styles = {WINDOW: Style(mark=mark, colour=BLUE, width=1.0), MEAN: Style(mark="line", colour=ORANGE)}
    axis = length_axis(n for place in found for n in place.lengths)
    return series_panels(rows, styles, across="number of tokens n", up=up, axis=axis, title=title, told=TOLD)


def window_table(found: Sequence[MeasuredLayer], value: WindowValue, what: str) -> Numbers:
    """Return a row for each layer and length that has the value."""
    rows: list[NumberRow] = []
    for place in found:
        for n, mean in place.means(value):
            here = [v for r in place.records if r.ask.length == n and (v := value(r))]
            numbers = (number(end, 4) for end in (min(here), mean, max(here)))
            rows.append((place.summary.layer, (place.name, number(n), str(len(here)), *numbers)))
    return Numbers(
        head=("where", "tokens", "windows", f"smallest {what}", f"mean {what}", f"largest {what}"), rows=rows
    )


def cases(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each head and radius by what to call them, shorter ones first."""
    groups: dict[tuple[str, int, str, int, Matrix, float], list[Record]] = {}
    for r in sorted(records, key=lambda r: r.ask.length):
        ask: AboutHead = r.ask
        groups.setdefault((ask.model, ask.layer, ask.map, len(ask.A), ask.A, ask.radius), []).append(r)
    return {_case_name(found[0].ask): found for _key, found in sorted(groups.items())}


def _case_name(ask: AboutHead) -> str:
    head = f"{ask.model}, layer {ask.layer}, {ask.map}" if ask.model else f"A = {_matrix(ask.A)}"
    return f"{head}, R = {number(ask.radius)}"


def _matrix(A: Matrix) -> str:
    """Write a multiple of the identity as such, and of any other matrix its size."""
    d = len(A)
    a = A[0][0] if A else 0.0
    multiple = all(value == (a if i == j else 0.0) for i, row in enumerate(A) for j, value in enumerate(row))
    return number(a) if d == 1 else f"{number(a)}·I ({d}×{d})" if multiple else f"{d}×{d}"
