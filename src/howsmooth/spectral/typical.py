"""The typical gain: the root mean square amplification of random noise, where the norm is the largest one."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import chdtri, gdtrib
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import LinearOperator
from howsmooth.markup import paragraph, strict_json, table
from howsmooth.metrics import Euclidean, LargestToken, Metric, Metrics, Relative, as_metrics, total
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.metric_norms import bracket_in, in_metrics, isometric
from howsmooth.spectral.operators import (
    basis_vector,
    broadcast,
    check_operator,
    compressed,
    constrained,
    dimension,
    norms,
    random_start,
    require_finite_products,
    summed,
    unit,
)
from howsmooth.spectral.solver_settings import check_confidence
from howsmooth.spectral.solvers import bracket_norm
from howsmooth.validation import Seed, generator_from, plain_mode, tokens_for
from howsmooth.wording import count, estimated, percent

# The bracket of the norm where none is given: its upper end bounds the eigenvalues that random directions may miss.
BRACKET_RTOL, MAX_STEPS, BRACKET_CONFIDENCE = 0.1, 40, 0.999


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TypicalGain:
    r"""The root mean square amplification of random noise by one operator, or by a batch of them.

    Attributes:
        value: The estimate of :math:`\|J\|_F/\sqrt N`.
        low: The lower end of its interval.
        high: The upper end.
        confidence: The probability with which the interval holds, for each batch element.
        samples: How many random directions were taken.
        products: How many products with the operator that cost.
    """

    value: Float[Tensor, "*batch"]
    low: Float[Tensor, "*batch"]
    high: Float[Tensor, "*batch"]
    confidence: float
    samples: int
    products: int

    def __repr__(self) -> str:
        return f"TypicalGain: {self._summary()}"

    def _summary(self) -> str:
        worth, many = percent(self.confidence), self.value.numel()
        text = self._written(int(self.value.argmin()))
        if many > 1:
            text = f"{many} inputs, from {text} to {self._written(int(self.value.argmax()))}"
            worth += " each"
        return f"{text} ({worth}, {count(self.samples, 'sample')})"

    def _written(self, place: int) -> str:
        value, low, high = (float(x.flatten()[place]) for x in (self.value, self.low, self.high))
        return " ".join(estimated(value, low, high))

    def __rich__(self) -> str:
        return self._summary().replace("[", r"\[")  # brackets are markup there

    def _repr_html_(self) -> str:
        rows = ((self._written(place),) for place in range(self.value.numel()))
        head = (f"typical gain ({percent(self.confidence)})",)
        return table(head, rows) + paragraph(f"{count(self.samples, 'sample')}, {count(self.products, 'product')}")

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json(
            {
                "value": self.value.tolist(),
                "low": self.low.tolist(),
                "high": self.high.tolist(),
                "confidence": self.confidence,
                "samples": self.samples,
                "products": self.products,
            }
        )


@plain_mode()
def typical_gain(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"] | Any,
    *,
    metric: str | Metric | Metrics = total,
    samples: int = 16,
    confidence: float = 0.95,
    seed: Seed | None = None,
) -> TypicalGain:
    r"""Estimate by how much ``f`` amplifies small random noise on the tokens ``X``, in the root mean square.

    .. math:: \Bigl(\mathbb E\,|D_Xf\,v|^2\Bigr)^{1/2} = \|D_Xf\|_F/\sqrt N,\qquad
              v \text{ uniform on the unit sphere of } \mathbb R^N

    The local Lipschitz constant is the largest amplification, this is the typical one; it is never larger. A batch of
    inputs is estimated at once, the interval then holds for each of them. Costs one product for each sample, and those
    of a rough bracket of the largest amplification; exact, for N products, where there are no fewer samples than N.

    Args:
        f: A map with a ``jacobian``, a callable that returns a linear operator, or any callable or module on tensors.
        X: The tokens, or for attention a measure.
        metric: How noise and changes are measured. The noise is uniform on the unit sphere of a Euclidean metric, or
            moves every token by a random unit vector (``token``); changes may be measured in any metric.
        samples: How many random directions to take.
        confidence: The probability with which the interval holds: between Euclidean metrics that of
            ``mean_square_interval``, otherwise by concentration of measure on spheres :cite:`ledoux2001`, which needs
            many dimensions to be narrow.
        seed: Seeds the directions; torch's global generator by default.

    Raises:
        AssumptionError: If the noise is measured in another metric: its gains have no interval there.

    Example:
        >>> f = lambda X: 2 * X
        >>> round(float(typical_gain(f, torch.ones(3, 2, dtype=torch.float64)).value), 6)
        2.0
    """
    _check(samples, confidence)  # before f is evaluated, which may take long
    metrics, X = as_metrics(metric), tokens_for(X, f)
    if not isinstance(metrics.input, Euclidean | Relative | LargestToken):
        raise AssumptionError(
            f"typical_gain needs noise in a Euclidean metric (total, relative, condition, weighted, covariance) or in "
            f"token, got {metrics.input.name}; attack with method='random' tries noise in any metric.",
            field="metric",
        )
    op = linearise(f, X)
    op, metrics = in_metrics(f, op, metrics, X)
    if isinstance(metrics.input, Euclidean) and isinstance(metrics.output, Euclidean):
        op = isometric(op, metrics.input, metrics.output)
        return typical_gain_of(op, samples=samples, confidence=confidence, seed=seed)
    return _gain_on_spheres(op, metrics, samples, confidence, generator_from(seed))


@torch.no_grad()
def _gain_on_spheres(
    op: LinearOperator, metrics: Metrics, samples: int, confidence: float, generator: torch.Generator | None
) -> TypicalGain:
    r"""Estimate the root mean square size F of the change, where tokens, or all together, move on unit spheres.

    With the largest gain :math:`\Lambda`, :math:`|F(E)-F(E')|\le\Lambda\|E-E'\|_F`, since no token is longer than all
    together. By the logarithmic Sobolev inequality of spheres of dimension m, which their products share, for the mean
    :math:`\bar F` of K samples

    .. math:: \mathrm{Var}\,F \le \Lambda^2/m,\qquad
              P\bigl(|\bar F-\mathbb EF| \ge t\bigr) \le 2e^{-mKt^2/2\Lambda^2}.
    """
    if isinstance(metrics.input, Euclidean):
        op, metrics = isometric(op, metrics.input, total), Metrics(input=total, output=metrics.output)
    trusted = 1 - 0.1 * (1 - confidence)  # a tenth of the doubt is that of the largest gain
    found = bracket_in(
        op,
        metrics,
        lambda J: bracket_norm(J, BRACKET_RTOL, trusted, True, MAX_STEPS, generator, warn=False),
        BRACKET_RTOL,
        trusted,
        generator,
    )
    if isinstance(metrics.input, LargestToken):
        like, free = torch.empty((*op.batch, *op.domain), dtype=op.dtype, device=op.device), torch.tensor(op.domain[-1])
        noise = (metrics.input.draw(like, generator) for _sample in range(samples))
    else:
        noise, free = (random_start(op, generator) for _sample in range(samples)), _dimensions(op)
    gains = torch.stack([metrics.output.size(op.jvp(E)) for E in noise])
    require_finite_products(gains)
    largest, mean, value = found.upper.double(), gains.mean(0), gains.square().mean(0).sqrt()
    root = (free.to(largest) - 1).sqrt()
    spread = torch.where(root > 0, largest / root, math.inf)
    away = spread * math.sqrt(2 * math.log(2 / (0.9 * (1 - confidence))) / samples)
    low, high = (mean - away).clamp_min(0), torch.minimum(torch.hypot(mean + away, spread), largest)
    return _gain(op, (value, low, torch.maximum(high, value)), confidence, samples, found.products + samples)


@plain_mode()
@torch.no_grad()
def typical_gain_of(
    op: LinearOperator,
    *,
    samples: int = 16,
    confidence: float = 0.95,
    seed: Seed | None = None,
    estimate: NormEstimate | None = None,
) -> TypicalGain:
    r"""Estimate :math:`\|J\|_F/\sqrt N` of an operator on :math:`\mathbb R^N`, or of a batch of them.

    .. math:: \|J\|_F^2 = |Ju|^2 + (N-1)\,\mathbb E\,|Jw|^2,\qquad
              w \text{ uniform on the unit sphere of } u^\perp

    for any unit vector u. The first term is computed, at the direction u of the largest amplification, and the mean of
    the second estimated by that of random directions (Hutchinson's estimator :cite:`hutchinson1989` on what deflation
    leaves, as in Hutch++ :cite:`meyer2021`). The arguments are those of :func:`typical_gain`; ``estimate`` is a bracket
    of the norm of ``op``, if there is one already.
    """
    check_operator(op)
    _check(samples, confidence)
    generator = generator_from(seed)
    # Why not in the whole space: the smaller operator has the same Frobenius norm, and its squares scatter less.
    core, embed = compressed(op)
    free, size = _dimensions(op), dimension(core.domain)
    if size == math.prod(core.domain) <= samples:  # vectors of the basis are not shared out over processes
        gains = torch.stack(
            [norms(core.jvp(basis_vector(core, core.domain, place)), op.batch) for place in range(size)]
        )
        require_finite_products(gains)
        value = norms(gains.movedim(0, -1), op.batch) / free.sqrt()
        return _gain(op, (value, value, value), confidence, samples, size)
    spent = 0
    if estimate is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where the bracket stays open, the interval is wider
            estimate = bracket_norm(op, BRACKET_RTOL, BRACKET_CONFIDENCE, True, MAX_STEPS, generator)
        spent = estimate.products
    direction = unit(estimate.direction.to(op.dtype), op.batch)
    directions = [direction]
    for _sample in range(samples):
        v = embed(random_start(core, generator))
        overlap = summed((v * direction).reshape(*op.batch, -1).sum(-1))
        directions.append(unit(v - broadcast(overlap, v) * direction, op.batch))
    gains = torch.stack([norms(op.jvp(v), op.batch) for v in directions])
    require_finite_products(gains)
    scale = torch.where(gains.amax(0) > 0, gains.amax(0), 1.0)  # in this unit squares stay in the range of the numbers
    first, *others = (gains / scale).square() / free
    rest = (_dimensions(core) - 1) * torch.stack(others).mean(0)
    ends = mean_square_interval(
        rest.cpu().numpy(),
        ((estimate.upper.double() / scale).square() / free).cpu().numpy(),
        samples=samples,
        doubt=1 - confidence,
        bound_doubt=1 - estimate.confidence,
    )
    value, low, high = (scale * (first + torch.as_tensor(x, device=op.device)).sqrt() for x in (rest, *ends))
    return _gain(op, (value, low, high), confidence, samples, spent + samples + 1)


def mean_square_interval(
    mean: Any, largest: Any, *, samples: int, doubt: float, bound_doubt: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return an interval for the trace R of a positive matrix, from the mean of some quadratic forms.

    The mean of K forms :math:`N\,w^\top Aw` with random unit w is, up to the lengths of normal vectors,
    :math:`\sum_i\lambda_i\chi^2_{K,i}/K`, with mean R. Of all matrices with this trace and eigenvalues at most L, its
    variance and every exponential moment are largest if these are L or 0: then its law is
    :math:`\frac LK\chi^2_{KR/L}`, or :math:`\frac RK\chi^2_K` where :math:`R\le L`. The ends are those R for which the
    observed mean is a quantile of that law at half the doubt, as in Garwood's interval for a Poisson mean. Student's
    interval held in 82 to 92 cases of 100 where one eigenvalue stands out, not in 95.

    Operators side by side are one with blocks: the sum of their means, and the largest of their eigenvalues, give an
    interval for the sum of their traces.

    Args:
        mean: The observed mean :math:`\hat R`; any number of them.
        largest: A bound L on the eigenvalues; infinite if none is known.
        samples: How many forms K the mean is of.
        doubt: The probability with which the interval may miss.
        bound_doubt: The part of it with which ``largest`` may be too small; where that is all of it, no bound is used.

    >>> low, high = mean_square_interval(100.0, 1.0, samples=16, doubt=0.05)
    >>> round(float(low)), round(float(high))
    (93, 107)
    """
    R, L = np.broadcast_arrays(np.asarray(mean, dtype=float), np.asarray(largest, dtype=float))
    if bound_doubt >= doubt:
        L, bound_doubt = np.full_like(L, np.inf), 0.0
    tails = (doubt - bound_doubt) / 2, 1 - (doubt - bound_doubt) / 2
    # chdtri is the inverse of the upper tail, and gdtrib of the lower one
    alone = [samples * R / chdtri(samples, tail) for tail in tails]
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.where(L > 0, samples * R / (2 * L), 0.0)
        many = [2 * L / samples * gdtrib(1.0, 1 - tail, half) for tail in tails]
    low, high = (np.where(x <= L, x, y) for x, y in zip(alone, many, strict=True))
    return np.asarray(np.minimum(low, R)), np.asarray(np.maximum(high, R))


def mean_gain(
    gains: Sequence[float],
    attained: Sequence[float],
    largest: Sequence[float],
    dimensions: Sequence[float],
    *,
    samples: int,
    doubt: float,
    bound_doubt: float = 0.0,
) -> tuple[float, float, float]:
    """Return the root mean square of typical gains of several operators, such as those at windows, and its interval.

    They are the blocks of one operator, see :func:`mean_square_interval`. The interval is over random directions: of
    other operators than these it says nothing.

    Args:
        gains: What :func:`typical_gain_of` estimated of each.
        attained: The gain of the direction that was deflated.
        largest: A bound on the largest gain; infinite if none is known.
        dimensions: The dimension of the domain.
        samples: How many random directions each estimate took, at least.
        doubt: The probability with which the interval may miss.
        bound_doubt: The part of it with which ``largest`` may be too small.

    >>> value, low, high = mean_gain([3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [1.0, 1.0], samples=4, doubt=0.05)
    >>> round(value**2, 9)
    12.5
    """
    unit = max(gains) or 1.0  # in it squares stay in the range of the numbers
    count = len(gains)
    square = sum((gain / unit) ** 2 for gain in gains) / count
    computed = sum((gain / unit) ** 2 / size for gain, size in zip(attained, dimensions, strict=True)) / count
    most = max(gain / unit / math.sqrt(size) for gain, size in zip(largest, dimensions, strict=True))
    rest = max(0.0, square - computed)
    ends = mean_square_interval(rest, most * most / count, samples=samples, doubt=doubt, bound_doubt=bound_doubt)
    value, low, high = (unit * math.sqrt(square - rest + float(part)) for part in (rest, *ends))
    return value, low, high


def _gain(
    op: LinearOperator, numbers: tuple[Tensor, Tensor, Tensor], confidence: float, samples: int, products: int
) -> TypicalGain:
    value, low, high = (x.to(op.dtype) for x in numbers)
    return TypicalGain(value=value, low=low, high=high, confidence=confidence, samples=samples, products=products)


def _dimensions(op: LinearOperator) -> Float[Tensor, "*batch"]:
    """Return the dimension of the space in which perturbations live, for each operator of the batch."""
    ones = torch.ones((*op.batch, *op.domain), dtype=op.dtype, device=op.device)
    return norms(constrained(op, ones), op.batch).square().round()


def _check(samples: int, confidence: float) -> None:
    if not (isinstance(samples, int) and not isinstance(samples, bool) and samples >= 1):
        raise AssumptionError(f"samples must be a whole number, at least 1, got {samples!r}.", field="samples")
    check_confidence(confidence)
