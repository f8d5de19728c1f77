"""Pairs that tie in a layer, of one kind whether positions turn its scores or not."""

from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import require_causal_or_none, require_scores_alone
from howsmooth.theory.worst_inputs.rotary_tied_pair import RotaryTiedPairs
from howsmooth.theory.worst_inputs.tied_layer import PlainTiedPairs, TiedPairs


def tied_pairs_of(attention: Attention, n: int, radius: float) -> TiedPairs:
    """Choose by the positions."""
    require_tied(attention)
    kind = PlainTiedPairs if attention.positions.rotary is None else RotaryTiedPairs
    return kind(attention=attention, n=n, radius=radius)


def tied_value(attention: Attention, n: int, radius: float, *, heads: int | None = None) -> float:
    """Return the logarithm of what tied pairs prove about a layer in a ball."""
    return max(pair.log_value for pair in tied_pairs_of(attention, n, radius).in_ball(heads))


def require_tied(attention: Attention, *, turned: bool = True) -> None:
    """Refuse maps whose scores or masks break the tie; under rotary positions pairs are ``turned``."""
    require_scores_alone(attention, "a tied pair", "hs.maximise", turned=turned)
    require_causal_or_none(attention, "a tied pair", "hs.maximise")
