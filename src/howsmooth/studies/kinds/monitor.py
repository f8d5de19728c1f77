"""What a monitor read of a layer while a model was trained: kept by the training itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from howsmooth.errors import AssumptionError
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.asks import Ask as AnyAsk
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources


class Ask(AnyAsk, frozen=True, kw_only=True, tag="monitor"):
    """What a layer was like at a step.

    Attributes:
        training: Which training it was, where several write to one run.
        step: The step.
        layer: Which attention layer.
        map: Which part of it.
    """

    training: str
    step: int
    layer: int
    map: str = "attention"

    @property
    def label(self) -> str:
        """The training, the layer and the step."""
        return f"{self.training} layer {self.layer}, step {self.step}"

    @property
    def rank(self) -> tuple[Any, ...]:
        """Step by step, layer by layer."""
        return self.step, self.layer, self.map


class Answer(AnyAnswer, frozen=True, kw_only=True):
    """What it was like.

    Attributes:
        lower: The largest constant among the sequences that were measured: attained; none if it is not finite.
        upper: What none of them exceeds, at the monitor's confidence.
        typical: What random noise is multiplied by.
        typical_low: The lower end of its interval at 95 %, over random directions.
        typical_high: The upper end.
        radius: The root mean square norm of the tokens that enter.
        entropy: How widely attention looks, in nats.
        sequences: How many sequences were measured.
        length: How many tokens the least smooth of them has.
        alarm: What went wrong, in a sentence.
        overhead: The share of the training time that the monitor had taken by then.
        skipped: How many places the budget left out at this step.
    """

    lower: Annotated[float | None, ROUND_DOWN]
    upper: Annotated[float | None, ROUND_UP]
    typical: float | None = None
    typical_low: Annotated[float | None, ROUND_DOWN] = None
    typical_high: Annotated[float | None, ROUND_UP] = None
    radius: float | None = None
    entropy: float | None = None
    sequences: int = 0
    length: int = 0
    alarm: str = ""
    overhead: float = 0.0
    skipped: int = 0


def run(_batch: Sequence[Ask], _cell: Sequence[Ask], _resources: "Resources") -> list[AnyAnswer]:
    """Refuse: what a training was like cannot be asked afterwards."""
    raise AssumptionError(
        "what a monitor reads is written while a model is trained: "
        "hs.Monitor(model, sinks=[hs.training.RunLog(folder)]).",
        field="kind",
    )
