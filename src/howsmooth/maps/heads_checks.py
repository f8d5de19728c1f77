"""Whether the weights of heads fit together: checked once, so that no product has to."""

from typing import TYPE_CHECKING

from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.distances import Distances
from howsmooth.maps.joint_norm import JointNorm
from howsmooth.maps.norms import Norm, RMSNorm
from howsmooth.validation import require_agreement, require_finite, require_floating, require_shape

if TYPE_CHECKING:  # heads are checked as they are made
    from howsmooth.maps.heads import MultiHead


def check_projections(f: "MultiHead") -> None:
    """Refuse projections of tokens that do not fit together."""
    named = {"query": f.query, "key": f.key, "value": f.value, "output": f.output}
    for name, x in named.items():
        if x is None:
            continue
        require_floating(x, name)
        if x.ndim < 3:
            raise ShapeError(f"{name} must have a head axis, (heads, rows, columns), got {tuple(x.shape)}.", field=name)
        require_agreement(x, f.query, name, "query")
        require_finite(x, name)
    w, (heads, k, d), groups = f.query.shape[:-3], f.query.shape[-3:], f.key.shape[-3]
    if groups == 0 or heads % groups:
        raise ShapeError(f"the number of heads must be a multiple of the key/value groups, got {heads} and {groups}.")
    require_shape(f.key, (*w, groups, k, d), "key")
    require_shape(f.value, (*w, groups, f.value.shape[-2], d), "value")
    if f.output is not None:
        require_shape(f.output, (*w, heads, f.output.shape[-2], f.value.shape[-2]), "output")


def check_biases(f: "MultiHead") -> None:
    """Refuse biases that do not fit the projections."""
    w = tuple(f.query.shape[:-3])
    needed = {
        "query_bias": (f.query_bias, (*w, f.layout.heads, f.layout.k)),
        "key_bias": (f.key_bias, (*w, f.layout.groups, f.layout.k)),
        "value_bias": (f.value_bias, (*w, f.layout.groups, f.layout.v)),
        "output_bias": (f.output_bias, (*w, f.out)),
    }
    for name, (x, shape) in needed.items():
        if x is not None:
            require_floating(x, name)
            require_shape(x, shape, name)
            require_agreement(x, f.query, name, "query")
            require_finite(x, name)


def check_positions(f: "MultiHead") -> None:
    """Refuse norms, positions and token weights that do not fit the heads."""
    _check_norm(f, f.query_norm, f.layout.heads, "query_norm")
    _check_norm(f, f.key_norm, f.layout.groups, "key_norm")
    if f.positions.rotary is not None:
        f.positions.rotary.check_width(f.layout.k)
    if f.positions.distances is not None:
        _check_distances(f, f.positions.distances)
    if f.positions.heads not in (1, f.layout.heads):
        raise ShapeError(
            f"mask and bias must have 1 or {f.layout.heads} heads, got {f.positions.heads}.", field="positions"
        )
    if f.weights is not None:
        require_floating(f.weights, "weights")
        require_agreement(f.weights, f.query, "weights", "query")
        require_finite(f.weights, "weights")
        if bool((f.weights < 0).any()):
            raise AssumptionError("token weights are masses and must not be negative.", field="weights")


def _check_norm(f: "MultiHead", norm: Norm | JointNorm | None, count: int, name: str) -> None:
    if norm is None:
        return
    if not isinstance(norm, Norm | JointNorm):
        raise DtypeError(f"{name} must be an hs.LayerNorm or an hs.RMSNorm, got {type(norm).__name__}.", field=name)
    require_agreement(norm.gain, f.query, name, "query")
    if isinstance(norm, JointNorm):  # made for this map, or for the one that it is a head of
        return
    k, shape = f.layout.k, tuple(norm.gain.shape)
    if shape not in ((k,), (count * k,)):
        raise ShapeError(
            f"the gain of {name} must have the shape ({k},) for each head or ({count * k},) for all, got {shape}.",
            field=name,
        )
    if shape != (k,) and not isinstance(norm, RMSNorm):
        raise AssumptionError(
            f"{name} over all heads must be an hs.RMSNorm, got {type(norm).__name__}; "
            "a LayerNorm is that of projections whose mean over rows is taken off.",
            field=name,
        )


def _check_distances(f: "MultiHead", distances: Distances) -> None:
    if f.layout.shared != 1:
        raise AssumptionError(
            f"distances need heads with keys of their own, got {f.layout.heads} heads and {f.layout.groups} groups.",
            field="positions",
        )
    heads, _span, k = distances.keys.shape[-3:]
    if (heads, k) != (f.layout.heads, f.layout.k):
        raise ShapeError(
            f"distances must have {f.layout.heads} heads of width {f.layout.k}, got {heads} of width {k}.",
            field="positions",
        )
    require_agreement(distances.keys, f.query, "distances", "query")
