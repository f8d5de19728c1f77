"""Local constants as penalties: of one map, or of all attention layers of a model, differentiable in the parameters."""

import contextlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, ConvergenceWarning, DtypeError, NonFiniteError
from howsmooth.linear_operators import LinearOperator
from howsmooth.maps.real_tokens import zero_padded_outputs
from howsmooth.metrics import TOTAL, Euclidean, Metric, Metrics, as_metrics
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.metric_norms import alternate, block_count, isometric
from howsmooth.spectral.operators import (
    HALF,
    Differentiable,
    flat,
    informed_start,
    measurable,
    random_start,
    require_map,
)
from howsmooth.torch_internals import outside_of_compiled_code
from howsmooth.training.hooks import RecordedInputs, read_batch, with_fixed_padding
from howsmooth.training.recorded_jacobian import RecordedJacobian
from howsmooth.validation import Seed, generator_from, plain_mode, require_sequences
from howsmooth.wording import number

# Krylov steps from a warm start, and the most from a cold one.
STEPS, COLD_STEPS = 3, 30
# Random perturbations of a cold start, where metrics are not Euclidean.
COLD_STARTS = 8
# A cold start goes on until the residual is this small.
COLD_RTOL = 0.02
# The random share of a warm start, where metrics are not Euclidean.
RANDOM_SHARE = 0.1
# Singular vectors this well known give a value that is good to about its square.
TOLERANCE = 0.1
# So many steps in a row may be inexact before it is said: weights sometimes jump.
PATIENCE = 10


class WarmStart:
    r"""The singular directions of the last step, from which the next one starts.

    Of sequences of the same shape every one starts at its own direction; where the shape changes, at the direction in
    the space of features that the last ones had in common. A random component is mixed in all the same, so that a
    value which is no longer the largest is left within a few steps.

    Attributes:
        value: The constants of the last step.
        residual: :math:`|J^\top u-\theta v|/\theta` there: some singular value lies that near, relatively, not
            necessarily the largest.
        steps: How many Krylov steps were taken.
        products: How many products with the Jacobian or its transpose, all calls together.
    """

    def __init__(self) -> None:
        self.value: Float[Tensor, "*batch"] | None = None
        self.residual: Float[Tensor, "*batch"] | None = None
        self.steps = 0
        self.products = 0
        self._direction: Tensor | None = None
        self._inexact, self._warned = 0, False

    def __repr__(self) -> str:
        if self.residual is None:
            return "WarmStart: nothing yet"
        return f"WarmStart: residual {number(float(self.residual.max()), 2)} after {self.steps} steps"

    @property
    def exact(self) -> bool:
        """Whether every residual of the last step is at most 0.1, so that its singular vectors are known well."""
        return self.residual is not None and bool((self.residual <= TOLERANCE).all())

    def guess(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"] | None:
        """Return where to start at the tokens ``X``; nothing if nothing is known."""
        found = self._direction
        if found is None or found.shape[-1] != X.shape[-1] or found.device != X.device:
            return None
        if found.shape == X.shape:
            return found.to(X.dtype)
        # the feature that moves most over all tokens of all sequences
        rows = found.reshape(-1, found.shape[-1])
        _values, vectors = torch.linalg.eigh(rows.mT @ rows)
        return vectors[:, -1].to(X.dtype).expand(X.shape)

    def remember(self, direction: Tensor, *, value: Tensor, residual: Tensor, steps: int, products: int) -> None:
        """Keep the results of a step, and warn once if they stay inexact."""
        self._direction = direction.detach()
        self.value, self.residual, self.steps = value.detach(), residual.detach(), steps
        self.products += products
        self._inexact = 0 if self.exact else self._inexact + 1
        if self._inexact >= PATIENCE and not self._warned:
            self._warned = True
            warnings.warn(
                f"the penalty was inexact {PATIENCE} steps in a row (relative residual "
                f"{number(float(residual.max()), 2)}): what it penalises may be less than the constant. Raise `steps`, "
                "or keep a state of its own for each batch.",
                ConvergenceWarning,
                stacklevel=3,
            )


@dataclass(frozen=True, kw_only=True)
class PenaltyFunction:
    """The penalty as a function of the constant."""

    power: float = 1  # the power it is raised to
    log: bool = False  # whether its logarithm is taken first
    above: float | None = None  # constants below this cost nothing; none if all cost

    def __post_init__(self) -> None:
        if isinstance(self.power, bool) or not (isinstance(self.power, Real) and self.power > 0):
            raise AssumptionError(f"power must be a positive number, got {self.power!r}.", field="power")
        if self.above is not None and not (isinstance(self.above, Real) and self.above >= 0):
            raise AssumptionError(f"above must be a number, at least 0, or None, got {self.above!r}.", field="above")
        if self.log and self.above == 0:
            raise AssumptionError("above must be positive for a logarithm, got 0; use above=None.", field="above")
        if self.log and self.above is None and self.power != 1:
            raise AssumptionError(
                f"the logarithm changes its sign at 1, so that a power of it rewards what is rough: with log=True give "
                f"above, or power=1, got power={self.power}.",
                field="power",
            )

    def __call__(self, sigma: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Return the penalty of some constants."""
        if self.log:
            # the logarithm of zero would be a reward without end
            x = sigma.clamp_min(torch.finfo(sigma.dtype).tiny).log()
            x = x if self.above is None else (x - float(np.log(self.above))).clamp_min(0)
        else:
            x = sigma if self.above is None else (sigma - self.above).clamp_min(0)
        return x if self.power == 1 else x.pow(self.power)


@outside_of_compiled_code
@plain_mode()
def penalty(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"],
    *,
    power: float = 1,
    log: bool = False,
    above: float | None = None,
    metric: str | Metric | Metrics = "total",
    state: WarmStart | None = None,
    steps: int = STEPS,
    seed: Seed | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the local constant :math:`\|D_Xf\|_2` at each sequence, to be minimised.

    .. math:: \sigma = \langle u, D_Xf\,v\rangle,\qquad \partial\sigma = \langle u, \partial(D_Xf)\,v\rangle

    at the top singular pair u, v, held fixed: one product that is differentiated, whatever it took to find the pair by
    Golub–Kahan–Lanczos: with a ``state`` from the last training step's vectors, in ``steps`` steps of two products;
    without, from a random vector until the residual is small. What is returned is attained, :math:`|J^\top u|`, so
    never more than the constant but for rounding; ``state.residual`` tells how far it may be below.

    Its own products run without dropout, in float32 at least, uncompiled and with attention in its mathematical form.

    Args:
        f: A map with a ``jacobian``, or any callable or module that maps one tensor to one tensor and treats the
            sequences of the batch alone.
        X: The tokens.
        power: The power that it is raised to.
        log: Whether to take its logarithm first.
        above: Only what exceeds this counts: :math:`\max(\sigma - a, 0)^p`, or :math:`\max(\log\sigma/a, 0)^p`.
        metric: How perturbations and changes are measured, as in :func:`local_lipschitz`, but none that is relative to
            the tokens. In metrics that are not Euclidean the pair comes from as many steps of power iteration; in
            ``token``, ``entries`` and ``sum`` from as many tokens or coordinates, those that promise most.
        state: What is remembered between training steps: one object for each map that is penalised.
        steps: Krylov steps from a warm start.
        seed: Seeds the random component; torch's global generator by default.

    Example:
        >>> weight = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
        >>> found = penalty(lambda X: weight * X, torch.ones(4, 3, 2, dtype=torch.float64))
        >>> found.sum().backward()
        >>> [round(x, 6) for x in found.tolist()], round(float(weight.grad), 6)
        ([3.0, 3.0, 3.0, 3.0], 4.0)
    """
    function = PenaltyFunction(power=power, log=log, above=above)
    _check(f, X, steps)
    metrics = as_metrics(metric)
    if metrics.depend_on_tokens:
        raise AssumptionError(
            f"penalties are in the metrics total, token, entries, sum or hs.metrics.weighted, got {metrics.name!r}.",
            field="metric",
        )
    op, pullback = _differentiable(f, X)
    return function(
        largest_singular_value(op, pullback, state=state, steps=steps, generator=generator_from(seed), metrics=metrics)
    )


def largest_singular_value(
    op: LinearOperator,
    pullback: Callable[[Tensor], Tensor],
    *,
    state: WarmStart | None,
    steps: int,
    generator: torch.Generator | None,
    metrics: Metrics = TOTAL,
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sigma` with its graph: find u by Krylov steps; :math:`\|J^\top u\|_*` by ``pullback``."""
    given, wanted = metrics.input, metrics.output
    state = WarmStart() if state is None else state
    guess = state.guess(torch.empty((*op.batch, *op.domain), dtype=op.dtype, device=op.device))
    if guess is None and isinstance(op, RecordedJacobian):
        op.require_gradients()
        op.require_independent()
    # autocast rounds products on the way back, too
    with torch.autocast(op.device.type, enabled=False):
        with torch.no_grad():
            if isinstance(given, Euclidean) and isinstance(wanted, Euclidean):
                u, residual, taken = _left_vector(isometric(op, given, wanted), guess, steps, generator)
                u = wanted.standard_transpose(u)
            else:
                u, residual, taken = _dual_vector(op, metrics, guess, steps, generator)
        pulled = pullback(u)
    # ⟨Jᵀu, E⟩ at the perturbation that attains the dual norm; at zero the gradient is zero, not NaN
    steepest = given.steepest(pulled.detach())
    sigma = (pulled * steepest).flatten(len(op.batch)).sum(-1)
    if not bool(sigma.isfinite().all()):
        raise NonFiniteError("the penalty is not finite: the map is not differentiable, or overflows, there.")
    value = sigma.detach()
    state.remember(
        given.standard(steepest) if isinstance(given, Euclidean) else steepest,
        value=value,
        residual=residual / value.clamp_min(torch.finfo(value.dtype).tiny),
        steps=taken,
        products=2 * taken + 1,
    )
    return sigma


def _left_vector(
    op: LinearOperator, guess: Tensor | None, steps: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, int]:
    """Return the left Ritz vectors of the largest values, the residuals of their pairs, and the steps taken."""
    if guess is None:
        start, most = random_start(op, generator), max(COLD_STEPS, steps)
    else:
        # in the metric of the last vectors; a zero guess, of a map that was constant, leaves the random part
        (start, _share), most = informed_start(op, guess, generator), steps
    space = Bidiagonalisation(op, flat(start, op.batch), generator)
    while space.steps < most and not space.complete:
        space.advance()
        if not np.isfinite(space.alphas[:, -1]).all():
            raise NonFiniteError("a product of the penalty is not finite: weights or tokens have diverged.")
        if guess is None and space.steps >= steps and space.residual_below(COLD_RTOL).all():
            break
    every = np.ones(len(space.alphas), dtype=bool)
    _v, moved, values = space.top_triplets(every)
    size = torch.as_tensor(values[:, :1], dtype=op.dtype, device=op.device)
    u = (moved / size.clamp_min(torch.finfo(op.dtype).tiny)).reshape(*op.batch, *op.codomain)
    residual = torch.as_tensor(space.residuals(), dtype=op.dtype, device=op.device).reshape(op.batch)
    return u, residual, space.steps


def _dual_vector(
    op: LinearOperator, metrics: Metrics, guess: Tensor | None, steps: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, int]:
    """Alternate from a guess or random perturbations; the residual is what one more step would gain."""
    given, wanted = metrics.input, metrics.output
    like = torch.empty((*op.batch, *op.domain), dtype=op.dtype, device=op.device)
    starts = [given.draw(like, generator) for _start in range(COLD_STARTS if guess is None else 1)]
    most, count = steps if guess is not None else max(steps, COLD_STEPS), block_count(op, given, wanted)
    if count:
        starts = starts if guess is None else [guess, *starts]
        most = max(most, count) if count <= 2 * most else most
        taken = most + len(starts)
    else:
        most = max(steps, most // len(starts))
        starts = starts if guess is None else [guess + RANDOM_SHARE * starts[0]]
        taken = most * len(starts)
    value, E, u = alternate(op, starts, given, wanted, most)
    gain = torch.maximum(given.dual_size(op.vjp(u)), wanted.size(op.jvp(E)))
    return u, (gain.to(value) - value).clamp_min(0), taken


def _differentiable(f: Callable[[Tensor], Any], X: Tensor) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Return the Jacobian for products without a graph, and the transposed product with one."""
    if not isinstance(f, Differentiable):
        recorded = RecordedJacobian(f, X)
        return recorded, recorded.pullback
    f = measurable(f)
    X = X.to(f.dtype) if hasattr(f, "dtype") else X
    with torch.no_grad():
        op = f.jacobian(X.detach())
    return op, lambda u: f.jacobian(X).vjp(u)


def _check(f: object, X: object, steps: object) -> None:
    require_map(f)
    require_sequences(X)
    if isinstance(steps, bool) or not (isinstance(steps, int) and steps >= 1):
        raise AssumptionError(f"steps must be a whole number, at least 1, got {steps!r}.", field="steps")


def attention_penalty(
    model: nn.Module,
    *,
    layers: Iterable[int] | None = None,
    power: float = 1,
    log: bool = False,
    above: float | None = None,
    steps: int = STEPS,
    seed: Seed | None = None,
) -> "AttentionPenalty":
    """Record the inputs of the attention layers of a Hugging Face model, to penalise the sum of their constants.

    >>> smooth = hs.training.attention_penalty(model)                               # doctest: +SKIP
    >>> loss = model(**batch).loss + 0.01 * smooth().mean()                # doctest: +SKIP

    Hooks record the input of every attention layer in the forward pass of training; nothing else of that pass is
    repeated. Every layer starts from its last singular vectors. Padding is left out. Tokens keep their graph, so that
    gradients reach the layers below, too.

    Args:
        model: The model; compiled or distributed ones are unwrapped.
        layers: Which attention layers; all by default.
        power: As in :func:`howsmooth.penalty`.
        log: Likewise.
        above: Likewise.
        steps: Likewise.
        seed: Likewise.
    """
    function = PenaltyFunction(power=power, log=log, above=above)
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a module, got {type(model).__name__}.", field="model")
    return AttentionPenalty(model, function=function, layers=layers, steps=steps, seed=seed)


class AttentionPenalty(contextlib.AbstractContextManager["AttentionPenalty", None]):
    """The sum of the penalties of attention layers, one number for each sequence.

    Attributes:
        layers: Which layers.
        states: What is remembered of each, and how exact it is.
        values: The constants of the last call, layer by layer, without their graph.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        function: PenaltyFunction,
        layers: Iterable[int] | None,
        steps: int,
        seed: Seed | None,
    ) -> None:
        self._recorded = RecordedInputs(model)
        count = len(self._recorded.transformer.layers)
        self.layers = tuple(range(count)) if layers is None else tuple(layers)
        if strays := [layer for layer in self.layers if not 0 <= layer < count]:
            self._recorded.close()
            raise AssumptionError(f"the model has the layers 0 to {count - 1}, got {strays[0]}.", field="layers")
        self.states = {layer: WarmStart() for layer in self.layers}
        self.values: dict[int, Float[Tensor, " batch"]] = {}
        self._function, self._steps, self._generator = function, steps, generator_from(seed)

    @outside_of_compiled_code
    @plain_mode()
    def __call__(self, batch: Any = None) -> Float[Tensor, " batch"]:
        """Return the penalty at what the layers read last; at a batch, if one is given, after a pass of its own."""
        inputs = self._recorded
        if batch is not None:
            tokens, real = read_batch(batch)
            masks = {} if real is None else {"attention_mask": real.long()}
            inputs.transformer.module(tokens, **masks)
        total: Tensor | None = None
        for layer in self.layers:
            sigma = self._constant(layer)
            self.values[layer] = sigma.detach()
            total = self._function(sigma) if total is None else total + self._function(sigma)
        inputs.forget()
        if total is None:
            raise AssumptionError("layers must name at least one layer, got none.", field="layers")
        return total

    def _constant(self, layer: int) -> Tensor:
        inputs, real = self._recorded, self._recorded.real
        part, X, module = inputs.part(layer)
        if any(parameter.dtype in HALF for parameter in module.parameters()):
            raise AssumptionError(
                "the weights are in half precision, in which no constant can be told; keep them in float32 and use "
                "torch.autocast for what may be rounded.",
                field="model",
            )

        def among_real(Y: Tensor) -> Tensor:
            return part(Y) if real is None else zero_padded_outputs(part(with_fixed_padding(Y, X, real)), real)

        with inputs.paused():
            recorded = RecordedJacobian(among_real, X, owner=module)
            return largest_singular_value(
                recorded, recorded.pullback, state=self.states[layer], steps=self._steps, generator=self._generator
            )

    def close(self) -> None:
        """Remove the hooks."""
        self._recorded.close()

    def __exit__(self, *_error: object) -> None:
        self.close()
