"""Audit a claimed Lipschitz constant: search for an input where it fails."""

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.domains.domain import Ball, Domain
from howsmooth.errors import AssumptionError, DtypeError, HowsmoothError, ShapeError, UnmeasurableError
from howsmooth.files import whole
from howsmooth.markup import paragraph, strict_json
from howsmooth.metrics import Metric, Metrics, as_metrics
from howsmooth.search.ascent import maximise_counting
from howsmooth.search.starts import empty_token, start_patterns
from howsmooth.spectral.autograd import measuring, value_of
from howsmooth.spectral.operators import Differentiable, Recastable, require_map
from howsmooth.theory.results import Witness
from howsmooth.validation import Seed, generator_from, plain_mode
from howsmooth.wording import at_least, at_least_above, number

# Where to look if a claim is about all of space: balls of these radii.
RADII = (1.0, 4.0, 16.0, 64.0)
# A derivative that differs by more than this from what the outputs do is not that of the callable.
DISAGREEMENT = 0.05
# Distances of two compared inputs, as shares of the domain's scale.
STEPS = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
# The rounding error of an output, in units in the last place of its norm.
UNITS = 16
# Rounding inside the map is estimated at so many points between two inputs, and allowed for so many times.
POINTS, ALLOWANCE = 9, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class SecantPair:
    r"""Two inputs of a domain, and bounds on :math:`\|f(Y)-f(Z)\|/\|Y-Z\|`, in the metrics of the claim.

    Attributes:
        first: Y.
        second: Z.
        ratio: The ratio, less what the rounding of the outputs may have added to it.
        upper: The ratio, and what rounding may have taken from it.
    """

    first: Float[Tensor, "n d"]
    second: Float[Tensor, "n d"]
    ratio: float
    upper: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Audit:
    r"""What came of the search for an input where a claimed constant fails.

    Attributes:
        claimed: The constant that was claimed.
        found: The input with the largest local constant, by the derivative.
        pair: Two inputs near it, and :math:`\|f(Y)-f(Z)\|/\|Y-Z\|`: what was really attained.
        products: How many products with Jacobians the search took.
    """

    claimed: float
    found: Witness
    pair: SecantPair
    products: int

    @property
    def refuted(self) -> bool:
        """Whether the outputs of two inputs are further apart than the claim allows; without derivatives."""
        return self.pair.ratio > self.claimed

    @property
    def largest(self) -> float:
        """The largest ratio of distances that was found."""
        return self.pair.ratio

    @property
    def consistent(self) -> bool:
        """Whether finite differences agree with the derivative, up to rounding; not if a part was detached."""
        value = self.found.value
        return (1 - DISAGREEMENT) * self.pair.ratio <= value <= (1 + DISAGREEMENT) * self.pair.upper

    @property
    def hidden(self) -> bool:
        """Whether rounding may exceed half of the ratio of distances, as with a huge constant in the output."""
        return self.pair.ratio < self.pair.upper / 2

    def __repr__(self) -> str:
        return f"Audit: {self.summary}"

    @property
    def summary(self) -> str:
        """One sentence."""
        where = f"on {self.found.domain}"
        if self.refuted:
            largest = at_least_above(self.largest, self.claimed)
            text = f"refuted: {largest} at an input {where}, claimed {number(self.claimed, 17)}"
        else:
            text = f"not refuted: largest found {at_least(self.largest)} {where} after {self.products:,} products"
        if not self.consistent:
            text += f"; the derivative says {at_least(self.found.value)}, which is not what the outputs do"
        elif self.hidden and not self.refuted:
            text += (
                f"; the derivative says {at_least(self.found.value)}, but rounding hides from the outputs all below "
                f"{number(self.pair.upper)}: subtract what is constant in them, or let the map compute in float64"
            )
        return text

    def _repr_html_(self) -> str:
        return paragraph(repr(self))

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the tensors as plain values."""
        return {
            "refuted": self.refuted,
            "claimed": self.claimed,
            "largest": self.largest,
            "consistent": self.consistent,
            "hidden": self.hidden,
            "products": self.products,
            "found": self.found.as_dict(),
        }

    def to_json(self) -> str:
        """Return one JSON object; :meth:`save` keeps the inputs too."""
        return strict_json(self.as_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the input, its worst direction and the two inputs nearby to a ``.safetensors`` file."""
        from safetensors.torch import save_file

        target = Path(path)
        if target.suffix != ".safetensors":
            raise AssumptionError(
                f"an audit is saved as .safetensors, got {target.name!r}; change the ending.", field="path"
            )
        tensors = {
            "tokens": self.found.tokens,
            "direction": self.found.measured.direction,
            "first": self.pair.first,
            "second": self.pair.second,
        }
        detached = {name: x.detach().cpu().clone().contiguous() for name, x in tensors.items()}
        with whole(target) as partial:
            save_file(detached, partial, {"audit": self.to_json()})


@plain_mode()
def audit(
    f: Callable[[Tensor], Any],
    *,
    claimed: float,
    n: int | None = None,
    domain: Domain | None = None,
    input_shape: Sequence[int] | None = None,
    starts: int = 4,
    steps: int = 60,
    metric: str | Metric | Metrics = "total",
    seed: Seed = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Audit:
    r"""Search for an input where a map's constant exceeds what is claimed for it.

    Starts are the patterns of worst inputs (random tokens, two points, tied pairs, a token at the origin, clusters,
    equal tokens), and those that theory builds where the map is attention; then ascent on the local constant. At the
    worst input two inputs near each other are compared: only :math:`\|f(Y)-f(Z)\| > \text{claimed}\cdot\|Y-Z\|` refutes
    a claim, so that a derivative that is wrong (a detached part) refutes nothing. What was not refuted is not proven.

    Inputs where the map cannot be measured are left out. Everything is computed in float64 where the map allows it, and
    rounding cannot refute a claim: two inputs are compared at several distances, up to the size of the domain.

    Args:
        f: A map, a module or any callable on ``(n, d)`` or ``(batch, n, d)``, twice differentiable by autograd.
        claimed: The constant that is claimed.
        n: How many tokens; told by ``input_shape`` otherwise.
        domain: Where the claim is made; all of space by default, searched in balls of radius 1, 4, 16 and 64.
        input_shape: ``(n, d)``, where neither map nor domain tell the dimension of a token.
        starts: How many inputs of each pattern.
        steps: How many trials every run of the ascent gets.
        metric: The metric of the claim, as in :func:`maximise`; the Euclidean norm of all tokens together by default.
        seed: Seeds everything random: a whole number, or a torch.Generator to draw from.
        progress: Called with the number of trials taken and the best value so far, after every trial.

    Raises:
        AssumptionError: If ``claimed`` is not positive, or the map does not work on such inputs.
        UnmeasurableError: If no input that was tried can be measured.

    Example:
        >>> from howsmooth.maps.attention import Attention
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f = Attention.single_head(A=-one, V=one)
        >>> audit(f, claimed=1.0, n=4, domain=Ball(3.0)).refuted
        True
    """
    n, d = _checked(claimed, n, input_shape, starts)
    metrics = as_metrics(metric)
    places = [domain] if domain is not None else [Ball(radius) for radius in RADII]
    generator = generator_from(seed)
    like = empty_token(f, places[0], 1, d)
    wide, like = _in_float64(f, like, n, places[0], generator)
    best, products, unmeasured = None, 0, None
    for place in places:
        begin = start_patterns(place, n, like, starts, generator)
        try:
            found, spent = maximise_counting(
                wide,
                n=n,
                domain=place,
                starts=begin,
                steps=steps,
                d=d,
                metric=metric,
                seed=generator,
                progress=progress,
            )
        except NotImplementedError as error:  # what torch says of kernels without a second derivative
            raise AssumptionError(
                f"the search differentiates twice, and a part of the callable cannot be: {error}", field="f"
            ) from error
        except UnmeasurableError as error:
            unmeasured = error  # another ball may do
            continue
        products += spent
        pair = steepest_pair(lambda X: value_of(wide, X), found.tokens, found.measured.direction, place, metrics)
        if best is None or pair.ratio > best.pair.ratio:
            best = Audit(claimed=claimed, found=found, pair=pair, products=0)
    if best is None:
        assert unmeasured is not None  # there is a place at least
        raise unmeasured
    return Audit(claimed=claimed, found=best.found, pair=best.pair, products=products)


@torch.no_grad()
def steepest_pair(
    f: Callable[[Tensor], Tensor], X: Tensor, direction: Tensor, domain: Domain, metrics: Metrics
) -> SecantPair:
    r"""Return the best pair along a direction through ``X``, over a range of distances.

    Rounding errors of the outputs may exceed their last digits, where the map computes in float32 inside or large
    numbers cancel. They are estimated by second differences of the outputs at points in between,
    :math:`f(X_{k+1}) - 2f(X_k) + f(X_{k-1})`, which are small for a smooth map at small distances.
    """
    best: SecantPair | None = None
    here = f(X)
    for step in STEPS:
        move = step * domain.scale * direction
        ends = [domain.nearest(X + move), domain.nearest(X - move)]
        for first, second in (ends, (ends[0], X), (X, ends[1])):
            try:
                there, back = (here if end is X else f(end) for end in (first, second))
                pair = _secant_pair(f, first, second, there, back, metrics)
            except UnmeasurableError:
                continue  # nearer ones may do
            if best is None or pair.ratio > best.ratio:
                best = pair
    return SecantPair(first=X, second=X, ratio=0.0, upper=0.0) if best is None else best


def _secant_pair(
    f: Callable[[Tensor], Tensor], first: Tensor, second: Tensor, there: Tensor, back: Tensor, metrics: Metrics
) -> SecantPair:
    # in float64: differences of float32 are rounded
    way = float(metrics.input.size(first.double() - second.double()))
    # a callable may return vectors, or numbers
    moved = float(metrics.output.size(torch.atleast_2d(there.double() - back.double()).flatten(0, -2)))
    if not way > 0:
        return SecantPair(first=first, second=second, ratio=0.0, upper=0.0)
    shares = torch.linspace(0, 1, POINTS, dtype=first.dtype, device=first.device)[1:-1, None, None]
    between = torch.cat((there[None], f(first + shares * (second - first)), back[None])).double()
    bends = (between[2:] - 2 * between[1:-1] + between[:-2]).flatten(1).norm(dim=1)
    size = float(there.double().norm() + back.double().norm())
    noise = UNITS * torch.finfo(there.dtype).eps * size + ALLOWANCE * float(bends.max())
    # errors are known in the Euclidean norm; in another metric they are at most so many times as large
    noise *= metrics.output.euclidean_ratios((1, there.numel()))[1]
    # what is no number is no ratio
    ratio = (moved - noise) / way if moved > noise else 0.0
    return SecantPair(first=first, second=second, ratio=ratio, upper=(moved + noise) / way)


def _in_float64(f: Any, like: Tensor, n: int, domain: Domain, generator: torch.Generator) -> tuple[Any, Tensor]:
    """Return the map on batches, in float64 if it works there, and an empty token of its numbers."""
    double = like.double()
    if isinstance(f, Differentiable):
        return (f.to(torch.float64), double) if isinstance(f, Recastable) else (f, like)
    try:
        wide = copy.deepcopy(f).double() if isinstance(f, nn.Module) else f
        return on_batches(wide, domain.draw(1, n, double, generator)[0]), double
    except (HowsmoothError, RuntimeError, TypeError):  # what cannot be copied, or has float32 written into it
        single = like if isinstance(f, nn.Module) else like.float()
        return on_batches(f, domain.draw(1, n, single, generator)[0]), single


class BatchedCallable(nn.Module):
    """A callable that takes inputs ``(n, d)`` and batches of them alike, whatever the one inside takes.

    A module, so that a module inside it is found: it is measured in eval mode, as every module is.
    """

    def __init__(self, f: Callable[[Tensor], Any], *, together: bool) -> None:
        """Wrap ``f``; ``together`` if it takes ``(batch, n, d)``, and not if it takes one input at a time."""
        super().__init__()
        self.f, self.together = f, together

    def forward(self, X: Float[Tensor, "*batch n d"]) -> Any:
        """Apply it to every input."""
        rows = X.reshape(-1, *X.shape[-2:])
        moved = [self.f(rows)] if self.together else [self.f(row) for row in rows]
        for value in moved:
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise DtypeError(
                    f"the callable must return one tensor, got {kind}; wrap it, e.g. lambda X: f(X)[0].", field="f"
                )
        stacked = moved[0] if self.together else torch.stack(moved)
        return stacked.reshape(*X.shape[:-2], *stacked.shape[1:])


def on_batches(f: Any, like: Float[Tensor, "n d"]) -> Any:
    """Return ``f`` as a map on batches; maps that know their derivative are so already."""
    if isinstance(f, Differentiable):
        return f
    require_map(f)
    messages = []
    for together in (True, False):
        wrapped = BatchedCallable(f, together=together)
        try:
            if _treats_each_alone(wrapped, like):
                return wrapped
        except HowsmoothError:
            raise
        except Exception as error:  # whatever the code of others raises
            messages.append(f"{type(error).__name__}: {error}")
    reason = f"; it said {messages[-1]}" if messages else ", or not the same on the same input twice"
    raise AssumptionError(f"the callable does not work on inputs of the shape {tuple(like.shape)}{reason}", field="f")


def _treats_each_alone(f: BatchedCallable, X: Tensor) -> bool:
    """Tell whether the output of an input does not depend on the others in its batch."""
    twice, other = torch.stack((X, X)), torch.stack((X, X.flip(0) / 2))
    outputs = []
    for batch in (twice, other):
        with torch.inference_mode(False), torch.no_grad(), measuring(f) as g:
            outputs.append(g(batch))
    (first, second), (third, _other) = outputs
    return torch.allclose(first, second, equal_nan=True) and torch.allclose(first, third, equal_nan=True)


def _checked(claimed: float, n: int | None, shape: Sequence[int] | None, starts: int) -> tuple[int, int | None]:
    if not (isinstance(claimed, int | float) and 0 < claimed < math.inf):
        raise AssumptionError(f"claimed must be a positive number, got {claimed}.", field="claimed")
    if not (isinstance(starts, int) and starts >= 1):
        raise AssumptionError(f"starts must be a whole number, at least 1, got {starts}.", field="starts")
    if shape is not None and (len(shape) != 2 or not all(isinstance(x, int) and x >= 1 for x in shape)):
        raise ShapeError(f"input_shape must be (n, d), got {tuple(shape)}.", field="input_shape")
    if shape is None and n is None:
        raise ShapeError("say how many tokens an input has: n=…, or input_shape=(n, d).", field="n")
    if shape is not None and n is not None and n != shape[0]:
        raise ShapeError(f"n and input_shape must agree, got {n} and {tuple(shape)}.", field="n")
    tokens = shape[0] if n is None and shape is not None else n
    if not (isinstance(tokens, int) and tokens >= 1):
        raise AssumptionError(f"n must be a whole number, at least 1, got {n}.", field="n")
    return tokens, None if shape is None else shape[1]
