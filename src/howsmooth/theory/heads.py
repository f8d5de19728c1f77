r"""Heads of softmax attention as the theorems read them, in float64 on the CPU (Theorem 1 to Theorem 8).

:math:`A = sK^\top Q` and :math:`WV` by their factors. The heads of other mechanisms: :mod:`.mechanisms.mechanism_head`.
"""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import require_attention, require_one_map
from howsmooth.theory.linalg.matrix_norms import matrix_norm, norm_upper, product_norm, triangular_factor


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    r"""One head: scores :math:`s\langle Qx_i+b_q,\,Kx_j+b_k\rangle`, output :math:`Wv`.

    Nothing of size d × d is ever formed: :math:`\|A\| = s\|K^\top Q\| = s\|R_KR_Q^\top\|` for the triangular factors of
    :math:`K^\top` and :math:`Q^\top`.

    Attributes:
        Q: Queries, ``(k, d)``, with the scale of the scores inside.
        K: Keys, ``(k, d)``.
        V: Values, ``(v, d)``.
        W: This head's slice of the output projection; ``None`` for concatenated heads.
        query_bias: :math:`s\,b_q`, zero if there is none.
        key_bias: :math:`b_k`, zero if there is none.
        value_bias: :math:`b_v`, zero if there is none; it matters with a sink alone.
    """

    Q: Float[Tensor, "k d"]
    K: Float[Tensor, "k d"]
    V: Float[Tensor, "v d"]
    W: Float[Tensor, "out v"] | None
    query_bias: Float[Tensor, " k"]
    key_bias: Float[Tensor, " k"]
    value_bias: Float[Tensor, " v"]

    @property
    def d(self) -> int:
        """The dimension of a token."""
        return self.Q.shape[-1]

    @functools.cached_property
    def norm_A(self) -> float:
        r""":math:`\|A\|_2`, with the rounding error of the product, where Q and K cancel."""
        return product_norm(self.K.mT, self.Q) + _product_error(self.Q) * self.norm_Q * self.norm_K

    @functools.cached_property
    def norm_Q(self) -> float:
        r""":math:`s\|Q\|_2`."""
        return norm_upper(self.Q)

    @functools.cached_property
    def norm_K(self) -> float:
        r""":math:`\|K\|_2`."""
        return norm_upper(self.K)

    @functools.cached_property
    def norm_V(self) -> float:
        r""":math:`\|V\|_2`."""
        return norm_upper(self.V)

    @functools.cached_property
    def norm_WV(self) -> float:
        r""":math:`\|WV\|_2`, with the rounding error of the product, where W and V cancel."""
        if self.W is None:
            return self.norm_V
        return matrix_norm(self.mixed) + _product_error(self.V) * matrix_norm(self.W) * self.norm_V

    @functools.cached_property
    def norm_Qb(self) -> float:
        r""":math:`s|Q^\top b_k|`, a key bias in the gradient of scores, with its rounding error."""
        return float((self.key_bias @ self.Q).norm()) + _product_error(self.Q) * self.norm_Q * float(
            self.key_bias.norm()
        )

    @functools.cached_property
    def norm_Wb(self) -> float:
        r""":math:`|Wb_v|`, with the rounding error of the product."""
        size = float(self.value_bias.norm())
        if self.W is None:
            return size
        return float((self.W @ self.value_bias).norm()) + _product_error(self.W) * matrix_norm(self.W) * size

    @functools.cached_property
    def mixed(self) -> Float[Tensor, "v d"]:
        r"""A matrix with the right singular vectors and values of :math:`WV`, of at most ``v`` rows."""
        return self.V if self.W is None else self.reduced_W.mT @ self.V

    @functools.cached_property
    def reduced_W(self) -> Float[Tensor, "v r"]:
        r"""What turns the values :math:`Vx` into :math:`WVx`, up to an isometry."""
        return torch.eye(self.V.shape[0], dtype=self.V.dtype) if self.W is None else triangular_factor(self.W.mT)

    @functools.cached_property
    def reduced_Q(self) -> Float[Tensor, "k r"]:
        """Queries up to an isometry of the tokens."""
        return triangular_factor(self.Q)

    @functools.cached_property
    def reduced_K(self) -> Float[Tensor, "k r"]:
        """Keys up to an isometry of the tokens."""
        return triangular_factor(self.K)

    def form(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        r"""Return :math:`Ax`."""
        return (x @ self.Q.mT) @ self.K

    def adjoint(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        r"""Return :math:`A^\top x`."""
        return (x @ self.K.mT) @ self.Q


def heads_of(attention: Attention) -> tuple[Head, ...]:
    """Return the heads of one attention map, in float64 on the CPU wherever the map lives.

    Why not on the map's device: the matrices are small and the optimisations are scipy's; some devices have no float64.
    """
    require_attention(attention)
    require_one_map(attention.query)
    return tuple(_head(attention.head(h)) for h in range(attention.layout.heads))


def _double(x: Tensor) -> Tensor:
    """Return the one head of a weight, in float64 on the CPU."""
    return on_cpu(x)[0]


def on_cpu(x: Tensor) -> Tensor:
    """Bring a tensor to where the theory computes: in float64 on the CPU."""
    return x.detach().to("cpu", torch.float64)


def _head(f: Attention) -> Head:
    # the scale of the scores goes into the queries: then A is a product of two factors
    s, zero = f.score_scale, torch.zeros(f.layout.k, dtype=torch.float64)
    no_value = torch.zeros(f.layout.v, dtype=torch.float64)
    return Head(
        Q=s * _double(f.query),
        K=_double(f.key),
        V=_double(f.value),
        W=None if f.output is None else _double(f.output),
        query_bias=zero if f.query_bias is None else s * _double(f.query_bias),
        key_bias=zero if f.key_bias is None else _double(f.key_bias),
        value_bias=no_value if f.value_bias is None else _double(f.value_bias),
    )


def combine_factors(heads: Iterable[Head], log_factors: Iterable[float]) -> float:
    r"""Combine bounds :math:`g_h` on heads with :math:`V = I` into one on the layer; logarithms in and out.

    .. math:: \min\Bigl(\sum_h\|W_hV_h\|\,g_h,\;\;
              \|[W_1\cdots W_H]\|\,\bigl(\textstyle\sum_h\|V_h\|^2g_h^2\bigr)^{1/2}\Bigr)

    The first is the triangle inequality; the second takes the concatenated heads as one map. Without an output
    projection the heads are concatenated, and only the second form is needed.
    """
    heads, logs = tuple(heads), tuple(log_factors)
    # with and without the output projection; logarithms, since a bound may exceed the largest float
    mixed = (log(head.norm_WV) + g for head, g in zip(heads, logs, strict=True))
    alone = (log(head.norm_V) + g for head, g in zip(heads, logs, strict=True))
    return combine_heads(heads, mixed, alone)


def combine_heads(heads: tuple[Head, ...], mixed: Iterable[float], alone: Iterable[float]) -> float:
    """Combine bounds on heads, with and without their output projections; logarithms in and out."""
    # concatenated heads are orthogonal: their squares add up, and the output projection acts on all of them
    stacked = 0.5 * log_sum(2 * bound for bound in alone)
    return stacked if heads[0].W is None else min(log_sum(mixed), stacked + log(output_norm(heads)))


def output_norm(heads: tuple[Head, ...]) -> float:
    r"""Return :math:`\|[W_1\cdots W_H]\|_2`, the norm of the output projection (1 for concatenated heads)."""
    # Heads side by side: [W₁ ⋯ W_H] acts on the concatenated values.
    outputs = [head.W for head in heads if head.W is not None]
    return norm_upper(torch.cat(outputs, dim=-1)) if outputs else 1.0


def total_value(heads: tuple[Head, ...]) -> Float[Tensor, "out d"]:
    r"""Return :math:`\sum_hW_hV_h`, or the stacked :math:`V_h` of concatenated heads."""
    stacked = torch.cat([head.V for head in heads])
    outputs = [head.W for head in heads if head.W is not None]
    return torch.cat(outputs, dim=-1) @ stacked if outputs else stacked


def _product_error(x: Float[Tensor, "k d"]) -> float:
    """Return the rounding of a product with ``x``, in units of the norms of its factors."""
    return sum(x.shape) * torch.finfo(x.dtype).eps


def log(x: float) -> float:
    """Return the logarithm, and −∞ at zero; what is no number stays none."""
    return -math.inf if x <= 0 else math.log(x)


def log_sum(logs: Iterable[float]) -> float:
    """Return the logarithm of a sum from the logarithms of its terms."""
    terms = list(logs)
    # max() would drop a NaN that does not come first
    if any(math.isnan(t) for t in terms):
        return math.nan
    most = max(terms, default=-math.inf)
    return most if math.isinf(most) else most + math.log(sum(math.exp(t - most) for t in terms))
