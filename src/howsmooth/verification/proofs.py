"""Proven verdicts as claims of a proof file: the lines, sides and multipliers that exclude every unsafe set."""

from typing import Any

from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import Pointwise
from howsmooth.maps.composition import leaves as leaves_of
from howsmooth.maps.mlp import MLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.rounding import MARGIN_ROOM
from howsmooth.verification.branch_and_bound import BentUnits, MarginFunction, split
from howsmooth.verification.properties import Property
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.taylor_model import Deadline, TaylorModel
from howsmooth.verification.verdicts import _expanded, _Margins, _Network

# Slopes of lines have so many decimals in a file: any slope proves something, and these prove the same, nearly.
DECIMALS = 6


def verdict_claim(network: Map, wanted: Property, level: int, seconds: float) -> dict[str, Any]:
    """Return the claim that a property holds, proven anew at a level, with room.

    Raises:
        AssumptionError: If it is not proven with room in this time, or the network holds a map that files do not know.
    """
    for f in leaves_of(network):
        smooth = isinstance(f, MLP | Pointwise) and getattr(f.activation, "name", f.activation) != "relu"
        if isinstance(f, Norm) or smooth:
            raise AssumptionError(
                "proof files of verdicts know attention, ReLUs and affine maps, and no norms and no smooth activations."
            )
    deadline = Deadline.after(seconds)
    model = _expanded(_Network.of(network, wanted), wanted, level)
    layers = [part for stage in model.stages for part in stage.parts if isinstance(part, ReLURelaxation)]
    bent = [part.bent.flatten().nonzero().squeeze(-1).tolist() for part in layers]
    return {
        "kind": "verdict",
        "level": level,
        "lower": wanted.lower.tolist(),
        "upper": wanted.upper.tolist(),
        "units": [[k, place] for k, places in enumerate(bent) for place in places],
        "unsafe": [_excluded(model, A, b, deadline) for A, b in wanted.unsafe],
    }


def _excluded(model: TaylorModel, A: Tensor, b: Tensor, deadline: Deadline) -> dict[str, Any]:
    """Return the row of an unsafe set that no output satisfies, and the parts of the box with what proves it there."""
    margins = _Margins.of(model, A, b)
    row = int(margins.lower.argmax())
    objective = margins.objective(row)
    room = MARGIN_ROOM * float(objective.centre.abs() + objective.pixels.abs().sum() + objective.units.abs().sum())
    found: dict[str, Any] = {"A": A.tolist(), "b": b.tolist(), "row": row, "leaves": [{}]}
    if float(margins.lower[row]) > room:
        return found
    if not len(objective.units):
        raise AssumptionError("the verdict is proven with no room for whoever checks it: there is nothing to save.")
    shifted = MarginFunction(objective.centre - room, objective.pixels, objective.units)
    outcome = split(BentUnits.of(model), shifted, deadline)
    if not outcome.positive:
        raise AssumptionError("the verdict was not proven again in this time, with room for whoever checks it.")
    return found | {"leaves": [_leaf(*leaf) for leaf in outcome.leaves]}


def _leaf(alpha: Tensor, beta: Tensor, side: Tensor) -> dict[str, Any]:
    taken = side.nonzero().squeeze(-1).tolist()
    slopes = [round(x, DECIMALS) for x in alpha.tolist()]
    return {"alpha": slopes, "sides": [[c, int(side[c]), float(beta[c])] for c in taken]}
