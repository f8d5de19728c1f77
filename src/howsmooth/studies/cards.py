"""Cards: what is known of one model by a fixed protocol, so that models, versions and people can be compared."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from howsmooth import __version__
from howsmooth.budgets.error_budget import budget
from howsmooth.certificates.certify import certify
from howsmooth.errors import AssumptionError, FileError, HowsmoothError, nearest
from howsmooth.files import whole
from howsmooth.markup import strict_json
from howsmooth.models.inputs.text import read_text
from howsmooth.models.load import load
from howsmooth.models.parts.ends import NO_CLASSIFIER
from howsmooth.models.transformer import Transformer
from howsmooth.studies.plans.measurement_plan import measure
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.result_table import ResultTable
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.studies.sweep.progress import EVERY
from howsmooth.studies.sweep.sweep import Tally
from howsmooth.training.head_probe import probe
from howsmooth.wording import at_least, at_most, count, duration, exponent, grows, number

FORMAT, FILE = "howsmooth-card-1", "howsmooth.json"
# How long a card takes: some seconds, so many forward passes of a window of the longest length, and certificates of a
# classifier; and which share of all but the certificates comes before the bounds of layers, and before the other parts.
SECONDS, FORWARD_PASSES, CERTIFYING = 3, 900, 30
WINDOWS, LAYERS = 0.4, 0.8


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


PROTOCOLS = {
    "protocol-1": Protocol(
        name="protocol-1",
        text="alice",
        lengths=(16, 32, 64),
        windows=4,
        confidence=0.999,
        whole_length=16,
        whole_windows=4,
        schemes=("int8", "int4:g64"),
        passes=16,
        budget_windows=2,
        budget_length=64,
        sentences=("a warm and funny film",),
    )
}


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


def card(
    model: Any = "minilm",
    *,
    protocol: str = "protocol-1",
    text: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    device: str | None = None,
) -> Card:
    """Measure everything that the card of a model holds, by a fixed protocol.

    What a model has no place for (budgets of one that cannot be differentiated, certificates of a classifier that is
    not read) is left out, and the notes say why; of what is no classifier certificates are not asked.

    Args:
        model: What :func:`howsmooth.load` takes, or what it returned.
        protocol: Which protocol.
        text: A file for models that do not read English, in place of the protocol's text; the card names it, and
            comparisons with cards of another text say so.
        progress: Called with a sentence before each part.
        device: Where to compute.
    """
    if protocol not in PROTOCOLS:
        raise AssumptionError(f"there is no {protocol!r}{nearest(protocol, PROTOCOLS)}", field="protocol")
    rules, started = PROTOCOLS[protocol], time.monotonic()
    if text is not None:
        rules = replace(rules, text=os.fspath(text))
    found = model if isinstance(model, Transformer) else load(model, device=device)
    tell = progress or (lambda _said: None)
    expected = SECONDS + FORWARD_PASSES * _forward_seconds(found, rules)
    certifying = 0 if isinstance(found.ends.class_head, str) else CERTIFYING
    tell(f"{found.name}: {protocol} takes about {duration(expected + certifying)}")
    began = last = time.monotonic()

    def say(share: float, what: str) -> None:
        nonlocal last
        last = time.monotonic()
        # what has hardly begun does not show how fast this machine is
        pace = (last - began) / (share * expected) if share >= WINDOWS else 1.0
        left = pace * ((1 - share) * expected + certifying)
        tell(f"{found.name}: {what}, about {duration(left)} left")

    def after(tally: Tally) -> None:
        if not tally.left:
            say(WINDOWS, "bounds of the layers for any input")
        elif time.monotonic() - last >= EVERY:
            say(WINDOWS * tally.share, f"attention layers, {tally.left} measurements to go")

    notes: list[str] = list(found.notes)
    say(0.0, f"attention layers at {rules.windows} windows of {', '.join(map(str, rules.lengths))} tokens")
    lengths = [n for n in rules.lengths if found.max_length is None or n <= found.max_length]
    measured = measure(
        found, text=rules.text, lengths=lengths, sequences=rules.windows, confidence=rules.confidence, progress=after
    )
    layers = [_layer(each) for each in measured.layers]
    numbers = _of_layers(measured)
    parts: dict[str, Callable[[], dict[str, CardNumber]]] = {
        "the weakest head": lambda: _weakest_head(found, measured, rules),
        "the whole model": lambda: _whole(found, rules),
        "attention weights": lambda: _weights(found, rules, lengths[-1], layers),
        "error budgets": lambda: _budgets(found, rules),
    }
    if found.ends.class_head != NO_CLASSIFIER:  # nobody misses certificates of what decides nothing
        parts["certificates"] = lambda: _certificates(found, rules)
    for done, (name, part) in enumerate(parts.items()):
        say(LAYERS + (1 - LAYERS) * done / (len(parts) - 1), name)
        try:
            numbers |= part()
        except HowsmoothError as error:
            notes.append(f"without {name}: {str(error).rstrip('.')}")
    sizes = {"parameters": sum(x.numel() for x in found.module.parameters()), "layers": len(found.layers)}
    if (attention := found.layers[0].attention) is not None:  # what is differentiated by autograd does not say
        sizes |= {"heads": found.layers[0].head_count, "width": attention.d}
    return Card(
        model=found.name,
        digest=found.digest,
        protocol=rules if text is None else replace(rules, text=f"{Path(text).name} {read_text(text).digest}"),
        version=__version__,
        numbers=numbers,
        layers=tuple(layers),
        notes=tuple(dict.fromkeys((*notes, *measured.notes))),
        seconds=time.monotonic() - started,
        sizes=sizes,
    )


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


def _forward_seconds(found: Transformer, rules: Protocol) -> float:
    """Return how long one window of the longest length takes, the quicker of two."""
    length = min(max(rules.lengths), found.max_length or max(rules.lengths))
    tokens = found.windows(read_text(rules.text), length=length, count=1)
    spent = []
    for _once in range(2):
        began = time.perf_counter()
        with torch.no_grad():
            found.module(tokens)
        spent.append(time.perf_counter() - began)
    return min(spent)


def _layer(found: LayerSummary) -> dict[str, CardNumber]:
    n = found.length
    row = {
        "worst": CardNumber(
            value=found.constant,
            low=found.least,
            high=found.most,
            evidence="range",
            what=f"what the worst perturbation is multiplied by at {n} tokens, geometric mean and range over windows",
        )
    }
    if found.typical is not None:
        row["typical"] = CardNumber(
            value=found.typical.value,
            low=found.typical.low,
            high=found.typical.high,
            evidence="interval",
            what=f"what random perturbations are multiplied by at {n} tokens",
        )
    if found.relative is not None:
        what = "percent of the output for each percent of the input at worst, geometric mean over windows"
        row["relative"] = CardNumber(value=found.relative, evidence="computed", what=what)
    if found.growth is not None:
        ends = {"value": found.growth.exponent, "low": found.growth.low, "high": found.growth.high}
        row["exponent"] = CardNumber(**ends, evidence="interval", what="the worst grows like n to this power")
    if found.any_input is not None:
        what = f"a proven bound for any {n} tokens no longer than the longest here"
        row["any input"] = CardNumber(value=found.any_input.value, evidence="proven", what=what)
    return row


def _of_layers(measured: Measurement) -> dict[str, CardNumber]:
    weakest = least_smooth(measured.layers)
    ratios = [record.answer.upper / record.answer.lower for record in measured.records if record.answer.upper]
    exponents = [layer.growth.exponent for layer in measured.layers if layer.growth is not None]
    found = {
        "weakest layer": CardNumber(
            value=weakest.layer, evidence="computed", what="the layer with the largest constant"
        ),
        "worst layer": _layer(weakest)["worst"],
    }
    if ratios:
        what = "the upper end over the lower one, of the widest bracket"
        found["bracket ratio"] = CardNumber(value=max(ratios), evidence="computed", what=what)
    if exponents:
        found["growth exponent"] = CardNumber(
            value=median(exponents),
            low=min(exponents),
            high=max(exponents),
            evidence="range",
            what="the worst grows like n to this power: median and range over layers",
        )
    if weakest.any_input is not None:
        found["any input"] = _layer(weakest)["any input"]
        what = "the bound for any input over the largest value that was found, in the layer with the largest constant"
        ratio = weakest.any_input.value / weakest.most
        found["bound ratio"] = CardNumber(value=ratio, evidence="computed", what=what)
    return found


def _weakest_head(found: Transformer, measured: Measurement, rules: Protocol) -> dict[str, CardNumber]:
    layer = least_smooth(measured.layers)
    heads = measure(
        found,
        text=rules.text,
        layers=[layer.layer],
        lengths=[layer.length],
        sequences=1,
        per_head=True,
        confidence=rules.confidence,
        progress=False,
    ).heads
    if not heads:
        raise AssumptionError("its heads cannot be told apart.")
    worst = max(heads, key=lambda record: record.answer.lower)
    which = int(str(worst.ask.map).partition(":")[2])
    return {
        "weakest head": CardNumber(value=which, evidence="computed", what="its head with the largest constant"),
        "worst head": CardNumber(
            value=worst.answer.lower,
            low=worst.answer.lower,
            high=worst.answer.upper,
            evidence="bracket",
            what=f"what its worst perturbation is multiplied by at {layer.length} tokens, one window",
        ),
    }


def _whole(found: Transformer, rules: Protocol) -> dict[str, CardNumber]:
    length, windows = rules.whole_length, rules.whole_windows
    asked: dict[str, Any] = {"text": rules.text, "lengths": [length], "sequences": windows, "progress": False}
    layer = measure(found, map="model", confidence=rules.confidence, **asked).layers[0]
    row = _layer(layer)
    return {f"whole {name}": row[name] for name in ("worst", "typical", "relative") if name in row}


def _weights(
    found: Transformer, rules: Protocol, length: int, layers: list[dict[str, CardNumber]]
) -> dict[str, CardNumber]:
    """Read sinks, entropies and the sensitivity of the softmax from one pass over the windows; rows go to layers."""
    tokens = found.windows(read_text(rules.text), length=length, count=rules.windows)
    with torch.no_grad(), probe(found.module, every=1) as watching:
        found.module(tokens)
    heads = [head for look in watching.looks for head in look.heads]
    if not heads:
        raise AssumptionError("its attention is not computed by scaled_dot_product_attention.")
    said = {
        "sink": ("first_token", "the mean weight on the first token"),
        "θ": ("sensitivity", "how steep the softmax is at these weights: a lower bound, at most one"),
        "entropy": ("entropy", "the mean entropy of rows of weights, in nats"),
    }
    numbers = {}
    for name, (attribute, what) in said.items():
        by_layer = [[getattr(head, attribute) for head in heads if head.layer == at] for at in range(len(layers))]
        for row, values in zip(layers, by_layer, strict=True):
            if values:
                ends = {"value": sum(values) / len(values), "low": min(values), "high": max(values)}
                row[name] = CardNumber(**ends, evidence="range", what=f"{what}, mean and range over heads")
        every = [value for values in by_layer for value in values]
        ends = {"value": sum(every) / len(every), "low": min(every), "high": max(every)}
        numbers[name] = CardNumber(**ends, evidence="range", what=f"{what}, mean and range over all heads")
    return numbers


def _budgets(found: Transformer, rules: Protocol) -> dict[str, CardNumber]:
    length = min(rules.budget_length, found.max_length or rules.budget_length)
    tokens = found.windows(read_text(rules.text), length=length, count=rules.budget_windows)
    made = budget(found, tokens, schemes=list(rules.schemes), passes=rules.passes)
    numbers = {}
    for scheme in rules.schemes:
        all_ = made.together(scheme=scheme)
        numbers[f"cost {scheme}"] = CardNumber(
            value=all_.kl, low=all_.low, high=all_.high, evidence="interval", what=made.cost
        )
    return numbers


def _certificates(found: Transformer, rules: Protocol) -> dict[str, CardNumber]:
    radii = [each.certified for sentence in rules.sentences for each in certify(found, sentence).radii]
    return {
        "certified radius": CardNumber(
            value=median(radii),
            low=min(radii),
            high=max(radii),
            evidence="proven",
            what="how far the embedding of one word may move and the class stays: median and range over words",
        )
    }


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
