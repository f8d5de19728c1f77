"""Linear operators without matrices: what solvers need to know of one."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, NonFiniteError
from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.protocols import Compressible


def check_operator(op: object) -> None:
    """Refuse what is no linear operator, or an empty one."""
    if not isinstance(op, LinearOperator):
        raise DtypeError(
            f"this takes a linear operator, got {type(op).__name__}; wrap a matrix in hs.maps.Dense, and use "
            "hs.local_lipschitz for a map and its input.",
            field="op",
        )
    if not math.prod((*op.batch, *op.domain, *op.codomain)):
        raise AssumptionError(
            f"the operator must not be empty, got {op.batch}, {op.domain} → {op.codomain}.", field="op"
        )


def require_finite_products(norms: "Tensor | np.ndarray") -> None:
    """Refuse products whose norms are no finite numbers."""
    if not bool(torch.as_tensor(norms).isfinite().all()):
        raise NonFiniteError(
            "a product with the operator is not finite: the map is not differentiable, or overflows, there."
        )


def root_share(core: LinearOperator, op: LinearOperator) -> float:
    """Return by how much a random direction of ``op`` is shorter in the domain of its ``core``, in the mean square."""
    return math.sqrt(math.prod(core.domain) / math.prod(op.domain))


def compressed(op: LinearOperator) -> tuple[LinearOperator, Callable[[Tensor], Tensor]]:
    """Return an operator with the same singular values, the smallest it knows of, and the isometry back."""
    return op.compress() if isinstance(op, Compressible) else (op, lambda E: E)
