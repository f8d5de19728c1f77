"""When a constant is worth a warning."""

import math
from collections.abc import Iterator

from howsmooth.training.readings import Alarm, LayerReading

# A constant that grows by so much within the window doubles.
FACTOR = 2.0


class Watch:
    """What was read of late, to compare with: alarms go by the ends of brackets, so that none is chance.

    Attributes:
        window: Within how many steps a constant may not double.
        limit: What no constant may exceed; none for no limit.
    """

    def __init__(self, *, window: int, limit: float | None) -> None:
        """Begin with nothing read."""
        self.window, self.limit = window, limit
        self._recent: dict[tuple[int, str], list[LayerReading]] = {}

    def look(self, reading: LayerReading) -> Iterator[Alarm]:
        """Yield what is wrong with a reading, and remember it."""
        place = reading.layer, reading.map
        recent = [r for r in self._recent.get(place, []) if reading.step - r.step <= self.window]
        finite = [r for r in recent if math.isfinite(r.upper)]
        least = min(finite, key=lambda r: r.upper, default=None)
        if not math.isfinite(reading.lower):
            yield Alarm(reading=reading)
        elif least is not None and reading.lower >= FACTOR * least.upper:
            yield Alarm(reading=reading, since=least)
            recent = []  # told: what counts from now on is the new height
        elif self.limit is not None and reading.lower > self.limit:
            yield Alarm(reading=reading, limit=self.limit)
        self._recent[place] = [*recent, reading]
