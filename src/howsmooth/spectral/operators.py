"""Operators as solvers see them: checks, optional abilities, and batches of the vectors they act on."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DeviceError, DtypeError, NonFiniteError
from howsmooth.linear_operators import LinearOperator, Operator
from howsmooth.token_ring import TokenRing

# Between these the squares of a vector's entries can be added up in float64 without under- or overflow.
SAFE_LEAST, SAFE_MOST = 1e-145, 1e145
# How much of an informed start is random all the same.
RANDOM_SHARE = 0.1
# Too coarse to measure in: computed in float32 instead.
HALF = (torch.float16, torch.bfloat16)


@runtime_checkable
class Separable(Protocol):
    """A batch of operators that can be taken apart, so that a solver goes on with unfinished ones alone."""

    def take(self, index: Tensor) -> Any:
        """Return some operators of the flattened batch, as a batch with one axis."""


@runtime_checkable
class Compressible(Protocol):
    """An operator that knows a smaller one with the same singular values, or one whose products are cheaper."""

    def compress(self) -> tuple[Any, Callable[[Tensor], Tensor]]:
        """Return the smaller operator, and the isometry from its domain into the operator's own.

        Where that is the identity, which returns what it is given, both operators are the same matrix.
        """


@runtime_checkable
class Guessing(Protocol):
    """An operator that knows an approximate top singular vector, at the cost of about one product."""

    def guess(self) -> Tensor:
        """Return that direction, of any norm."""


@runtime_checkable
class Constrained(Protocol):
    """An operator whose perturbations live in a part of its domain, such as the real tokens of padded sequences."""

    def constrain(self, E: Tensor) -> Tensor:
        """Project a perturbation onto that part."""


@runtime_checkable
class Rounded(Protocol):
    """An operator that bounds its rounding errors, in the forward pass of its map and in products."""

    @property
    def forward_rounding(self) -> float:
        """The relative error, to first order: the rounding unit times the largest exponent in the forward pass."""

    @property
    def derivative_rounding(self) -> float:
        """The absolute error beyond that, of the product with a unit vector."""

    def cancelled(self, E: Tensor, scale: Tensor | None = None) -> tuple[float, float]:
        """Return the cancellation ratios of the product with ``E``: over its parts, and over their terms.

        The norm is that of responses times ``scale``, a number for each token.
        """


@runtime_checkable
class Composed(Protocol):
    """An operator that is made of others."""

    @property
    def parts(self) -> Iterable[LinearOperator]:
        """The derivatives of the maps that it is made of."""


@runtime_checkable
class Differentiable(Protocol):
    """A map that knows its derivative."""

    def jacobian(self, X: Tensor) -> Any:
        """Return the derivative at ``X`` as a linear operator."""


@runtime_checkable
class Shardable(Protocol):
    """A map that can be applied to a sequence whose tokens several processes share out."""

    def sharded(self, ring: TokenRing) -> Any:
        """Return the map on this process's tokens."""


@runtime_checkable
class Recastable(Protocol):
    """A map that computes in one dtype, and can be had in another."""

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""

    def to(self, dtype: torch.dtype) -> Any:
        """Return the same map in another dtype."""


@runtime_checkable
class DifferentiableOnMeasures(Protocol):
    """A map that knows its derivative at a measure."""

    def jacobian_on(self, measure: Any) -> Any:
        """Return the derivative when atoms move without splitting, in the metric of the masses."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CountedOperator(Operator):
    """A linear operator that counts its products."""

    op: LinearOperator
    spend: Callable[[int], None]  # called with one for every product with it or its transpose

    def _push(self, E: Tensor) -> Tensor:
        self.spend(1)
        return self.op.jvp(E)

    def _pull(self, G: Tensor) -> Tensor:
        self.spend(1)
        return self.op.vjp(G)

    def constrain(self, E: Tensor) -> Tensor:
        """Return the part of a perturbation that may move."""
        return constrained(self.op, E)


def require_map(f: object) -> None:
    """Refuse what is neither a map nor anything that can be called."""
    if not (callable(f) or isinstance(f, Differentiable)):
        raise DtypeError(f"f must be a map, a module or a callable on tensors, got {type(f).__name__}.", field="f")


def measurable(f: Any) -> Any:
    """Return a map that knows its derivative in at least float32; leave every other callable alone.

    A module is left alone too: its ``to`` changes the module itself, which belongs to the caller.
    """
    if isinstance(f, Differentiable) and isinstance(f, Recastable) and f.dtype in HALF:
        return f.to(torch.float32)
    return f


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
    if op.device.type == "meta":
        raise DeviceError(
            "the operator is on the meta device, which keeps no numbers; load it onto a device.", field="op"
        )


def require_finite_products(norms: "Tensor | np.ndarray") -> None:
    """Refuse products whose norms are no finite numbers."""
    if not bool(np.isfinite(norms).all() if isinstance(norms, np.ndarray) else norms.isfinite().all()):
        raise NonFiniteError(
            "a product with the operator is not finite: the map is not differentiable, or overflows, there."
        )


def root_share(core: LinearOperator, op: LinearOperator) -> float:
    """Return by how much a random direction of ``op`` is shorter in the domain of its ``core``, in the mean square."""
    return math.sqrt(math.prod(core.domain) / math.prod(op.domain))


def compressed(op: LinearOperator) -> tuple[LinearOperator, Callable[[Tensor], Tensor]]:
    """Return an operator with the same singular values, the smallest it knows of, and the isometry back."""
    return op.compress() if isinstance(op, Compressible) else (op, lambda E: E)


def constrained(op: LinearOperator, E: Tensor) -> Tensor:
    """Return the part of a perturbation that may move: all of it, unless some tokens are padding."""
    return op.constrain(E) if isinstance(op, Constrained) else E


# The processes that hold parts of every vector; none where vectors are whole.
_RING: ContextVar[TokenRing | None] = ContextVar("ring", default=None)


@contextmanager
def over_processes(ring: TokenRing) -> Iterator[None]:
    """Let norms and inner products in this block be those of vectors of which every process holds a part."""
    token = _RING.set(ring)
    try:
        yield
    finally:
        _RING.reset(token)


def summed(x: Tensor) -> Tensor:
    """Return the sum over all processes that hold parts of vectors; where vectors are whole, what is given."""
    ring = _RING.get()
    return x if ring is None else ring.sum(x)


def dimension(shape: tuple[int, ...]) -> int:
    """Return the dimension of vectors whose part here has this shape; the first axis is that of tokens."""
    ring = _RING.get()
    return math.prod(shape) if ring is None else math.prod(shape) // shape[0] * sum(ring.lengths)


def of_all_tokens(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
    """Return one number for each token of the sequence, if processes share out its tokens; what is given otherwise."""
    ring = _RING.get()
    return x if ring is None else ring.whole(x)


def norms(x: Tensor, batch: tuple[int, ...]) -> Float[Tensor, "*batch"]:
    """Return the Euclidean norm of each vector of the batch, in float64, whatever the size of the numbers."""
    return norm_of_parts(_norms_here(x, batch))


def norm_of_parts(norm: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return the norms of vectors, given those of the parts that this process holds."""
    return norm if _RING.get() is None else summed(norm.square()).sqrt()


def _norms_here(x: Tensor, batch: tuple[int, ...]) -> Float[Tensor, "*batch"]:
    rows = x.reshape(*batch, -1)
    # in float32, the squares of 10⁵ entries add up to five units in the last place too little
    norm = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    if all(SAFE_LEAST < value < SAFE_MOST for value in norm.flatten().tolist()):
        return norm
    largest = rows.abs().amax(-1).double()
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return scale * torch.linalg.vector_norm(rows.double() / scale.unsqueeze(-1), dim=-1)


def unit(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Scale every vector of the batch to norm one; zero stays zero."""
    norm = norms(x, batch)
    return divide(x, torch.where(norm > 0, norm, 1.0))


def divide(x: Tensor, by: Float[Tensor, "*batch"]) -> Tensor:
    """Divide every vector of the batch by its own number."""
    return x / broadcast(by, x)


def broadcast(numbers: Float[Tensor, "*batch"], x: Tensor) -> Tensor:
    """Shape one number for each vector of the batch so that it broadcasts over ``x``, in the dtype of ``x``."""
    return numbers.reshape((*numbers.shape, *(1 for _ in range(x.ndim - numbers.ndim)))).to(x.dtype)


def random_start(op: LinearOperator, generator: torch.Generator | None) -> Float[Tensor, "..."]:
    """Draw a unit vector of the domain for each operator of the batch, uniform on the sphere.

    Where perturbations live in a part of the domain, it is uniform on the sphere of that part: bounds that hold for the
    dimension of the whole hold there all the more.
    """
    start = gaussian(torch.empty((*op.batch, *op.domain), dtype=op.dtype, device=op.device), generator)
    return unit(constrained(op, start), op.batch)


def gaussian(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw vectors like others, of independent normal numbers; of vectors that are shared out, the part held here."""
    if (ring := _RING.get()) is not None:
        return ring.draw(like, generator)
    device = like.device if generator is None else generator.device
    return torch.randn(like.shape, dtype=like.dtype, device=device, generator=generator).to(like.device)


def informed_start(
    op: LinearOperator, guess: Tensor, generator: torch.Generator | None
) -> tuple[Float[Tensor, "..."], float]:
    r"""Mix a guess with a random vector; return the start and its random share.

    Why not the guess alone: it may be orthogonal to the top singular vector, and then no upper bound holds.

    With :math:`v_1 \propto \sqrt{1-b^2}\,s + b\,g`, g uniform on the sphere, and any y,
    :math:`P(|\langle v_1, y\rangle| < t) \le P(|\langle g,y\rangle| < t/c)` with :math:`c = b/(\sqrt{1-b^2}+b)`: a
    symmetric unimodal law puts most mass on a centred interval. Upper bounds survive with the least overlap times c.
    """
    b = RANDOM_SHARE
    rest = math.sqrt(1 - b * b)
    start = rest * unit(guess, op.batch) + b * random_start(op, generator)
    return unit(start, op.batch), b / (rest + b)


def basis_vector(op: LinearOperator, shape: tuple[int, ...], place: int) -> Tensor:
    """Return a vector of a shape, domain or codomain, with a single one, for every operator of the batch."""
    rows = torch.zeros((*op.batch, math.prod(shape)), dtype=op.dtype, device=op.device)
    rows[..., place] = 1.0
    return rows.reshape(*op.batch, *shape)


def flat(x: Tensor, batch: tuple[int, ...]) -> Float[Tensor, "count N"]:
    """Flatten the batch axes into one and the rest into another."""
    return x.reshape(math.prod(batch), -1)
