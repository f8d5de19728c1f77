"""Mass splitting: whether splitting an atom moves the output more than moving whole atoms does."""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.linear_operators import LinearOperator
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.markup import paragraph, strict_json
from howsmooth.search.mean_field_context import (
    Secant,
    counting,
    in_context,
    is_causal,
    moving,
    query_jacobians,
    steepest_secant,
)
from howsmooth.search.mechanisms import of_kind
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.operators import DifferentiableOnMeasures, Separable
from howsmooth.spectral.solvers import bracket_norm, local_lipschitz
from howsmooth.transport.distances import conditional_wasserstein, wasserstein
from howsmooth.transport.measures import DiscreteMeasure
from howsmooth.validation import Seed, generator_from, plain_mode
from howsmooth.wording import at_least

# All atoms are first measured this well; only those that may be the largest go on.
ROUGH = 0.05
MAX_STEPS = 200


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Splitting:
    r"""The local constants of a map at a measure, when atoms move and when they split.

    Attributes:
        moving: The norm of :math:`J_\mu`, between two bounds: atoms move as blocks.
        splitting: The norm of :math:`D_x\Gamma_\mu(x_i)` at ``atom``, between two bounds: its parts move apart.
        atom: The atom whose parts, moved apart, move the output most.
        direction: The unit vector along which they move apart.
        secant: The steepest secant found for a little mass that goes far; ``None`` if parts stay near their atoms.
    """

    moving: NormEstimate
    splitting: NormEstimate
    atom: int
    direction: Float[Tensor, " d"]
    secant: Secant | None = None

    @property
    def move(self) -> float:
        """The constant when atoms move as blocks."""
        return float(self.moving.lower)

    @property
    def split(self) -> float:
        """The constant when the parts of one atom move apart."""
        return float(self.splitting.lower)

    @property
    def splits(self) -> bool:
        """Whether splitting beats moving, by parts near their atom or by a little mass that goes far."""
        return max(self.split, self.far or 0.0) > self.move

    @property
    def far(self) -> float | None:
        """The constant when a little mass goes far, as large as was found; ``None`` if it was not looked for."""
        return None if self.secant is None else self.secant.slope

    @property
    def decided(self) -> bool:
        """Whether the error bars of the two constants do not overlap."""
        apart = max(self.split, self.far or 0.0)
        return apart > float(self.moving.upper) or self.move >= max(apart, float(self.splitting.upper))

    @property
    def value(self) -> float:
        r"""The local Lipschitz constant, exact for parts near their atoms, a lower bound in :math:`W_2`."""
        return max(self.move, self.split, self.far or 0.0)

    def __repr__(self) -> str:
        atom, far = self.atom, "" if self.secant is None else f", far {at_least(self.secant.slope)}"
        if self.secant is not None and self.secant.slope > self.split:
            atom = self.secant.atom
        verdict = f"atom {atom} splits" if self.splits else "no atom splits"
        note = "" if self.decided else " (within the error bars)"
        return f"Splitting: move {at_least(self.move)}, split {at_least(self.split)}{far}; {verdict}{note}"

    def _repr_html_(self) -> str:
        return paragraph(repr(self))

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json(
            {
                "move": self.move,
                "split": self.split,
                "far": self.far,
                "splits": self.splits,
                "decided": self.decided,
                "atom": self.atom,
                "direction": self.direction.tolist(),
                "value": self.value,
            }
        )


@plain_mode()
def splitting(
    f: Attention | Callable[..., Any],
    measure: DiscreteMeasure,
    *,
    near: bool = True,
    radius: float | None = None,
    rtol: float = 1e-4,
    confidence: float = 0.999,
    seed: Seed | None = None,
) -> Splitting:
    r"""Return the local constants of a map at a measure, with and without splitting atoms.

    For any map :math:`F(\mu) = (\Gamma_\mu)_\sharp\mu` with :math:`\Gamma` differentiable in point and measure,

    .. math:: \mathrm{Lip}_\mu(F) = \max\Bigl(\|J_\mu\|_2,\;\max_i\|D_x\Gamma_\mu(x_i)\|_2\Bigr)

    for perturbations whose parts stay near their atoms (small in :math:`W_\infty`); of attention the second is
    :math:`\max_i\|\sum_hW_hV_hC^h_iA_h\|`. In :math:`W_2` a little mass may also go far, so that secants count as well:

    .. math:: \mathrm{Lip}_\mu(F; W_2) \ge \max\Bigl(\|J_\mu\|,\;\sup_{i,y}\frac{D_F(i,y)}{D(i,y)}\Bigr),

    :math:`D = |y-x_i|` and :math:`D_F = |\Gamma_\mu(y)-\Gamma_\mu(x_i)|`, or less where other atoms hand mass on
    (:mod:`howsmooth.search.mean_field_context`).

    Attention has both derivatives in closed form; compositions and callables are differentiated by autograd, with a
    copy of every atom that has no mass. The search for secants takes a few hundred evaluations for each atom.

    Args:
        f: Attention of any kind, masked or not, a composition of maps (``Residual(attention)``), or any callable on
            points ``(n, d)`` and masses ``(n,)`` that gives the outputs ``(n, out)``. Mechanisms that count tokens
            (sigmoid, entmax, linear without denominator) count as many as there are atoms, unless they say how many.
        measure: The measure; with positions if attention is masked.
        near: Whether parts stay near their atoms; otherwise the steepest secant is searched too.
        radius: The ball around the origin where a little mass may go; by default the one that holds the atoms.
        rtol: The relative width of both brackets.
        confidence: The probability with which their upper ends hold.
        seed: Seeds the random starts; torch's global generator by default.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> splitting(Attention.single_head(A=-one, V=one), DiscreteMeasure(torch.tensor([[-5.3], [-0.5]]).double()))
        Splitting: move 1.1978, split 1.7569; atom 1 splits
    """
    _check(measure)
    generator = generator_from(seed)
    f = counting(f, len(measure))
    context = in_context(f, len(measure))
    if isinstance(f, DifferentiableOnMeasures):
        whole = local_lipschitz(f, measure, rtol=rtol, confidence=confidence, seed=generator)
    else:
        moved, start = moving(context, measure)
        whole = local_lipschitz(moved, start, rtol=rtol, confidence=confidence, seed=generator)
    if isinstance(f, MultiHead):
        with torch.no_grad():
            closed = f.on(measure).query_side(measure.points)
        fine, atom, best = _steepest(closed, closed.rounding, rtol, confidence, generator)
    else:
        fine, atom, best = _steepest(query_jacobians(context, measure), 0.0, rtol, confidence, generator)
    secant = None
    if not near:
        reach = float(measure.points.norm(dim=-1).max()) if radius is None else radius
        secant = steepest_secant(f, measure, radius=reach, generator=generator)
    return Splitting(
        moving=whole, splitting=fine[best], atom=atom, direction=fine.direction[best].detach(), secant=secant
    )


@torch.no_grad()
def _steepest(
    side: LinearOperator, floor: float, rtol: float, confidence: float, generator: torch.Generator | None
) -> tuple[NormEstimate, int, int]:
    """Measure a batch of operators roughly, and the rivals for the largest finely.

    Return the estimates, which operator is the largest, and its place among the estimates.
    """
    if not isinstance(side, Separable):
        every = bracket_norm(side, rtol, confidence, True, MAX_STEPS, generator, floor)
        best = int(every.lower.argmax())
        return every, best, best
    rough = bracket_norm(side, max(ROUGH, rtol), confidence, True, MAX_STEPS, generator, floor)
    rivals = (rough.upper >= rough.lower.max()).nonzero()[:, 0]
    fine = bracket_norm(side.take(rivals), rtol, confidence, True, MAX_STEPS, generator, floor)
    best = int(fine.lower.argmax())
    return fine, int(rivals[best]), best


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SplitAttack:
    r"""Two perturbed measures and how far the map really moves them.

    Attributes:
        splitting: What the derivative says.
        split_measure: The measure with one atom cut in two halves, moved apart.
        move_measure: The measure whose atoms moved along the worst direction.
        split_ratio: :math:`W_2(F\mu,F\nu)/W_2(\mu,\nu)` for the first (:math:`d_2` if masked).
        move_ratio: The same for the second.
        eps: How far the halves moved.
    """

    splitting: Splitting
    split_measure: DiscreteMeasure
    move_measure: DiscreteMeasure
    split_ratio: float
    move_ratio: float
    eps: float

    @property
    def splits(self) -> bool:
        """Whether splitting moved the output further."""
        return self.split_ratio > self.move_ratio

    def __repr__(self) -> str:
        wins = "splitting wins" if self.splits else "moving wins"
        split, move = at_least(self.split_ratio), at_least(self.move_ratio)
        return f"SplitAttack: split {split}, move {move} at ε = {self.eps:g}; {wins}"

    def _repr_html_(self) -> str:
        return paragraph(repr(self))

    def to_json(self) -> str:
        """Return one JSON object."""
        ratios = {
            "split_ratio": self.split_ratio,
            "move_ratio": self.move_ratio,
            "eps": self.eps,
            "splits": self.splits,
        }
        return strict_json(ratios | {"splitting": json.loads(self.splitting.to_json())})


@plain_mode()
def split_attack(
    f: Attention | Callable[..., Any], measure: DiscreteMeasure, *, eps: float, seed: Seed | None = None
) -> SplitAttack:
    r"""Attack a measure by splitting its best atom, and by moving its atoms; report the true ratios of distances.

    The atom of :func:`splitting` is cut in two halves, moved by :math:`\pm\varepsilon w`. The rival moves every atom
    along the top singular vector of :math:`J_\mu`, or against it, by ε in the metric of the masses. As ε → 0 the ratios
    tend to ``split`` and ``move``, with an error of the order of ε.
    """
    if not 0 < eps < math.inf:
        raise AssumptionError(f"eps must be positive and finite, got {eps}.", field="eps")
    found = splitting(f, measure, seed=seed)
    w = found.direction
    halves = measure.split(found.atom, 2, torch.stack((eps * w, -eps * w)))
    step = found.moving.direction / measure.weights.sqrt().unsqueeze(-1)
    moves = [dataclasses.replace(measure, points=measure.points + sign * eps * step) for sign in (1, -1)]
    moved = max(moves, key=lambda nu: _ratio(f, measure, nu))
    return SplitAttack(
        splitting=found,
        split_measure=halves,
        move_measure=moved,
        split_ratio=_ratio(f, measure, halves),
        move_ratio=_ratio(f, measure, moved),
        eps=eps,
    )


def _ratio(f: Any, mu: DiscreteMeasure, nu: DiscreteMeasure) -> float:
    distance = conditional_wasserstein if is_causal(f) else wasserstein
    context = in_context(f, len(mu))

    def moved(at: DiscreteMeasure) -> DiscreteMeasure:
        return dataclasses.replace(at, points=context(at.points, at.weights, at.positions))

    with torch.no_grad():
        return float(distance(moved(mu), moved(nu)) / distance(mu, nu))


def _check(measure: DiscreteMeasure) -> None:
    if not isinstance(measure, DiscreteMeasure):
        raise DtypeError(
            f"this takes an hs.transport.DiscreteMeasure, got {type(measure).__name__}; use "
            "hs.transport.DiscreteMeasure(points) or hs.transport.DiscreteMeasure.from_sequence(X).",
            field="measure",
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SplittingMap:
    r"""The constants of :math:`\tfrac12\delta_{x}+\tfrac12\delta_{y}` for all (x, y) of a grid.

    Attributes:
        A: The form of the scores, a number.
        V: The value, a number.
        kind: How scores become weights.
        grid: The places of an atom.
        move: The constant when atoms move as blocks; rows are x, columns y.
        split: The constant when the parts of one atom move apart.
    """

    A: float
    V: float
    grid: Float[Tensor, " m"]
    move: Float[Tensor, "m m"]
    split: Float[Tensor, "m m"]
    kind: str = "softmax"

    @property
    def splits(self) -> Bool[Tensor, "m m"]:
        """Where splitting beats moving."""
        return self.split > self.move

    @property
    def share(self) -> float:
        """The share of pairs that split."""
        return float(self.splits.double().mean())

    def __repr__(self) -> str:
        square = f"[{self.grid[0]:g}, {self.grid[-1]:g}]²"
        kind = "" if self.kind == "softmax" else f", {self.kind}"
        form = f"A = {self.A:g}, V = {self.V:g}{kind}"
        return f"SplittingMap: {100 * self.share:.1f} % of the pairs in {square} split ({form})"

    def _repr_html_(self) -> str:
        return paragraph(repr(self))

    def to_json(self) -> str:
        """Return one JSON object."""
        found = {"A": self.A, "V": self.V, "kind": self.kind, "share": self.share, "grid": self.grid.tolist()}
        return strict_json(found)


def splitting_map(
    *, A: float, V: float = 1.0, span: float = 6.0, step: float = 0.3, kind: str = "softmax"
) -> SplittingMap:
    r"""Compute the constants of all pairs of equal masses in :math:`[-\text{span},\text{span}]^2`, in closed form.

    In dimension one, :math:`J_{ij} = P_{ij}V(1 + (x_j-m_i)Ax_i) + 1_{i=j}VC_iA`, and the split constant is
    :math:`\max_i|VC_iA|`.

    Args:
        A: The form of the scores.
        V: The value.
        span: Half the side of the square.
        step: The distance between two points of the grid.
        kind: How scores become weights (``howsmooth.search.mechanisms``): queries are Ax, keys x, values Vx. Of other
            kinds than the softmax the map is differentiated by its own closed form, with copies that have no mass.

    Example:
        >>> splitting_map(A=-1.0)
        SplittingMap: 8.3 % of the pairs in [-6, 6]² split (A = -1, V = 1)
    """
    if not (math.isfinite(A) and math.isfinite(V)):
        raise AssumptionError(f"A and V must be finite numbers, got {A} and {V}.")
    if not 0 < step <= span < math.inf:
        raise AssumptionError(f"step and span must be positive, step the smaller, got {step} and {span}.")
    half = round(span / step)
    grid = torch.arange(-half, half + 1, dtype=torch.float64) * step
    x = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), dim=-1)
    if kind != "softmax":
        move, split = _of_kind(kind, A, V, x)
        return SplittingMap(A=A, V=V, grid=grid, move=move, split=split, kind=kind)
    P = torch.softmax(A * x[..., :, None] * x[..., None, :], dim=-1)
    m = (P * x[..., None, :]).sum(-1)
    apart = x[..., None, :] - m[..., :, None]
    C = (P * apart.square()).sum(-1)
    J = P * V * (1 + A * x[..., :, None] * apart) + torch.diag_embed(V * C * A)
    split = (V * C * A).abs().amax(-1)
    return SplittingMap(A=A, V=V, grid=grid, move=torch.linalg.matrix_norm(J, ord=2), split=split)


def _of_kind(kind: str, A: float, V: float, x: Float[Tensor, "m m 2"]) -> tuple[Tensor, Tensor]:
    """Return both constants of every pair, from products with the derivatives of a mechanism."""
    form, value = (torch.full((1, 1), number, dtype=torch.float64) for number in (A, V))
    f = counting(of_kind(Attention.single_head(A=form, V=value), kind), 2)
    pairs = x.reshape(-1, 2, 1)
    masses = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    with torch.no_grad():
        J = dataclasses.replace(f, weights=masses[:2]).jacobian(pairs)
        columns = [J.jvp(_axis(i, pairs))[..., 0] for i in range(2)]
        # copies without mass see the pair, and move nobody
        doubled = torch.cat((pairs, pairs), dim=1)
        copies = dataclasses.replace(f, weights=masses).jacobian(doubled)
        moved = [copies.jvp(_axis(2 + i, doubled))[:, 2 + i, 0].abs() for i in range(2)]
    move = torch.linalg.matrix_norm(torch.stack(columns, dim=-1), ord=2)
    return move.reshape(x.shape[:2]), torch.stack(moved).amax(0).reshape(x.shape[:2])


def _axis(i: int, like: Tensor) -> Tensor:
    e = torch.zeros_like(like)
    e[:, i] = 1
    return e
