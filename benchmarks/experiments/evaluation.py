"""What a trained classifier is worth: how often it is right, how rough it is, and what adversaries get."""

from dataclasses import dataclass
from typing import Any

import torch
from learning import LAYERS, Task
from reviews import SPECIAL
from torch import Tensor

from howsmooth.attacks.perturbations import attack
from howsmooth.models.activations import Activations
from howsmooth.models.load import load
from howsmooth.spectral.solvers import local_lipschitz

# How far all tokens together may move, and what an attack may spend.
EPS, PASSES = 0.1, 40


@dataclass(frozen=True, kw_only=True)
class ClassifierScores:
    """What was found at held-out sentences.

    Attributes:
        accuracy: The share of all of them that is told right.
        network: The constant from what enters the first block to the scores: the geometric mean.
        attention: That of the attention layers, likewise.
        attained: How far ``pgd`` moves the scores, for each unit of eps: the mean.
        flipped: The share of right answers that ``pgd`` turns over within eps.
        swapped: The share that one of so many random swaps of a word turns over.
    """

    accuracy: float
    network: float
    attention: float
    attained: float
    flipped: float
    swapped: float


def evaluate(model: Any, task: Task, *, sentences: int, swaps: int, generator: torch.Generator) -> ClassifierScores:
    """Look at a classifier."""
    model.eval()
    tokens, labels = _looked_at(task, sentences)
    transformer = load(model)
    there = transformer.activations(tokens)
    network, X = there.at(0, "classes")
    scores = network(X)[:, 0]
    right = scores.argmax(-1) == labels
    moved = attack(network, X, eps=EPS, method="pgd", budget=PASSES, seed=generator)
    sign = 1.0 - 2.0 * labels.to(X.dtype)

    def other_side(Y: Tensor) -> Tensor:
        return sign * (Y[..., 0, 1] - Y[..., 0, 0])

    turned = attack(network, X, eps=EPS, method="pgd", budget=PASSES, target=other_side, seed=generator)
    after = network(X + turned.perturbation)[:, 0].argmax(-1)
    return ClassifierScores(
        accuracy=_accuracy(model, task),
        network=_mean_constant(network, X, generator),
        attention=_attention(there, generator),
        attained=float(moved.gain.mean()),
        flipped=_share(after != labels, right),
        swapped=_share(_swapped(model, tokens, labels, swaps, task.words, generator), right),
    )


def _looked_at(task: Task, sentences: int) -> tuple[Tensor, Tensor]:
    """Return sentences of one length: the length of which there are most."""
    tokens, labels = max(task.test, key=lambda batch: (len(batch[1]), batch[0].shape[1]))
    same = [batch for batch in task.test if batch[0].shape[1] == tokens.shape[1]]
    tokens, labels = (torch.cat(parts)[:sentences] for parts in zip(*same, strict=True))
    return tokens, labels


@torch.no_grad()
def _accuracy(model: Any, task: Task) -> float:
    right = sum(int((model(input_ids=x).logits.argmax(-1) == y).sum()) for x, y in task.test)
    return right / sum(len(y) for _x, y in task.test)


def _mean_constant(f: Any, X: Tensor, generator: torch.Generator) -> float:
    found = local_lipschitz(f, X, rtol=0.01, seed=generator).lower.double()
    return float(found.clamp_min(1e-12).log().mean().exp())


def _attention(there: Activations, generator: torch.Generator) -> float:
    values = [_mean_constant(*there.at(layer, "attention"), generator) for layer in range(LAYERS)]
    return float(torch.tensor(values).log().mean().exp())


@torch.no_grad()
def _swapped(model: Any, tokens: Tensor, labels: Tensor, swaps: int, words: int, generator: torch.Generator) -> Tensor:
    """Tell for which sentences one of some random swaps is told wrong; marks stay."""
    wrong = torch.zeros(len(tokens), dtype=torch.bool)
    for _swap in range(swaps):
        changed = tokens.clone()
        places = torch.randint(1, tokens.shape[1] - 1, (len(tokens),), generator=generator)
        changed[torch.arange(len(tokens)), places] = torch.randint(
            len(SPECIAL), words, (len(tokens),), generator=generator
        )
        wrong |= model(input_ids=changed).logits.argmax(-1) != labels
    return wrong


def _share(which: Tensor, among: Tensor) -> float:
    return float((which & among).sum() / among.sum().clamp_min(1))
