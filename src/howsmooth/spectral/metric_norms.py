r"""Norms of a derivative in other metrics than the Euclidean one: attained below, proven above.

Between Euclidean metrics the isometries are part of the operator, and the Krylov solver does the rest. For the largest
token let :math:`J_i` be the rows of the derivative that belong to output token i. For every choice of positive weights
:math:`w_{ij}` with :math:`\sum_jw_{ij} = 1`,

.. math:: \max_{|e_j|\le1}\Bigl|\sum_jJ_{ij}e_j\Bigr|^2 \le \lambda_{\max}(M_i),\qquad
          M_i = \sum_jJ_{ij}J_{ij}^\top/w_{ij},

by Cauchy and Schwarz, since :math:`\sum_jw_{ij}|e_j|^2\le1`. With :math:`w_{ij}` proportional to
:math:`|J_{ij}^\top y|` at the top eigenvector y of :math:`M_i` both sides are equal, and alternating
:math:`e_j\leftarrow J_{ij}^\top y/|J_{ij}^\top y|`, :math:`y\leftarrow\sum_jJ_{ij}e_j` leads there: the perturbation
that is found proves by itself that no other does much better, without any confidence. A Cholesky factorisation of
:math:`u^2I - M_i` is the proof of an upper end u.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.linear_operators import FACTORISATION_UNITS, LinearOperator, Operator, fields_of, positive_definite
from howsmooth.metrics import Euclidean, LargestToken, Metric, Metrics, total
from howsmooth.spectral.estimates import NormEstimate, Status
from howsmooth.spectral.operators import Separable, require_finite_products

# The rows of a derivative are assembled from products if these are not more, and their entries neither.
BASIS_PRODUCTS, DENSE_ENTRIES = 2048, 2**24
# Alternating steps, and rounds of proof and restart.
POWER_STEPS, ROUNDS = 100, 6
# A weight is at least this share of the largest one in its row: blocks that vanish at y may not vanish elsewhere.
LEAST_WEIGHT = 1e-7
# Rows whose Gram matrices are made at once.
ROWS_AT_ONCE = 32
# Rows are left alone once so many times their last gain does not reach the largest; that one, below this share of rtol.
GAIN_FACTOR, STILL = 10.0, 0.01
# Both ends are widened by so many units in the last place: conversions and sums of squares.
MARGIN_UNITS = 8
# Random starts of the alternating iteration where nothing is proven by it.
STARTS = 3


@runtime_checkable
class TokenRows(Protocol):
    """The derivative at one input, row by row."""

    @property
    def out(self) -> int:
        """The dimension of an output token."""

    def pull(self, Y: Float[Tensor, "m out"]) -> Float[Tensor, "m n d"]:
        r"""Return :math:`J_{ij}^\top y_i`."""

    def push(self, E: Float[Tensor, "m n d"]) -> Float[Tensor, "m out"]:
        r"""Return :math:`\sum_jJ_{ij}e_{ij}`."""

    def gram(self, rows: Tensor, w: Float[Tensor, "rows n"]) -> Float[Tensor, "rows out out"]:
        r"""Return :math:`M_i = \sum_jJ_{ij}J_{ij}^\top/w_{ij}` for some rows."""

    def below(self, rows: Tensor, w: Float[Tensor, "rows n"], bound: float) -> Bool[Tensor, " rows"]:
        r"""Say for which rows it is proven that :math:`\lambda_{\max}(M_i)` is below the square of a bound."""


@runtime_checkable
class HasTokenRows(Protocol):
    """An operator that knows its rows in closed form."""

    def token_rows(self) -> TokenRows | None:
        """Return them; none where they have no closed form, or take too much memory."""


@dataclass(frozen=True, eq=False)
class DenseRows:
    """The rows of any derivative, as one array.

    Attributes:
        J: The derivative: output token and coordinate, input token and coordinate.
    """

    J: Float[Tensor, "m out n d"]

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.J.shape[1]

    def pull(self, Y: Float[Tensor, "m out"]) -> Float[Tensor, "m n d"]:
        """Pull a cotangent of every output token back."""
        return torch.einsum("iajb,ia->ijb", self.J, Y)

    def push(self, E: Float[Tensor, "m n d"]) -> Float[Tensor, "m out"]:
        """Push a perturbation for every output token forward."""
        return torch.einsum("iajb,ijb->ia", self.J, E)

    def gram(self, rows: Tensor, w: Float[Tensor, "rows n"]) -> Float[Tensor, "rows out out"]:
        """Sum the products of blocks with their transposes."""
        J = self.J[rows]
        return torch.einsum("iajb,icjb->iac", J / w[:, None, :, None], J)

    def below(self, rows: Tensor, w: Float[Tensor, "rows n"], bound: float) -> Bool[Tensor, " rows"]:
        """Factorise the difference to the square of the bound."""
        return positive_definite(bound, self.gram(rows, w), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class IsometricOperator(Operator):
    """An operator between Euclidean metrics, as one between standard spaces.

    Attributes:
        op: The operator.
        input: The metric of its domain.
        output: The metric of its codomain.
    """

    op: LinearOperator
    input: Euclidean
    output: Euclidean

    def jvp(self, E: Tensor) -> Tensor:
        """Apply the operator between the two isometries."""
        return self.output.standard(self.op.jvp(self.input.original(E)))

    def vjp(self, G: Tensor) -> Tensor:
        """Apply the transpose."""
        return self.input.original_transpose(self.op.vjp(self.output.standard_transpose(G)))


def bracket_in(
    op: LinearOperator,
    metrics: Metrics,
    euclidean: Callable[[LinearOperator], NormEstimate],
    rtol: float,
    generator: torch.Generator | None,
) -> NormEstimate:
    """Bracket the norm of an operator between two metrics.

    Args:
        op: The operator.
        metrics: The metrics, at the tokens where the derivative is taken.
        euclidean: Brackets the largest singular value of an operator.
        rtol: The bracket to reach, where a proof is known; otherwise both ends are what they are.
        generator: The source of random starts.
    """
    given, wanted = metrics.input, metrics.output
    if isinstance(given, Euclidean) and isinstance(wanted, Euclidean):
        return _back(euclidean(_isometric(op, given, wanted)), given, wanted)
    if wanted.dual_ball_of_basis and math.prod(op.codomain) <= BASIS_PRODUCTS:
        return _by_rows(op, given, wanted)
    if given.ball_of_basis and math.prod(op.domain) <= BASIS_PRODUCTS:
        return _by_columns(op, given, wanted)
    if isinstance(given, LargestToken) and isinstance(wanted, LargestToken):
        singles = list(_singles(op))
        rows = [_rows_of(single) for single in singles]
        if all(each is not None for each in rows):
            return _by_weights(op, singles, rows, given, rtol, generator)  # type: ignore[arg-type]
    return _compared(op, given, wanted, euclidean, generator)


def _isometric(op: LinearOperator, given: Metric, wanted: Metric) -> LinearOperator:
    """Return the operator in standard spaces where metrics are Euclidean, and as it is where they are not."""
    given, wanted = (m if isinstance(m, Euclidean) else total for m in (given, wanted))
    if all(m.scale is None and m.factor is None for m in (given, wanted)):
        return op
    return IsometricOperator(op=op, input=given, output=wanted, **fields_of(op))


def _back(found: NormEstimate, given: Euclidean, wanted: Euclidean) -> NormEstimate:
    """Return an estimate in standard spaces with its vectors where they belong."""
    return replace(found, direction=given.original(found.direction), response=wanted.original(found.response))


def _by_rows(op: LinearOperator, given: Metric, wanted: Metric) -> NormEstimate:
    r"""Maximise over the coordinates of the output: :math:`\max_b\|J^\top e_b\|_*`, exactly."""
    count = math.prod(op.codomain)
    pulled = (op.vjp(_basis(op, op.codomain, place)) for place in range(count))
    E, best = _best(op, ((given.steepest(G), given.dual_size(G)) for G in pulled))
    return _attained(op, E, best, given, wanted, products=count)


def _by_columns(op: LinearOperator, given: Metric, wanted: Metric) -> NormEstimate:
    r"""Maximise over the corners of the ball: :math:`\max_a\|Je_a\|`, exactly."""
    count = math.prod(op.domain)
    corners = (_basis(op, op.domain, place) for place in range(count))
    E, best = _best(op, ((corner, wanted.size(op.jvp(corner))) for corner in corners))
    return _attained(op, E, best, given, wanted, products=count)


def _best(op: LinearOperator, candidates: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the perturbation of the largest value, for each operator of the batch, and that value."""
    E = torch.zeros((*op.batch, *op.domain), dtype=op.dtype, device=op.device)
    best = torch.zeros(op.batch, dtype=torch.float64, device=op.device)
    for F, value in candidates:
        # a NaN compares as larger with nothing: it is kept, and refused where the result is attained
        larger = ~(value <= best)
        E, best = torch.where(larger[..., None, None], F, E), torch.where(larger, value, best)
    return E, best


def _by_weights(
    op: LinearOperator,
    singles: list[LinearOperator],
    rows: list["TokenRows"],
    metric: LargestToken,
    rtol: float,
    generator: torch.Generator | None,
) -> NormEstimate:
    """Bracket the norm between largest tokens by the weights of Cauchy and Schwarz, one operator after another."""
    found = [
        bracket_rows(each, single.codomain[0], rtol, generator, single.device)
        for single, each in zip(singles, rows, strict=True)
    ]
    E = torch.stack([direction for _upper, direction in found]).reshape(*op.batch, *op.domain).to(op.dtype)
    upper = torch.tensor([upper for upper, _direction in found], dtype=torch.float64, device=op.device)
    return _attained(op, E, upper.reshape(op.batch), metric, metric, products=0, rtol=rtol)


def _compared(
    op: LinearOperator,
    given: Metric,
    wanted: Metric,
    euclidean: Callable[[LinearOperator], NormEstimate],
    generator: torch.Generator | None,
) -> NormEstimate:
    """Climb from below; from above compare both metrics with the Euclidean norm."""
    top = euclidean(_isometric(op, given, wanted))
    stretch, products = 1.0, top.products
    start = given.original(top.direction) if isinstance(given, Euclidean) else top.direction
    if not isinstance(given, Euclidean):
        stretch *= given.euclidean_ratios(_shape(op.domain))[0]
    if not isinstance(wanted, Euclidean):
        stretch *= wanted.euclidean_ratios(_shape(op.codomain))[1]
    starts = [given.steepest(op.vjp(op.jvp(start))), *(given.draw(start, generator) for _start in range(STARTS))]
    climbs = [_climbed(op, E, given, wanted) for E in starts]
    E, _value = _best(op, ((E, value) for value, E, _spent in climbs))
    products += sum(spent for _value, _E, spent in climbs)
    found = _attained(op, E, top.upper.double() * stretch, given, wanted, products=products)
    return replace(found, confidence=top.confidence)


def _climbed(op: LinearOperator, E: Tensor, given: Metric, wanted: Metric) -> tuple[Tensor, Tensor, int]:
    r"""Alternate :math:`Z\leftarrow` the support of JE, :math:`E\leftarrow` the steepest step of :math:`J^\top Z`.

    The norm is convex, so each step maximises a linear lower bound that touches it: the value never falls.
    """
    F = op.jvp(E)
    value, products = wanted.size(F), 1
    for _step in range(POWER_STEPS):
        new = given.steepest(op.vjp(wanted.support(F)))
        F = op.jvp(new)
        products += 2
        before, after = value, wanted.size(F)
        rises = (after >= before)[..., None, None]
        E, value = torch.where(rises, new, E), torch.maximum(before, after)
        if bool((after <= before * (1 + 1e-4)).all()):
            break
    return value, E, products


def _attained(
    op: LinearOperator, E: Tensor, upper: Tensor, given: Metric, wanted: Metric, *, products: int, rtol: float = 1e-6
) -> NormEstimate:
    """Return a bracket whose lower end is the size of the product with a perturbation."""
    sizes = given.size(E)
    response = op.jvp(E)
    # the size of the perturbation is one but for rounding
    lower = torch.where(sizes > 0, wanted.size(response) / torch.where(sizes > 0, sizes, 1.0), 0.0)
    require_finite_products(lower)
    room = 1 + MARGIN_UNITS * torch.finfo(op.dtype).eps
    upper = torch.maximum(upper * room, lower)
    closed = (upper <= lower * (1 + rtol) * room**2).flatten().tolist()
    return NormEstimate(
        lower=lower.to(op.dtype) / room,
        upper=upper.to(op.dtype) * room,
        confidence=1.0,
        direction=E,
        response=response / torch.where(lower > 0, lower, 1.0)[..., None, None].to(op.dtype),
        residual=(upper - lower).to(op.dtype),
        products=products + 1,
        step_counts=tuple(products + 1 for _each in closed),
        statuses=tuple(Status.CONVERGED if each else Status.OPEN for each in closed),
    )


def _basis(op: LinearOperator, shape: tuple[int, ...], place: int) -> Tensor:
    flat = torch.zeros((*op.batch, math.prod(shape)), dtype=op.dtype, device=op.device)
    flat[..., place] = 1.0
    return flat.reshape(*op.batch, *shape)


def _shape(shape: tuple[int, ...]) -> tuple[int, int]:
    n, d = shape
    return n, d


def _singles(op: LinearOperator) -> Iterator[LinearOperator]:
    """Yield the operators of a batch one by one, where they can be taken apart."""
    count = math.prod(op.batch)
    if count == 1 or not isinstance(op, Separable):
        yield op
        return
    for i in range(count):
        yield op.take(torch.tensor([i], device=op.device))


def _rows_of(op: LinearOperator) -> TokenRows | None:
    """Return the rows of one operator: in closed form, or from products where these are few."""
    if math.prod(op.batch) != 1:
        return None
    if isinstance(op, HasTokenRows) and (rows := op.token_rows()) is not None:
        return rows
    count = math.prod(op.codomain)
    if count > BASIS_PRODUCTS or count * math.prod(op.domain) > DENSE_ENTRIES:
        return None
    J = torch.stack([op.vjp(_basis(op, op.codomain, place)).reshape(op.domain) for place in range(count)])
    return DenseRows(J.reshape(*op.codomain, *op.domain).double())


def bracket_rows(
    rows: TokenRows, m: int, rtol: float, generator: torch.Generator | None, device: torch.device
) -> tuple[float, Float[Tensor, "n d"]]:
    """Bound the largest norm of a row from above, and return a perturbation that comes near."""
    draw = torch.randn(m, rows.out, dtype=torch.float64, generator=generator).to(device)
    Y, sizes = _alternated(rows, draw / draw.norm(dim=-1, keepdim=True), rtol)
    values = sizes.sum(-1)
    upper = torch.full((m,), math.inf, dtype=torch.float64, device=device)
    for _round in range(ROUNDS):
        goal = float(values.max()) * (1 + rtol / 2)
        unproven = (upper > goal).nonzero().flatten()
        starts = torch.zeros_like(Y)
        for some in unproven.split(ROWS_AT_ONCE):
            weights = _weights(sizes[some])
            proven = rows.below(some, weights, goal) if goal > 0 else torch.zeros_like(some, dtype=torch.bool)
            upper[some[proven]] = goal
            if not bool(proven.all()):
                rest = some[~proven]
                bound, starts[rest] = _largest_eigenvalues(rows.gram(rest, weights[~proven]))
                upper[rest] = torch.minimum(upper[rest], bound)
        unproven = unproven[upper[unproven] > goal]
        if not unproven.numel():
            break
        # from the top eigenvector, along which the weights were too small
        found, met = _alternated(rows, starts, rtol)
        better = met.sum(-1) > values
        Y, values = torch.where(better[:, None], found, Y), torch.where(better, met.sum(-1), values)
        mean = 0.5 * (sizes + met)
        sizes[unproven] = torch.where(better[:, None], met, mean)[unproven]
    pulled = rows.pull(Y)[int(values.argmax())]
    lengths = pulled.norm(dim=-1, keepdim=True)
    return float(upper.max()), pulled / torch.where(lengths > 0, lengths, 1.0)


def _weights(sizes: Float[Tensor, "rows n"]) -> Float[Tensor, "rows n"]:
    """Return positive weights that sum to one, nearly proportional to the sizes; equal ones where all are zero."""
    largest = sizes.amax(-1, keepdim=True)
    weights = sizes + torch.where(largest > 0, LEAST_WEIGHT * largest, 1.0)
    # the bound holds for every sum up to one: rounding must not exceed it
    return weights / weights.sum(-1, keepdim=True) * (1 - 1e-14)


def _alternated(rows: TokenRows, Y: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    r"""Alternate until no row that matters gains; return y and the sizes :math:`|J_{ij}^\top y_i|`.

    The values never fall. A row far below the largest is proven to be so by weights that are far from its best.
    """
    value = torch.zeros(Y.shape[0], dtype=Y.dtype, device=Y.device)
    for _step in range(POWER_STEPS):
        s = rows.pull(Y)
        sizes = s.norm(dim=-1)
        Y = rows.push(s / torch.where(sizes > 0, sizes, 1.0).unsqueeze(-1))
        before, value = value, Y.norm(dim=-1)
        Y = Y / torch.where(value > 0, value, 1.0).unsqueeze(-1)
        # what a row may gain yet is small compared with how far it is from the largest
        gains = value - before
        if bool((GAIN_FACTOR * gains <= value.max() * (1 + GAIN_FACTOR * STILL * rtol) - value).all()):
            break
    return Y, rows.pull(Y).norm(dim=-1)


def _largest_eigenvalues(M: Float[Tensor, "rows o o"]) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows o"]]:
    """Bound the square roots of largest eigenvalues, with their vectors."""
    values, basis = torch.linalg.eigh(M)
    room = 1 + FACTORISATION_UNITS * M.shape[-1] * torch.finfo(M.dtype).eps
    return values[:, -1].clamp_min(0).sqrt() * room, basis[..., -1]
