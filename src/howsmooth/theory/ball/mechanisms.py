"""Every bound on attention that is not plain softmax, by the name of its class."""

import importlib
from collections.abc import Callable
from typing import Any

from howsmooth.domains.ball import in_ball
from howsmooth.errors import DtypeError
from howsmooth.maps.heads import Heads
from howsmooth.theory.ball.l2 import kim
from howsmooth.theory.heads import log
from howsmooth.theory.mechanisms.cosine import lipsformer
from howsmooth.theory.results import Bound, upper_bound
from howsmooth.theory.sizes import require_length, require_size

# The function that bounds n tokens in a ball, and what is proven in a few words.
IN_A_BALL = {
    "L2Attention": ("l2:l2_ball", "ours: distances hold little energy"),
    "SigmoidAttention": ("sigmoid:sigmoid_ball", "ours, after Ramapuram et al.: the largest slopes"),
    "LinearAttention": ("linear:linear_ball", "ours: slopes of logarithms are at most one"),
    "SinkhornAttention": ("sinkhorn:sinkhorn_ball", "ours: doubly stochastic weights"),
    "CosineAttention": ("cosine:cosine_ball", "ours: three terms, cosines"),
    "EntmaxAttention": ("entmax:entmax_ball", "ours: three terms, sparse weights"),
    "DifferentialAttention": ("differential:differential_ball", "ours: two softmaxes"),
}


def mechanism_upper(f: Any, *, n: int, radius: float) -> Bound:
    """Bound attention of any other kind on sequences of ``n`` tokens in a ball.

    Raises:
        DtypeError: If no theorem is about this kind.
        AssumptionError: If the map has a feature that the theorem does not cover.
    """
    require_size(n, radius)
    place, source = IN_A_BALL.get(type(f).__name__, (None, ""))
    if place is None or not isinstance(f, Heads):
        known = ", ".join(f"hs.{name}" for name in ("Attention", *IN_A_BALL))
        raise DtypeError(
            f"theorems are about {known}, got {type(f).__name__}; "
            "for any other map use hs.local_lipschitz at an input and hs.maximise for the worst one.",
            field="attention",
        )
    file, name = place.split(":")
    function: Callable[[Any, int, float], float] = getattr(
        importlib.import_module(f"howsmooth.theory.mechanisms.{file}"), name
    )
    return upper_bound(log(function(f, n, radius)), "sharp_upper", in_ball(n, radius), source)


def kim_l2_upper(f: Any, *, n: int) -> Bound:
    r"""Bound tied L2 attention on all of space, as Kim, Papamakarios and Mnih do.

    .. math:: \mathrm{Lip}(f)\le\frac{\sqrt n}{\sqrt{D/H}}\bigl(4\varphi^{-1}(n-1)+1\bigr)
              \Bigl(\sum_h\|W^Q_h\|^4\|W^V_h\|^2\Bigr)^{1/2}\|W^O\|,\qquad\varphi(x) = xe^{x+1}

    Theorem 3.2 of [kim2021], where :math:`\|W^Q_h\|` is squared only; as printed it fails as soon as queries are long
    (the findings tell). :func:`sharp_upper` is smaller.

    Raises:
        AssumptionError: If the attention is not tied, or masked.
    """
    require_length(n)
    _require(f, "L2Attention", "kim_l2_upper")
    return upper_bound(log(kim(f, n)), "kim_l2_upper", f"{n} tokens anywhere", "after Kim et al., Theorem 3.2")


def lipsformer_upper(f: Any, *, n: int) -> Bound:
    r"""Bound cosine attention with normalised values on all of space, as LipsFormer does.

    .. math:: \mathrm{Lip}(f)\le2\nu\epsilon^{-1/2}\bigl(n(n-1)\tau\|W^K\| + (n-1)\tau\|W^Q\| + n\|W^V\|\bigr)

    The formula as published, as far as we know it; its text was not at hand. :func:`sharp_upper` is smaller.

    Raises:
        AssumptionError: If values are not normalised, or there are several heads.
    """
    require_length(n)
    _require(f, "CosineAttention", "lipsformer_upper")
    return upper_bound(log(lipsformer(f, n)), "lipsformer_upper", f"{n} tokens anywhere", "LipsFormer, Theorem 1")


def _require(f: Any, kind: str, theorem: str) -> None:
    if type(f).__name__ != kind or not isinstance(f, Heads):
        raise DtypeError(f"{theorem} is about hs.{kind}, got {type(f).__name__}.", field="attention")
