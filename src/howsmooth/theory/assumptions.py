"""The hypotheses of theorems: checked before any work; a refusal names what does apply."""

from torch import Tensor

from howsmooth.errors import AssumptionError, DeviceError, DtypeError
from howsmooth.maps.attention import Attention
from howsmooth.theory.sizes import require_radius as require_radius
from howsmooth.theory.sizes import require_size as require_size


def require_attention(attention: object) -> None:
    """Refuse maps that theorems do not know."""
    if not isinstance(attention, Attention):
        raise DtypeError(
            f"theorems are about hs.Attention, got {type(attention).__name__}; "
            "for any other map use hs.local_lipschitz at an input and hs.maximise for the worst one.",
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


def require_numbers(x: Tensor, field: str) -> None:
    """Refuse a tensor that has a shape and no numbers."""
    if x.is_meta:
        raise DeviceError(
            f"theorems are about numbers, and {field} is on torch's meta device, which holds none; load it first.",
            field=field,
        )


def has_query_bias(attention: Attention) -> bool:
    """Tell whether a query bias changes the scores."""
    return attention.query_bias is not None and bool((attention.query_bias != 0).any())


def has_key_bias(attention: Attention) -> bool:
    """Tell whether a key bias changes the weights; in plain scores it cancels in the softmax."""
    matters = attention.positions.rotary is not None or attention.softcap is not None or has_key_norm(attention)
    return matters and attention.key_bias is not None and bool((attention.key_bias != 0).any())


def has_key_norm(attention: Attention) -> bool:
    """Tell whether queries or keys are normalised."""
    return attention.query_norm is not None or attention.key_norm is not None


def has_bias_beside_sink(attention: Attention) -> bool:
    """Tell whether there is a sink that is no token at the origin, which would have the biases for key and value."""
    biases = (attention.key_bias, attention.value_bias)
    return attention.sink is not None and any(bias is not None and bool((bias != 0).any()) for bias in biases)


def refuse_norms(attention: Attention, theorem: str) -> None:
    """Refuse query and key norms, whose derivative has no bound on a ball."""
    require_attention(attention)
    if has_key_norm(attention):
        raise AssumptionError(
            f"{theorem} does not cover query or key norms; use local_upper at an input, or hs.maximise.",
            field="attention",
        )


def refuse_biases(attention: Attention, theorem: str, instead: str) -> None:
    """Refuse biases that change the scores."""
    require_attention(attention)
    if has_query_bias(attention) or has_key_bias(attention):
        raise AssumptionError(f"{theorem} is stated without query and key biases; use {instead}.", field="attention")


def refuse_many_heads(attention: Attention, theorem: str, instead: str) -> None:
    """Refuse more than one head."""
    require_attention(attention)
    if attention.layout.heads > 1:
        raise AssumptionError(
            f"{theorem} is stated for one head, got {attention.layout.heads}; use attention.head(h), or {instead}.",
            field="attention",
        )


def require_scores_alone(
    attention: Attention, theorem: str, instead: str, *, shifted: bool = False, turned: bool = False
) -> None:
    """Refuse all that makes scores differ from ⟨Ax, y⟩ plus a bias: rotary, soft cap, additive terms, token weights.

    What only adds a constant to scores is fine where ``shifted`` scores are; rotary positions, where ``turned`` ones.
    """
    require_attention(attention)
    positions = attention.positions
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


def require_causal_or_none(attention: Attention, theorem: str, instead: str) -> None:
    """Refuse masks other than the causal one."""
    require_attention(attention)
    positions = attention.positions
    if positions.window is not None or positions.padding is not None or positions.mask is not None:
        raise AssumptionError(
            f"{theorem} knows the causal mask and no mask, got another one; use {instead}.", field="attention"
        )


def require_unmasked(attention: Attention, theorem: str, instead: str) -> None:
    """Refuse every mask."""
    require_causal_or_none(attention, theorem, instead)
    if attention.positions.causal:
        raise AssumptionError(f"{theorem} is about unmasked attention; use {instead}.", field="attention")
