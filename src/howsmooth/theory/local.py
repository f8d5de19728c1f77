"""At one input: certificates from closed forms, without iteration."""

import math
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import require_scores_alone
from howsmooth.theory.heads import Head, heads_of, log, matrix_norm, output_norm
from howsmooth.theory.results import Bound, upper_bound
from howsmooth.theory.traces import largest_eigenvalues, largest_norms
from howsmooth.theory.views import View, views

HERE = "the given input"


def local_upper(attention: Attention, X: Float[Tensor, "n d"]) -> Bound:
    r"""Bound the local constant at ``X``, deterministically.

    .. math:: \|D_Xf\| \le \|V\|\|P\|_2 + \max_i\|VC_iA\| + \Bigl(\sum_i|Ax_i|^2\,
              \lambda_{\max}\bigl(\textstyle\sum_jP_{ij}^2V(x_j-m_i)(x_j-m_i)^\top V^\top\bigr)\Bigr)^{1/2}

    Every feature of attention is covered: in the last sum :math:`|Ax_i|` becomes
    :math:`|\partial S_{ij}/\partial x_j|`, which rotary positions, soft caps and key norms change. Heads add up, or
    count as one concatenated map. Costs O(n²kv) for each head; no products with the Jacobian.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> local_upper(Attention.single_head(A=identity, V=3 * identity), torch.ones(4, 2, dtype=torch.float64)).digits
        '3.0000'
    """
    (value,) = local_uppers(attention, X.unsqueeze(0))
    return upper_bound(log(value), "local_upper", HERE, "ours: three terms at this input")


def local_uppers(attention: Attention, X: Float[Tensor, "batch n d"]) -> list[float]:
    """Return what :func:`local_upper` proves at every input of a batch; the weights are looked at once."""
    heads = heads_of(attention)
    return [_combined(attention, x, _three_terms, heads) for x in X]


def attention_map_upper(attention: Attention, X: Float[Tensor, "n d"]) -> Bound:
    r"""Bound the local constant at ``X`` from how peaked the attention map is.

    .. math:: \|D_Xf\| \le \|V\|\|P\|_2 + g(P)\,\|X_cV^\top\|_2\bigl(\|X_cA\|_2 + \|XA^\top\|_2\bigr),\qquad
              g(P) = \max_i p_{(1)}\bigl(1 - p_{(1)} + p_{(2)}\bigr)

    with :math:`p_{(1)}\ge p_{(2)}` the two largest weights of row i and :math:`X_c` the centred tokens. The derivative
    of the softmax at p, :math:`\mathrm{diag}(p)-pp^\top`, has norm at most :math:`p_{(1)}(1-p_{(1)}+p_{(2)})`: zero for
    one-hot weights, 1/n for uniform ones. In the spirit of [yudin2025]. :func:`local_upper` is usually sharper; this
    one needs only the two largest weights of each row.

    Raises:
        AssumptionError: If scores are not :math:`\langle Ax,y\rangle` plus a query bias (masks are fine).

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> f = Attention.single_head(A=identity, V=3 * identity)
        >>> attention_map_upper(f, torch.ones(4, 2, dtype=torch.float64)).digits
        '3.0000'
    """
    require_scores_alone(attention, "attention_map_upper", "local_upper", shifted=True)
    return upper_bound(
        log(_combined(attention, X, _from_the_map, heads_of(attention))),
        "attention_map_upper",
        HERE,
        "ours, after Yudin et al.: from the attention map",
    )


def _three_terms(view: View) -> tuple[float, float]:
    query_side, (moment, rounding) = view.query_side(), view.key_side()
    W, norm_P = view.head.short_W, view.norm_P()
    mixed = W.mT @ query_side, W.mT @ moment @ W, rounding * matrix_norm(W) ** 2
    return (
        view.head.norm_V * norm_P + _query_and_key(query_side, moment, rounding),
        view.head.norm_WV * norm_P + _query_and_key(*mixed),
    )


def _query_and_key(query_side: Tensor, moment: Tensor, rounding: Tensor) -> float:
    return float(largest_norms(query_side).max()) + math.sqrt(float((largest_eigenvalues(moment) + rounding).sum()))


def _from_the_map(view: View) -> tuple[float, float]:
    centred = view.k - view.k.mean(0)
    steep = matrix_norm(centred @ view.head.Q) + matrix_norm(view.q @ view.head.K)
    norm_P, slope = view.norm_P(), softmax_slope(view.P)
    alone, mixed = (
        seen.value_norm * norm_P + slope * matrix_norm(seen.y - seen.y.mean(0)) * steep for seen in (view, view.mixed())
    )
    return alone, mixed


def softmax_slope(P: Float[Tensor, "n m"]) -> float:
    r"""Return :math:`\max_ip_{(1)}(1-p_{(1)}+p_{(2)})`, a bound on :math:`\|\mathrm{diag}(p)-pp^\top\|` for all rows p.

    Example:
        >>> softmax_slope(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        0.5
    """
    if P.shape[-1] == 1:
        return 0.0
    (first, second), place = P.topk(2, dim=-1).values.unbind(-1), P.argmax(-1, keepdim=True)
    others = P.scatter(-1, place, 0.0).sum(-1)  # 1 − p₁, without its cancellation
    return float((first * (others + second)).max())


def _combined(
    attention: Attention, X: Tensor, certificate: Callable[[View], tuple[float, float]], heads: tuple[Head, ...]
) -> float:
    """Combine heads in the better of two ways: the concatenation with V and the norm of all W, or the sum with WV."""
    alone, mixed = zip(*(certificate(view) for view in views(attention, X, heads)), strict=True)
    stacked = math.hypot(*alone)
    return stacked if attention.output is None else min(sum(mixed), stacked * output_norm(heads))
