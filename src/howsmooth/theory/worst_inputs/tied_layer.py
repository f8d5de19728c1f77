"""Theorem 2 for a whole layer: its tied pairs, with and without rotary positions."""

from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import require_causal_or_none, require_scores_alone
from howsmooth.theory.worst_inputs.rotary_tied_pair import rotary_tied_pairs
from howsmooth.theory.worst_inputs.tied_pair import (
    PROMISING,
    LayerPair,
    best_pairs,
    pair_in_layer,
    pairs_in,
    tied_in_all,
)


def require_tied(attention: Attention, *, turned: bool = True) -> None:
    """Refuse maps whose scores or masks break the tie; under rotary positions pairs are ``turned``."""
    require_scores_alone(attention, "a tied pair", "hs.maximise", turned=turned)
    require_causal_or_none(attention, "a tied pair", "hs.maximise")


def pairs_of_heads(attention: Attention, n: int, radius: float) -> list[LayerPair]:
    """Return the best pair of every head that has one."""
    require_tied(attention)
    if attention.positions.rotary is not None:
        return rotary_tied_pairs(attention, n, radius)
    return pairs_in(attention, n, StretchedSphere.ball(attention.d, radius, solid=True))


def pairs_in_ball(attention: Attention, n: int, radius: float, *, heads: int | None = None) -> list[LayerPair]:
    """Return the pairs among which the best is, from the ``heads`` with the largest norms.

    Without rotary positions one pair is tied in all heads. With them, the best by its response to one perturbation is
    returned alone: responses are near the constants, which cost more.
    """
    require_tied(attention)
    if attention.positions.rotary is not None:
        return [max(rotary_tied_pairs(attention, n, radius, heads=heads), key=lambda pair: pair.log_value)]
    frame = StretchedSphere.ball(attention.d, radius, solid=True)
    pairs = best_pairs(attention, n, frame, heads=heads)
    pairs = [*pairs, *tied_in_all(attention, pairs, n, frame)]
    return [pair_in_layer(attention, pair, n) for pair in pairs]


def pairs_on_sphere(attention: Attention, n: int, radius: float) -> list[LayerPair]:
    """Return the pairs among which the best is whose tokens all have length ``radius``."""
    if attention.positions.rotary is not None:
        return pairs_in_ball(attention, n, radius, heads=PROMISING)  # rotary pairs are on the sphere
    require_tied(attention)
    return pairs_in(attention, n, StretchedSphere.ball(attention.d, radius, solid=False))


def tied_value(attention: Attention, n: int, radius: float, *, heads: int | None = None) -> float:
    """Return the logarithm of what tied pairs prove about a layer in a ball."""
    return max(pair.log_value for pair in pairs_in_ball(attention, n, radius, heads=heads))
