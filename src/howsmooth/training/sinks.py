"""Sinks of readings: TensorBoard, JSON lines, and loggers with a ``log`` method."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from howsmooth.errors import AssumptionError
from howsmooth.markup import strict_json
from howsmooth.training.readings import HeadReading, LayerReading, Look


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


@runtime_checkable
class Alerting(Protocol):
    """What the loggers of W&B and Trackio have besides."""

    def alert(self, *, title: str, text: str) -> object:
        """Tell somebody."""


class LoggerSink:
    """A logger of somebody else's: one dictionary for each step, as in ``howsmooth/layer_3/attention/constant``."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def write(self, look: Look) -> None:
        """Log every number of a step."""
        self._logger.log({"step": look.step} | scalars(look))
        if isinstance(self._logger, Alerting):
            for alarm in look.alarms:
                self._logger.alert(title="howsmooth", text=str(alarm))


class TensorBoard:
    """Curves for TensorBoard, and alarms as text; needs the package tensorboard."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Write event files to a folder.

        Raises:
            AssumptionError: If tensorboard is not installed.
        """
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
