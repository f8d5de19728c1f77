"""How much a monitor may measure without taking more than its share of the time."""

import time
from collections.abc import Callable


class Budget:
    """The time that was spent watching, as a share of all time since training began.

    Attributes:
        share: The largest share.
        spent: Seconds spent so far.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin to count."""
        self.share, self.spent = share, 0.0
        self._clock, self._begin = clock, clock()
        self._unit: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begin

    @property
    def overhead(self) -> float:
        """The share of the training time that was spent: what training would not have taken without."""
        return self.spent / max(self.elapsed - self.spent, 1e-9)

    def affordable(self) -> int:
        """Return for how many units of work there is time; one if it is not known what one takes."""
        left = self.share * (self.elapsed - self.spent) - self.spent
        if left <= 0:
            return 0
        return 1 if self._unit is None else int(left / self._unit)

    def spend(self, seconds: float, units: int) -> None:
        """Count what some units of work took."""
        self.spent += seconds
        if units:
            # slowly forgotten, quickly learned: a unit that took long may do so again
            each = seconds / units
            self._unit = each if self._unit is None else max(each, 0.7 * self._unit + 0.3 * each)
