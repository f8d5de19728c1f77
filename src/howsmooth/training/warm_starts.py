"""WarmStart: singular vectors that a penalty keeps between training steps, and their residual."""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import ConvergenceWarning
from howsmooth.wording import number

# Singular vectors this well known give a value that is good to about its square.
TOLERANCE = 0.1
# So many steps in a row may be inexact before it is said: weights sometimes jump.
PATIENCE = 10


class WarmStart:
    r"""The singular directions of the last step, from which the next one starts.

    Of sequences of the same shape every one starts at its own direction; where the shape changes, at the direction in
    the space of features that the last ones had in common. A random component is mixed in all the same, so that a
    value which is no longer the largest is left within a few steps.

    Attributes:
        value: The constants of the last step.
        residual: :math:`|J^\top u-\theta v|/\theta` there: some singular value lies that near, relatively, not
            necessarily the largest.
        steps: How many Krylov steps were taken.
        products: How many products with the Jacobian or its transpose, all calls together.
    """

    def __init__(self) -> None:
        """Begin with nothing: the first step takes as many Krylov steps as it needs."""
        self.value: Float[Tensor, "*batch"] | None = None
        self.residual: Float[Tensor, "*batch"] | None = None
        self.steps = 0
        self.products = 0
        self._direction: Tensor | None = None
        self._inexact, self._warned = 0, False

    def __repr__(self) -> str:
        """Show the residual of the last value."""
        if self.residual is None:
            return "WarmStart: nothing yet"
        return f"WarmStart: residual {number(float(self.residual.max()), 2)} after {self.steps} steps"

    @property
    def exact(self) -> bool:
        """Whether every residual of the last step is at most 0.1, so that its singular vectors are known well."""
        return self.residual is not None and bool((self.residual <= TOLERANCE).all())

    def guess(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"] | None:
        """Return where to start at the tokens ``X``; nothing if nothing is known."""
        found = self._direction
        if found is None or found.shape[-1] != X.shape[-1] or found.device != X.device:
            return None
        if found.shape == X.shape:
            return found.to(X.dtype)
        # the feature that moves most over all tokens of all sequences
        rows = found.reshape(-1, found.shape[-1])
        _values, vectors = torch.linalg.eigh(rows.mT @ rows)
        return vectors[:, -1].to(X.dtype).expand(X.shape)

    def remember(self, direction: Tensor, *, value: Tensor, residual: Tensor, steps: int, products: int) -> None:
        """Keep the results of a step, and warn once if they stay inexact."""
        self._direction = direction.detach()
        self.value, self.residual, self.steps = value.detach(), residual.detach(), steps
        self.products += products
        self._inexact = 0 if self.exact else self._inexact + 1
        if self._inexact >= PATIENCE and not self._warned:
            self._warned = True
            warnings.warn(
                f"the penalty was inexact {PATIENCE} steps in a row (relative residual "
                f"{number(float(residual.max()), 2)}): what it penalises may be less than the constant. Raise `steps`, "
                "or keep a state of its own for each batch.",
                ConvergenceWarning,
                stacklevel=3,
            )
