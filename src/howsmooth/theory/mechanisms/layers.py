"""What bounds on mechanisms share: heads with their values, and heads put together into a layer."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.theory.assumptions import require_numbers
from howsmooth.theory.heads import matrix_norm, on_cpu

# What the computation of a norm, a product or a sum of a few terms may have lost, for each row or column.
LOST = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class MechanismHead:
    r"""One head: queries :math:`Qx+b_q` and keys :math:`Kx+b_k`, values :math:`Bx+b`.

    Attributes:
        Q: Queries, ``(k, d)``, without any scale.
        K: Keys, ``(k, d)``.
        B: Values: V, or WV where heads add up.
        query_bias: :math:`b_q`, zero if there is none.
        key_bias: :math:`b_k`, zero if there is none.
        value_bias: :math:`b`, zero if there is none.
        scale: s.
    """

    Q: Float[Tensor, "k d"]
    K: Float[Tensor, "k d"]
    B: Float[Tensor, "v d"]
    query_bias: Float[Tensor, " k"]
    key_bias: Float[Tensor, " k"]
    value_bias: Float[Tensor, " v"]
    scale: float

    @property
    def A(self) -> Float[Tensor, "d d"]:
        r""":math:`A = sK^\top Q`."""
        return self.scale * self.K.mT @ self.Q

    @property
    def norm_A(self) -> float:
        r""":math:`\|A\|`, with what the product may have lost where Q and K cancel."""
        lost = sum(self.Q.shape) * torch.finfo(self.Q.dtype).eps
        return coarse_norm(self.A) + lost * abs(self.scale) * coarse_norm(self.Q) * coarse_norm(self.K)

    def score_gradient_bounds(self, radius: float) -> tuple[float, float]:
        r"""Bound :math:`|\partial S_{ij}/\partial x_i|` and :math:`|\partial S_{ij}/\partial x_j|` in a ball."""
        s, c = abs(self.scale), self.norm_A * radius
        return c + s * length_upper(self.key_bias @ self.Q), c + s * length_upper(self.query_bias @ self.K)


def coarse_norm(x: Float[Tensor, "a b"]) -> float:
    """Return the largest singular value, and what its computation may have lost."""
    return matrix_norm(x) * (1 + LOST * sum(x.shape) * torch.finfo(x.dtype).eps)


def length_upper(x: Float[Tensor, " a"]) -> float:
    """Return the length of a vector, and what its computation may have lost."""
    return float(x.norm()) * (1 + LOST * x.numel() * torch.finfo(x.dtype).eps)


def layer_upper(f: Any, each: Callable[[MechanismHead], float]) -> float:
    r"""Combine a bound on heads into one on the layer.

    .. math:: \min\Bigl(\sum_h g(W_hV_h),\;\|[W_1\cdots W_H]\|\,\bigl(\textstyle\sum_hg(V_h)^2\bigr)^{1/2}\Bigr)
    """
    _require_one(f)
    alone, mixed = [], []
    for h in range(f.layout.heads):
        part, W = mechanism_head(f, h)
        alone.append(each(part))
        if W is not None:
            mixed.append(each(_with_output(part, W)))
    stacked = math.hypot(*alone)
    if not mixed:
        return stacked
    output = torch.cat([on_cpu(x) for x in f.output], dim=-1)
    return _least(sum(mixed), stacked * coarse_norm(output))


def mechanism_head(f: Any, h: int) -> tuple[MechanismHead, Float[Tensor, "out v"] | None]:
    """Return one head with its values, and its slice of the output projection."""
    head = f.head(h)
    Q, K, V = (on_cpu(x)[0] for x in (head.query, head.key, head.value))

    def bias(x: Tensor | None, width: int) -> Tensor:
        return torch.zeros(width, dtype=torch.float64) if x is None else on_cpu(x)[0]

    part = MechanismHead(
        Q=Q,
        K=K,
        B=V,
        query_bias=bias(head.query_bias, len(Q)),
        key_bias=bias(head.key_bias, len(K)),
        value_bias=bias(head.value_bias, len(V)),
        scale=getattr(head, "score_scale", 1.0),
    )
    return part, None if head.output is None else on_cpu(head.output)[0]


def _with_output(part: MechanismHead, W: Tensor) -> MechanismHead:
    return dataclasses.replace(part, B=W @ part.B, value_bias=W @ part.value_bias)


def _least(*values: float) -> float:
    """Return the smallest; what is no number is infinite."""
    return min((math.inf if math.isnan(x) else x for x in values), default=math.inf)


def _require_one(f: Any) -> None:
    require_numbers(f.query, "attention")
    if f.query.ndim > 3:
        raise ShapeError(
            f"theorems take one map, got weights with batch axes {tuple(f.query.shape[:-3])}; pick one entry.",
            field="attention",
        )


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
