r"""Norms of a derivative in other metrics than the Euclidean one: attained below, bounded above.

Between Euclidean metrics the isometries are part of the operator, and the Krylov solver does the rest. For the largest
token let :math:`J_i` be the rows of the derivative that belong to output token i. For every choice of positive weights
:math:`w_{ij}` with :math:`\sum_jw_{ij} = 1`,

.. math:: \max_{|e_j|\le1}\Bigl|\sum_jJ_{ij}e_j\Bigr|^2 \le \lambda_{\max}(M_i),\qquad
          M_i = \sum_jJ_{ij}J_{ij}^\top/w_{ij},

by Cauchy and Schwarz, since :math:`\sum_jw_{ij}|e_j|^2\le1`. With :math:`w_{ij}` proportional to
:math:`|J_{ij}^\top y|` at the top eigenvector y of :math:`M_i` both sides are equal, and alternating
:math:`e_j\leftarrow J_{ij}^\top y/|J_{ij}^\top y|`, :math:`y\leftarrow\sum_jJ_{ij}e_j` leads there. The largest
eigenvalues are bounded as singular values are, by Lanczos from a random start, see
:mod:`howsmooth.spectral.lanczos_upper_bound`; the doubt is shared out among the rows. Where no doubt is to be left
(``confidence=1``), all of :math:`M_i` is computed, and its eigenvalues with it: a proof, for as many products with
:math:`M_i` as an output token has coordinates. A row with several maxima needs
weights of its own: with :math:`\Theta\succeq0` of trace one,

.. math:: \min_w\lambda_{\max}(M_i) = \max_\Theta\Bigl(\sum_j\sqrt{\mathrm{tr}(J_{ij}^\top\Theta J_{ij})}\Bigr)^2,

a concave problem, and the same alternating steps climb it with a few vectors instead of one,
:math:`\Theta = \sum_ky_ky_k^\top`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import LinearOperator, Operator, fields_of
from howsmooth.metrics import Euclidean, LargestToken, Metric, Metrics, total
from howsmooth.spectral.estimates import NormEstimate, Status
from howsmooth.spectral.lanczos_upper_bound import exceeds, least_overlap, upper_bound
from howsmooth.spectral.operators import Separable, basis_vector, require_finite_products
from howsmooth.spectral.stopping import slack

# The rows of a derivative are assembled from products if these are not more.
BASIS_PRODUCTS = 2048
# Alternating steps of one vector and of several, Lanczos steps, and rounds of all.
POWER_STEPS, BLOCK_STEPS, LANCZOS_STEPS, ROUNDS = 100, 12, 60, 2
# Lanczos bounds are looked at after so many steps: for few rows that takes as long as a step.
CHECKED = 3
# A weight is at least this share of the largest one in its row: blocks that vanish at y may not vanish elsewhere.
LEAST_WEIGHT = 1e-5
# Rows are left alone once so many times their last gain does not reach the largest; that one, below this share of rtol.
GAIN_FACTOR, STILL = 4.0, 0.02
# Rows leave the alternating iteration when so many are left: copying them costs about a step.
LEAVING_SHARE = 0.75
# Both ends are widened by so many units in the last place: conversions and sums of squares.
MARGIN_UNITS = 8
# Random starts of the alternating iteration where nothing is proven by it.
STARTS = 3


@runtime_checkable
class TokenRows(Protocol):
    """Some rows of the derivative at one input."""

    @property
    def out(self) -> int:
        """The dimension of an output token."""

    def take(self, index: Tensor) -> "TokenRows":
        """Pick some of the rows."""

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        r"""Return :math:`\sum_jJ_{ij}J_{ij}^\top y_i/w_{ij}` for every row, and the norms :math:`|J_{ij}^\top y_i|`.

        Without weights these are the norms themselves.
        """


@runtime_checkable
class HasTokenRows(Protocol):
    """An operator that knows its rows in closed form."""

    def token_rows(self) -> TokenRows | None:
        """Return them; none where they have no closed form, or take too much memory."""


@dataclass(frozen=True, eq=False)
class DenseRows:
    """The rows of any derivative, as one array."""

    J: Float[Tensor, "m out n d"]  # the derivative: output token and coordinate, input token and coordinate

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.J.shape[1]

    def take(self, index: Tensor) -> "DenseRows":
        """Pick some of the rows."""
        return DenseRows(self.J[index])

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        """Pull a cotangent of each row back, and push it forward under weights."""
        sizes, E = _divided(torch.einsum("iajb,ia->ijb", self.J, Y), w)
        return torch.einsum("iajb,ijb->ia", self.J, E), sizes


@dataclass(frozen=True, eq=False)
class ProductRows:
    """The rows of any derivative, each by two products with the whole."""

    op: LinearOperator  # the derivative at one input
    at: Int[Tensor, " rows"]  # which output tokens these are

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.op.codomain[-1]

    def take(self, index: Tensor) -> "ProductRows":
        """Pick some of the rows."""
        return ProductRows(self.op, self.at[index])

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        """Pull the cotangent of each row back, and push it forward under weights."""
        moved, lengths = [], []
        for place, (row, y) in enumerate(zip(self.at.tolist(), Y, strict=True)):
            s = self.op.vjp(_at_row(self.op, row, y)).reshape(self.op.domain)
            sizes, E = _divided(s, None if w is None else w[place])
            moved.append(self.op.jvp(E.reshape(*self.op.batch, *self.op.domain)).reshape(self.op.codomain)[row])
            lengths.append(sizes)
        return torch.stack(moved), torch.stack(lengths)


def _divided(s: Float[Tensor, "*rows n d"], w: Float[Tensor, "*rows n"] | None) -> tuple[Tensor, Tensor]:
    """Return the norms of tokens, and the tokens divided by the weights or, without these, by their norms."""
    sizes = s.norm(dim=-1)
    w = torch.where(sizes > 0, sizes, 1.0) if w is None else w
    return sizes, s / w.unsqueeze(-1)


def _at_row(op: LinearOperator, row: int, y: Tensor) -> Tensor:
    """Return the cotangent that is y at one output token, and zero at the others."""
    G = torch.zeros(op.codomain, dtype=op.dtype, device=op.device)
    G[row] = y.to(op.dtype)
    return G.reshape(*op.batch, *op.codomain)


@dataclass(frozen=True, kw_only=True, eq=False)
class IsometricOperator(Operator):
    """An operator between Euclidean metrics, as one between standard spaces."""

    op: LinearOperator
    input: Euclidean  # the metric of its domain
    output: Euclidean  # the metric of its codomain

    def _push(self, E: Tensor) -> Tensor:
        return self.output.standard(self.op.jvp(self.input.original(E)))

    def _pull(self, G: Tensor) -> Tensor:
        return self.input.original_transpose(self.op.vjp(self.output.standard_transpose(G)))


def bracket_in(
    op: LinearOperator,
    metrics: Metrics,
    euclidean: Callable[[LinearOperator], NormEstimate],
    rtol: float,
    confidence: float,
    generator: torch.Generator | None,
) -> NormEstimate:
    """Bracket the norm of an operator between two metrics.

    Args:
        op: The operator.
        metrics: The metrics, at the tokens where the derivative is taken.
        euclidean: Brackets the largest singular value of an operator.
        rtol: The bracket to reach between largest tokens; otherwise both ends are what they are.
        confidence: The probability with which the upper end holds; one asks for a proof.
        generator: The source of random starts.

    Raises:
        AssumptionError: If a proof is asked for where none is known, or affordable.
    """
    given, wanted = metrics.input, metrics.output
    if isinstance(given, Euclidean) and isinstance(wanted, Euclidean):
        return _back(euclidean(isometric(op, given, wanted)), given, wanted)
    if wanted.dual_ball_of_basis and math.prod(op.codomain) <= BASIS_PRODUCTS:
        return _by_rows(op, given, wanted)
    if given.ball_of_basis and math.prod(op.domain) <= BASIS_PRODUCTS:
        return _by_columns(op, given, wanted)
    if isinstance(given, LargestToken) and isinstance(wanted, LargestToken):
        singles = list(_singles(op))
        if all(math.prod(single.batch) == 1 for single in singles):
            return _by_weights(op, singles, given, rtol, confidence, generator)
    if confidence == 1:
        raise _no_proof()
    return _compared(op, given, wanted, euclidean, generator)


def has_proof(metrics: Metrics) -> bool:
    """Tell whether norms between two metrics have upper ends that nothing random enters."""
    given, wanted = metrics.input, metrics.output
    tokens = isinstance(given, LargestToken) and isinstance(wanted, LargestToken)
    return tokens or wanted.dual_ball_of_basis or given.ball_of_basis


def _no_proof() -> AssumptionError:
    return AssumptionError(
        "no upper end is proven between these metrics at this size; give a confidence below 1, such as 0.999.",
        field="confidence",
    )


def isometric(op: LinearOperator, given: Metric, wanted: Metric) -> LinearOperator:
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
    pulled = (op.vjp(basis_vector(op, op.codomain, place)) for place in range(count))
    E, best = _best(op, ((given.steepest(G), given.dual_size(G)) for G in pulled))
    return _attained(op, E, best, given, wanted, products=count)


def _by_columns(op: LinearOperator, given: Metric, wanted: Metric) -> NormEstimate:
    r"""Maximise over the corners of the ball: :math:`\max_a\|Je_a\|`, exactly."""
    count = math.prod(op.domain)
    corners = (basis_vector(op, op.domain, place) for place in range(count))
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
    metric: LargestToken,
    rtol: float,
    confidence: float,
    generator: torch.Generator | None,
) -> NormEstimate:
    """Bracket the norm between largest tokens by the weights of Cauchy and Schwarz, one operator after another."""
    found = [_RowSearch(_rows_of(single), single, rtol, confidence, generator).bracket() for single in singles]
    E = torch.stack([direction for _upper, direction, _spent in found]).reshape(*op.batch, *op.domain)
    upper = torch.tensor([upper for upper, _direction, _spent in found], dtype=torch.float64, device=op.device)
    products = sum(spent for _upper, _direction, spent in found)
    bracket = _attained(op, E, upper.reshape(op.batch), metric, metric, products=products, rtol=rtol)
    return replace(bracket, confidence=confidence)


def _compared(
    op: LinearOperator,
    given: Metric,
    wanted: Metric,
    euclidean: Callable[[LinearOperator], NormEstimate],
    generator: torch.Generator | None,
) -> NormEstimate:
    """Climb from below; from above compare both metrics with the Euclidean norm."""
    top = euclidean(isometric(op, given, wanted))
    stretch, products = 1.0, top.products
    start = given.original(top.direction) if isinstance(given, Euclidean) else top.direction
    if not isinstance(given, Euclidean):
        stretch *= given.euclidean_ratios(_shape(op.domain))[0]
    if not isinstance(wanted, Euclidean):
        stretch *= wanted.euclidean_ratios(_shape(op.codomain))[1]
    E, _value, spent = climb(op, start, given, wanted, generator)
    products += spent
    found = _attained(op, E, top.upper.double() * stretch, given, wanted, products=products)
    return replace(found, confidence=top.confidence)


def climb(
    op: LinearOperator, start: Tensor, given: Metric, wanted: Metric, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, int]:
    """Climb from a direction and from random ones; return the best perturbation, what it attains, and the products."""
    starts = [given.steepest(op.vjp(op.jvp(start))), *(given.draw(start, generator) for _start in range(STARTS))]
    climbs = [_climbed(op, E, given, wanted) for E in starts]
    E, value = _best(op, ((E, value) for value, E, _spent in climbs))
    return E, value, sum(spent for _value, _E, spent in climbs)


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


def alternate(
    op: LinearOperator, E: Tensor, given: Metric, wanted: Metric, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take some steps of the same iteration; return the gain, the perturbation, and the functional that measures it."""
    for _step in range(steps):
        E = given.steepest(op.vjp(wanted.support(op.jvp(E))))
    F = op.jvp(E)
    return wanted.size(F).to(op.dtype), E, wanted.support(F)


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


def _rows_of(op: LinearOperator) -> TokenRows:
    """Return the rows of one operator: in closed form, as a matrix where few products give it, or by products."""
    if isinstance(op, HasTokenRows) and (rows := op.token_rows()) is not None:
        return rows
    count = math.prod(op.codomain)
    if count > BASIS_PRODUCTS:
        return ProductRows(op, torch.arange(op.codomain[0], device=op.device))
    J = torch.stack([op.vjp(basis_vector(op, op.codomain, place)).reshape(op.domain) for place in range(count)])
    return DenseRows(J.reshape(*op.codomain, *op.domain))


class _RowSearch:
    """The largest norm of a row: from below by alternating, from above by Lanczos with the weights that this gives."""

    def __init__(
        self,
        rows: TokenRows,
        op: LinearOperator,
        rtol: float,
        confidence: float,
        generator: torch.Generator | None,
    ) -> None:
        self.rows, self.op, self.rtol, self.generator = rows, op, rtol, generator
        m, n = op.codomain[0], op.domain[0]
        self.proven = confidence == 1
        if self.proven and isinstance(rows, ProductRows):
            raise _no_proof()
        self.delta = 0.0 if self.proven else least_overlap(rows.out, 1 - (1 - confidence) / (m * ROUNDS))
        self.Y = self._random(m)
        self.columns = self.Y.unsqueeze(1)
        self.sizes = torch.zeros(m, n, dtype=op.dtype, device=op.device)
        self.values = torch.zeros(m, dtype=op.dtype, device=op.device)
        self.upper = torch.full((m,), math.inf, dtype=torch.float64, device=op.device)
        self.steps = 0

    @property
    def goal(self) -> float:
        """What upper ends have to come below."""
        return float(self.values.max()) * (1 + self.rtol / 2)

    def bracket(self) -> tuple[float, Float[Tensor, "n d"], int]:
        """Return the upper end, the perturbation that attains the lower one, and the number of products."""
        some = torch.arange(len(self.Y), device=self.op.device)
        starts = self.Y
        for round_ in range(ROUNDS):
            self._alternate(some, starts)
            unproven = self.upper[some] > self.goal
            some, starts = some[unproven], starts[unproven]
            if round_:
                self._blend(some, starts)
            bounds, starts = self._largest_eigenvalues(some)
            improved = bounds < self.upper[some] * (1 - self.rtol / 4)
            self.upper[some] = torch.minimum(self.upper[some], bounds)
            left = improved & (self.upper[some] > self.goal)
            # from the top eigenvectors, along which the weights were too small
            some, starts = some[left], starts[left]
            if not some.numel():
                break
        row = int(self.values.argmax())
        pulled = self.op.vjp(_at_row(self.op, row, self.Y[row])).reshape(self.op.domain)
        _lengths, E = _divided(pulled, None)
        together = 1 if isinstance(self.rows, ProductRows) else len(self.Y)  # rows that share two products
        return float(self.upper.max()), E, 1 + 2 * math.ceil(self.steps / together)

    def _alternate(self, some: Tensor, Y: Float[Tensor, "some out"]) -> None:
        """Alternate until no row gains that could be the largest.

        The values never fall. A row far below the largest is proven to be so by weights that are far from its best.
        """
        active = torch.arange(len(some), device=some.device)
        value, sizes = torch.zeros_like(self.values[some]), torch.zeros_like(self.sizes[some])
        rows, Y = self._take(some), Y.clone()
        for _step in range(POWER_STEPS):
            moved, sizes[active] = self._step(rows, Y[active], None)
            before, value[active] = value[active], moved.norm(dim=-1)
            Y[active] = _unit(moved)
            best = max(float(self.values.max()), float(value.max()))
            room = best * (1 + GAIN_FACTOR * STILL * self.rtol) - value[active]
            gaining = (GAIN_FACTOR * (value[active] - before) > room).nonzero().flatten()
            if not gaining.numel():
                break
            if len(gaining) <= LEAVING_SHARE * len(active):
                rows, active = rows.take(gaining), active[gaining]
        better = value > self.values[some]
        self.values[some] = torch.maximum(value, self.values[some])
        self.Y[some] = torch.where(better.unsqueeze(-1), Y, self.Y[some])
        self.sizes[some] = torch.where(better.unsqueeze(-1), sizes, self.sizes[some])
        self.columns[some, 0] = self.Y[some]

    def _blend(self, some: Tensor, Y: Float[Tensor, "some out"]) -> None:
        """Alternate all vectors that were found for a row together, with one more; this gives the best weights."""
        self.columns = torch.cat((self.columns, torch.zeros_like(self.columns[:, :1])), dim=1)
        self.columns[some, -1] = Y
        count, columns, w = self.columns.shape[1], self.columns[some], self.sizes[some]
        rows = self.rows.take(some.repeat_interleave(count))
        for _step in range(BLOCK_STEPS):
            moved, sizes = self._step(rows, columns.flatten(0, 1), _weights(w).repeat_interleave(count, 0))
            w = sizes.unflatten(0, (-1, count)).norm(dim=1)
            columns = _unit(moved.unflatten(0, (-1, count)).flatten(1)).unflatten(1, (count, -1))
        self.columns[some], self.sizes[some] = columns, w

    def _largest_eigenvalues(self, some: Tensor) -> tuple[Float[Tensor, " some"], Float[Tensor, "some out"]]:
        """Bound the roots of largest eigenvalues under the weights, as far as the goal asks; with Ritz vectors."""
        w = _weights(self.sizes[some])
        if self.proven:
            return self._all_eigenvalues(some, w)
        goal, rounding = self.goal, slack(self.op.dtype)
        upper = torch.zeros(len(some), dtype=torch.float64, device=some.device)
        tops = torch.zeros_like(self.Y[some])
        active = torch.arange(len(some), device=some.device)
        basis = self._random(len(some)).unsqueeze(1)
        diagonal, beside = np.zeros((len(some), 0)), np.zeros((len(some), 0))
        rows, last = self._take(some), min(self.rows.out, LANCZOS_STEPS)
        for step in range(1, last + 1):
            moved, _sizes = self._step(rows, basis[:, -1], w)
            a = (moved * basis[:, -1]).sum(-1)
            for _twice in range(2):
                moved = moved - ((basis @ moved.unsqueeze(-1)).mT @ basis).squeeze(1)
            diagonal, beside = (np.c_[x, y.double().cpu()] for x, y in ((diagonal, a), (beside, moved.norm(dim=-1))))
            if step % CHECKED and step < last:
                basis = torch.cat((basis, _unit(moved).unsqueeze(1)), dim=1)
                continue
            values, vectors = np.linalg.eigh(_tridiagonal(diagonal, beside))
            ritz = np.sqrt(values[:, -1].clip(0))
            # a row below the goal only has to be proven to be so, and one far above needs other weights first
            excess = (ritz - goal).clip(0)
            bounds = np.maximum(ritz * (1 + self.rtol / 4) + 0.5 * excess, goal / rounding)
            alphas, betas = _bidiagonal(diagonal, beside)
            done = exceeds(bounds, alphas, betas, self.delta**-2) | (step == self.rows.out) | (bounds == 0)
            if step == LANCZOS_STEPS and not done.all():
                bounds[~done] = upper_bound(ritz[~done], alphas[~done], betas[~done], self.delta)
                done[:] = True
            index = torch.as_tensor(np.flatnonzero(done), device=some.device)
            mix = torch.as_tensor(vectors[done, :, -1:], dtype=basis.dtype, device=basis.device)
            tops[active[index]] = (mix.mT @ basis[index]).squeeze(1)
            upper[active[index]] = torch.as_tensor(bounds[done] * rounding, device=some.device)
            if done.all():
                break
            rest = torch.as_tensor(np.flatnonzero(~done), device=some.device)
            if done.any():
                rows, w = rows.take(rest), w[rest]
            active, diagonal, beside = active[rest], diagonal[~done], beside[~done]
            basis = torch.cat((basis[rest], _unit(moved[rest]).unsqueeze(1)), dim=1)
        return upper, tops

    def _all_eigenvalues(self, some: Tensor, w: Tensor) -> tuple[Float[Tensor, " some"], Float[Tensor, "some out"]]:
        r"""Compute :math:`M_i` column by column, and return what Lanczos would bound."""
        rows, out = self._take(some), self.rows.out
        identity = torch.eye(out, dtype=self.op.dtype, device=some.device)
        columns = [self._step(rows, e.expand(len(some), out), w)[0] for e in identity]
        M = torch.stack(columns, dim=-1).double()
        values, vectors = torch.linalg.eigh(0.5 * (M + M.mT))
        # sums over coordinates and input tokens, and the eigenvalues themselves
        room = 1 + MARGIN_UNITS * (out + w.shape[-1]) * torch.finfo(self.op.dtype).eps
        return values[:, -1].clamp_min(0).sqrt() * room, vectors[..., -1].to(self.op.dtype)

    def _take(self, some: Tensor) -> TokenRows:
        return self.rows if len(some) == len(self.Y) else self.rows.take(some)

    def _step(self, rows: TokenRows, Y: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
        self.steps += len(Y)
        return rows.step(Y, w)

    def _random(self, count: int) -> Float[Tensor, "count out"]:
        draw = torch.randn(count, self.rows.out, dtype=self.op.dtype, generator=self.generator)
        return _unit(draw.to(self.op.device))


def _weights(sizes: Float[Tensor, "rows n"]) -> Float[Tensor, "rows n"]:
    """Return positive weights that sum to one, nearly proportional to the sizes; equal ones where all are zero."""
    largest = sizes.amax(-1, keepdim=True)
    weights = sizes + torch.where(largest > 0, LEAST_WEIGHT * largest, 1.0)
    return weights / weights.sum(-1, keepdim=True)


def _unit(Y: Float[Tensor, "rows out"]) -> Float[Tensor, "rows out"]:
    sizes = Y.norm(dim=-1, keepdim=True)
    return Y / torch.where(sizes > 0, sizes, 1.0)


def _tridiagonal(diagonal: np.ndarray, beside: np.ndarray) -> np.ndarray:
    """Return the matrices of Lanczos, one for each row."""
    k = diagonal.shape[1]
    T = np.zeros((len(diagonal), k, k))
    T[:, range(k), range(k)] = diagonal
    T[:, range(1, k), range(k - 1)] = T[:, range(k - 1), range(1, k)] = beside[:, :-1]
    return T


def _bidiagonal(diagonal: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Factorise :math:`T = B^\top B`; what rounding makes of zero is a little more than zero."""
    least = 1e-30 * diagonal.max(axis=1).clip(1e-200)
    alphas, betas = np.empty_like(diagonal), np.empty_like(diagonal)
    before = np.zeros(len(diagonal))
    for step in range(diagonal.shape[1]):
        alphas[:, step] = np.sqrt(np.maximum(diagonal[:, step] - before**2, least))
        betas[:, step] = before = np.maximum(beside[:, step], least) / alphas[:, step]
    return alphas, betas
