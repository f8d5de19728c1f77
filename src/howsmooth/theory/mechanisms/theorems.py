"""Theorem 12: the bounds of every mechanism other than softmax attention, in a ball and at one input."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import in_ball
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.heads import MultiHead
from howsmooth.theory.assumptions import require_plain, require_size
from howsmooth.theory.heads import log, on_cpu
from howsmooth.theory.mechanisms.mechanism_head import MechanismTheorems, layer_upper
from howsmooth.theory.mechanisms.other_weights import OTHER_WEIGHTS
from howsmooth.theory.mechanisms.softmax_scores import SOFTMAX_SCORES
from howsmooth.theory.results import GIVEN_INPUT, Bound, upper_bound

THEOREMS: dict[type[MultiHead], MechanismTheorems] = SOFTMAX_SCORES | OTHER_WEIGHTS


def mechanism_upper(f: Any, *, n: int, radius: float) -> Bound:
    """Bound attention of any other kind on sequences of ``n`` tokens in a ball.

    Raises:
        DtypeError: If no theorem is about this kind.
        AssumptionError: If the map has a feature that the theorem does not cover.
    """
    require_size(n, radius)
    if type(f) not in THEOREMS:
        known = ", ".join(("hs.Attention", *(f"hs.maps.{kind.__name__}" for kind in THEOREMS)))
        raise DtypeError(
            f"theorems are about {known}, got {type(f).__name__}; "
            "for any other map use hs.local_lipschitz at an input and hs.maximise for the worst one.",
            field="attention",
        )
    theorems = THEOREMS[type(f)]
    return upper_bound(log(theorems.in_ball(f, n, radius)), "sharp_upper", in_ball(n, radius), theorems.proof)


def mechanism_local_upper(f: Any, X: Float[Tensor, "n d"]) -> Bound:
    r"""Bound the local constant of attention of another kind at ``X``, deterministically.

    .. math:: \|D_Xf\|\le\|V\|\|P\| + \max_i\Bigl\|\sum_jM_{ij}(\partial_{x_i}S_{ij})^\top\Bigr\|
              + \Bigl(\sum_i\lambda_{\max}\bigl(\textstyle
              \sum_j|\partial_{x_j}S_{ij}|^2M_{ij}M_{ij}^\top\bigr)\Bigr)^{1/2}

    Of Sinkhorn attention, with covariances under the rows and the columns of the weights,
    :math:`\|V\|\|P\| + \max_i\|\mathrm{Cov}_i(y)\|^{1/2}\bigl(\max_i\|\mathrm{Cov}_i(sk)^{1/2}Q\|
    + \max_j\|\mathrm{Cov}_j(sq)^{1/2}K\|\bigr)`. Infinite where rounding leaves it open: at the edge of a sparse
    support, or where weights were not balanced.

    Raises:
        AssumptionError: If the map has a feature that the theorem does not cover.
    """
    theorems = THEOREMS.get(type(f))
    if theorems is None:
        known = ", ".join(f"hs.maps.{kind.__name__}" for kind in THEOREMS)
        raise DtypeError(f"local_upper is about hs.Attention, {known}, got {type(f).__name__}.", field="attention")
    require_plain(f, "local_upper")
    x = on_cpu(X)
    if x.ndim != 2:
        raise AssumptionError(f"local_upper takes one input, (n, d), got {tuple(X.shape)}.", field="X")
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1) if f.positions.causal else None
    value = layer_upper(f, lambda part: theorems.at_input(f, part, x, hidden))
    return upper_bound(log(value), "local_upper", GIVEN_INPUT, "ours: three terms at this input")
