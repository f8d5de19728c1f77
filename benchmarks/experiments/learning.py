"""A small classifier of reviews: trained for a given time by one of several methods, or until it diverges."""

import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from reviews import LONGEST, Reviews, encode, vocabulary
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import spectral_norm
from transformers import BertConfig, BertForSequenceClassification

from howsmooth.training.monitor import Monitor
from howsmooth.training.penalties import WarmStart, penalty

LAYERS, WIDTH, HEADS, WORDS = 2, 64, 4, 4000
BATCH, HELD_OUT, RATE = 32, 1000, 1e-3
# So many sequences of a batch are penalised.
PENALISED = 8

# Sentences of one length, and their labels.
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Sentences as numbers.

    Attributes:
        train: What to learn from: sentences of one length in each batch, so that none is padded.
        test: What was held out, likewise.
        vocabulary: The words, in the order of their numbers.
    """

    train: list[Batch]
    test: list[Batch]
    vocabulary: tuple[str, ...]

    @property
    def words(self) -> int:
        """How many words there are."""
        return len(self.vocabulary)


class FromEmbeddings(nn.Module):
    """The network behind its embeddings: from what enters the first block to the scores of both labels."""

    def __init__(self, model: Any) -> None:
        """Share the parts of a classifier."""
        super().__init__()
        self.encoder, self.pooler, self.classifier = model.bert.encoder, model.bert.pooler, model.classifier

    def forward(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch 2"]:
        """Return the scores."""
        hidden = self.encoder(X)
        return self.classifier(self.pooler(hidden[0]))


def task_of(reviews: Reviews, seed: int) -> Task:
    """Hold out sentences at random, number words, and make batches of sentences of one length."""
    rows = list(reviews.rows)
    random.Random(0).shuffle(rows)  # the same sentences are held out whatever the seed
    held = min(HELD_OUT, len(rows) // 5)
    numbers = vocabulary([text for text, _label in rows[held:]], WORDS)
    return Task(
        train=_batches(rows[held:], numbers, seed),
        test=_batches(rows[:held], numbers, seed),
        vocabulary=tuple(numbers),
    )


def network(words: int, seed: int) -> Any:
    """Return a classifier that knows nothing yet."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=words,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=0.2,
    )
    return BertForSequenceClassification(config).train()


def train(model: Any, task: Task, *, method: str, strength: float, seconds: float = 0.0, limit: int = 0) -> int:
    """Train for so many seconds of this process's time, or for ``limit`` steps, and return the number of steps.

    Why not the clock's: the time of the process is what the method costs, whatever else the machine does.
    """
    decay = strength if method == "weight decay" else 0.01
    if method == "spectral normalisation":
        for module in model.bert.encoder.modules():
            if isinstance(module, nn.Linear):
                spectral_norm(module)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=decay)
    extra = REGULARISERS.get(method, _nothing)(FromEmbeddings(model))
    begin, steps = time.process_time(), 0
    for tokens, labels in endless(task.train):
        share = steps / limit if limit else (time.process_time() - begin) / seconds
        if share >= 1:
            return steps
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(10 * share + 0.01, 1 - share)
        X = model.bert.embeddings(input_ids=tokens)
        loss = nn.functional.cross_entropy(extra.network(X), labels) + strength * extra(X[:PENALISED])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        steps += 1
    return steps


@dataclass(frozen=True, kw_only=True, eq=False)
class Regulariser:
    """What is added to the loss.

    Attributes:
        network: The network behind its embeddings.
        of: The penalty at some inputs.
    """

    network: FromEmbeddings
    of: Callable[[Tensor], Tensor | float]

    def __call__(self, X: Tensor) -> Tensor | float:
        """Return the penalty."""
        return self.of(X)


def _nothing(network: FromEmbeddings) -> Regulariser:
    return Regulariser(network=network, of=lambda _X: 0.0)


def _constant(network: FromEmbeddings) -> Regulariser:
    state = WarmStart()
    return Regulariser(network=network, of=lambda X: penalty(network, X, state=state).mean())


def _frobenius(network: FromEmbeddings) -> Regulariser:
    r"""Penalise :math:`\|J\|_F^2` by one random projection of the scores: :math:`C\,|J^\top u|^2`, u on the sphere."""

    def of(X: Tensor) -> Tensor:
        was = network.training
        with sdpa_kernel(SDPBackend.MATH):
            scores = network.eval()(X)
        network.train(was)
        u = nn.functional.normalize(torch.randn_like(scores), dim=-1)
        (pulled,) = torch.autograd.grad(scores, X, u, create_graph=True)
        return scores.shape[-1] * pulled.square().sum((-2, -1)).mean()

    return Regulariser(network=network, of=of)


REGULARISERS = {"penalty": _constant, "Frobenius": _frobenius}
METHODS = ("plain", "penalty", "Frobenius", "spectral normalisation", "weight decay")


def _batches(rows: list[tuple[str, int]], numbers: dict[str, int], seed: int) -> list[Batch]:
    by_length: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
    for text, label in rows:
        ids = encode(text, numbers)
        by_length[len(ids)].append((ids, label))
    found = []
    for _length, some in sorted(by_length.items()):
        random.Random(seed).shuffle(some)
        for i in range(0, len(some), BATCH):
            part = some[i : i + BATCH]
            found.append((torch.tensor([ids for ids, _label in part]), torch.tensor([label for _ids, label in part])))
    random.Random(seed).shuffle(found)
    return found


def endless(batches: list[Batch]) -> Iterator[Batch]:
    """Yield all batches in a random order, again and again."""
    order = random.Random(0)
    while True:
        yield from order.sample(batches, len(batches))


# Where the rate begins to grow.
FIRST_RATE = 1e-4
# The loss shows it once its mean over so many steps exceeds what knowing nothing costs by so much.
SMOOTH, SHOWN = 10, 1.5
NOTHING_KNOWN = 0.6931


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """What happened.

    Attributes:
        alarm_step: The first alarm of the monitor; none if it stayed silent.
        alarms: How many there were.
        loss_step: Where the loss shows it; none if it does not.
        trace: The step, the loss, the constants of the two layers (none where not measured), in turn.
    """

    alarm_step: int | None
    alarms: int
    loss_step: int | None
    trace: tuple[tuple[float, ...], ...]


def diverge(model: Any, task: Task, *, last_rate: float, steps: int, every: int) -> Divergence:
    """Let the learning rate grow exponentially, and watch."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=FIRST_RATE)
    monitor = Monitor(model, every=every, budget=1.0, sequences=2)
    losses: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alarms are what is looked for
        for step, (tokens, labels) in enumerate(endless(task.train), start=1):
            for group in optimiser.param_groups:
                group["lr"] = FIRST_RATE * (last_rate / FIRST_RATE) ** (step / steps)
            loss = nn.functional.cross_entropy(model(input_ids=tokens).logits, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
            monitor.step(tokens)
            if step == steps or not loss.isfinite():
                break
    return Divergence(
        alarm_step=next((alarm.reading.step for alarm in monitor.alarms), None),
        alarms=len(monitor.alarms),
        loss_step=shown(losses),
        trace=tuple(
            (look.step, losses[look.step - 1], *(reading.lower for reading in look.readings)) for look in monitor.looks
        ),
    )


def shown(losses: Sequence[float]) -> int | None:
    """Return the step at which the loss shows that training diverges: its running mean is well above knowing nothing.

    Example:
        >>> shown([0.7] * 20 + [3.0] * 20)
        22
    """
    for step in range(SMOOTH, len(losses) + 1):
        mean = sum(losses[step - SMOOTH : step]) / SMOOTH
        if not mean < SHOWN * NOTHING_KNOWN:
            return step
    return None
