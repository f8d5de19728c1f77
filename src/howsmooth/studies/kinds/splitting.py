"""Whether the tokens of a text split: cutting one in two moves the output more than moving whole tokens does."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from howsmooth.errors import AssumptionError
from howsmooth.studies.asks import Answer, AtText
from howsmooth.studies.json_values import ROUND_DOWN
from howsmooth.studies.kinds import Kind
from howsmooth.studies.settings import Solver

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.maps.attention import Attention
    from howsmooth.studies.resources import Resources

EPS = 1e-3


class SplittingAsk(AtText, frozen=True, kw_only=True, tag="splitting"):
    """Whether the tokens of a text split: cutting one in two moves the output more than moving whole tokens does."""

    solver: Solver = Solver()  # the seed of the attack

    @property
    def cell(self) -> tuple[int, str]:
        """One map of one layer: every window is looked at by itself."""
        return self.layer, self.map


class SplittingAnswer(Answer, frozen=True, kw_only=True):
    """What splitting gains over moving at one window."""

    move: Annotated[float, ROUND_DOWN]  # the constant when whole tokens move
    split: Annotated[float, ROUND_DOWN]  # the largest constant when one token is cut in two
    splits: bool  # whether splitting gains
    decided: bool  # whether it is decided: the error bars do not overlap
    atom: int  # the token to cut
    move_ratio: Annotated[float, ROUND_DOWN]  # the true ratio of distances that moving attains
    split_ratio: Annotated[float, ROUND_DOWN]  # the true ratio of distances that splitting attains
    mean_radius: float  # the root mean square norm of the tokens
    reach: float  # the largest norm of a token

    @property
    def value(self) -> float:
        """The constant of the measure, split or not."""
        return max(self.move, self.split)


def run(batch: Sequence[SplittingAsk], cell: Sequence[SplittingAsk], resources: "Resources") -> list[Answer]:
    """Look at the windows of a cell in float64: ratios of small distances need the digits."""
    import torch

    from howsmooth.maps.attention import Attention

    f, X = resources.entering(batch, cell)
    if not isinstance(f, Attention):
        raise AssumptionError(f"splitting is about attention alone, got the map {cell[0].map!r}.", field="map")
    wide = f.to(torch.float64)
    return [_look(ask, wide, x.double()) for ask, x in zip(cell, X, strict=True)]


def _look(ask: SplittingAsk, f: "Attention", x: "Tensor") -> SplittingAnswer:
    from howsmooth.search.mass_splitting import split_attack
    from howsmooth.studies.resources import seeded
    from howsmooth.transport.measures import DiscreteMeasure

    measure = DiscreteMeasure.from_sequence(x, causal=f.positions.causal)
    attack = split_attack(f, measure, eps=EPS, seed=seeded([ask]))
    found, norms = attack.splitting, x.norm(dim=-1)
    return SplittingAnswer(
        move=found.move,
        split=found.split,
        splits=found.splits,
        decided=found.decided,
        atom=found.atom,
        move_ratio=attack.move_ratio,
        split_ratio=attack.split_ratio,
        mean_radius=float(norms.square().mean().sqrt()),
        reach=float(norms.max()),
    )


KINDS = (Kind(ask=SplittingAsk, answer=SplittingAnswer, run=run),)
