"""Theorem 12: one head of any mechanism, in a ball and at one input, and how the bounds on heads combine."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError
from howsmooth.maps.heads import MultiHead
from howsmooth.rounding import FORMULA_UNITS
from howsmooth.theory.assumptions import require_one_map
from howsmooth.theory.heads import on_cpu
from howsmooth.theory.linalg.matrix_norms import matrix_norm


@dataclass(frozen=True, kw_only=True, eq=False)
class MechanismHead:
    r"""One head: queries :math:`Qx+b_q` and keys :math:`Kx+b_k`, values :math:`Bx+b`."""

    Q: Float[Tensor, "k d"]  # queries, ``(k, d)``, without any scale
    K: Float[Tensor, "k d"]  # keys, ``(k, d)``
    B: Float[Tensor, "v d"]  # values: V, or WV where heads add up
    query_bias: Float[Tensor, " k"]  # :math:`b_q`, zero if there is none
    key_bias: Float[Tensor, " k"]  # :math:`b_k`, zero if there is none
    value_bias: Float[Tensor, " v"]  # :math:`b`, zero if there is none
    scale: float  # s

    @property
    def A(self) -> Float[Tensor, "d d"]:
        r""":math:`A = sK^\top Q`."""
        return self.scale * self.K.mT @ self.Q

    @property
    def norm_A(self) -> float:
        r""":math:`\|A\|`, with the rounding error of the product, where Q and K cancel."""
        error = sum(self.Q.shape) * torch.finfo(self.Q.dtype).eps
        return coarse_norm(self.A) + error * abs(self.scale) * coarse_norm(self.Q) * coarse_norm(self.K)

    def score_gradient_bounds(self, radius: float) -> tuple[float, float]:
        r"""Bound :math:`|\partial S_{ij}/\partial x_i|` and :math:`|\partial S_{ij}/\partial x_j|` in a ball."""
        s, c = abs(self.scale), self.norm_A * radius
        return c + s * length_upper(self.key_bias @ self.Q), c + s * length_upper(self.query_bias @ self.K)


def coarse_norm(x: Float[Tensor, "a b"]) -> float:
    """Bound the largest singular value, its rounding error included, more generously than ``norm_upper``."""
    return matrix_norm(x) * (1 + FORMULA_UNITS * sum(x.shape) * torch.finfo(x.dtype).eps)


def length_upper(x: Float[Tensor, " a"]) -> float:
    """Bound the length of a vector, its rounding error included."""
    return float(x.norm()) * (1 + FORMULA_UNITS * x.numel() * torch.finfo(x.dtype).eps)


def layer_upper(f: Any, each: Callable[[MechanismHead], float]) -> float:
    r"""Combine a bound on heads into one on the layer.

    .. math:: \min\Bigl(\sum_h g(W_hV_h),\;\|[W_1\cdots W_H]\|\,\bigl(\textstyle\sum_hg(V_h)^2\bigr)^{1/2}\Bigr)
    """
    require_one_map(f.query)
    # Each head twice: with values V for the concatenated map, with WV for heads that add up.
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


@dataclass(frozen=True, kw_only=True)
class MechanismTheorems:
    """What every mechanism brings."""

    in_ball: Callable[[Any, int, float], float]  # its bound on n tokens in a ball of some radius
    proof: str  # the proof of that bound, in a few words
    # its bound on one head at given tokens, of which some are hidden
    at_input: Callable[[Any, MechanismHead, Tensor, Tensor | None], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class MechanismAtInput:
    r"""What one head does at an input, row by row.

    Attributes:
        P: The weights.
        output_gradient: :math:`M_{ij} = \sum_ly_l\,\partial P_{il}/\partial S_{ij}`, of the output of row i.
        query_gradient: :math:`\partial S_{ij}/\partial x_i`.
        key_gradient: :math:`|\partial S_{ij}/\partial x_j|`.
        exponent: How large the numbers were that weights were made of: rounding is so many units.
        value_diameter: The largest distance between two values, or the largest value.
        norm_V: The norm of what makes values of tokens.
    """

    P: Float[Tensor, "n n"]
    output_gradient: Float[Tensor, "n n out"]
    query_gradient: Float[Tensor, "n n d"]
    key_gradient: Float[Tensor, "n n"]
    exponent: float
    value_diameter: float
    norm_V: float


def three_terms(rows: MechanismAtInput) -> float:
    """Add the value, query and key terms of one head at an input, each widened by its rounding errors."""
    n, eps = len(rows.P), torch.finfo(torch.float64).eps
    # weights, and what moves with them, are wrong by such a share of the largest that they can be
    error = math.expm1(min(2 * (rows.exponent + n + FORMULA_UNITS) * eps, 700.0)) + FORMULA_UNITS * n * eps
    # Row i: its own token moves all scores of the row; every other token moves one of them.
    query = torch.linalg.matrix_norm(rows.output_gradient.mT @ rows.query_gradient, ord=2)
    largest_gradient = rows.query_gradient.norm(dim=-1).amax(-1)
    gram = torch.einsum("ijo,ij,ijp->iop", rows.output_gradient, rows.key_gradient.square(), rows.output_gradient)
    key = torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0).sqrt()
    query = query + error * rows.value_diameter * largest_gradient * rows.P.sum(-1)
    key = key + error * rows.value_diameter * rows.key_gradient.amax(-1) * rows.P.sum(-1)
    value = rows.norm_V * coarse_norm(rows.P) * (1 + error) + float(query.max()) + float(key.norm())
    return value if math.isfinite(value) else math.inf


def by_three_terms(
    make: Callable[[Any, MechanismHead, Tensor, Tensor | None], MechanismAtInput],
) -> Callable[[Any, MechanismHead, Tensor, Tensor | None], float]:
    """Bound a head by the three terms of what a function knows of it at an input."""
    return lambda f, part, x, hidden: three_terms(make(f, part, x, hidden))


def softmax_weights(S: Tensor, hidden: Tensor | None) -> Tensor:
    """Return the softmax of every row of scores, without the hidden ones."""
    return torch.softmax(S if hidden is None else S.masked_fill(hidden, -torch.inf), dim=-1)


def projected(part: MechanismHead, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of tokens."""
    return x @ part.Q.mT + part.query_bias, x @ part.K.mT + part.key_bias, x @ part.B.mT + part.value_bias


def output_gradients(P: Tensor, y: Tensor) -> Tensor:
    """Return P_ij (y_j − ȳ_i), how the outputs of a softmax move with its scores."""
    return P[..., None] * (y - (P @ y)[:, None])


def diameter(y: Tensor) -> float:
    """Bound the largest distance between two points: twice that from their mean."""
    return 2 * float((y - y.mean(0)).norm(dim=-1).max())


def require_kind(f: Any, kind: type[MultiHead], theorem: str) -> None:
    """Refuse maps of another mechanism than the one that a published bound is about."""
    if type(f) is not kind:
        raise DtypeError(f"{theorem} is about hs.maps.{kind.__name__}, got {type(f).__name__}.", field="attention")
