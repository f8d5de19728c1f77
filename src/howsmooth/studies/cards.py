"""Cards: what is known of one model by a fixed protocol, so that models, versions and people can be compared."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from howsmooth.errors import AssumptionError, FileError
from howsmooth.files import whole
from howsmooth.markup import strict_json
from howsmooth.studies.runs.result_table import ResultTable
from howsmooth.wording import at_least, at_most, count, duration, exponent, grows, number

FORMAT, FILE = "howsmooth-card-1", "howsmooth.json"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is measured for a card; a change of any of it is another protocol, with another name."""

    name: str
    text: str  # where windows come from
    lengths: tuple[int, ...]  # of windows, cut to the positions that the model has
    windows: int  # of each length
    confidence: float  # of each bracket
    whole_length: int  # of windows that go through the whole model
    whole_windows: int
    schemes: tuple[str, ...]  # of errors in the weights
    passes: int  # of budgets
    budget_windows: int
    budget_length: int
    sentences: tuple[str, ...]  # what classifiers are certified at


@dataclass(frozen=True, kw_only=True)
class CardNumber:
    """One number of a card, with what it is worth.

    Attributes:
        value: The number.
        low: The lower end of what is known.
        high: The upper end; none if nothing is.
        evidence: Where the ends come from: ``bracket`` (attained below, a bound with the stated confidence above),
            ``interval`` (95 %, over random draws), ``range`` (over windows), ``proven`` or ``computed``.
        what: What it is, in words.
    """

    value: float
    low: float | None = None
    high: float | None = None
    evidence: str
    what: str

    def __str__(self) -> str:
        """Write the number with its ends."""
        if self.evidence == "proven" and self.low is None:
            return f"≤ {at_most(self.value, 3)}"
        if self.low is None or self.high is None:
            return number(self.value)
        return f"{number(self.value)} [{at_least(self.low, 3)}, {at_most(self.high, 3)}]"


@dataclass(frozen=True, kw_only=True, repr=False)
class Card(ResultTable):
    """What is known of one model.

    Attributes:
        model: Its name.
        digest: A hash of its weights.
        protocol: What was measured.
        version: Of howsmooth.
        numbers: The numbers of the whole model, by name.
        layers: A row of numbers for each layer.
        notes: What a reader has to know, and what could not be measured, with the reason.
        seconds: How long it took.
    """

    EXPENDABLE = ("entropy", "θ", "sink", "exponent", "any input", "relative")
    model: str
    digest: str
    protocol: Protocol
    version: str
    numbers: Mapping[str, CardNumber]
    layers: tuple[Mapping[str, CardNumber], ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        return (
            f"{self.model} by {self.protocol.name}, howsmooth {self.version}: {count(len(self.layers), 'layer')}, "
            f"{count(self.sizes.get('parameters', 0), 'parameter')}, {duration(self.seconds)}"
        )

    @property
    def lead(self) -> tuple[str, ...]:
        """The answer, in a few sentences."""
        found, said = self.numbers, []
        if "whole worst" in found:
            typical = f", a random one {grows(found['whole typical'].value)}" if "whole typical" in found else ""
            said.append(
                f"Through all of {self.model} the worst perturbation {grows(found['whole worst'].value)}{typical}"
                + (
                    f"; one percent of the input moves the output by up to {number(relative.value)} percent."
                    if (relative := found.get("whole relative"))
                    else "."
                )
            )
        head = f", head {int(found['weakest head'].value)}" if "weakest head" in found else ""
        parts = [
            f"Of its attention layers the least smooth is {int(found['weakest layer'].value)}{head}: "
            f"the worst perturbation {grows(found['worst layer'].value)}"
        ]
        if "bracket ratio" in found:
            parts.append(f"known up to a factor of {at_most(found['bracket ratio'].value, 4)}")
        if "bound ratio" in found:
            any_input, ratio = found["any input"].value, found["bound ratio"].value
            parts.append(
                f"and at most {at_most(any_input, 3)}-fold at any input, {at_most(ratio, 3)} times what is found"
            )
        said.append(f"{', '.join(parts)}.")
        if "growth exponent" in found:
            power = exponent(found["growth exponent"].value)
            said.append(f"With the number n of tokens the worst grows like n to the power {power} (median of layers).")
        if "sink" in found:
            sink, theta = number(found["sink"].value), number(found["θ"].value)
            said.append(
                f"On average over heads, the first token gets {sink} of all weight, and the softmax has {theta} of its "
                "largest slope (θ)."
            )
        costs = [f"{name.removeprefix('cost ')} {each}" for name, each in found.items() if name.startswith("cost ")]
        if costs:
            said.append(f"Rounding all matrices costs, in {self._unit}: {', '.join(costs)}.")
        if "certified radius" in found:
            sentence, *_others = self.protocol.sentences
            said.append(
                f"The embedding of one word of “{sentence}” may move by {found['certified radius']} (median and range "
                "over words), which is proven to leave the class as it is."
            )
        return tuple(said)

    @property
    def _unit(self) -> str:
        return next(each.what for name, each in self.numbers.items() if name.startswith("cost "))

    @property
    def cells(self) -> list[dict[str, str]]:
        """One row for each layer."""
        names = list(dict.fromkeys(name for row in self.layers for name in row))
        return [
            {"layer": str(at)} | {name: str(row[name]) if name in row else "—" for name in names}
            for at, row in enumerate(self.layers)
        ]

    def meaning(self, columns: Sequence[str]) -> str:
        """Say what the columns that are shown mean."""
        there = {name: each.what for row in self.layers for name, each in row.items() if name in columns}
        return "; ".join(f"{name}: {what}" for name, what in there.items()) + "."

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        return self.notes

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        return strict_json(
            {
                "format": FORMAT,
                "howsmooth": self.version,
                "model": {"name": self.model, "digest": self.digest, **self.sizes},
                "protocol": asdict(self.protocol),
                "numbers": {name: asdict(each) for name, each in self.numbers.items()},
                "layers": [{name: asdict(each) for name, each in row.items()} for row in self.layers],
                "notes": list(self.notes),
                "seconds": self.seconds,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Card":
        """Read what :meth:`to_json` wrote."""
        try:
            found = json.loads(text)
            if found.get("format") != FORMAT:
                raise FileError(f"this is no card of howsmooth: format is {found.get('format')!r}, not {FORMAT!r}.")
            given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found["protocol"].items()}
            protocol = Protocol(**given)
            model = dict(found["model"])
            return cls(
                model=str(model.pop("name")),
                digest=str(model.pop("digest")),
                sizes=model,
                protocol=protocol,
                version=str(found["howsmooth"]),
                numbers={name: CardNumber(**each) for name, each in found["numbers"].items()},
                layers=tuple({name: CardNumber(**each) for name, each in row.items()} for row in found["layers"]),
                notes=tuple(found["notes"]),
                seconds=float(found["seconds"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"this is no card of howsmooth: {error}.") from error

    def to_markdown(self) -> str:
        """Return a section for a model card, behind metadata that its YAML takes as ``model-index``."""
        metrics = [{"type": "howsmooth", "name": name, "value": value} for name, value in self._finite.items()]
        result = {
            "task": {"type": "other", "name": "smoothness of attention"},
            "dataset": {"type": "text", "name": self.protocol.text},
            "metrics": metrics,
        }
        index = {"name": self.model, "results": [result]}
        table = ["| " + " | ".join(row) + " |" for row in (self.columns, *self._rows)]
        table.insert(1, "|" + "---|" * len(self.columns))
        by = f"{self.protocol.name}, howsmooth {self.version}, weights {self.digest[:12]}"
        parts = (
            # what JSON writes is YAML
            f"---\nmodel-index:\n- {json.dumps(index, ensure_ascii=False)}\n---",
            "## Smoothness",
            "\n".join(self.lead),
            "\n".join(table),
            self.legend,
            "\n".join(f"- {note}." for note in self.notes),
            f"Measured by `howsmooth card {self.model}` ({by}).",
        )
        return "\n\n".join(filter(None, parts)) + "\n"

    def to_evaluation_results(self) -> str:
        """Return what the hub reads from ``.eval_results/howsmooth.yaml``."""
        entries = (
            {
                "dataset": {"id": f"howsmooth/{self.protocol.name}", "task_id": name.replace(" ", "_")},
                "value": value,
                "notes": self.numbers[name].what,
            }
            for name, value in self._finite.items()
        )
        return "".join(f"- {json.dumps(entry, ensure_ascii=False)}\n" for entry in entries)

    @property
    def _finite(self) -> dict[str, float]:
        return {name: each.value for name, each in self.numbers.items() if math.isfinite(each.value)}


def read_card(path: str | os.PathLike[str]) -> Card:
    """Read a card, or the one in a folder."""
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{str(path)!r} holds no card: {error}; `howsmooth card MODEL` writes one.") from error
    return Card.from_json(text)


def write_card(found: Card, folder: str | os.PathLike[str]) -> Path:
    """Write ``howsmooth.json``, ``smoothness.md`` and ``.eval_results/howsmooth.yaml`` into a folder; return it."""
    home, results = Path(folder), Path(".eval_results")
    (home / results).mkdir(parents=True, exist_ok=True)
    for name, text in (
        (FILE, found.to_json()),
        ("smoothness.md", found.to_markdown()),
        (results / "howsmooth.yaml", found.to_evaluation_results()),
    ):
        with whole(home / name) as partial:
            Path(partial).write_text(text, encoding="utf-8")
    return home


@dataclass(frozen=True, kw_only=True, repr=False)
class CardComparison(ResultTable):
    """Several cards side by side: a row for each number, a column for each model."""

    cards: tuple[Card, ...]

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        return f"{count(len(self.cards), 'card')} by {self.cards[0].protocol.name}"

    @property
    def lead(self) -> tuple[str, ...]:
        """Which model is the least smooth, as far as intervals tell."""
        known = [(each.numbers["whole worst"], each.model) for each in self.cards if "whole worst" in each.numbers]
        if len(known) < 2:
            return ()
        (most, name), *others = sorted(known, key=lambda each: -each[0].value)
        apart = all((most.low or 0.0) > (other.high or math.inf) for other, _name in others)
        said = f"Through the whole model, {name} is the least smooth: the worst perturbation {grows(most.value)}"
        return (f"{said}{'.' if apart else '; ranges over windows overlap.'}",)

    @property
    def cells(self) -> list[dict[str, str]]:
        """One row for each number."""
        names = dict.fromkeys(name for each in self.cards for name in each.numbers)
        columns = self._columns
        return [
            {"number": name}
            | {
                column: str(each.numbers[name]) if name in each.numbers else "—"
                for column, each in zip(columns, self.cards, strict=True)
            }
            for name in names
        ]

    @property
    def _columns(self) -> list[str]:
        seen: dict[str, int] = {}
        found = []
        for each in self.cards:
            seen[each.model] = seen.get(each.model, 0) + 1
            found.append(each.model if seen[each.model] == 1 else f"{each.model} ({seen[each.model]})")
        return found

    def meaning(self, columns: Sequence[str]) -> str:
        """Say what the rows mean."""
        said = {name: number.what for each in self.cards for name, number in each.numbers.items()}
        return "; ".join(f"{name}: {what}" for name, what in said.items()) + "."

    @property
    def remarks(self) -> tuple[str, ...]:
        """Whether the cards can be compared."""
        found = []
        for what, values in (
            ("protocols", {each.protocol for each in self.cards}),
            ("versions of howsmooth", {each.version for each in self.cards}),
        ):
            if len(values) > 1:
                found.append(f"these cards were made with other {what}; their numbers are not the same quantities")
        return tuple(found)

    def to_json(self) -> str:
        """Return all cards as one JSON object."""
        return strict_json(
            {"cards": [json.loads(each.to_json()) for each in self.cards], "remarks": list(self.remarks)}
        )


def compare_cards(paths: Sequence[str | os.PathLike[str]]) -> CardComparison:
    """Put cards side by side.

    Raises:
        FileError: If one of them is no card.
    """
    if len(paths) < 2:
        raise AssumptionError(f"at least two cards are compared, got {len(paths)}.", field="paths")
    return CardComparison(cards=tuple(read_card(path) for path in paths))
