"""The same map in units where tokens, values and outputs are of ordinary size (for Theorem 3 to Theorem 5)."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import require_attention, require_numbers
from howsmooth.theory.heads import on_cpu
from howsmooth.theory.linalg.matrix_norms import MOST
from howsmooth.validation import require_tokens

# What is smaller is called this.
LEAST = 1 / MOST


@dataclass(frozen=True, kw_only=True, eq=False)
class Rescaled:
    r"""A map and its inputs with entries of at most two, in float64 on the CPU.

    With :math:`X' = X/t`, :math:`Q' = tQ`, :math:`K' = tK`, :math:`V' = V/v` and :math:`W' = W/w` scores are the same
    and :math:`Df(X) = vw\,Df'(X')`. Factors are powers of two, so nothing is rounded.

    Why: certificates square lengths, and the square of 1e-170 is zero.

    Attributes:
        attention: The map.
        X: The inputs.
        factors: v and w.
    """

    attention: Attention
    X: Float[Tensor, "*batch n d"]
    factors: tuple[float, float]

    @classmethod
    def of(cls, attention: Attention, X: Float[Tensor, "*batch n d"]) -> "Rescaled":
        """Choose the units; tokens keep theirs where queries or keys would leave the range of floats."""
        require_attention(attention)
        require_numbers(attention.query, "attention")
        require_tokens(X, attention.query)
        wide, X = attention.to(torch.float64, "cpu"), on_cpu(X)
        # Tokens, values and outputs each have their own unit; queries and keys take up that of the tokens.
        t, v = _power(X), _power(wide.value)
        w = 1.0 if wide.output is None else _power(wide.output)
        t = t if all(LEAST < t * _power(x) < MOST for x in (wide.query, wide.key)) else 1.0
        scaled = dataclasses.replace(
            wide,
            query=t * wide.query,
            key=t * wide.key,
            value=wide.value / v,
            output=None if wide.output is None else wide.output / w,
        )
        return cls(attention=scaled, X=X / t, factors=(v, w))

    def in_original_units(self, value: float) -> float:
        """Return the bound for the map as it was; never zero where it is not."""
        # the larger factor first: the product of both alone may leave the range of floats
        found = value * max(self.factors) * min(self.factors)
        return max(found, LEAST) if value > 0 else found


def _power(x: Tensor) -> float:
    """Return the largest power of two that is no more than the largest entry; one for zeros."""
    size = float(x.detach().abs().max())
    return 1.0 if size == 0 else 2.0 ** max(math.frexp(size)[1] - 1, -1000)
