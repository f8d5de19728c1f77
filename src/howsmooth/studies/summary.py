"""From records to the answer for each layer."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, geometric_mean

from howsmooth.studies.growth import Growth, growth
from howsmooth.studies.measurement import LayerSummary, mean_constant
from howsmooth.studies.records import Record
from howsmooth.theory.results import Ladder

# Every bound for a layer, a length and a radius.
Bounds = Callable[[int, int, float], Ladder]


def summarise(records: Sequence[Record], bounds: Bounds) -> tuple[LayerSummary, ...]:
    """Return the answer for each layer of one model and map."""
    layers = sorted({record.task.layer for record in records})
    return tuple(_summary(i, [r for r in records if r.task.layer == i], bounds) for i in layers)


def _summary(layer: int, records: Sequence[Record], bounds: Bounds) -> LayerSummary:
    length = max(record.task.length for record in records)
    last = [record for record in records if record.task.length == length]
    radius = fmean(record.radius or 0.0 for record in last)
    certificates = [record.local_upper for record in last if record.local_upper is not None]
    return LayerSummary(
        layer=layer,
        length=length,
        constant=mean_constant(last),
        least=min(record.lower for record in last),
        most=max(record.upper or record.lower for record in last),
        growth=growth_of((r.task.length, r.lower) for r in records),
        radius=radius,
        reach=max((record.reach for record in last if record.reach is not None), default=None),
        ladder=bounds(layer, length, radius),
        local_upper=geometric_mean(certificates) if certificates and min(certificates) > 0 else None,
        released_growth=growth_of((r.task.length, r.released) for r in records if r.released is not None),
    )


def growth_of(values: Iterable[tuple[int, float]]) -> Growth | None:
    """Fit the growth of values at lengths, where there are two lengths and no zeros."""
    by_length: dict[int, list[float]] = {}
    for length, value in values:
        by_length.setdefault(length, []).append(value)
    if len(by_length) < 2 or not all(value > 0 for found in by_length.values() for value in found):
        return None
    return growth(by_length)
