"""Results of a monitor (readings of layers, alarms, the rule that raises them), and where they go."""

import dataclasses
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from howsmooth.errors import AssumptionError
from howsmooth.markup import strict_json
from howsmooth.wording import at_least, at_least_above, at_most, count, number

# A constant that grows by this factor within the window raises an alarm.
FACTOR = 2.0


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """One layer at one step, at some sequences of the batch.

    Attributes:
        step: The training step.
        layer: Which attention layer.
        map: Which part of it.
        lower: The largest local constant among the sequences: attained.
        upper: An upper bound for all of them, at the confidence of the monitor.
        radius: The root mean square norm of the input tokens.
        sequences: How many sequences were measured.
        length: The number of tokens of the sequence with the largest constant.
        typical: The amplification of random noise, root mean square over the sequences; none if it was not measured.
        typical_low: The lower end of its interval at 95 %, over random directions at these sequences.
        typical_high: The upper end.
        entropy: The entropy of the attention weights in nats; none where the weights are not known.
        tokens: The ids of the tokens with the largest shares of the worst perturbation, the largest first.
        seconds: The time of the measurement.
    """

    step: int
    layer: int
    map: str
    lower: float
    upper: float
    typical: float | None = None
    typical_low: float | None = None
    typical_high: float | None = None
    radius: float
    entropy: float | None = None
    sequences: int
    length: int
    tokens: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def numbers(self) -> dict[str, float]:
        """Everything that a curve can be drawn of, by name."""
        found = {
            "constant": self.lower,
            "constant_upper": self.upper,
            "typical_gain": self.typical,
            "typical_gain_low": self.typical_low,
            "typical_gain_high": self.typical_high,
            "radius": self.radius,
            "entropy": self.entropy,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A constant that doubled, exceeded its limit, or is not finite.

    Attributes:
        reading: The reading; its constant is infinite where weights or activations are not finite.
        since: The earlier reading that it is compared with; none if there is none.
        limit: The limit that it exceeded; none if it exceeded none.
    """

    reading: LayerReading
    since: LayerReading | None = None
    limit: float | None = None

    def __str__(self) -> str:
        r = self.reading
        place = f"layer {r.layer} ({r.map}) at step {r.step}"
        if r.lower == float("inf"):
            return f"{place}: weights or activations are not finite any more."
        tokens = ", ".join(map(str, r.tokens))
        where = f"; {count(r.length, 'token')}, most sensitive: {tokens}" if tokens else f"; {count(r.length, 'token')}"
        if self.since is not None:
            times, before = at_least(r.lower / self.since.upper, 2), at_most(self.since.upper, 3)
            return (
                f"{place}: the constant is {at_least(r.lower, 3)}, at least {times} times the {before} "
                f"of step {self.since.step}{where}."
            )
        limit = self.limit or 0.0
        found = f"{place}: the constant is {at_least_above(r.lower, limit, 3)}"
        return f"{found}, above the limit of {number(limit, 17)}{where}."


@dataclass(frozen=True, kw_only=True)
class HeadReading:
    r"""One head in one forward pass, over all rows of real tokens.

    Attributes:
        step: The forward pass.
        layer: Which attention layer, in the order in which they run.
        head: Which head.
        largest_logit: The largest score that a softmax was taken of.
        entropy: The mean entropy of the rows of weights, in nats.
        first_token: The mean weight on the first token of a row's own sequence: the share that a sink takes.
        sensitivity: The mean of :math:`\theta(p) = \|\mathrm{diag}\,p - pp^\top\|_{\infty\to1}`, from below:
            :math:`4p_{\max}(1-p_{\max})`, which is exact from ½ on, or :math:`1 - p_{\max}^2` where that is more and
            :math:`p_{\max}` below ½; never less than 8/9 of it.
        largest_query: The largest norm of a query.
        mean_query: The mean norm.
        largest_key: The largest norm of a key.
        mean_key: The mean norm.
        peaked: The share of rows whose largest weight is above ½.
    """

    step: int
    layer: int
    head: int
    largest_logit: float
    entropy: float
    first_token: float
    sensitivity: float
    largest_query: float
    mean_query: float
    largest_key: float
    mean_key: float
    peaked: float

    @property
    def map(self) -> str:
        """The head as the name of a map."""
        return f"head:{self.head}"

    @property
    def numbers(self) -> dict[str, float]:
        """Everything that a curve can be drawn of, by name."""
        return {name: value for name, value in vars(self).items() if name not in ("step", "layer", "head")}


@dataclass(frozen=True, kw_only=True)
class HeadAlarm:
    """A largest logit that exceeded its limit, doubled, or is not finite.

    Attributes:
        reading: The reading.
        since: The earlier reading that it is compared with; none if there is none.
        limit: The limit that it exceeded; none if it exceeded none.
    """

    reading: HeadReading
    since: HeadReading | None = None
    limit: float | None = None

    def __str__(self) -> str:
        r = self.reading
        place = f"layer {r.layer} head {r.head} at step {r.step}"
        if not math.isfinite(r.largest_logit):
            return f"{place}: queries or keys are not finite any more."
        found = f"{place}: largest logit {number(r.largest_logit)}"
        if self.since is not None:
            steps = count(r.step - self.since.step, "step")
            return f"{found}, doubled in {steps} (from {number(self.since.largest_logit)})."
        limit = self.limit or 0.0
        found = f"{place}: largest logit {at_least_above(r.largest_logit, limit, 3)}"
        return f"{found}, above the limit of {number(limit, 17)}."


@dataclass(frozen=True, kw_only=True)
class Look:
    """The results of one step.

    Attributes:
        step: The training step.
        readings: The measured layers.
        alarms: The alarms that they raised.
        skipped: Layers and maps that the budget left out, as in ``3:attention``.
        overhead: The share of the time since training began that the monitor took.
        heads: What a probe read of every head.
    """

    step: int
    readings: tuple[LayerReading, ...] = ()
    alarms: tuple[Alarm | HeadAlarm, ...]
    skipped: tuple[str, ...] = ()
    overhead: float
    heads: tuple[HeadReading, ...] = ()


class AlarmRule:
    """Compares each reading with recent ones of the same layer; by the ends of brackets, so that no alarm is chance.

    Attributes:
        window: An alarm is raised if a constant doubles within so many steps.
        limit: An alarm is raised if a constant exceeds this; none for no limit.
    """

    def __init__(self, *, window: int, limit: float | None) -> None:
        self.window, self.limit = window, limit
        self._recent: dict[tuple[int, str], list[LayerReading]] = {}

    def alarms(self, reading: LayerReading) -> Iterator[Alarm]:
        """Yield the alarms that a reading raises, and remember it."""
        place = reading.layer, reading.map
        recent = [r for r in self._recent.get(place, []) if reading.step - r.step <= self.window]
        finite = [r for r in recent if math.isfinite(r.upper)]
        least = min(finite, key=lambda r: r.upper, default=None)
        if not math.isfinite(reading.lower):
            yield Alarm(reading=reading)
        elif least is not None and reading.lower >= FACTOR * least.upper:
            yield Alarm(reading=reading, since=least)
            recent = []  # reported: later readings are compared with this one
        elif self.limit is not None and reading.lower > self.limit:
            yield Alarm(reading=reading, limit=self.limit)
        self._recent[place] = [*recent, reading]


@runtime_checkable
class Sink(Protocol):
    """Something that keeps what a monitor found."""

    def write(self, look: Look) -> None:
        """Keep what came of one step."""


@runtime_checkable
class Logger(Protocol):
    """What many loggers have in common: a dictionary of numbers at a time."""

    def log(self, numbers: dict[str, Any]) -> object:
        """Keep some numbers."""


class LoggerSink:
    """A logger of somebody else's: one dictionary for each step, as in ``howsmooth/layer_3/attention/constant``."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def write(self, look: Look) -> None:
        """Log every number of a step."""
        self._logger.log({"step": look.step} | scalars(look))
        if callable(alert := getattr(self._logger, "alert", None)):  # loggers of W&B and Trackio have one
            for alarm in look.alarms:
                alert(title="howsmooth", text=str(alarm))


class TensorBoard:
    """Curves for TensorBoard, and alarms as text; needs the package tensorboard."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Write event files to a folder."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise AssumptionError(
                "curves for TensorBoard need the package tensorboard: pip install 'howsmooth[training]'.", field="sinks"
            ) from error
        self._writer = SummaryWriter(os.fspath(folder))

    def write(self, look: Look) -> None:
        """Write a point of every curve."""
        for name, value in scalars(look).items():
            self._writer.add_scalar(name, value, look.step)
        for alarm in look.alarms:
            self._writer.add_text("howsmooth/alarms", str(alarm), look.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class JsonLines:
    """A file with one line of JSON for each step."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def write(self, look: Look) -> None:
        """Write one line: the step, every reading, and the alarms as sentences."""
        plain = dataclasses.asdict(look) | {"alarms": [str(alarm) for alarm in look.alarms]}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(strict_json(plain) + "\n")


def scalars(look: Look) -> dict[str, float]:
    """Return every number of a step by its name; what is not finite is left out."""
    readings: list[LayerReading | HeadReading] = [*look.readings, *look.heads]
    found = {
        f"howsmooth/layer_{r.layer}/{r.map}/{name}".replace(":", "_"): value
        for r in readings
        for name, value in r.numbers.items()
    }
    found |= {
        "howsmooth/alarms": float(len(look.alarms)),
        "howsmooth/skipped": float(len(look.skipped)),
        "howsmooth/overhead": look.overhead,
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def as_sink(given: object) -> Sink:
    """Return what was given as something that takes looks."""
    if isinstance(given, Sink):
        return given
    if isinstance(given, Logger):
        return LoggerSink(given)
    raise AssumptionError(
        f"a sink has a method log(dict), as loggers have, or write(look), got {type(given).__name__}; "
        "hs.training.RunLog(folder) and hs.training.TensorBoard(folder) are two.",
        field="sinks",
    )
