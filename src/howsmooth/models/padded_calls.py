"""Modules as they were called on padded inputs, measured among real tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.maps.real_tokens import OnRealTokens, zero_padded_outputs
from howsmooth.spectral.autograd import JacobianOperator


@dataclass(frozen=True, kw_only=True, eq=False)
class RealTokensCall:
    """A callable on padded sequences, restricted to real tokens as :class:`howsmooth.maps.real_tokens.RealTokens` is.

    Attributes:
        call: The callable, which autograd differentiates.
        real: True for real tokens.
    """

    call: Callable[[Tensor], Any]
    real: Bool[Tensor, "batch n"]

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch m out"]:
        """Apply the callable, and put out nothing at padded tokens."""
        return zero_padded_outputs(self.call(X), self.real)

    def jacobian(self, X: Float[Tensor, "batch n d"]) -> OnRealTokens:
        """Differentiate among real tokens; padded ones stay as they are."""
        real, fixed = self.real.unsqueeze(-1), X.detach()
        return OnRealTokens(JacobianOperator(lambda Y: self(torch.where(real, Y, fixed)), X), self.real)
