"""Mass splitting: when cutting an atom in two moves the output more than moving whole atoms does."""

import dataclasses
import json
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.attention import Attention
from howsmooth.maps.weighted import mean_field
from howsmooth.markup import paragraph
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.solvers import bracket_norm, local_lipschitz
from howsmooth.transport.measures import Measure
from howsmooth.transport.wasserstein import conditional_wasserstein, wasserstein

# All atoms are first measured this well; only those that may be the largest go on.
ROUGH = 0.05
MAX_STEPS = 200


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Splitting:
    r"""How fast attention moves one measure, when atoms move and when they split first.

    Attributes:
        moving: The norm of :math:`J_\mu`, between two bounds: atoms move as blocks.
        splitting: The norm of :math:`\sum_hW_hV_hC_i^hA_h` at ``atom``, between two bounds: its parts move apart.
        atom: The atom whose parts, moved apart, move the output most.
        direction: The unit vector along which they move apart.
    """

    moving: NormEstimate
    splitting: NormEstimate
    atom: int
    direction: Float[Tensor, " d"]

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
        """Whether splitting beats moving."""
        return self.split > self.move

    @property
    def decided(self) -> bool:
        """Whether the error bars of the two constants do not overlap."""
        return float(self.splitting.lower) > float(self.moving.upper) or float(self.moving.lower) >= float(
            self.splitting.upper
        )

    @property
    def value(self) -> float:
        """The local Lipschitz constant of attention on measures, which is the larger of the two."""
        return max(self.move, self.split)

    def __repr__(self) -> str:
        """Show both constants and which one wins."""
        verdict = f"atom {self.atom} splits" if self.splits else "no atom splits"
        doubt = "" if self.decided else " (within the error bars)"
        return f"Splitting: move {self.move:.5g}, split {self.split:.5g}; {verdict}{doubt}"

    def _repr_html_(self) -> str:
        return paragraph(repr(self))

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(
            {
                "move": self.move,
                "split": self.split,
                "splits": self.splits,
                "decided": self.decided,
                "atom": self.atom,
                "direction": self.direction.tolist(),
                "value": self.value,
            }
        )


def splitting(
    attention: Attention,
    measure: Measure,
    *,
    rtol: float = 1e-4,
    confidence: float = 0.999,
    generator: torch.Generator | None = None,
) -> Splitting:
    r"""Return the local constants of attention at a measure, with and without splitting atoms.

    .. math:: \mathrm{Lip}_\mu(F) = \max\Bigl(\|J_\mu\|_2,\;\max_i\bigl\|\textstyle\sum_hW_hV_hC^h_iA_h\bigr\|_2\Bigr)

    for outputs that are pairwise distinct. Costs one measurement of :math:`J_\mu` and one of all atoms in a batch.

    Args:
        attention: The map, masked or not, with any number of heads.
        measure: The measure; with positions if attention is masked.
        rtol: The relative width of both brackets.
        confidence: The probability with which their upper ends hold.
        generator: The source of random starts.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> splitting(Attention.single_head(A=-one, V=one), Measure(torch.tensor([[-5.3], [-0.5]]).double()))
        Splitting: move 1.1978, split 1.7569; atom 1 splits
    """
    _check(measure)
    moving = local_lipschitz(attention, measure, rtol=rtol, confidence=confidence, generator=generator)
    with torch.no_grad():
        side = attention.on(measure).query_side(measure.points)
        rough = bracket_norm(side, max(ROUGH, rtol), confidence, True, MAX_STEPS, generator, side.rounding)
        rivals = (rough.upper >= rough.lower.max()).nonzero()[:, 0]
        fine = bracket_norm(side.take(rivals), rtol, confidence, True, MAX_STEPS, generator, side.rounding)
    best = int(fine.lower.argmax())
    return Splitting(
        moving=moving, splitting=fine[best], atom=int(rivals[best]), direction=fine.direction[best].detach()
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SplitAttack:
    r"""Two perturbed measures and how far attention really moves them.

    Attributes:
        splitting: What the derivative says.
        split_measure: The measure with one atom cut in two halves, moved apart.
        move_measure: The measure whose atoms moved along the worst direction.
        split_ratio: :math:`W_2(F\mu,F\nu)/W_2(\mu,\nu)` for the first (:math:`d_2` if masked).
        move_ratio: The same for the second.
        eps: How far the halves moved.
    """

    splitting: Splitting
    split_measure: Measure
    move_measure: Measure
    split_ratio: float
    move_ratio: float
    eps: float

    @property
    def splits(self) -> bool:
        """Whether splitting moved the output further."""
        return self.split_ratio > self.move_ratio

    def __repr__(self) -> str:
        """Show both true ratios."""
        wins = "splitting wins" if self.splits else "moving wins"
        return f"SplitAttack: split {self.split_ratio:.5g}, move {self.move_ratio:.5g} at ε = {self.eps:g}; {wins}"

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
        return json.dumps(ratios | {"splitting": json.loads(self.splitting.to_json())})


def split_attack(
    attention: Attention, measure: Measure, *, eps: float, generator: torch.Generator | None = None
) -> SplitAttack:
    r"""Attack a measure by splitting its best atom, and by moving its atoms; report the true ratios of distances.

    The atom of :func:`splitting` is cut in two halves, moved by :math:`\pm\varepsilon w`. The rival moves every atom
    along the top singular vector of :math:`J_\mu`, or against it, by ε in the metric of the masses. As ε → 0 the ratios
    tend to ``split`` and ``move``, with an error of the order of ε.
    """
    if not 0 < eps < math.inf:
        raise AssumptionError(f"eps must be positive and finite, got {eps}.")
    found = splitting(attention, measure, generator=generator)
    w = found.direction
    halves = measure.split(found.atom, 2, torch.stack((eps * w, -eps * w)))
    step = found.moving.direction / measure.weights.sqrt().unsqueeze(-1)
    moves = [dataclasses.replace(measure, points=measure.points + sign * eps * step) for sign in (1, -1)]
    moved = max(moves, key=lambda nu: _ratio(attention, measure, nu))
    return SplitAttack(
        splitting=found,
        split_measure=halves,
        move_measure=moved,
        split_ratio=_ratio(attention, measure, halves),
        move_ratio=_ratio(attention, measure, moved),
        eps=eps,
    )


def _ratio(attention: Attention, mu: Measure, nu: Measure) -> float:
    distance = conditional_wasserstein if attention.positions.causal else wasserstein
    F = mean_field(attention)
    return float(distance(F(mu), F(nu)) / distance(mu, nu))


def _check(measure: Measure) -> None:
    if not isinstance(measure, Measure):
        raise DtypeError(
            f"this takes an hs.Measure, got {type(measure).__name__}; use hs.Measure(points) or "
            "hs.Measure.from_sequence(X)."
        )
