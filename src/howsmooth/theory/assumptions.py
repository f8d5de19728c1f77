"""Hypotheses of all theorems: checked before any work; a refusal names what does apply. Imports no torch."""

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, SupportsFloat

from howsmooth.errors import AssumptionError, DeviceError, DtypeError, ShapeError

if TYPE_CHECKING:  # the command line checks lengths and radii before it loads torch
    from torch import Tensor

    from howsmooth.maps.attention import Attention

# Beyond these, products of a few norms leave the range of the numbers.
SMALLEST_RADIUS, LARGEST_RADIUS = 1e-50, 1e50
# Beyond this the formulas leave the range of the numbers too; what fits into memory is far less.
LARGEST_LENGTH = 10**300


def require_size(n: int, radius: float, *, least: int = 1) -> None:
    """Refuse numbers of tokens and radii that a theorem cannot take."""
    require_length(n, least=least)
    require_radius(radius)


def require_length(n: int, *, least: int = 1) -> None:
    """Refuse a number of tokens that is not a whole one, or is too small or too large."""
    if not (isinstance(n, Integral) and not isinstance(n, bool) and n >= least):
        raise AssumptionError(f"n must be a whole number, at least {least}, got {_given(n)}.", field="n")
    if n > LARGEST_LENGTH:
        raise AssumptionError("n must be at most 10^300, or its square root is no float; got more.", field="n")


def require_radius(radius: float) -> None:
    """Refuse a radius that is not positive and finite, or whose square is not."""
    require_positive(radius, "radius")
    if not SMALLEST_RADIUS <= float(radius) <= LARGEST_RADIUS:
        raise AssumptionError(
            f"radius must lie between {SMALLEST_RADIUS:g} and {LARGEST_RADIUS:g}, got {radius}; rescale the tokens.",
            field="radius",
        )


def require_positive(value: float, name: str) -> None:
    """Refuse anything but a positive number."""
    if not (isinstance(value, SupportsFloat) and 0 < value < math.inf):
        raise AssumptionError(f"{name} must be positive and finite, got {_given(value)}.", field=name)


def _given(value: object) -> str:
    """Write a number as it is, and what is none as Python would: a word has its quotes."""
    return str(value) if isinstance(value, Real) else repr(value)


def require_attention(attention: object) -> None:
    """Refuse maps that theorems do not know."""
    from howsmooth.maps.attention import Attention

    if not isinstance(attention, Attention):
        raise DtypeError(
            f"theorems are about hs.Attention, got {type(attention).__name__}; hs.Attention.from_torch reads "
            "nn.MultiheadAttention, and hs.load(model).layer(0).closed_form is the attention of a layer; for any other "
            "map use hs.local_lipschitz at an input and hs.maximise for the worst one.",
            field="attention",
        )
    if attention.positions.distances is not None:
        raise AssumptionError(
            "theorems do not cover keys and queries of distances; use hs.local_lipschitz at an input, or hs.maximise.",
            field="attention",
        )
    if attention.sink is not None:
        raise AssumptionError(
            "theorems other than sharp_upper do not cover sinks; use that, "
            "hs.local_lipschitz at an input, or hs.maximise.",
            field="attention",
        )
    if attention.has_joint_norm:
        raise AssumptionError(
            "theorems do not cover norms over the queries or keys of all heads together; "
            "use hs.local_lipschitz at an input, or hs.maximise.",
            field="attention",
        )


def require_numbers(x: "Tensor", field: str) -> None:
    """Refuse a tensor that has a shape and no numbers."""
    if x.is_meta:
        raise DeviceError(
            f"theorems are about numbers, and {field} is on torch's meta device, which holds none; load it first.",
            field=field,
        )


def require_one_sequence(X: "Tensor") -> None:
    """Refuse a batch of inputs."""
    if X.ndim != 2:
        raise ShapeError(
            f"this takes one sequence (n, d), got {tuple(X.shape)}; call it for each entry of the batch.", field="X"
        )


def require_one_map(query: "Tensor") -> None:
    """Refuse weights with batch axes, and weights that hold no numbers."""
    require_numbers(query, "attention")
    if query.ndim > 3:
        raise ShapeError(
            f"theorems take one map, got weights with batch axes {tuple(query.shape[:-3])}; pick one entry.",
            field="attention",
        )


def has_query_bias(attention: "Attention") -> bool:
    """Tell whether a query bias changes the scores."""
    return attention.query_bias is not None and bool((attention.query_bias != 0).any())


def has_key_bias(attention: "Attention") -> bool:
    """Tell whether a key bias changes the weights; in plain scores it cancels in the softmax."""
    matters = attention.positions.rotary is not None or attention.softcap is not None or has_key_norm(attention)
    return matters and attention.key_bias is not None and bool((attention.key_bias != 0).any())


def has_key_norm(attention: "Attention") -> bool:
    """Tell whether queries or keys are normalised."""
    return attention.query_norm is not None or attention.key_norm is not None


def has_bias_beside_sink(attention: "Attention") -> bool:
    """Tell whether there is a sink that is no token at the origin, which would have the biases for key and value."""
    biases = (attention.key_bias, attention.value_bias)
    return attention.sink is not None and any(bias is not None and bool((bias != 0).any()) for bias in biases)


def refuse_norms(attention: "Attention", theorem: str) -> None:
    """Refuse query and key norms, whose derivative has no bound on a ball."""
    require_attention(attention)
    if has_key_norm(attention):
        raise AssumptionError(
            f"{theorem} does not cover query or key norms; use local_upper at an input, or hs.maximise.",
            field="attention",
        )


def refuse_biases(attention: "Attention", theorem: str, instead: str) -> None:
    """Refuse biases that change the scores."""
    require_attention(attention)
    if has_query_bias(attention) or has_key_bias(attention):
        raise AssumptionError(f"{theorem} is stated without query and key biases; use {instead}.", field="attention")


def refuse_many_heads(attention: "Attention", theorem: str, instead: str) -> None:
    """Refuse more than one head."""
    require_attention(attention)
    if attention.layout.heads > 1:
        raise AssumptionError(
            f"{theorem} is stated for one head, got {attention.layout.heads}; use attention.head(h), or {instead}.",
            field="attention",
        )


def require_scores_alone(
    attention: "Attention", theorem: str, instead: str, *, shifted: bool = False, turned: bool = False
) -> None:
    """Refuse all that makes scores differ from ⟨Ax, y⟩ plus a bias: rotary, soft cap, additive terms, token weights.

    What only adds a constant to scores is fine where ``shifted`` scores are; rotary positions, where ``turned`` ones.
    """
    require_attention(attention)
    positions = attention.positions
    # what the theorem would have to cover, and whether the map has it
    found = {
        "rotary positions": positions.rotary is not None and not turned,
        "a soft cap": attention.softcap is not None,
        "a relative bias": positions.relative_bias is not None and not shifted,
        "a bias of positions": positions.position_bias is not None and not shifted,
        "token weights": attention.weights is not None and not shifted,
        "query or key norms": has_key_norm(attention),
    }
    for what, present in found.items():
        if present:
            raise AssumptionError(f"{theorem} does not cover {what}; use {instead}.", field="attention")


def require_causal_or_none(attention: "Attention", theorem: str, instead: str) -> None:
    """Refuse masks other than the causal one."""
    require_attention(attention)
    positions = attention.positions
    if positions.window is not None or positions.padding is not None or positions.mask is not None:
        raise AssumptionError(
            f"{theorem} knows the causal mask and no mask, got another one; use {instead}.", field="attention"
        )


def require_unmasked(attention: "Attention", theorem: str, instead: str) -> None:
    """Refuse every mask."""
    require_causal_or_none(attention, theorem, instead)
    if attention.positions.causal:
        raise AssumptionError(f"{theorem} is about unmasked attention; use {instead}.", field="attention")


def require_plain(f: Any, theorem: str, *, causal: bool = True) -> None:
    """Refuse what the theorems on mechanisms do not cover: norms, caps, rotary positions, other masks, masses."""
    found = {
        "query or key norms": f.query_norm is not None or f.key_norm is not None,
        "a soft cap": getattr(f, "softcap", None) is not None,
        "rotary positions": f.positions.rotary is not None,
        "keys of distances": f.positions.distances is not None,
        "biases of positions": f.positions.relative_bias is not None or f.positions.position_bias is not None,
        "a window, padding or another mask": any(
            x is not None for x in (f.positions.window, f.positions.padding, f.positions.mask)
        ),
        "a causal mask": f.positions.causal and not causal,
        "token weights": f.weights is not None,
    }
    for what, present in found.items():
        if present:
            raise AssumptionError(f"{theorem} does not cover {what}; use hs.maximise.", field="attention")
