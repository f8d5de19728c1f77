r"""The worst error of a size: what a matrix could cost at most, to second order, if its error were as bad as it can be.

The errors δ of a weight matrix W cost :math:`\tfrac1{2T}|B^\top J_W\delta|^2` with :math:`BB^\top=H`, the second
derivative of the cost in the output. The largest value over errors of one size is the square of a singular value of
:math:`B^\top J_W`, which a Krylov space brackets.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.budgets.subject import Subject
from howsmooth.spectral.autograd import JacobianOperator
from howsmooth.spectral.solvers import bracket_norm

RTOL, CONFIDENCE, STEPS = 0.1, 0.999, 12


@dataclass(frozen=True, kw_only=True)
class WorstCost:
    """What the worst error of a size costs to second order, at the first window.

    Attributes:
        low: What an error that was found costs.
        high: What none exceeds, with the confidence of 99.9 %.
    """

    low: float
    high: float


def worst_cost(subject: Subject, name: str, squared: float, *, seed: int = 0) -> WorstCost | None:
    """Bracket what an error of a parameter costs at most, if the sum of its squares is given.

    None for errors that are in no matrix, and where weights come from their files, since every product would read all.
    """
    weights = dict(subject.module.named_parameters())
    if name not in weights or weights[name].ndim != 2 or subject.transformer.stream is not None:
        return None
    W = weights[name].detach()
    with torch.no_grad():
        base = subject.outputs(0)
    root = None if subject.kind == "embedding" else base.softmax(-1).sqrt()

    def image(delta: Tensor) -> Tensor:
        z = subject.outputs(0, weights={name: W + delta})
        return z if root is None else root * (z - (root.square() * z).sum(-1, keepdim=True))

    op = JacobianOperator(image, torch.zeros_like(W))
    found = bracket_norm(op, RTOL, CONFIDENCE, True, STEPS, torch.Generator().manual_seed(seed), warn=False)
    low, high = (squared * float(end) ** 2 / (2 * len(base)) for end in (found.lower, found.upper))
    return WorstCost(low=low, high=high)
