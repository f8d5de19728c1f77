r"""How large a perturbation of a sequence is: one value that measures, attacks, domains and bounds share.

A metric knows the size of a perturbation, the size of a gradient in the dual norm, the steepest step, and the nearest
perturbation within a radius. A Euclidean metric is :math:`|LE|` for a linear isomorphism L, so that every spectral
solver serves it; the others are compared with the Euclidean norm by two constants.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, ShapeError, nearest
from howsmooth.validation import require_floating, require_numbers, require_sequences

# A share of the mean variance that is added to every direction of a covariance, so that it has an inverse.
RIDGE = 1e-3
# Where a projection has no derivative in closed form, it is looked at as far away as this share of the radius.
NEARBY = 1e-3
# The methods whose first argument is a perturbation, a change, a gradient, or the tokens.
ISOMETRIES = {"standard", "standard_transpose", "original", "original_transpose"}
OF_PERTURBATIONS = {"size", "dual_size", "steepest", "support", "nearest", "along", "at"} | ISOMETRIES


def _of_tokens(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: Any, E: Any, *others: Any, **named: Any) -> Any:
        for x in (E, *others[: len(others) - 1]):  # behind a gradient comes the radius
            require_floating(x, "a perturbation")
            plain = method.__name__ in ISOMETRIES and self.factor is None and self.scale is None
            if x.ndim < 2 and not plain:  # the identity takes the outputs of maps that have no tokens
                raise ShapeError(f"a perturbation must have the shape (*batch, n, d), got {tuple(x.shape)}.")
            require_numbers(x, "a perturbation")
        return method(self, E, *others, **named)

    return checked


class Metric(ABC):
    """The size of perturbations of tokens ``(*batch, n, d)``; frozen, and without a state.

    Attributes:
        name: Its name, as commands take it.
        words: What a perturbation of size ε is, for tables and reports.
    """

    name: str
    words: str
    # whether the unit ball, or that of the dual norm, is the hull of the vectors with one coordinate ±1
    ball_of_basis = False
    dual_ball_of_basis = False

    def __init_subclass__(cls, **named: Any) -> None:
        """Let every method of a metric refuse what holds no perturbations; what is no number has no size either."""
        super().__init_subclass__(**named)
        for name in OF_PERTURBATIONS & vars(cls).keys():
            setattr(cls, name, _of_tokens(vars(cls)[name]))

    @abstractmethod
    def size(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the size of each perturbation, in float64."""

    @abstractmethod
    def dual_size(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        r"""Return :math:`\max_{\|E\|\le1}\langle G,E\rangle`, in float64."""

    @abstractmethod
    def steepest(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return a perturbation of size one that attains :meth:`dual_size`; where the gradient is zero, so is it."""

    @abstractmethod
    def support(self, F: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        r"""Return a functional of dual size one with :math:`\langle Z,F\rangle = \|F\|`; where F is zero, so is it."""

    @abstractmethod
    def nearest(self, E: Float[Tensor, "*batch n d"], eps: float) -> Float[Tensor, "*batch n d"]:
        """Return the perturbation of size at most ``eps`` that is nearest, or a multiple of ``E``."""

    @abstractmethod
    def euclidean_ratios(self, shape: tuple[int, int]) -> tuple[float, float]:
        r"""Return the smallest a and b with :math:`\|E\|_F\le a\,\|E\|` and :math:`\|E\|\le b\,\|E\|_F`."""

    @_of_tokens
    def along(
        self, E: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"], eps: float
    ) -> Float[Tensor, "*batch n d"]:
        """Return the part of a gradient that leads along the ball of radius ``eps`` at ``E``, or into it."""
        # in float64: a step so small is lost in half precision
        wide, slope = E.double(), G.double()
        largest = slope.abs().amax((-2, -1), keepdim=True)
        step = NEARBY * eps / torch.where(largest > 0, largest, 1.0)
        return ((self.nearest(wide + step * slope, eps) - wide) / step).to(G.dtype)

    @_of_tokens
    def at(self, X: Float[Tensor, "*batch n d"]) -> "Metric":
        """Return the metric at given tokens; only relative ones depend on them."""
        return self

    def draw(self, like: Float[Tensor, "*batch n d"], generator: torch.Generator | None) -> Float[Tensor, "*batch n d"]:
        """Draw a random perturbation of size one."""
        require_floating(like, "like")
        device = like.device if generator is None else generator.device
        noise = torch.randn(like.shape, dtype=like.dtype, device=device, generator=generator).to(like.device)
        return noise / self.size(noise)[..., None, None].to(like.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class Euclidean(Metric):
    r"""A Euclidean metric, :math:`\|E\| = |L_iE_iR|_F` with a number :math:`L_i` for each token and a matrix R.

    Attributes:
        name: Its name.
        words: What a perturbation of size ε is.
        scale: The number of each token, or one number for all.
        factor: R with :math:`M = RR^\top` the form on one token; none for the identity.
        inverse: The inverse of R.
    """

    name: str
    words: str
    scale: Float[Tensor, "*batch n 1"] | None = None
    factor: Float[Tensor, "d d"] | None = None
    inverse: Float[Tensor, "d d"] | None = None

    def standard(self, E: Tensor) -> Tensor:
        """Map perturbations to the Euclidean space of the same shape: an isometry."""
        E = E if self.factor is None else E @ self.factor.to(E)
        return E if self.scale is None else E * self.scale.to(E)

    def standard_transpose(self, G: Tensor) -> Tensor:
        """Apply the transpose of :meth:`standard`."""
        G = G if self.factor is None else G @ self.factor.mT.to(G)
        return G if self.scale is None else G * self.scale.to(G)

    def original(self, Z: Tensor) -> Tensor:
        """Undo :meth:`standard`."""
        Z = Z if self.inverse is None else Z @ self.inverse.to(Z)
        return Z if self.scale is None else Z / self.scale.to(Z)

    def original_transpose(self, G: Tensor) -> Tensor:
        """Apply the transpose of :meth:`original`."""
        G = G if self.inverse is None else G @ self.inverse.mT.to(G)
        return G if self.scale is None else G / self.scale.to(G)

    def size(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the Euclidean norm after the isometry."""
        return torch.linalg.vector_norm(self.standard(E.double()), dim=(-2, -1))

    def dual_size(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the Euclidean norm of the gradient with respect to the isometric coordinates."""
        return torch.linalg.vector_norm(self.original_transpose(G.double()), dim=(-2, -1))

    def steepest(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the normalised gradient of the isometric coordinates, mapped back."""
        return self.original(_normalised(self.original_transpose(G), (-2, -1)))

    def support(self, F: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the normalised isometric coordinates, pulled back."""
        return self.standard_transpose(_normalised(self.standard(F), (-2, -1)))

    def nearest(self, E: Float[Tensor, "*batch n d"], eps: float) -> Float[Tensor, "*batch n d"]:
        """Shrink what is too large; for the identity this is the projection."""
        return E * (eps / self.size(E).clamp_min(eps))[..., None, None].to(E.dtype)

    def along(
        self, E: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"], eps: float
    ) -> Float[Tensor, "*batch n d"]:
        """Leave out what leads outwards, along the normal of the ellipsoid."""
        normal = self.standard_transpose(self.standard(E))
        return _without_outward(normal, G, self.size(E)[..., None, None] >= eps, (-2, -1))

    def euclidean_ratios(self, shape: tuple[int, int]) -> tuple[float, float]:
        """Return the largest stretch of the inverse isometry, and of the isometry."""
        low, high = 1.0, 1.0
        for stretches in (
            None if self.scale is None else self.scale.double().abs(),
            None if self.factor is None else torch.linalg.svdvals(self.factor.double()),
        ):
            if stretches is not None:
                low, high = low / float(stretches.min()), high * float(stretches.max())
        return low, high


@dataclass(frozen=True, kw_only=True)
class Relative(Metric):
    r"""Perturbations against what they perturb: :math:`(\sum_i|e_i|^2/|x_i|^2)^{1/2}`, or :math:`\|E\|_F/\|X\|_F`.

    It has a size only :meth:`at` given tokens, where it is Euclidean.

    Attributes:
        name: Its name.
        words: What a perturbation of size ε is.
        per_token: Whether every token is compared with its own norm, not the sequence with the norm of all.
    """

    name: str
    words: str
    per_token: bool

    def at(self, X: Float[Tensor, "*batch n d"]) -> Euclidean:
        """Return the metric at given tokens.

        Raises:
            AssumptionError: If one is zero: nothing is small compared with it.
        """
        axes = (-1,) if self.per_token else (-2, -1)
        sizes = torch.linalg.vector_norm(X.detach().double(), dim=axes, keepdim=True)
        if not bool((sizes > 0).all()):
            raise AssumptionError(
                "a relative perturbation needs tokens, and outputs, that are not zero; take the metric 'total', or "
                "leave the zero token out.",
                field="metric",
            )
        return Euclidean(name=self.name, words=self.words, scale=1 / sizes)

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise AssumptionError(
            f"the metric {self.name!r} has no size without tokens; take metric.at(X).", field="metric"
        )

    size = dual_size = steepest = support = nearest = euclidean_ratios = _refuse


@dataclass(frozen=True, kw_only=True)
class LargestToken(Metric):
    r"""The largest token, :math:`\max_i|e_i|_2`; for measures it is :math:`W_\infty`."""

    name: str = "token"
    words: str = "every token moves by at most ε"

    def size(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the norm of the longest token."""
        return torch.linalg.vector_norm(E.double(), dim=-1).amax(-1)

    def dual_size(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the sum of the norms of all tokens."""
        return torch.linalg.vector_norm(G.double(), dim=-1).sum(-1)

    def steepest(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the unit vector of every token."""
        return _normalised(G, (-1,))

    def support(self, F: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the unit vector of the longest token, and zero elsewhere."""
        sizes = torch.linalg.vector_norm(F, dim=-1, keepdim=True, dtype=torch.float64)
        longest = torch.zeros_like(F[..., :1]).scatter(-2, sizes.argmax(-2, keepdim=True), 1.0)
        return _normalised(F * longest, (-2, -1))

    def nearest(self, E: Float[Tensor, "*batch n d"], eps: float) -> Float[Tensor, "*batch n d"]:
        """Shrink every token that is too long."""
        sizes = torch.linalg.vector_norm(E, dim=-1, keepdim=True, dtype=torch.float64)
        return E * (eps / sizes.clamp_min(eps)).to(E.dtype)

    def along(
        self, E: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"], eps: float
    ) -> Float[Tensor, "*batch n d"]:
        """Leave out what leads outwards, token by token."""
        sizes = torch.linalg.vector_norm(E, dim=-1, keepdim=True, dtype=torch.float64)
        return _without_outward(E, G, sizes >= eps, (-1,))

    def euclidean_ratios(self, shape: tuple[int, int]) -> tuple[float, float]:
        """Return √n and one."""
        return math.sqrt(shape[0]), 1.0

    def draw(self, like: Float[Tensor, "*batch n d"], generator: torch.Generator | None) -> Float[Tensor, "*batch n d"]:
        """Draw a random direction for every token."""
        return self.steepest(super().draw(like, generator))


@dataclass(frozen=True, kw_only=True)
class LargestEntry(Metric):
    r"""The largest coordinate, :math:`\max_{ij}|E_{ij}|`: boxes."""

    name: str = "entries"
    words: str = "every coordinate moves by at most ε"
    dual_ball_of_basis = True

    def size(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the largest absolute value."""
        return E.double().abs().amax((-2, -1))

    def dual_size(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the sum of absolute values."""
        return G.double().abs().sum((-2, -1))

    def steepest(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the signs."""
        return G.sign()

    def support(self, F: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the sign of the largest coordinate, at its place."""
        return _largest_sign(F)

    def nearest(self, E: Float[Tensor, "*batch n d"], eps: float) -> Float[Tensor, "*batch n d"]:
        """Clip every coordinate."""
        return E.clamp(-eps, eps)

    def euclidean_ratios(self, shape: tuple[int, int]) -> tuple[float, float]:
        """Return √(nd) and one."""
        return math.sqrt(math.prod(shape)), 1.0


@dataclass(frozen=True, kw_only=True)
class SumOfEntries(Metric):
    r"""The sum of absolute coordinates, :math:`\sum_{ij}|E_{ij}|`: sparse perturbations."""

    name: str = "sum"
    words: str = "all coordinates together move by at most ε"
    ball_of_basis = True

    def size(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the sum of absolute values."""
        return E.double().abs().sum((-2, -1))

    def dual_size(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
        """Return the largest absolute value."""
        return G.double().abs().amax((-2, -1))

    def steepest(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the sign of the largest coordinate, at its place."""
        return _largest_sign(G)

    def support(self, F: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the signs."""
        return F.sign()

    def nearest(self, E: Float[Tensor, "*batch n d"], eps: float) -> Float[Tensor, "*batch n d"]:
        r"""Project onto the simplex of absolute values: :math:`\mathrm{sign}(E)\max(|E|-t, 0)` with the right t."""
        flat = E.flatten(-2).double()
        ordered = flat.abs().sort(-1, descending=True).values
        excess = ordered.cumsum(-1) - eps
        count = torch.arange(1, flat.shape[-1] + 1, device=E.device)
        last = (ordered * count > excess).sum(-1, keepdim=True).clamp_min(1)
        threshold = (excess.gather(-1, last - 1) / last).clamp_min(0)
        return (flat.sign() * (flat.abs() - threshold).clamp_min(0)).to(E.dtype).view(E.shape)

    def euclidean_ratios(self, shape: tuple[int, int]) -> tuple[float, float]:
        """Return one and √(nd)."""
        return 1.0, math.sqrt(math.prod(shape))


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How perturbations of the input and changes of the output are measured.

    Attributes:
        input: The metric of perturbations.
        output: The metric of changes.
    """

    input: Metric
    output: Metric

    def __post_init__(self) -> None:
        # theorems are looked up by name, so that no other metric may have the name of one
        for metric in (self.input, self.output):
            named = NAMED.get(metric.name)
            plain = getattr(metric, "scale", None) is None and getattr(metric, "factor", None) is None
            if named and not isinstance(named, Relative) and not (plain and type(metric) is type(named)):
                raise AssumptionError(
                    f"the name {metric.name!r} is that of hs.metrics.{metric.name}; give another name.", field="metric"
                )

    @property
    def name(self) -> str:
        """The name of the metric, or both names."""
        same = self.input.name == self.output.name
        return self.input.name if same else f"{self.input.name} → {self.output.name}"

    @property
    def depend_on_tokens(self) -> bool:
        """Whether one of them is relative."""
        return isinstance(self.input, Relative) or isinstance(self.output, Relative)

    def at(self, X: Float[Tensor, "*#batch n d"], Y: Float[Tensor, "*#batch m out"]) -> "Metrics":
        """Return the metrics at given tokens and their outputs."""
        return Metrics(input=self.input.at(X), output=self.output.at(Y))


total = Euclidean(name="total", words="all tokens together move by at most ε")
token = LargestToken()
relative = Relative(name="relative", words="tokens move by at most ε of their own norms", per_token=True)
condition = Relative(name="condition", words="all tokens together move by at most ε of their norm", per_token=False)
entries = LargestEntry()
sum = SumOfEntries()  # noqa: A001 - as the others are named; this module does not need the builtin
NAMED: dict[str, Metric] = {m.name: m for m in (total, token, relative, condition, entries, sum)}
TOTAL = Metrics(input=total, output=total)


def weighted(M: Float[Tensor, "d d"], *, name: str = "weighted") -> Euclidean:
    r"""Return the metric :math:`\|E\|^2 = \sum_i e_i^\top Me_i` of a symmetric positive definite matrix.

    Raises:
        AssumptionError: If the matrix is not symmetric positive definite.
    """
    require_floating(M, "M")
    if M.ndim != 2 or M.shape[0] != M.shape[1]:
        raise ShapeError(f"M must be a square matrix, one row for each coordinate, got {tuple(M.shape)}.", field="M")
    require_numbers(M, "M")
    M = M.detach().double()
    factor, failed = torch.linalg.cholesky_ex(M)
    if bool(failed) or not torch.allclose(M, M.mT) or not bool(factor.isfinite().all()):
        raise AssumptionError("M must be symmetric and positive definite.", field="M")
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(M), dtype=M.dtype), upper=False)
    return Euclidean(
        name=name, words="all tokens together move by at most ε in the given form", factor=factor, inverse=inverse
    )


def covariance(X: Float[Tensor, "*batch n d"], *, ridge: float = RIDGE) -> Euclidean:
    r"""Return the metric of noise that is shaped as the tokens are: :math:`M = (\Sigma + r\,\bar\sigma^2I)^{-1}`.

    A perturbation of size one has, along any direction, the standard deviation of the tokens in that direction.

    Args:
        X: Real activations, whose covariance over all tokens is :math:`\Sigma`.
        ridge: r, as a share of the mean variance.
    """
    require_sequences(X)
    rows = X.detach().double().flatten(0, -2)
    centred = rows - rows.mean(0)
    Sigma = centred.mT @ centred / max(len(rows) - 1, 1)
    spread = float(Sigma.diagonal().mean())
    if not 0 < spread < math.inf:
        raise AssumptionError("the tokens do not vary, so that they have no covariance; give more of them.", field="X")
    identity = torch.eye(len(Sigma), dtype=Sigma.dtype, device=Sigma.device)
    return weighted(torch.linalg.inv(Sigma + ridge * spread * identity), name="covariance")


def as_metrics(metric: "str | Metric | Metrics") -> Metrics:
    """Return what a user gave as the metrics of input and output."""
    if isinstance(metric, Metrics):
        return metric
    if isinstance(metric, str):
        if metric not in NAMED:
            raise AssumptionError(f"there is no metric {metric!r}{nearest(metric, NAMED)}", field="metric")
        metric = NAMED[metric]
    if not isinstance(metric, Metric):
        raise DtypeError(
            f"metric must be one of {', '.join(NAMED)}, or a value of hs.metrics, got {type(metric).__name__}.",
            field="metric",
        )
    return Metrics(input=metric, output=metric)


def _normalised(G: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Divide by the norms along some axes; zero stays zero."""
    # Why not divide at once: the square of a tiny gradient underflows, and its direction is lost.
    largest = G.abs().amax(axes, keepdim=True)
    scaled = G / torch.where(largest > 0, largest, 1.0)
    sizes = torch.linalg.vector_norm(scaled, dim=axes, keepdim=True, dtype=torch.float64)
    return scaled / torch.where(sizes > 0, sizes, 1.0).to(G.dtype)


def _without_outward(normal: Tensor, G: Tensor, at_surface: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Remove the part of a gradient along the normal, where it leads outwards from the surface."""
    squares = normal.square().sum(axes, keepdim=True, dtype=torch.float64)
    outwards = (normal * G).sum(axes, keepdim=True, dtype=torch.float64) / squares.clamp_min(1e-300)
    return G - normal * torch.where(at_surface & (outwards > 0), outwards, 0.0).to(G.dtype)


def _largest_sign(G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """Return the sign of the largest coordinate, at its place."""
    flat = G.flatten(-2)
    place = flat.abs().argmax(-1, keepdim=True)
    return torch.zeros_like(flat).scatter(-1, place, flat.gather(-1, place).sign()).view(G.shape)
