"""A measurement as data: which model, layer, map, window and solver; and what came of it."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Task:
    """The local constant of one layer at one window of a text.

    Attributes:
        model: A name or folder that ``hs.load`` understands.
        text: Where the text came from.
        digest: The hash of what the text holds.
        layer: Which attention layer.
        map: Which part of it.
        length: How many tokens the window has.
        window: Which of the consecutive windows of that length.
        special_tokens: Whether the window begins and ends as the model's own inputs do.
        seed: The seed of the solver's random start.
        rtol: The bracket to reach.
        confidence: The probability with which the upper end holds.
        certify: Whether to go on until the bracket closes.
        released: Whether to record the quantity of the paper's released scripts too.
        dtype: The numbers to compute with.
    """

    model: str
    text: str
    digest: str
    layer: int
    map: str
    length: int
    window: int
    special_tokens: bool = False
    seed: int = 0
    rtol: float = 1e-3
    confidence: float = 0.999
    certify: bool = True
    released: bool = False
    dtype: str = "float32"

    @property
    def key(self) -> str:
        """A stable hash: equal tasks have equal keys, on every machine."""
        return fingerprint(dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True)
class Record:
    r"""What came of a task.

    Attributes:
        task: What was asked for.
        lower: Attained by a stored kind of perturbation.
        upper: Holds with the probability ``task.confidence``.
        steps: How many steps the solver took.
        status: Why it stopped, in words.
        products: How many products with the Jacobian the whole batch took.
        radius: The mean radius of the tokens, :math:`(\frac1n\sum_i|x_i|^2)^{1/2}`.
        reach: The largest length of a token.
        local_upper: The deterministic certificate at this input, where the theory has one.
        released: :math:`\|J^\top f(X)\|^{1/2}`, if it was asked for.
        sensitivity: The share of the worst perturbation that each token holds.
        response: The share of the response that each token holds.
        seconds: The share of the wall time.
    """

    task: Task
    lower: float
    upper: float
    steps: int
    status: str
    products: int
    radius: float
    reach: float
    local_upper: float | None
    released: float | None
    sensitivity: tuple[float, ...]
    response: tuple[float, ...]
    seconds: float

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
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "task"}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, task: Task, text: str) -> "Record":
        """Read what :meth:`to_json` wrote."""
        fields = json.loads(text)
        sensitivity, response = tuple(fields.pop("sensitivity")), tuple(fields.pop("response"))
        return cls(task=task, sensitivity=sensitivity, response=response, **fields)


def fingerprint(value: Any) -> str:
    """Hash anything that JSON can hold; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
