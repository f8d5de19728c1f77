r"""Theorem 16: the least value of a linear function of a box and of bent ReLUs, by lines and by splitting.

With bent units :math:`y_c = y_{0c}+\langle f_c,\xi\rangle+\sum_{c'}t_{cc'}\eta_{c'}\pm\delta_c` the margin is at
least :math:`m_0+\langle g,\xi\rangle+\sum_c\kappa_c\eta_c`. From the last layer to the first every symbol is
replaced by a line in its unit: where its coefficient is positive, :math:`\mathrm{relu}(y)\ge\alpha y` for any
:math:`\alpha\in[0,1]`, else the chord. A unit that is split is linear on each side, and its side holds, with a
multiplier :math:`\beta\ge0`. What is left is linear in :math:`\xi`: its least value is known, for any :math:`\alpha`
and :math:`\beta`. So every value that the ascent over them meets is a proven bound.
"""

import functools
import heapq
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.rounding import RANGE_SHARE
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.taylor_model import Deadline, TaylorModel

FIRST_STEPS, STEPS, RATE, DECAY = 100, 25, 0.1, 0.97
# Nodes whose children are bounded at once.
NODES = 24


@dataclass(frozen=True, eq=False)
class BentUnits:
    r"""The units of all layers that may bend, as functions of the box and of each other.

    Attributes:
        centre: :math:`y_0`.
        pixels: f, on the symbols of the box.
        earlier: t, on the symbols of bent units of earlier layers.
        lower: The least value of each.
        upper: The largest.
        slope: :math:`\sigma` of its line in the Taylor model.
        gap: g of its symbol.
        beyond_linear: :math:`\delta`.
        layer: The place of its layer.
    """

    centre: Float[Tensor, " c"]
    pixels: Float[Tensor, "c s"]
    earlier: Float[Tensor, "c c"]
    lower: Float[Tensor, " c"]
    upper: Float[Tensor, " c"]
    slope: Float[Tensor, " c"]
    gap: Float[Tensor, " c"]
    beyond_linear: Float[Tensor, " c"]
    layer: Float[Tensor, " c"]

    @classmethod
    def of(cls, model: TaylorModel) -> "BentUnits":
        """Collect the bent units of a model."""
        layers = [part for stage in model.stages for part in stage.parts if isinstance(part, ReLURelaxation)]
        size, base = model.derivative.shape[-1], model.symbols.coordinates
        linear = torch.cat(
            [torch.nn.functional.pad(s.derivative[s.bent], (0, size - s.derivative.shape[-1])) for s in layers]
        )
        names = ("centre", "lower", "upper", "slope", "gap", "beyond_linear")
        fields = {name: torch.cat([getattr(s, name)[s.bent] for s in layers]) for name in names}
        place = torch.cat([linear.new_full((int(s.bent.sum()),), k) for k, s in enumerate(layers)])
        return cls(pixels=model.symbols.pixels(linear), earlier=linear[:, base:], layer=place, **fields)

    @functools.cached_property
    def layers(self) -> list[Tensor]:
        """The units of every layer, the last layer first."""
        return [(self.layer == k).nonzero().squeeze(-1) for k in self.layer.unique().flip(0)]


@dataclass(frozen=True, eq=False)
class MarginFunction:
    r"""The function to bound from below: :math:`m_0+\langle g,\xi\rangle+\sum_c\kappa_c\eta_c`."""

    centre: Float[Tensor, ""]
    pixels: Float[Tensor, " s"]
    units: Float[Tensor, " c"]


@dataclass(frozen=True)
class SplitOutcome:
    """What splitting found: whether the least value is positive, a bound on it, and how many nodes that took.

    Leaves are nodes with a positive bound: their slopes, multipliers and sides.
    """

    positive: bool
    lower: float
    nodes: int
    leaves: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of the tree: slopes, multipliers and the sides of their units, 0 where not split."""

    alpha: Float[Tensor, "b c"]
    beta: Float[Tensor, "b c"]
    side: Float[Tensor, "b c"]


def split(units: BentUnits, objective: MarginFunction, deadline: Deadline) -> SplitOutcome:
    """Bound the least value of the objective, splitting units until it is positive or the time is over.

    Args:
        units: The bent units.
        objective: What is bounded.
        deadline: When to stop.
    """
    start = (units.upper / (units.upper - units.lower))[None]
    nodes = _Nodes(start, torch.zeros_like(start), torch.zeros_like(start))
    lower, nodes = _ascend(units, objective, nodes, FIRST_STEPS)
    queue, leaves = [(float(lower[0]), 0, nodes, 0)], list[tuple[Tensor, Tensor, Tensor]]()
    count, least = 1, math.inf
    while queue and not queue[0][0] > 0:
        if deadline.passed:
            break
        taken = [heapq.heappop(queue) for _ in range(min(NODES, len(queue)))]
        parents = _Nodes(
            *(torch.stack([getattr(n, name)[k] for _, _, n, k in taken]) for name in _Nodes.__dataclass_fields__)
        )
        if bool((parents.side != 0).all(1).any()):
            heapq.heappush(queue, taken[0])
            break  # everything is linear there, and the bound is not positive
        children = _children(units, objective, parents)
        lower, children = _ascend(units, objective, children, STEPS)
        for k, value in enumerate(lower.tolist()):
            if not value > 0:
                heapq.heappush(queue, (value, count + k, children, k))
            else:
                leaves.append((children.alpha[k], children.beta[k], children.side[k]))
                least = min(least, value)
        count += len(lower)
    worst = min(queue[0][0], least) if queue else least
    leaves += [(some.alpha[k], some.beta[k], some.side[k]) for value, _place, some, k in queue if value > 0]
    return SplitOutcome(worst > 0, worst, count, tuple(leaves))


def _bound(units: BentUnits, objective: MarginFunction, nodes: _Nodes) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bound at every node, the coefficients of the box, and those of the symbols of units."""
    on_symbols = objective.units.expand_as(nodes.alpha)
    lower = objective.centre.expand(len(nodes.alpha))
    pixels = objective.pixels
    for sel in units.layers:
        a, side = on_symbols[:, sel], nodes.side[:, sel]
        low, high, gap = units.lower[sel], units.upper[sel], units.gap[sel]
        chord = (side == 0) & (a < 0)
        slope = torch.where(side == 0, torch.where(a < 0, high / (high - low), nodes.alpha[:, sel]), (side + 1) / 2)
        offset = torch.where(chord, -low * high / (high - low), 0.0)
        on_units = a * (slope - units.slope[sel]) / gap - side * nodes.beta[:, sel]
        lower = lower + (a * (offset / gap - 1)).sum(1)
        lower = lower + on_units @ units.centre[sel] - on_units.abs() @ units.beyond_linear[sel]
        pixels = pixels + on_units @ units.pixels[sel]
        on_symbols = on_symbols + on_units @ units.earlier[sel]
    return lower - pixels.abs().sum(1) * (1 + RANGE_SHARE), pixels, on_symbols


def _ascend(units: BentUnits, objective: MarginFunction, nodes: _Nodes, steps: int) -> tuple[Tensor, _Nodes]:
    """Raise the bound of every node by slopes and multipliers (Adam), and return the best bounds that were met."""
    # a multiplier is of the size of the margin's derivative in its unit
    scale = float((objective.units / units.gap).abs().mean())
    point = [nodes.alpha.clone(), nodes.beta.clone()]
    moments = [[torch.zeros_like(x), torch.zeros_like(x)] for x in point]
    best, kept = torch.full_like(nodes.alpha[:, 0], -torch.inf), [x.clone() for x in point]
    for step in range(1, steps + 1):
        for x in point:
            x.requires_grad_()
        lower, _pixels, _symbols = _bound(units, objective, _Nodes(point[0], point[1], nodes.side))
        gradients = torch.autograd.grad(lower.sum(), point)
        better = lower.detach() > best
        best = torch.where(better, lower.detach(), best)
        point = [x.detach() for x in point]
        for mine, x in zip(kept, point, strict=True):
            mine[better] = x[better]
        if bool((best > 0).all()):
            break
        for x, gradient, (first, second), size in zip(point, gradients, moments, (1.0, scale), strict=True):
            first.lerp_(size * gradient, 0.1)
            second.lerp_((size * gradient) ** 2, 0.01)
            mean, deviation = first / (1 - 0.9**step), (second / (1 - 0.99**step)).sqrt()
            x += RATE * DECAY**step * size * mean / (deviation + 1e-12)
        point = [point[0].clamp(0, 1), point[1].clamp_min(0)]
    return best, _Nodes(kept[0], kept[1], nodes.side)


def _children(units: BentUnits, objective: MarginFunction, nodes: _Nodes) -> _Nodes:
    """Split at every node the unit whose line loses most."""
    unit = _losses(units, objective, nodes).argmax(1)
    sides = [nodes.side.clone(), nodes.side.clone()]
    for side, sign in zip(sides, (1.0, -1.0), strict=True):
        side[torch.arange(len(unit)), unit] = sign
    return _Nodes(nodes.alpha.repeat(2, 1), nodes.beta.repeat(2, 1), torch.cat(sides))


def _losses(units: BentUnits, objective: MarginFunction, nodes: _Nodes) -> Float[Tensor, "b c"]:
    """Return how far the line of each unit is from it, at the input that is worst for the lines; −1 where it is split.

    Where lines are right there, units that count for more come first.
    """
    _lower, pixels, on_symbols = _bound(units, objective, nodes)
    y = units.centre - pixels.sign() @ units.pixels.mT
    eta = torch.zeros_like(y)
    for sel in reversed(units.layers):
        y[:, sel] += eta @ units.earlier[sel].mT
        eta[:, sel] = (torch.relu(y[:, sel]) - units.slope[sel] * y[:, sel]) / units.gap[sel] - 1
    a = on_symbols / units.gap
    chord = units.upper / (units.upper - units.lower) * (y - units.lower)
    loss = torch.where(a < 0, -a * (chord - torch.relu(y)), a * (torch.relu(y) - nodes.alpha * y))
    return torch.where(nodes.side == 0, loss + 1e-6 * on_symbols.abs(), -1.0)
