"""What a monitor read of a layer, or a probe of a head, while a model was trained: written by the training itself."""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from howsmooth.errors import AssumptionError
from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP, finite
from howsmooth.studies.kinds import Kind
from howsmooth.studies.records import Record, this_machine

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources
    from howsmooth.training.readings import HeadReading, LayerReading, Look


# What a record has from a reading as it is.
SHARED = ("typical", "typical_low", "typical_high", "entropy", "sequences", "length")


class MonitorAsk(Ask, frozen=True, kw_only=True, tag="monitor"):
    """What a monitor read of a layer while a model was trained: kept by the training itself."""

    training: str  # which training it was, where several write to one run
    step: int
    layer: int  # which attention layer
    map: str = "attention"  # which part of it

    @property
    def label(self) -> str:
        """The training, the layer and the step."""
        return f"{self.training} layer {self.layer}, step {self.step}"

    @property
    def rank(self) -> tuple[Any, ...]:
        """Step by step, layer by layer."""
        return self.step, self.layer, self.map


class MonitorAnswer(Answer, frozen=True, kw_only=True):
    """What it was like."""

    # the largest constant among the sequences that were measured: attained; none if it is not finite
    lower: Annotated[float | None, ROUND_DOWN]
    upper: Annotated[float | None, ROUND_UP]  # what none of them exceeds, at the monitor's confidence
    typical: float | None = None  # what random noise is multiplied by
    # the lower end of its interval at 95 %, over random directions
    typical_low: Annotated[float | None, ROUND_DOWN] = None
    typical_high: Annotated[float | None, ROUND_UP] = None  # the upper end
    radius: float | None = None  # the root mean square norm of the tokens that enter
    entropy: float | None = None  # how widely attention looks, in nats
    sequences: int = 0  # how many sequences were measured
    length: int = 0  # how many tokens the least smooth of them has
    alarm: str = ""  # what went wrong, in a sentence
    overhead: float = 0.0  # the share of the training time that the monitor had taken by then
    skipped: int = 0  # how many places the budget left out at this step


class ProbeAsk(MonitorAsk, frozen=True, kw_only=True, tag="probe"):
    """What a probe read of a head while a model was trained: kept by the training itself; its map is ``head:3``."""


class ProbeAnswer(Answer, frozen=True, kw_only=True):
    """What it was like: the numbers of :class:`~howsmooth.training.readings.HeadReading`, none if not finite."""

    largest_logit: float | None
    entropy: float | None
    first_token: float | None
    sensitivity: float | None
    largest_query: float | None
    mean_query: float | None
    largest_key: float | None
    mean_key: float | None
    peaked: float | None
    alarm: str = ""  # what went wrong, in a sentence
    overhead: float = 0.0  # the share of the training time that the probe had taken by then


def run(_batch: Sequence[MonitorAsk], _cell: Sequence[MonitorAsk], _resources: "Resources") -> list[Answer]:
    """Refuse: what a training was like cannot be asked afterwards."""
    raise AssumptionError(
        "what a monitor or a probe reads is written while a model is trained: "
        "hs.Monitor(model, sinks=[hs.training.RunLog(folder)]), and hs.probe likewise.",
        field="kind",
    )


class RunLog:
    """A sink for monitors and probes: every reading is a record of the run, with its alarm; its report draws it."""

    def __init__(self, folder: str | os.PathLike[str], *, training: str = "training") -> None:
        """Open a run, or begin one.

        Args:
            folder: The folder of the run.
            training: What to call this training, where several write to one run. Steps that are there already stay.

        Raises:
            FileError: If the folder cannot be written to, or holds something else.
        """
        from howsmooth.studies.runs.store import Store

        self._store, self._training = Store(folder), training

    def write(self, look: "Look") -> None:
        """Keep what was read at one step."""
        alarms = {(a.reading.layer, a.reading.map): str(a) for a in look.alarms}

        def record(kind: type[MonitorAsk], r: "LayerReading | HeadReading", answer: Answer) -> Record:
            ask = kind(training=self._training, step=look.step, layer=r.layer, map=r.map)
            return Record(ask=ask, answer=answer, machine=this_machine(), seconds=getattr(r, "seconds", 0.0))

        layers = [
            record(
                MonitorAsk,
                r,
                MonitorAnswer(
                    **{name: getattr(r, name) for name in SHARED},
                    lower=finite(r.lower),
                    upper=finite(r.upper),
                    radius=finite(r.radius),
                    alarm=alarms.get((r.layer, r.map), ""),
                    overhead=look.overhead,
                    skipped=len(look.skipped),
                ),
            )
            for r in look.readings
        ]
        heads = [
            record(
                ProbeAsk,
                r,
                ProbeAnswer(
                    **{name: finite(value) for name, value in r.numbers.items()},
                    alarm=alarms.get((r.layer, r.map), ""),
                    overhead=look.overhead,
                ),
            )
            for r in look.heads
        ]
        self._store.add([*layers, *heads])

    def close(self) -> None:
        """Close the run's file."""
        self._store.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


KINDS = (
    Kind(ask=MonitorAsk, answer=MonitorAnswer, run=run),
    Kind(ask=ProbeAsk, answer=ProbeAnswer, run=run),
)
