"""Attack a map at an input: the perturbation of given size that moves the output most."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.attacks.attack_settings import BUDGET, check_attack
from howsmooth.attacks.ball import PerturbationBall
from howsmooth.attacks.counted_evaluation import check_value, run
from howsmooth.attacks.first_order import dual, steepest
from howsmooth.attacks.methods import search_by
from howsmooth.attacks.objective import Objective, Target
from howsmooth.attacks.result import Attack
from howsmooth.attacks.theoretical_maximum import ceiling
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.protocols import HALF, measurable, require_map
from howsmooth.spectral.vectors import norms
from howsmooth.validation import require_sequences

# A perturbation must exceed the rounding of the tokens so many times, or its displacement is noise.
ROUNDINGS = 64


def attack(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"],
    *,
    eps: float,
    norm: str = "total",
    method: str = "ascent",
    budget: int = BUDGET,
    target: Target | None = None,
    bounded: bool = True,
    generator: torch.Generator | None = None,
) -> Attack:
    r"""Search for the perturbation within ``eps`` of ``X`` that moves the output of ``f`` most.

    .. math:: \max_{\|E\|\le\epsilon}\|f(X+E)-f(X)\|_F = \sigma\epsilon + O(\epsilon^2), \qquad \sigma = \|D_Xf\|_2

    The result stands beside what the derivative predicts and what a theorem allows. Whatever the method, it lies in the
    ball, as float64 adds up, and is the best of all that was tried. A batch of sequences is attacked in lockstep, each
    by itself.

    Args:
        f: A map with a ``jacobian``, or any callable or module on tensors; it must treat batch axes independently.
        X: The tokens.
        eps: How far they may move.
        norm: All together, ``total``: :math:`\|E\|_F\le\epsilon`; or each of them, ``token``: :math:`|e_i|\le\epsilon`.
        method: ``random`` (noise), ``fgsm`` (one step along the gradient), ``pgd`` (many), ``singular`` (along the
            leading singular vectors, both ways) or ``ascent`` (climbing from these by conjugate gradients).
        budget: How many passes a method may spend: forward passes, and products with a derivative or its transpose.
            What is predicted is computed beside it.
        target: What to maximise instead of the displacement: any differentiable scalar of the output, one number for
            each sequence, such as the difference of two logits or the negative cosine with the embedding at ``X``.
        bounded: Whether to compute what the theory allows too, where it says something: a few seconds for
            each sequence and a layer of a dozen heads.
        generator: The source of randomness; one with a fixed seed by default.

    Raises:
        AssumptionError: If ``eps`` is not positive or below what the numbers of ``X`` resolve, or the norm, the method
            or the budget is not one.

    Example:
        >>> double = lambda X: 2 * X
        >>> found = attack(double, torch.ones(3, 2, dtype=torch.float64), eps=0.5)
        >>> round(float(found.displacement), 6), round(float(found.gain), 6)
        (1.0, 2.0)
    """
    check_attack(eps=eps, norm=norm, method=method, budget=budget)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    scene = prepared(f, X, norm=norm, target=target, generator=generator)
    found = scene.attack(eps=eps, method=method, budget=budget, generator=generator)
    return replace(found, ceiling=scene.ceiling(eps)) if bounded else found


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A map at an input, ready for attacks of any radius and method.

    Attributes:
        f: The map.
        X: The tokens.
        there: The output at them.
        J: The derivative there.
        norm: The norm of perturbations.
        target: What to maximise; the displacement if none.
        steepest: What the derivative predicts, for each unit of eps.
    """

    f: Callable[[Tensor], Any]
    X: Float[Tensor, "*batch n d"]
    there: Tensor
    J: LinearOperator
    norm: str
    target: Target | None
    steepest: Float[Tensor, "*batch"]

    def attack(self, *, eps: float, method: str, budget: int, generator: torch.Generator) -> Attack:
        """Attack with one radius, by one method; what the theory allows is a question of its own."""
        check_attack(eps=eps, norm=self.norm, method=method, budget=budget)
        self._require_resolved(eps)
        ball = PerturbationBall(eps=eps, norm=self.norm)
        objective = Objective(self.f, self.J, self.X, self.there, ball, budget, self.target)
        with torch.inference_mode(False):
            search_by(method)(objective, generator)
        moved = run(self.f, self.X + objective.best)
        return Attack(
            perturbation=objective.best,
            displacement=norms(moved.double() - self.there.double(), objective.batch),
            rise=objective.value,
            predicted=self.steepest * eps,
            ceiling=None,
            products=objective.spent,
            trace=torch.stack(objective.trace, dim=-1),
            eps=eps,
            norm=self.norm,
            method=method,
        )

    def ceiling(self, eps: float) -> Float[Tensor, "*batch"] | None:
        """Return what no perturbation of this radius can exceed, where a theorem says so."""
        return ceiling(self.f, self.X, PerturbationBall(eps=eps, norm=self.norm))

    def _require_resolved(self, eps: float) -> None:
        least = ROUNDINGS * torch.finfo(self.X.dtype).eps * float(self.X.double().norm(dim=(-2, -1)).max())
        if eps < least:
            raise AssumptionError(
                f"eps must be at least {least:.2g}, or {self.X.dtype} rounds it away, got {eps:g}; use float64, or a "
                "larger one.",
                field="eps",
            )


def prepared(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"],
    *,
    norm: str,
    target: Target | None = None,
    generator: torch.Generator,
) -> Prepared:
    """Look at a map at an input once, for any number of attacks."""
    _check(f, X, target)
    X = X.detach().clone()
    X = X.float() if X.dtype in HALF else X
    f = measurable(f)
    J = linearise(f, X)
    there = run(f, X)
    check_value(there, X)
    if target is None:
        slope = steepest(J, norm, generator)
    else:
        ball = PerturbationBall(eps=1.0, norm=norm)
        _value, G = Objective(f, J, X, there, ball, 2, target).climb_from(torch.zeros_like(X))
        slope = dual(G, norm)
    return Prepared(f=f, X=X, there=there, J=J, norm=norm, target=target, steepest=slope)


def _check(f: object, X: object, target: object) -> None:
    require_map(f)
    require_sequences(X)
    if not (target is None or callable(target)):
        raise DtypeError(
            f"target must be callable on the output, or None for the displacement, got {type(target).__name__}.",
            field="target",
        )
