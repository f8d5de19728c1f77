"""Several singular values, one after another, each bracketed on what the earlier ones leave over."""

import math

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.estimates import NormEstimate, SingularValues, gravest
from howsmooth.spectral.operators import compressed
from howsmooth.spectral.solvers import bracket_norm, check_settings
from howsmooth.spectral.stopping import least_rtol


@torch.no_grad()
def singular_values(
    op: LinearOperator,
    *,
    k: int = 1,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    max_steps: int = 200,
    generator: torch.Generator | None = None,
) -> SingularValues:
    r"""Return the ``k`` largest singular values of an operator, with vectors and error bars.

    Each one is searched on :math:`J(I - VV^\top)`, V the orthonormal directions found so far, from a fresh random
    start: multiple values are found as often as they occur. Both error bars survive inexact directions, since for
    **any** orthonormal V the min–max theorem and interlacing give

    .. math:: \sigma_i(J V_k) \;\le\; \sigma_i(J) \;\le\; \|J(I - V_{i-1}V_{i-1}^\top)\|.

    Args:
        op: The operator, e.g. ``f.jacobian(X)``, or a batch of them.
        k: How many values.
        rtol: The accuracy, relative to the largest value.
        confidence: The probability with which each upper bound holds.
        max_steps: The most Krylov steps for one value.
        generator: The source of randomness; torch's global one by default.
    """
    check_settings(op, rtol, confidence, max_steps)
    core, embed = compressed(op)
    most = min(math.prod(core.domain), math.prod(core.codomain))
    if not (isinstance(k, int) and 1 <= k <= most):
        raise AssumptionError(
            f"k must lie between 1 and {most}, the largest rank the operator can have, got {k!r}.", field="k"
        )
    # a direction is only accurate to the root of its value's tolerance, and what leaks blurs the values after it
    inner = max(1e-3 * rtol, least_rtol(op.dtype))
    # Why one after another and not all from one Krylov space: a single start meets each eigenspace in one direction,
    # so it finds a multiple value once, and its certificate speaks of the largest value alone.
    rest, found = Deflated(core, ()), []
    floor: float | np.ndarray = 0.0
    for _index in range(k):
        top = bracket_norm(rest, inner, confidence, True, max_steps, generator, floor)
        found.append(top)
        rest = rest.without(top.direction)
        # once the rank is exhausted, only the rounding of the largest value is left
        floor = 16 * torch.finfo(op.dtype).eps * found[0].lower.flatten().double().cpu().numpy()
    return _ritz(op, [embed(v) for v in rest.directions], found)


class Deflated:
    r"""An operator restricted to the orthogonal complement of some directions: :math:`J(I - VV^\top)`."""

    def __init__(self, op: LinearOperator, directions: tuple[Tensor, ...]) -> None:
        """Remove orthonormal ``directions`` from the domain of ``op``."""
        self.op, self.directions = op, directions
        self.batch, self.domain, self.codomain = op.batch, op.domain, op.codomain
        self.dtype, self.device = op.dtype, op.device

    def jvp(self, E: Tensor) -> Tensor:
        """Apply the operator to what is orthogonal to the directions."""
        return self.op.jvp(self._complement(E))

    def vjp(self, G: Tensor) -> Tensor:
        """Apply the transpose."""
        return self._complement(self.op.vjp(G))

    def without(self, direction: Tensor) -> "Deflated":
        """Remove one more direction."""
        # twice: a direction that lies nearly in the span of the others keeps few digits after one pass
        rest = self._complement(self._complement(direction))
        axes = tuple(range(len(self.batch), rest.ndim))
        return Deflated(self.op, (*self.directions, rest / torch.linalg.vector_norm(rest, dim=axes, keepdim=True)))

    def _complement(self, E: Tensor) -> Tensor:
        axes = tuple(range(len(self.batch), E.ndim))
        for v in self.directions:
            E = E - v * (v * E).sum(axes, keepdim=True)
        return E


def _ritz(op: LinearOperator, directions: list[Tensor], found: list[NormEstimate]) -> SingularValues:
    """Rotate the directions to the singular vectors of the operator on their span."""
    axis = len(op.batch)
    V = torch.stack(directions, dim=axis).flatten(axis + 1)
    moved = torch.stack([op.jvp(v) for v in directions], dim=axis).flatten(axis + 1)
    left, values, mix = torch.linalg.svd(moved.mT, full_matrices=False)
    by_element = zip(*(estimate.statuses for estimate in found), strict=True)
    return SingularValues(
        values=values,
        upper=torch.stack([estimate.upper for estimate in found], dim=-1),
        right=(mix @ V).unflatten(-1, op.domain),
        left=left.mT.unflatten(-1, op.codomain),
        confidence=found[0].confidence,
        products=sum(estimate.products for estimate in found) + len(directions),
        statuses=tuple(gravest(statuses) for statuses in by_element),
    )
