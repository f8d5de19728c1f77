r"""Norms of a derivative in other metrics than the Euclidean one: attained below, bounded above.

Between Euclidean metrics the isometries are part of the operator, and the Krylov solver does the rest. The
norm between largest tokens is bracketed by :mod:`howsmooth.spectral.token_norm`; where one of the two unit balls is the
hull of a few vectors, the norm is the largest of as many products; all others are climbed from below, and compared with
the Euclidean norm above.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.linear_operators import LinearOperator, Operator, fields_of, take
from howsmooth.metrics import Euclidean, LargestEntry, LargestToken, Metric, Metrics, Relative, SumOfEntries, total
from howsmooth.spectral.autograd import evaluate
from howsmooth.spectral.estimates import NormEstimate, Status
from howsmooth.spectral.operators import (
    HALF,
    CountedOperator,
    Differentiable,
    Recastable,
    Separable,
    basis_vector,
    compressed,
    constrained,
    require_finite_products,
)
from howsmooth.spectral.token_norm import BASIS_PRODUCTS, MARGIN_UNITS, RowSearch, no_proof, rows_of

# Random starts of the alternating iteration where nothing is proven by it, and its steps.
STARTS, STEPS = 3, 100
# Looks at blocks of coordinates, and a promise that is no more than what was seen there, up to this share.
LOOKS, STILL = 32, 1e-4
# All entries of a derivative are computed where a closed form gives them and they are not more: a second or two.
BLOCK_NUMBERS = 2**30


@runtime_checkable
class HasBlocks(Protocol):
    """An operator that knows the blocks of its rows in closed form."""

    def token_rows(self) -> Any | None:
        """Return rows that yield their ``blocks()``; none where there is no closed form."""


@runtime_checkable
class Recoordinated(Protocol):
    """An operator between tokens that can be had in other coordinates of tokens, at the cost of the same products."""

    def between(self, before: Tensor | None, after: Tensor | None) -> Any | None:
        """Return it with matrices that act on the coordinates before and after; none where it has no such form."""


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

    def constrain(self, E: Tensor) -> Tensor:
        """Return the part of a perturbation that may move: isometries act on each token by itself."""
        return constrained(self.op, E)

    def compress(self) -> tuple["IsometricOperator", Callable[[Tensor], Tensor]]:
        """Restrict tokens to what the operator sees of their coordinates; numbers that multiply tokens commute."""
        core, embed = compressed(self.op)
        if core is self.op or any(metric.factor is not None for metric in (self.input, self.output)):
            return self, lambda E: E
        return replace(self, op=core, **fields_of(core)), embed


class SeparableIsometricOperator(IsometricOperator):
    """The same of a batch that can be taken apart."""

    def take(self, index: Tensor) -> "SeparableIsometricOperator":
        """Pick some operators of the batch."""
        assert isinstance(self.op, Separable)
        given, wanted = (
            replace(metric, scale=take(metric.scale, self.batch, index, event=2))
            for metric in (self.input, self.output)
        )
        return replace(self, op=self.op.take(index), input=given, output=wanted, batch=(len(index),))


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
    singles = list(_singles(op))
    if isinstance(given, LargestToken) and isinstance(wanted, LargestToken):
        if all(math.prod(single.batch) == 1 for single in singles):
            return _by_weights(op, singles, given, rtol, confidence, generator)
    elif wanted.dual_ball_of_basis or (isinstance(given, SumOfEntries) and isinstance(wanted, SumOfEntries)):
        rows = [single.token_rows() for single in singles if isinstance(single, HasBlocks)]
        if math.prod((*op.codomain, *op.domain)) <= BLOCK_NUMBERS and len(singles) == len(rows) and all(rows):
            return _by_blocks(op, rows, given, wanted)
    if confidence == 1:
        raise no_proof()
    return _compared(op, given, wanted, euclidean, generator)


def has_proof(metrics: Metrics) -> bool:
    """Tell whether norms between two metrics have upper ends that nothing random enters."""
    given, wanted = metrics.input, metrics.output
    tokens = isinstance(given, LargestToken) and isinstance(wanted, LargestToken)
    return tokens or wanted.dual_ball_of_basis or given.ball_of_basis


def in_metrics(f: Any, op: LinearOperator, metrics: Metrics, X: Any) -> tuple[LinearOperator, Metrics]:
    """Return the derivative of ``f`` at ``X`` between tokens, and metrics at these tokens and their values.

    Values are those of the given weights: in half precision they would be as far off as relative metrics then are, and
    in single precision too, where they cancel. Maps that can be had in float64 are evaluated there.

    Raises:
        ShapeError: If a metric needs tokens, and inputs or outputs are of other shapes.
        AssumptionError: If something is relative to what is not a tensor.
    """
    if metrics.input is total and metrics.output is total:
        return op, metrics
    if len(op.domain) != 2 or len(op.codomain) > 2:
        raise ShapeError(
            f"the metric {metrics.name!r} needs tokens (*batch, n, d), and outputs of that form or one vector for each "
            f"input; got inputs {op.domain} and outputs {op.codomain}; take the metric 'total'.",
            field="metric",
        )
    op = vector_output(op) if len(op.codomain) < 2 else op
    if not metrics.depend_on_tokens:
        return op, metrics
    Y = X
    if isinstance(metrics.output, Relative) and isinstance(X, Tensor):
        recast = isinstance(f, Differentiable) and isinstance(f, Recastable)
        g: Callable[[Tensor], Any] = f.to(torch.float64) if recast else f
        Z = X.double() if recast else X.float() if X.dtype in HALF else X
        with torch.no_grad():
            Y = g(Z) if isinstance(g, Differentiable) else evaluate(g, Z)[1]
    if not isinstance(Y, Tensor):
        raise AssumptionError(
            f"the metric {metrics.name!r} needs tokens and outputs that are tensors, got "
            f"{type(Y).__name__}; take the metric 'total'.",
            field="metric",
        )
    return op, relative_to(op, metrics, X, Y)


def relative_to(op: LinearOperator, metrics: Metrics, X: Tensor, Y: Tensor) -> Metrics:
    """Return metrics at the tokens where a derivative is taken, and their outputs; padding has no part in norms."""
    together = isinstance(metrics.input, Relative) and not metrics.input.per_token
    return metrics.at(constrained(op, X) if together else X, as_tokens(Y, op.batch))


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorOutput(Operator):
    """A derivative whose output is a vector, as one token."""

    op: LinearOperator

    def _push(self, E: Tensor) -> Tensor:
        return as_tokens(self.op.jvp(E), self.batch)

    def _pull(self, G: Tensor) -> Tensor:
        return self.op.vjp(G.reshape(*self.batch, *self.op.codomain))

    def constrain(self, E: Tensor) -> Tensor:
        """Return the part of a perturbation that may move."""
        return constrained(self.op, E)


def vector_output(op: LinearOperator) -> VectorOutput:
    """Return a derivative whose output is a vector, or a number, as one of one token."""
    return VectorOutput(op=op, **(fields_of(op) | {"codomain": (1, math.prod(op.codomain))}))


def as_tokens(Y: Tensor, batch: tuple[int, ...]) -> Float[Tensor, "*batch m out"]:
    """Return outputs with two axes behind those of the batch: a vector is one token."""
    return Y.reshape(*batch, *(1,) * (len(batch) + 2 - Y.ndim), *Y.shape[len(batch) :])


def isometric(op: LinearOperator, given: Metric, wanted: Metric) -> LinearOperator:
    """Return the operator in standard spaces where metrics are Euclidean, and as it is where they are not."""
    given, wanted = (m if isinstance(m, Euclidean) else total for m in (given, wanted))
    if isinstance(op, Recoordinated) and not (given.factor is None and wanted.factor is None):
        # matrices become part of the projections, so that products cost what they did
        turned = op.between(given.inverse, wanted.factor)
        if turned is not None:
            op, given, wanted = turned, *(replace(metric, factor=None, inverse=None) for metric in (given, wanted))
    if all(m.scale is None and m.factor is None for m in (given, wanted)):
        return op
    kind = SeparableIsometricOperator if isinstance(op, Separable) else IsometricOperator
    return kind(op=op, input=_converted(given, op), output=_converted(wanted, op), **fields_of(op))


def _converted(metric: Euclidean, op: LinearOperator) -> Euclidean:
    """Return a metric with the numbers in the dtype of an operator: converted once, and not for every product."""
    scale, factor, inverse = (
        None if x is None else x.to(op.device, op.dtype) for x in (metric.scale, metric.factor, metric.inverse)
    )
    return replace(metric, scale=scale, factor=factor, inverse=inverse)


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


def _by_blocks(op: LinearOperator, rows: list[Any], given: Metric, wanted: Metric) -> NormEstimate:
    """Compute all entries of the derivative, row by row, and maximise as with one product for each of them."""
    Es, values = [], []
    for each in rows:
        if wanted.dual_ball_of_basis:
            E = torch.zeros(op.domain, dtype=op.dtype, device=op.device)
            best = torch.tensor(-1.0, dtype=torch.float64, device=op.device)
            for J in each.blocks():
                # double precision over tokens alone: with every entry converted, this takes three times as long
                one = isinstance(given, LargestEntry)
                sizes = J.norm(1, dim=-1).double().sum(0) if one else given.dual_size(J.transpose(0, 1))
                if bool(_exceeds(sizes.max(), best)):
                    best, E = sizes.max(), given.steepest(J[:, sizes.argmax()])
        else:
            total_sizes = torch.stack([J.norm(1, dim=1).double() for J in each.blocks()]).sum(0)
            best, E = total_sizes.max(), given.steepest(total_sizes).to(op.dtype)
        Es.append(E)
        values.append(best)
    # the entries are sums over heads and coordinates; that they cancel is counted with the rounding of products
    room = 1 + MARGIN_UNITS * op.codomain[-1] * torch.finfo(op.dtype).eps
    upper = torch.stack(values).reshape(op.batch) * room
    return _attained(op, torch.stack(Es).reshape(*op.batch, *op.domain), upper, given, wanted, products=0, rtol=1e-3)


def _exceeds(value: Tensor, best: Tensor) -> Tensor:
    """Tell where a value is better than the best so far; NaN is, and stays so: it is refused where it is attained."""
    return (value > best) | value.isnan()


def _best(op: LinearOperator, candidates: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the perturbation of the largest value, for each operator of the batch, and that value."""
    E = torch.zeros((*op.batch, *op.domain), dtype=op.dtype, device=op.device)
    best = torch.zeros(op.batch, dtype=torch.float64, device=op.device)
    for F, value in candidates:
        larger = _exceeds(value, best)
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
    found = [RowSearch(rows_of(single), single, rtol, confidence, generator).bracket() for single in singles]
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
    stretch = 1.0
    start = given.original(top.direction) if isinstance(given, Euclidean) else top.direction
    if not isinstance(given, Euclidean):
        stretch *= given.euclidean_ratios(_shape(op.domain))[0]
    if not isinstance(wanted, Euclidean):
        stretch *= wanted.euclidean_ratios(_shape(op.codomain))[1]
    E, _value, spent = climb(op, start, given, wanted, generator)
    found = _attained(op, E, top.upper.double() * stretch, given, wanted, products=top.products + spent)
    return replace(found, confidence=top.confidence)


def climb(
    op: LinearOperator, start: Tensor, given: Metric, wanted: Metric, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, int]:
    """Climb from a direction and from random ones; return the best perturbation, what it attains, and the products."""
    products: list[int] = []
    op = CountedOperator(op=op, spend=products.append, **fields_of(op))
    starts = [given.steepest(op.vjp(op.jvp(start))), *(given.draw(start, generator) for _start in range(STARTS))]
    ends = []
    if block_count(op, given, wanted):
        value, E, _functional = _among_blocks(op, starts, given, wanted, LOOKS)
        ends = [(E, value.double())]
    E, value = _best(op, [*ends, *(_climbed(op, E, given, wanted) for E in starts)])
    return E, value, len(products)


def block_count(op: LinearOperator, given: Metric, wanted: Metric) -> int:
    """Count the blocks of coordinates whose balls have one of the two unit balls as their hull; zero if there are none.

    These are the functionals of the largest entry or token, or the perturbations of a sum of entries.
    """
    if wanted.dual_ball_of_basis:
        return math.prod(op.codomain)
    if isinstance(wanted, LargestToken):
        return op.codomain[0]
    return math.prod(op.domain) if given.ball_of_basis else 0


def _among_blocks(
    op: LinearOperator, starts: list[Tensor], given: Metric, wanted: Metric, looks: int
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Look at the most promising blocks; return the best value, the perturbation, and the functional that has it.

    With functionals that are unit vectors :math:`z_b` of one block b each, every :math:`\|E\|\le1` shows that b is
    worth at least :math:`|(JE)_b|`. The block that promises most is looked at, :math:`E\leftarrow` the steepest step
    of :math:`J^\top z_b`, and not again unless another E promises more. Random E come first: the root mean square of
    :math:`(JE)_b` estimates the Frobenius norm of the rows of b. Plain alternation ends at the first block whose own
    step favours it, however many others are worth more; estimates of 1-norms avoid that likewise :cite:`higham2000`.
    """
    outwards = block_count(op, total, wanted) > 0
    shape = op.codomain if outwards else op.domain
    width = math.prod(shape) // block_count(op, given, wanted)

    def blocks(x: Tensor) -> Tensor:
        return x.flatten(-2).unflatten(-1, (-1, width))

    def look(Z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the perturbation, or functional, that is best with unit vectors of blocks, and what it shows."""
        Z = Z.flatten(-2).unflatten(-1, shape)
        E = given.steepest(op.vjp(Z)) if outwards else wanted.support(op.jvp(Z))
        return E, blocks(op.jvp(E) if outwards else op.vjp(E))

    shown = torch.stack([blocks(op.jvp(E) if outwards else op.vjp(wanted.support(op.jvp(E)))) for E in starts])
    sizes = shown.norm(dim=-1)
    best_start = sizes.argmax(0, keepdim=True).unsqueeze(-1).expand(1, *shown.shape[1:])
    promised, directions = sizes.square().mean(0).sqrt(), shown.gather(0, best_start)[0]
    looked, best = torch.full_like(promised, -1.0), torch.full_like(promised[..., 0], -1.0)
    E = torch.zeros((*op.batch, *(op.domain if outwards else op.codomain)), dtype=op.dtype, device=op.device)
    F = torch.zeros_like(directions)
    for _look in range(looks):
        promises_more = promised > looked * (1 + STILL)
        if not bool(promises_more.any()):
            break
        place = torch.where(promises_more, promised, -1.0).argmax(-1, keepdim=True)
        new, shown = look(_at_block(directions, place))
        sizes = shown.norm(dim=-1)
        worth = sizes.gather(-1, place)
        looked.scatter_(-1, place, worth)
        promised.scatter_(-1, place, worth)
        directions = torch.where((sizes > promised).unsqueeze(-1), shown, directions)
        promised = torch.maximum(promised, sizes)
        larger = _exceeds(sizes.amax(-1), best)
        best = torch.where(larger, sizes.amax(-1), best)
        E, F = (torch.where(larger[..., None, None], x, y) for x, y in ((new, E), (shown, F)))
    Z = _at_block(F, F.norm(dim=-1).argmax(-1, keepdim=True)).flatten(-2).unflatten(-1, shape)
    return best, *((E, Z) if outwards else (Z, E))


def _at_block(x: Float[Tensor, "*batch blocks width"], place: Int[Tensor, "*batch 1"]) -> Tensor:
    """Return the unit vector along one block, and zero at the others."""
    mask = torch.zeros_like(x[..., 0]).scatter_(-1, place, 1.0)
    sizes = x.norm(dim=-1, keepdim=True)
    return x / torch.where(sizes > 0, sizes, 1.0) * mask.unsqueeze(-1)


def _climbed(op: LinearOperator, E: Tensor, given: Metric, wanted: Metric) -> tuple[Tensor, Tensor]:
    r"""Alternate :math:`Z\leftarrow` the support of JE, :math:`E\leftarrow` the steepest step of :math:`J^\top Z`.

    The norm is convex, so each step maximises a linear lower bound that touches it: the value never falls.
    """
    F = op.jvp(E)
    value = wanted.size(F)
    for _step in range(STEPS):
        new = given.steepest(op.vjp(wanted.support(F)))
        F = op.jvp(new)
        before, after = value, wanted.size(F)
        rises = (after >= before)[..., None, None]
        E, value = torch.where(rises, new, E), torch.maximum(before, after)
        if bool((after <= before * (1 + 1e-4)).all()):
            break
    return E, value


def alternate(
    op: LinearOperator, starts: list[Tensor], given: Metric, wanted: Metric, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take some steps of the same iteration from each start; return the best gain, E, and the functional that has it.

    Where a ball is the hull of blocks, a step looks at one of them.
    """
    if block_count(op, given, wanted):
        return _among_blocks(op, starts, given, wanted, steps)
    ends = []
    for E in starts:
        for _step in range(steps):
            E = given.steepest(op.vjp(wanted.support(op.jvp(E))))
        ends.append((E, wanted.size(op.jvp(E))))
    E, value = _best(op, ends)
    return value.to(op.dtype), E, wanted.support(op.jvp(E))


def _attained(
    op: LinearOperator, E: Tensor, upper: Tensor, given: Metric, wanted: Metric, *, products: int, rtol: float = 1e-6
) -> NormEstimate:
    """Return a bracket whose lower end is the size of the product with a perturbation."""
    sizes = given.size(E)
    response = op.jvp(E)
    # the size of the perturbation is one but for rounding
    lower = torch.where(sizes == 0, 0.0, wanted.size(response) / torch.where(sizes == 0, 1.0, sizes))
    require_finite_products(torch.where(upper.isnan(), upper, lower))
    room, divisor = 1 + MARGIN_UNITS * torch.finfo(op.dtype).eps, torch.where(lower > 0, lower, 1.0).to(op.dtype)
    upper = torch.maximum(upper * room, lower)
    closed = (upper <= lower * (1 + rtol) * room**2).flatten().tolist()
    return NormEstimate(
        lower=lower.to(op.dtype) / room,
        upper=upper.to(op.dtype) * room,
        confidence=1.0,
        direction=E,
        response=response / divisor[..., None, None],
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
