"""The objective of an attack, within a budget of passes; the best perturbation so far is kept."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.attacks.ball import PerturbationBall
from howsmooth.attacks.counted_evaluation import CountedOperator, run, run_and_pull
from howsmooth.errors import DtypeError, ShapeError
from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.operators import divide, norms, random_start

Target = Callable[[Tensor], Tensor]


class Objective:
    r"""The gain of a perturbation: :math:`\|f(X+E)-f(X)\|`, or the rise of a scalar of the output.

    Whatever a method tries is first brought into the ball, and the best that was tried is kept, so no method can leave
    the ball or lose what it had. A forward pass costs one, and so does every product with a derivative.

    Attributes:
        X: The given sequences.
        there: The output at them.
        ball: Where perturbations lie.
        budget: How many passes there are.
        spent: How many are spent.
        best: The best perturbation of each sequence so far; zero at first.
        value: Its gain; zero at first.
        trace: The best value after every forward pass.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Any],
        J: LinearOperator,
        X: Float[Tensor, "*batch n d"],
        there: Tensor,
        ball: PerturbationBall,
        budget: int,
        target: Target | None = None,
    ) -> None:
        """Begin at no perturbation; the derivative ``J`` at ``X`` and the value ``there`` are known."""
        self._f, self._target = f, target
        self.J = CountedOperator(J, self._spend)
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

    def try_(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the gain of a perturbation, for one forward pass."""
        self._spend(1)
        E = self.ball.inside(E)
        return self._keep(E, self._gain(run(self._f, self.X + E)))

    def climb_from(self, E: Float[Tensor, "*batch n d"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch n d"]]:
        r"""Return the gain of a perturbation and its gradient, for a forward and a backward pass.

        .. math:: J(X+E)^\top\frac{f(X+E)-f(X)}{\|f(X+E)-f(X)\|}

        At E = 0 the displacement has none, and zero is returned. So is it where the output is not finite.
        """
        self._spend(2)
        E = self.ball.inside(E)
        Y, pull = run_and_pull(self._f, self.X + E)
        G = pull(self._cotangent(Y)).detach()
        return self._keep(E, self._gain(Y)), torch.where(G.isfinite().all(-1, keepdim=True), G, 0.0)

    def _cotangent(self, Y: Tensor) -> Tensor:
        if self._target is None:
            D = Y - self.there
            size = norms(D, self.batch)
            return divide(D, torch.where(size > 0, size, 1.0))
        with torch.inference_mode(False), torch.enable_grad():
            inputs = Y.detach().clone().requires_grad_()
            values = scalars(self._target, inputs, self.batch)
            if not values.requires_grad:
                return torch.zeros_like(Y)  # a target that does not depend on the output
            (cotangent,) = torch.autograd.grad(values.sum(), inputs, materialize_grads=True)
        return cotangent

    def _gain(self, Y: Tensor) -> Float[Tensor, "*batch"]:
        if self._target is None or self._before is None:
            return norms(Y.double() - self.there.double(), self.batch)
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
    """Return the target of every sequence.

    Raises:
        DtypeError: If the target is no tensor of real numbers.
        ShapeError: If there is not one number for each sequence.
    """
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
