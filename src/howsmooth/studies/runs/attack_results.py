"""What attacks attained, for each radius and method, and where linearity ends."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from rich.console import Console, ConsoleOptions, RenderableType

from howsmooth.studies.json_values import to_json
from howsmooth.studies.kinds.attack import AttackRecord
from howsmooth.studies.runs.result_table import fitted
from howsmooth.wording import at_least, at_most, count, number

# Linearity ends where what is attained is so far from what is predicted.
LEAVES = 0.1
# Columns that leave a narrow terminal, the first ones first.
EXPENDABLE = ("passes", "windows", "attained / predicted")


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """What one method attained with one radius: means over the windows, for each unit of eps.

    Attributes:
        eps: The radius.
        method: The method.
        attained: How far the output moved.
        predicted: What the derivative predicts.
        ceiling: What the theory allows; none if it says nothing.
        products: The most passes that were spent.
        windows: At how many windows.
    """

    eps: float
    method: str
    attained: float
    predicted: float
    ceiling: float | None
    products: int
    windows: int

    @property
    def ratio(self) -> float | None:
        """What is attained over what is predicted; none if nothing is."""
        return self.attained / self.predicted if self.predicted > 0 else None

    @property
    def cells(self) -> dict[str, str]:
        """What a table says of it."""
        return {
            "ε": number(self.eps),
            "method": self.method,
            "attained / ε": at_least(self.attained, 4),
            "predicted": number(self.predicted, 4),
            "attained / predicted": "—" if self.ratio is None else number(self.ratio, 3),
            "ceiling": "—" if self.ceiling is None else at_most(self.ceiling, 3),
            "passes": number(self.products),
            "windows": number(self.windows),
        }


@dataclass(frozen=True, kw_only=True)
class AttackSummary:
    """All attacks on one map at windows of one length, by one norm.

    Attributes:
        model: The model.
        map: Which map.
        layer: Of which layer.
        length: How many tokens a window has.
        norm: The norm of perturbations.
        lines: What was attained, by radius and method.
    """

    model: str
    map: str
    layer: int
    length: int
    norm: str
    lines: tuple[AttackRow, ...]

    @property
    def name(self) -> str:
        """The model, the map and the length."""
        return f"{self.model}, {self.map} of layer {self.layer}, {count(self.length, 'token')}, {self.norm} norm"

    @property
    def best(self) -> tuple[AttackRow, ...]:
        """The method that attained most, for every radius."""
        radii = sorted({line.eps for line in self.lines})
        return tuple(max((x for x in self.lines if x.eps == eps), key=lambda x: x.attained) for eps in radii)

    @property
    def linear_until(self) -> float | None:
        """The radius at which the best attack leaves what is predicted by a tenth; none if it does not.

        Between two radii it is interpolated, in the logarithm of the radius; zero if it has left at the first.
        """
        before: tuple[float, float] | None = None
        for line in self.best:
            gap = math.inf if line.ratio is None else abs(line.ratio - 1)
            if gap > LEAVES:
                return 0.0 if before is None else _crossing(before, (line.eps, gap))
            before = line.eps, gap
        return None

    @property
    def sentence(self) -> str:
        """Where linearity ends, in words."""
        ends, radii = self.linear_until, [line.eps for line in self.best]
        if ends is None:
            return (
                f"{self.name}: what is attained stays within 10 % of what is predicted up to ε = {number(radii[-1])}."
            )
        if ends == 0:
            return f"{self.name}: what is attained is more than 10 % from what is predicted at ε = {number(radii[0])}."
        return f"{self.name}: linearity ends at ε ≈ {number(ends, 2)}, where what is attained leaves σ by 10 %."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        """Render one line for each radius and method, and where linearity ends."""
        rows = [line.cells for line in self.lines]
        yield self.sentence
        yield fitted(rows, list(rows[0]), list(EXPENDABLE), console, options)

    def to_json(self) -> str:
        """Return one JSON object."""
        return to_json(asdict(self) | {"linear_until": self.linear_until, "sentence": self.sentence})


def summarise_attacks(records: Iterable[AttackRecord]) -> list[AttackSummary]:
    """Sum up records, one result for each map, length and norm."""
    groups: dict[tuple[str, str, int, int, str], list[AttackRecord]] = {}
    for r in records:
        place = (r.ask.model, r.ask.map, r.ask.layer, r.ask.length, r.ask.norm)
        groups.setdefault(place, []).append(r)
    return [
        AttackSummary(model=model, map=part, layer=layer, length=length, norm=norm, lines=_lines(found))
        for (model, part, layer, length, norm), found in sorted(groups.items())
    ]


def _lines(records: Sequence[AttackRecord]) -> tuple[AttackRow, ...]:
    groups: dict[tuple[float, str], list[AttackRecord]] = {}
    for r in records:
        groups.setdefault((r.ask.eps, r.ask.method), []).append(r)
    lines = [_line(eps, method, found) for (eps, method), found in groups.items()]
    return tuple(sorted(lines, key=lambda line: (line.eps, line.attained)))


def _line(eps: float, method: str, found: Sequence[AttackRecord]) -> AttackRow:
    ceilings = [r.answer.ceiling for r in found]
    return AttackRow(
        eps=eps,
        method=method,
        attained=fmean(r.answer.attained for r in found),
        predicted=fmean(r.answer.predicted for r in found),
        ceiling=None if None in ceilings else fmean(x for x in ceilings if x is not None),
        products=max(r.answer.products for r in found),
        windows=len(found),
    )


def _crossing(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return where a gap reaches the limit, on a straight line over the logarithm of the radius."""
    (low, small), (high, large) = before, after
    share = 1.0 if math.isinf(large) else (LEAVES - small) / (large - small)
    return low * (high / low) ** share
