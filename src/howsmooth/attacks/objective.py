"""The objective of an attack: a ball of perturbations, counted passes, and the best perturbation so far."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError, ShapeError
from howsmooth.linear_operators import LinearOperator, fields_of
from howsmooth.maps.composition import linearised
from howsmooth.maps.heads import GIBIBYTE
from howsmooth.maps.protocols import Map
from howsmooth.metrics import Euclidean, Metric
from howsmooth.spectral.autograd import evaluate, value_of
from howsmooth.spectral.metric_norms import as_tokens
from howsmooth.spectral.operators import CountedOperator, Differentiable, random_start

Target = Callable[[Tensor], Tensor]
Pullback = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class PerturbationBall:
    r"""Perturbations of a sequence with :math:`\|E\| \le \epsilon` in a metric."""

    eps: float
    metric: Metric  # the metric, at the sequence

    def surface(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        r"""Return the perturbation that maximises :math:`\langle G, E\rangle`; where G is zero, so is it."""
        return self.inside(self.metric.steepest(G) * self.eps)

    def direction(self, v: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the perturbation of a singular direction, which is one of the isometric coordinates."""
        metric = self.metric
        return self.inside(metric.original(v) * self.eps) if isinstance(metric, Euclidean) else self.surface(v)

    def nearest(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project onto the ball."""
        return self.inside(self.metric.nearest(E, self.eps))

    def uphill(self, E: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the part of a gradient that leads along or into the ball: on its surface nothing moves outwards."""
        return self.metric.along(E, G, self.eps * (1 - 64 * torch.finfo(E.dtype).eps))

    def scale(self, E: Float[Tensor, "*batch n d"]) -> float:
        """Return the largest Frobenius norm of a perturbation."""
        n, d = E.shape[-2:]
        return self.eps * self.metric.euclidean_ratios((n, d))[0]

    def inside(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Shrink what rounding has put outside: the size, added up in float64, is at most eps."""
        shrink = 1 - 2 * torch.finfo(E.dtype).eps
        while bool((outside := self.metric.size(E) > self.eps).any()):
            E = torch.where(outside[..., None, None], E * shrink, E)
        return E


def value_and_pullback(f: Callable[[Tensor], Any], Z: Tensor) -> tuple[Float[Tensor, "*shape"], Pullback]:
    """Return the value at ``Z``, and what pulls cotangents back from there."""
    if isinstance(f, Differentiable):
        with torch.no_grad():
            value, J = linearised(f, Z, GIBIBYTE) if isinstance(f, Map) else (f(Z), f.jacobian(Z))
        return value, J.vjp
    inputs, recorded = evaluate(f, Z)

    def vjp(G: Tensor) -> Tensor:
        if not recorded.requires_grad:
            return torch.zeros_like(inputs)  # a constant map
        (pulled,) = torch.autograd.grad(recorded, inputs, G, materialize_grads=True)
        return pulled

    return recorded.detach(), vjp


def check_value(value: object, X: Tensor) -> None:
    """Refuse what is no value of a map on the sequences of a batch."""
    batch = X.shape[:-2]
    if not isinstance(value, Tensor):
        raise DtypeError(f"f must return one tensor, got {type(value).__name__}; wrap it.", field="f")
    if value.shape[: len(batch)] != batch or value.ndim - X.ndim > 0:
        raise ShapeError(
            f"f must keep the batch axes {tuple(batch)} of X and add none, got a value of the shape "
            f"{tuple(value.shape)}; attack one map at a time.",
            field="f",
        )


class Objective:
    r"""The gain of a perturbation: :math:`\|f(X+E)-f(X)\|` in a metric, or the rise of a scalar of the output.

    Whatever a method tries is first brought into the ball, and the best that was tried is kept, so no method can leave
    the ball or lose what it had. A forward pass costs one, and so does every product with a derivative.

    ``best`` is the best perturbation of each sequence so far, zero at first, ``value`` its gain, and ``trace`` the best
    value after every forward pass.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Any],
        J: LinearOperator,
        X: Float[Tensor, "*batch n d"],
        there: Tensor,
        ball: PerturbationBall,
        output: Metric,
        budget: int,
        target: Target | None = None,
    ) -> None:
        self._f, self.output, self._target = f, output, target
        self.J = CountedOperator(op=J, spend=self._spend, **fields_of(J))
        self.X, self.there, self.ball, self.budget, self.spent = X, there, ball, budget, 0
        self.best = torch.zeros_like(X)
        self.value = torch.zeros(self.batch, dtype=torch.float64, device=X.device)
        self.trace: list[Tensor] = []
        self._before = None if target is None else scalars(target, there, self.batch)

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes of the sequences."""
        return tuple(self.X.shape[:-2])

    @property
    def left(self) -> int:
        """How many passes are left."""
        return self.budget - self.spent

    @property
    def targeted(self) -> bool:
        """Whether a scalar of the output is maximised, not the displacement."""
        return self._target is not None

    def draw(self, generator: torch.Generator) -> Float[Tensor, "*batch n d"]:
        """Draw from the surface of the ball, uniformly on every sphere of it; padding stays where it is."""
        return draw(self.J, self.ball, generator)

    def gain(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the gain of a perturbation, for one forward pass."""
        self._spend(1)
        E = self.ball.inside(E)
        return self._keep(E, self._gain_of(value_of(self._f, self.X + E)))

    def gain_and_gradient(
        self, E: Float[Tensor, "*batch n d"]
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch n d"]]:
        r"""Return the gain of a perturbation and its gradient, for a forward and a backward pass.

        It is :math:`J(X+E)^\top Z` with the supporting functional Z of :math:`f(X+E)-f(X)`, in the Euclidean norm
        its direction. At E = 0 the displacement has none, and zero is returned, and where the output is not finite.
        """
        self._spend(2)
        E = self.ball.inside(E)
        Y, pullback = value_and_pullback(self._f, self.X + E)
        G = pullback(self._cotangent(Y)).detach()
        return self._keep(E, self._gain_of(Y)), torch.where(G.isfinite().all(-1, keepdim=True), G, 0.0)

    def _cotangent(self, Y: Tensor) -> Tensor:
        if self._target is None:
            return self.output.support(as_tokens(Y - self.there, self.batch)).reshape(Y.shape)
        with torch.inference_mode(False), torch.enable_grad():
            inputs = Y.detach().clone().requires_grad_()
            values = scalars(self._target, inputs, self.batch)
            if not values.requires_grad:
                return torch.zeros_like(Y)  # a target that does not depend on the output
            (cotangent,) = torch.autograd.grad(values.sum(), inputs, materialize_grads=True)
        return cotangent

    def _gain_of(self, Y: Tensor) -> Float[Tensor, "*batch"]:
        if self._target is None or self._before is None:
            return self.output.size(as_tokens(Y.double() - self.there.double(), self.batch))
        return scalars(self._target, Y, self.batch).detach().double() - self._before.detach().double()

    def _keep(self, E: Tensor, value: Tensor) -> Tensor:
        # what is not finite is nothing that an adversary attained
        value = torch.where(value.isfinite(), value, -torch.inf)
        better = value > self.value
        self.value = torch.where(better, value, self.value)
        self.best = torch.where(better[..., None, None], E, self.best)
        self.trace.append(self.value)
        return value

    def _spend(self, passes: int) -> None:
        self.spent += passes


def draw(J: LinearOperator, ball: PerturbationBall, generator: torch.Generator) -> Float[Tensor, "*batch n d"]:
    """Draw from the surface of a ball in the domain of a derivative."""
    return ball.surface(random_start(J, generator))


def scalars(target: Target, Y: Tensor, batch: tuple[int, ...]) -> Float[Tensor, "*batch"]:
    """Return the target of every sequence."""
    found = target(Y)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise DtypeError(f"target must return a tensor of real numbers, got {kind}.", field="target")
    if tuple(found.shape) != batch:
        raise ShapeError(
            f"target must return one number for each sequence, so the shape {batch}, got {tuple(found.shape)}.",
            field="target",
        )
    return found
