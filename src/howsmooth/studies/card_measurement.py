"""How a card is made: protocols, and what each part of a card measures."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from howsmooth import __version__
from howsmooth.budgets.error_budget import budget
from howsmooth.certificates.certify import certify
from howsmooth.errors import AssumptionError, HowsmoothError, nearest
from howsmooth.models.inputs.text import read_text
from howsmooth.models.load import load
from howsmooth.models.parts.ends import NO_CLASSIFIER
from howsmooth.models.transformer import Transformer
from howsmooth.studies.cards import Card, CardNumber, Protocol
from howsmooth.studies.plans.measurement_plan import measure
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.studies.sweep.progress import EVERY
from howsmooth.studies.sweep.sweep import Tally
from howsmooth.training.head_probe import probe
from howsmooth.wording import duration

# How long a card takes: some seconds, so many forward passes of a window of the longest length, and certificates of a
# classifier; and which share of all but the certificates comes before the bounds of layers, and before the other parts.
SECONDS, FORWARD_PASSES, CERTIFYING = 3, 900, 30
WINDOWS, LAYERS = 0.4, 0.8

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
    time_left = _TimeLeft.start(found, rules, progress or (lambda _said: None))
    time_left.say(0.0, f"attention layers at {rules.windows} windows of {', '.join(map(str, rules.lengths))} tokens")
    lengths = [n for n in rules.lengths if found.max_length is None or n <= found.max_length]
    measured = measure(
        found,
        text=rules.text,
        lengths=lengths,
        sequences=rules.windows,
        confidence=rules.confidence,
        progress=time_left.after_cell,
    )
    layers = [_layer(each) for each in measured.layers]
    numbers, missing = _of_layers(measured), []
    parts: dict[str, Callable[[], dict[str, CardNumber]]] = {
        "the weakest head": lambda: _weakest_head(found, measured, rules),
        "the whole model": lambda: _whole(found, rules),
        "attention weights": lambda: _weights(found, rules, lengths[-1], layers),
        "error budgets": lambda: _budgets(found, rules),
    }
    if found.ends.class_head != NO_CLASSIFIER:  # nobody misses certificates of what decides nothing
        parts["certificates"] = lambda: _certificates(found, rules)
    for done, (name, part) in enumerate(parts.items()):
        time_left.say(LAYERS + (1 - LAYERS) * done / (len(parts) - 1), name)
        try:
            numbers |= part()
        except HowsmoothError as error:
            missing.append(f"without {name}: {str(error).rstrip('.')}")
    return Card(
        model=found.name,
        digest=found.digest,
        protocol=rules if text is None else replace(rules, text=f"{Path(text).name} {read_text(text).digest}"),
        version=__version__,
        numbers=numbers,
        layers=tuple(layers),
        notes=tuple(dict.fromkeys((*found.notes, *missing, *measured.notes))),
        seconds=time.monotonic() - started,
        sizes=_sizes(found),
    )


@dataclass(kw_only=True)
class _TimeLeft:
    """How much time a card still takes, said before each part."""

    name: str  # of the model
    expected: float  # seconds for all but the certificates
    certifying: float  # seconds for those
    tell: Callable[[str], None]
    began: float
    last: float  # when something was said

    @classmethod
    def start(cls, found: Transformer, rules: Protocol, tell: Callable[[str], None]) -> "_TimeLeft":
        expected = SECONDS + FORWARD_PASSES * _forward_seconds(found, rules)
        certifying = 0 if isinstance(found.ends.class_head, str) else CERTIFYING
        tell(f"{found.name}: {rules.name} takes about {duration(expected + certifying)}")
        now = time.monotonic()
        return cls(name=found.name, expected=expected, certifying=certifying, tell=tell, began=now, last=now)

    def say(self, share: float, what: str) -> None:
        """Say what begins, after which share of all but the certificates."""
        self.last = time.monotonic()
        # what has hardly begun does not show how fast this machine is
        pace = (self.last - self.began) / (share * self.expected) if share >= WINDOWS else 1.0
        left = pace * ((1 - share) * self.expected + self.certifying)
        self.tell(f"{self.name}: {what}, about {duration(left)} left")

    def after_cell(self, tally: Tally) -> None:
        """Say now and then how far the windows are."""
        if not tally.left:
            self.say(WINDOWS, "bounds of the layers for any input")
        elif time.monotonic() - self.last >= EVERY:
            self.say(WINDOWS * tally.share, f"attention layers, {tally.left} measurements to go")


def _sizes(found: Transformer) -> dict[str, int]:
    sizes = {"parameters": sum(x.numel() for x in found.module.parameters()), "layers": len(found.layers)}
    if (attention := found.layers[0].attention) is not None:  # what is differentiated by autograd does not say
        sizes |= {"heads": found.layers[0].head_count, "width": attention.d}
    return sizes


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
