"""A measurement as data: what is measured, where, and how well. Equal tasks have equal keys, on every machine."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to find out. Fields that a kind of task does not need keep their defaults.

    Attributes:
        kind: What is asked: see ``howsmooth.studies.kinds``.
        model: A name or folder that ``hs.load`` understands; or nothing, and then ``A`` and ``V`` are given.
        A: The form of a single head.
        V: Its values.
        layer: Which attention layer of the model.
        map: Which part of it.
        biases: Whether its biases are kept; the paper's inputs are built from heads without them.
        text: Where the text came from.
        digest: The hash of what the text holds.
        length: How many tokens the input has.
        window: Which of the consecutive windows of the text.
        stride: How many tokens lie between the beginnings of windows; 0 for as many as they hold.
        special_tokens: Whether the window begins and ends as the model's own inputs do.
        points: Which extremal input stands in place of a text.
        head: The head that it is built from.
        radius: The radius of the ball that it lies in.
        climb: How many trials a search gets.
        seed: The seed of everything random.
        rtol: The bracket to reach.
        confidence: The probability with which the upper end holds.
        certify: Whether to go on until the bracket closes.
        released: Whether to record the quantity of the paper's released scripts too.
        dtype: The numbers to compute with; those of the model by default.
        device: Where to compute.
    """

    kind: str = "local"
    model: str = ""
    A: Matrix = ()
    V: Matrix = ()
    layer: int = 0
    map: str = "attention"
    biases: bool = True
    text: str = ""
    digest: str = ""
    length: int
    window: int = 0
    stride: int = 0
    special_tokens: bool = False
    points: str = ""
    head: int = 0
    radius: float = 0.0
    climb: int = 0
    seed: int = 0
    rtol: float = 1e-3
    confidence: float = 0.999
    certify: bool = True
    released: bool = False
    dtype: str = ""
    device: str = ""

    @property
    def key(self) -> str:
        """A stable hash; of a text, what it holds counts, not where it lies."""
        return fingerprint({name: value for name, value in self.as_dict().items() if name != "text"})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: a field that is added later changes no key."""
        return {
            field.name: _plain(value, field.type)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default or field.name == "kind"
        }

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """Read what :meth:`to_json` wrote."""
        fields = json.loads(text)
        for name in ("A", "V"):
            fields[name] = tuple(tuple(row) for row in fields.get(name, ()))
        return cls(**fields)


def _plain(value: Any, declared: Any) -> Any:
    """Write equal numbers alike: 2 and 2.0 are one radius, 0.0 and -0.0 one entry."""
    if declared is Matrix:
        return [[float(entry) + 0.0 for entry in row] for row in value]
    return declared(value) if declared in (float, int, bool) else value


def fingerprint(value: Any) -> str:
    """Hash anything that JSON can hold; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
