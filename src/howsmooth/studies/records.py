"""What came of a task: the result, its evidence, and all that is needed to repeat it."""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from howsmooth.studies.setting import Setting
from howsmooth.studies.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Record:
    r"""What came of a task.

    Attributes:
        task: What was asked for.
        lower: Attained by a stored kind of perturbation.
        upper: Holds with the probability ``task.confidence``; none where nothing bounds the value from above.
        steps: How many steps the solver took.
        status: Why it stopped, in one word.
        products: How many products with the Jacobian the whole batch took.
        radius: The mean radius of the tokens, :math:`(\frac1n\sum_i|x_i|^2)^{1/2}`.
        reach: The largest length of a token.
        local_upper: The deterministic certificate at this input, where the theory has one.
        released: :math:`\|J^\top f(X)\|^{1/2}`, if it was asked for.
        sensitivity: The share of the worst perturbation that each token holds.
        response: The share of the response that each token holds.
        numbers: What else was found, by name.
        seconds: The share of the wall time.
        setting: Versions, hardware and threads.
    """

    task: Task
    lower: float
    upper: float | None = None
    steps: int = 0
    status: str = ""
    products: int = 0
    radius: float | None = None
    reach: float | None = None
    local_upper: float | None = None
    released: float | None = None
    sensitivity: tuple[float, ...] = ()
    response: tuple[float, ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()
    seconds: float = 0.0
    setting: Setting

    def number(self, name: str) -> float:
        """Return one of the other numbers."""
        return dict(self.numbers)[name]

    def as_row(self) -> dict[str, Any]:
        """Return the fields that the command line prints as JSON."""
        row = {
            "layer": self.task.layer,
            "map": self.task.map,
            "length": self.task.length,
            "window": self.task.window,
            "lower": self.lower,
            "upper": self.upper,
            "confidence": self.task.confidence,
            "steps": self.steps,
            "status": self.status,
            "radius": self.radius,
            "reach": self.reach,
            "local_upper": self.local_upper,
        }
        return row | ({"released": self.released} if self.task.released else {})

    def to_json(self) -> str:
        """Return everything but the task as one JSON object."""
        result = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "task"}
        return strict_json(result | {"numbers": dict(self.numbers), "setting": asdict(self.setting)})

    @classmethod
    def from_json(cls, task: Task, text: str) -> "Record":
        """Read what :meth:`to_json` wrote."""
        found = json.loads(text)
        sensitivity, response = tuple(found.pop("sensitivity")), tuple(found.pop("response"))
        numbers, setting = tuple(found.pop("numbers").items()), Setting(**found.pop("setting"))
        return cls(task=task, sensitivity=sensitivity, response=response, numbers=numbers, setting=setting, **found)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A task that could not be done.

    Attributes:
        task: What was asked for.
        error: Why nothing came of it.
    """

    task: Task
    error: str


def strict_json(values: dict[str, Any]) -> str:
    """Return JSON that every reader understands: it has no infinity, but a number too large for a float is one."""
    text = json.dumps(values)
    if "Infinity" not in text:
        return text
    return json.dumps(_marked(values)).replace(f'"-{_MARK}"', "-1e999").replace(f'"{_MARK}"', "1e999")


_MARK = "infinity, written as a number"


def _marked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _marked(entry) for name, entry in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return _MARK if value > 0 else f"-{_MARK}"
    return [_marked(entry) for entry in value] if isinstance(value, tuple | list) else value
