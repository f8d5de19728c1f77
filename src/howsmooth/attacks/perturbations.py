"""Attack a map at an input: the perturbation of given size that moves the output most."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.attacks.attack_settings import BUDGET, check_attack
from howsmooth.attacks.methods import METHODS
from howsmooth.attacks.objective import Objective, PerturbationBall, Target, check_value
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.linear_operators import LinearOperator
from howsmooth.maps.attention import Attention
from howsmooth.markup import paragraph, strict_json
from howsmooth.metrics import Euclidean, LargestToken, Metric, Metrics, as_metrics
from howsmooth.spectral.autograd import linearise, value_of
from howsmooth.spectral.metric_norms import as_tokens, climb, isometric, relative_to, vector_output
from howsmooth.spectral.operators import HALF, measurable, require_map
from howsmooth.spectral.solvers import spectral_norm
from howsmooth.theory.around_input.neighbourhood import displacement_uppers
from howsmooth.validation import Seed, generator_from, plain_mode, require_sequences, tokens_for
from howsmooth.wording import at_least, at_most, number

# A perturbation must exceed the rounding of the tokens so many times, or its displacement is noise.
ROUNDINGS = 64


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Attack:
    r"""The best perturbation that was found, or a batch of them: one for each sequence.

    Attributes:
        perturbation: E, never outside of the ball: :math:`\|E\|\le\epsilon`.
        displacement: :math:`\|f(X+E)-f(X)\|`.
        rise: What was maximised: the displacement, or by how much the target rose.
        predicted: What the derivative at X predicts of that: :math:`\max\|D_Xf\,E\|` over the ball, so
            :math:`\sigma\epsilon` for the total norm. In metrics that are not Euclidean, what power iteration attains.
        ceiling: A proven upper bound of the displacement over the ball; none where no theorem applies.
        products: How many products with derivatives and forward passes the method spent.
        trace: The largest rise after every forward pass, along the last axis.
        eps: The radius of the ball.
        metric: The name of the metric of perturbations and displacements.
        method: How it was found.
    """

    perturbation: Float[Tensor, "*batch n d"]
    displacement: Float[Tensor, "*batch"]
    rise: Float[Tensor, "*batch"]
    predicted: Float[Tensor, "*batch"]
    ceiling: Float[Tensor, "*batch"] | None
    products: int
    trace: Float[Tensor, "*batch passes"]
    eps: float
    metric: str
    method: str

    @property
    def gain(self) -> Float[Tensor, "*batch"]:
        r"""How far the output moves for each unit of :math:`\epsilon`: what a Lipschitz constant bounds."""
        return self.displacement / self.eps

    def __len__(self) -> int:
        if not self.rise.ndim:
            raise TypeError("an attack on a single sequence has no length.")
        return self.rise.shape[0]

    def __getitem__(self, index: int) -> "Attack":
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a batch of {size}.")
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen: dict[str, Any] = {name: x[index] for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **chosen)

    def __iter__(self) -> Iterator["Attack"]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Attack: {self._summary()}"

    def _summary(self) -> str:
        where = f"ε = {self.eps:g} ({self.metric}), {self.method}, {self.products} passes"
        if self.rise.ndim:
            low, high = (at_least(float(x) / self.eps, 3) for x in (self.displacement.min(), self.displacement.max()))
            return f"{self.rise.numel()} sequences, from {low} to {high} per unit of ε; {where}"
        allowed = "" if self.ceiling is None else f", at most {at_most(float(self.ceiling) / self.eps, 3)}"
        return f"{at_least(float(self.gain), 3)} per unit of ε, predicted {self._predicted()}{allowed}; {where}"

    def _predicted(self) -> str:
        return number(float(self.predicted) / self.eps)

    def _repr_html_(self) -> str:
        return paragraph(self._summary())

    def to_json(self) -> str:
        """Return everything but the perturbation as one JSON object."""
        return strict_json(
            {
                "method": self.method,
                "metric": self.metric,
                "eps": self.eps,
                "displacement": self.displacement.tolist(),
                "gain": self.gain.tolist(),
                "rise": self.rise.tolist(),
                "predicted": self.predicted.tolist(),
                "ceiling": None if self.ceiling is None else self.ceiling.tolist(),
                "products": self.products,
                "trace": self.trace.tolist(),
            }
        )


@plain_mode()
def attack(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"] | Any,
    *,
    eps: float,
    metric: str | Metric | Metrics = "total",
    method: str = "ascent",
    budget: int = BUDGET,
    target: Target | None = None,
    bounded: bool = True,
    seed: Seed = 0,
) -> Attack:
    r"""Search for the perturbation within ``eps`` of ``X`` that moves the output of ``f`` most.

    .. math:: \max_{\|E\|\le\epsilon}\|f(X+E)-f(X)\| = \sigma\epsilon + O(\epsilon^2), \qquad \sigma = \|D_Xf\|_2

    The result stands beside what the derivative predicts and what a theorem allows. Whatever the method, it lies in the
    ball, as float64 adds up, and is the best of all that was tried. A batch of sequences is attacked in lockstep, each
    by itself.

    Args:
        f: A map with a ``jacobian``, or any callable or module on tensors; it must treat batch axes independently.
        X: The tokens, as a tensor, an array or a list.
        eps: How far they may move.
        metric: How perturbations and displacements are measured, as in :func:`local_lipschitz`: ``total`` all tokens
            together, ``token`` each of them, any other name or value of ``hs.metrics``.
        method: ``random`` (noise), ``fgsm`` (one step along the gradient), ``pgd`` (many), ``singular`` (along the
            leading singular vectors, both ways) or ``ascent`` (climbing from these by conjugate gradients).
        budget: How many passes a method may spend: forward passes, and products with a derivative or its transpose.
            What is predicted is computed beside it.
        target: What to maximise instead of the displacement: any differentiable scalar of the output, one number for
            each sequence, such as the difference of two logits or the negative cosine with the embedding at ``X``.
        bounded: Whether to compute what the theory allows too, where it says something: a few seconds for
            each sequence and a layer of a dozen heads.
        seed: Seeds everything random: a whole number, or a torch.Generator to draw from.

    Raises:
        AssumptionError: If ``eps`` is not positive or below what the numbers of ``X`` resolve, or the metric, the
            method or the budget is not one.

    Example:
        >>> double = lambda X: 2 * X
        >>> found = attack(double, torch.ones(3, 2, dtype=torch.float64), eps=0.5)
        >>> round(float(found.displacement), 6), round(float(found.gain), 6)
        (1.0, 2.0)
    """
    check_attack(eps=eps, metric=metric, method=method, budget=budget)
    eps, budget = float(eps), int(budget)
    generator = generator_from(seed)
    prepared_map = prepare(f, tokens_for(X, f), metric=metric, target=target, generator=generator)
    found = prepared_map.attack(eps=eps, method=method, budget=budget, generator=generator)
    return replace(found, ceiling=prepared_map.theoretical_maximum(eps)) if bounded else found


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedAttack:
    """A map at an input, ready for attacks of any radius and method."""

    f: Callable[[Tensor], Any]
    X: Float[Tensor, "*batch n d"]
    there: Tensor  # the output at the tokens
    J: LinearOperator  # the derivative there
    metrics: Metrics  # the metrics of perturbations and displacements, at the tokens and the output
    target: Target | None  # the scalar to maximise; the displacement if none
    steepest: Float[Tensor, "*batch"]  # the largest displacement to first order, per unit of eps

    def attack(self, *, eps: float, method: str, budget: int, generator: torch.Generator) -> Attack:
        """Attack with one radius, by one method; ``ceiling`` is left out."""
        check_attack(eps=eps, metric=self.metrics, method=method, budget=budget)
        self._require_resolved(eps)
        ball, output = PerturbationBall(eps=eps, metric=self.metrics.input), self.metrics.output
        objective = Objective(self.f, self.J, self.X, self.there, ball, output, budget, self.target)
        with torch.inference_mode(False):
            METHODS[method](objective, generator)
        moved = value_of(self.f, self.X + objective.best)
        return Attack(
            perturbation=objective.best,
            displacement=output.size(as_tokens(moved.double() - self.there.double(), objective.batch)),
            rise=objective.value,
            predicted=self.steepest * eps,
            ceiling=None,
            products=objective.spent,
            trace=torch.stack(objective.trace, dim=-1),
            eps=eps,
            metric=self.metrics.name,
            method=method,
        )

    def theoretical_maximum(self, eps: float) -> Float[Tensor, "*batch"] | None:
        r"""Bound the displacement over the ball by :func:`howsmooth.bounds.displacement_upper`.

        .. math:: \|f(X+E)-f(X)\| \le \int_0^\epsilon g(t)\,dt, \qquad g(t) \ge \sup_{\|E\|\le t}\|D_{X+E}f\|

        or by the hull of the values, where that is smaller. It can be less than the derivative at X predicts, since the
        softmax saturates.
        Return none if the map is no attention, or not of a form that the theorem covers.
        """
        found = self.theoretical_maxima([eps])
        return None if found is None else found[0]

    def theoretical_maxima(
        self, radii: Sequence[float], progress: Callable[[], None] = lambda: None
    ) -> Float[Tensor, "radii *batch"] | None:
        """Return the same for several radii, which share what is known at each input; call ``progress`` after each."""
        if not isinstance(self.f, Attention):
            return None
        n, d = self.X.shape[-2:]
        ball = "token" if isinstance(self.metrics.input, LargestToken) else "total"
        # any other ball lies in one of the total norm, and no displacement is larger than so many total ones
        wider = 1.0 if ball == "token" else self.metrics.input.euclidean_ratios((n, d))[0]
        most = self.metrics.output.euclidean_ratios((n, self.there.shape[-1]))[1]
        try:
            found = displacement_uppers(
                self.f,
                list(self.X.reshape(-1, n, d)),
                radii=[eps * wider for eps in radii],
                metric=ball,
                progress=progress,
            )
        except AssumptionError:
            return None
        values = torch.tensor([[most * bound.value for bound in some] for some in found], dtype=torch.float64)
        return values.mT.reshape(len(radii), *self.X.shape[:-2]).to(self.X.device)

    def _require_resolved(self, eps: float) -> None:
        least = ROUNDINGS * torch.finfo(self.X.dtype).eps * float(self.metrics.input.size(self.X).max())
        if eps < least:
            raise AssumptionError(
                f"eps must be at least {least:.2g}, or {self.X.dtype} rounds it away, got {eps:g}; use float64, or a "
                "larger one.",
                field="eps",
            )


def prepare(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"],
    *,
    metric: str | Metric | Metrics,
    target: Target | None = None,
    generator: torch.Generator,
) -> PreparedAttack:
    """Evaluate and differentiate a map at an input once, for any number of attacks."""
    _check(f, X, target)
    X = X.detach().clone()
    X = X.float() if X.dtype in HALF else X
    f = measurable(f)
    J = linearise(f, X)
    there = value_of(f, X)
    check_value(there, X)
    if len(J.codomain) < 2:
        J = vector_output(J)
    metrics = relative_to(J, as_metrics(metric), X, there)
    if target is None:
        slope = first_order_gain(J, metrics, generator)
    else:
        ball = PerturbationBall(eps=1.0, metric=metrics.input)
        objective = Objective(f, J, X, there, ball, metrics.output, 2, target)
        slope = metrics.input.dual_size(objective.gain_and_gradient(torch.zeros_like(X))[1])
    return PreparedAttack(f=f, X=X, there=there, J=J, metrics=metrics, target=target, steepest=slope)


@torch.no_grad()
def first_order_gain(J: LinearOperator, metrics: Metrics, generator: torch.Generator) -> Float[Tensor, "*batch"]:
    r"""Maximise :math:`\|JE\|` over the ball of radius one: the largest singular value, or what climbing attains."""
    given, wanted = metrics.input, metrics.output
    top = spectral_norm(isometric(J, given, wanted), certify=False, seed=generator)
    if isinstance(given, Euclidean) and isinstance(wanted, Euclidean):
        return top.lower.double()
    start = given.original(top.direction) if isinstance(given, Euclidean) else top.direction
    return climb(J, start, given, wanted, generator)[1]


def _check(f: object, X: object, target: object) -> None:
    require_map(f)
    require_sequences(X)
    if not (target is None or callable(target)):
        raise DtypeError(
            f"target must be callable on the output, or None for the displacement, got {type(target).__name__}.",
            field="target",
        )
