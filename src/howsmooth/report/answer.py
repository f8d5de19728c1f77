"""The answer on top of a report: which layers are smooth and which are not, in two sentences and one table."""

from collections.abc import Sequence
from dataclasses import dataclass

from howsmooth.report.wording import exponent_digits
from howsmooth.studies.measurement import LayerSummary, Measurement
from howsmooth.studies.reading import Run


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """What is known about one layer, and of which measurement.

    Attributes:
        measurement: Where the numbers come from.
        layer: The numbers.
        label: What to call the layer in a sentence.
        share: The constant relative to the largest one of the table.
        mark: What stands out about it, if anything.
    """

    measurement: Measurement
    layer: LayerSummary
    label: str
    share: float
    mark: str = ""

    @property
    def exponent(self) -> str:
        """The growth with its interval, in words."""
        growth = self.layer.growth
        if growth is None:
            return "—"
        return f"{exponent_digits(growth.exponent)} [{exponent_digits(growth.low)}, {exponent_digits(growth.high)}]"

    @property
    def radius(self) -> str:
        """The mean radius, and the longest token."""
        reach = self.layer.reach
        return f"{self.layer.radius:.3g}" + ("" if reach is None else f" (≤ {reach:.3g})")

    @property
    def sharp_upper(self) -> str:
        """The sharp bound, in words."""
        bound = self.layer.sharp_upper
        return "—" if bound is None else _times(bound, digits=3)

    @property
    def headroom(self) -> str:
        """How far the sharp bound is away, in words."""
        room = self.layer.headroom
        return "—" if room is None else f"{_times(room)}×"


def answer_rows(run: Run) -> list[AnswerRow]:
    """Return a row for each layer of each measurement at consecutive windows, in their order."""
    found = [(m, layer) for m in run.measurements if m.records[0].task.stride == 0 for layer in m.layers]
    names = _names([m for m, _layer in found])
    most = max((layer.constant for _m, layer in found), default=1.0) or 1.0
    least = min((layer.constant for _m, layer in found), default=1.0)
    rows = []
    for m, layer in found:
        mark = "least smooth" if layer.constant == most else "smoothest" if layer.constant == least else ""
        label = f"layer {layer.layer}{names[id(m)]}"
        share = layer.constant / most
        rows.append(
            AnswerRow(measurement=m, layer=layer, label=label, share=share, mark=mark if len(found) > 1 else "")
        )
    return rows


def sentences(rows: Sequence[AnswerRow], run: Run) -> tuple[str, str]:
    """Say what was found in two sentences: who is smooth and who is not; how it grows, and what room there is."""
    if not rows:
        return (
            f"This run holds {len(run.records)} records and no measurement on a text.",
            f"They are drawn below: {', '.join(run.figures) or 'there is nothing to draw'}.",
        )
    return _first(rows), f"{_growth(rows)}, {_room(rows)}."


def _first(rows: Sequence[AnswerRow]) -> str:
    worst = max(rows, key=lambda row: row.layer.constant)
    layer = worst.layer
    windows = len(worst.measurement.at(layer=layer.layer, length=layer.length))
    spread = f" ({layer.least:.3g} to {layer.most:.3g} over {windows} windows)" if windows > 1 else ""
    moved = (
        f"a small perturbation of the {layer.length} tokens that enter it can move its output "
        f"{layer.constant:.3g} times as far{spread}"
    )
    if len(rows) == 1:
        return f"In {worst.label}, {moved}."
    best = min(rows, key=lambda row: row.layer.constant)
    rivals = [row.label for row in rows if row is not worst and row.layer.most >= layer.least]
    close = f", with {rivals[0]} within its range" if len(rivals) == 1 else ""
    close = f", with {len(rivals)} others within its range" if len(rivals) > 1 else close
    end = f"; the smoothest is {best.label}, with {best.layer.constant:.3g}."
    return f"The least smooth is {worst.label}{close}: {moved}{end}"


def _growth(rows: Sequence[AnswerRow]) -> str:
    exponents = [(row.layer.growth.exponent, row) for row in rows if row.layer.growth is not None]
    if not exponents:
        return "Nothing is said about growth, since no layer was measured at several lengths"
    slowest, fastest = (choose(exponents, key=lambda pair: pair[0])[1] for choose in (min, max))
    if slowest is fastest:
        return f"With the number of tokens n the constant changes like n to the power {fastest.exponent}"
    return (
        f"With the number of tokens n the constant changes like n to the power {slowest.exponent} ({slowest.label}) "
        f"up to {fastest.exponent} ({fastest.label})"
    )


def _room(rows: Sequence[AnswerRow]) -> str:
    rooms = [row.layer.headroom for row in rows if row.layer.headroom is not None]
    if not rooms:
        known = any(row.layer.ladder.refused for row in rows)
        return "and no theorem bounds these maps over all inputs" if known else "and no bounds were computed"
    ends = list(dict.fromkeys(_times(end) for end in (min(rooms), max(rooms))))
    return f"and the sharp bound for any tokens of that radius is {' to '.join(ends)} times what the text attains"


def _names(measurements: Sequence[Measurement]) -> dict[int, str]:
    """Return what tells measurements apart, to be said behind a layer: nothing if there is one."""
    told = {id(m): m for m in measurements}
    differ = [part for part in ("model", "text", "map") if len({getattr(m, part) for m in told.values()}) > 1]
    forms = {"model": " of {}", "text": " on {}", "map": " ({})"}
    return {key: "".join(forms[part].format(getattr(m, part)) for part in differ) for key, m in told.items()}


def _times(factor: float, digits: int = 2) -> str:
    if factor >= 1e7:
        return f"{factor:.{digits - 1}e}"
    rounded = float(f"{factor:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:g}"
