"""Theorem 12, weights other than a softmax: sigmoid, linear, entmax and Sinkhorn attention."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mechanisms.counting import EntmaxAttention, SigmoidAttention
from howsmooth.maps.mechanisms.linear import LinearAttention
from howsmooth.maps.mechanisms.sinkhorn import SinkhornAttention
from howsmooth.rounding import FORMULA_UNITS
from howsmooth.theory.assumptions import require_one_sequence, require_plain
from howsmooth.theory.heads import log, on_cpu
from howsmooth.theory.mechanisms.mechanism_head import (
    MechanismAtInput,
    MechanismHead,
    MechanismTheorems,
    by_three_terms,
    coarse_norm,
    diameter,
    layer_upper,
    length_upper,
    output_gradients,
    projected,
    require_kind,
    three_terms,
)
from howsmooth.theory.results import GIVEN_INPUT, Bound, upper_bound
from howsmooth.validation import require_tokens, tokens_for

# How well weights have to be balanced, as a share, and how many steps that may take.
LOOSE, BALANCING = 1e-8, 2000


def sigmoid_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound sigmoid attention on n tokens in a ball.

    .. math:: \mathrm{Lip}\le n\bigl(\|V\|\,\sigma(b+c) + Y\,\sigma'_{\max}\,(p_q+p_k)\bigr)

    with c the largest score, :math:`\sigma'_{\max}` over scores from −c to c, :math:`p_q, p_k` the slopes of scores and
    Y the largest value. Attained by equal tokens while :math:`b+c\le0`, for a symmetric A and V = I.
    """
    require_plain(f, "this bound on sigmoid attention")
    count = float(n if f.count is None else f.count)
    return layer_upper(
        f, lambda part: _sigmoid_head(part, n, radius, -math.log(count) if f.bias is None else f.bias, count)
    )


def _sigmoid_head(part: MechanismHead, n: int, radius: float, bias: float, count: float) -> float:
    query_gradient, key_gradient = part.score_gradient_bounds(radius)
    s = abs(part.scale)
    # Scores lie within this of their value at the origin, so weights and slopes have a largest value.
    largest = part.norm_A * radius**2 + s * radius * (
        length_upper(part.key_bias @ part.Q) + length_upper(part.query_bias @ part.K)
    )
    middle = bias + part.scale * float(part.query_bias @ part.key_bias)
    # σ increases, and a few units in the last place of a score are as much of σ
    safely = 1 + 64 * 2.0**-52 * (1 + abs(middle) + largest)
    top, slope = sigmoid(middle + largest) * safely, largest_sigmoid_slope(middle - largest, middle + largest) * safely
    norm_V = coarse_norm(part.B)
    most = norm_V * radius + length_upper(part.value_bias)
    return count * (norm_V * top + most * slope * (query_gradient + key_gradient))


def sigmoid(u: float) -> float:
    """Return 1/(1 + e^(-u)) without overflow."""
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))


def largest_sigmoid_slope(low: float, high: float) -> float:
    """Return the largest slope of the sigmoid between two numbers; it is largest at zero."""
    # σ' = σ(u)σ(−u) falls with |u|.
    nearest = min(max(0.0, low), high)
    return sigmoid(nearest) * sigmoid(-nearest)


def _sigmoid_at_input(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    q, k, y = projected(part, x)
    count = float(len(x) if f.count is None else f.count)
    S = part.scale * q @ k.mT + (-math.log(count) if f.bias is None else f.bias)
    many = count / len(x)
    P = many * torch.sigmoid(S)
    slope = many * torch.sigmoid(S) * torch.sigmoid(-S)
    P, slope = (z if hidden is None else z.masked_fill(hidden, 0.0) for z in (P, slope))
    n = len(x)
    return MechanismAtInput(
        P=P,
        output_gradient=slope[..., None] * y,
        query_gradient=(part.scale * k @ part.Q).expand(n, -1, -1),
        key_gradient=(part.scale * q @ part.K).norm(dim=-1)[:, None].expand(n, n),
        exponent=16 * float(S.abs().max()),
        value_diameter=float(y.norm(dim=-1).max()),
        norm_V=coarse_norm(part.B),
    )


def ramapuram_upper(f: Any, X: Float[Tensor, "n d"]) -> Bound:
    r"""Bound sigmoid attention at an input, as Ramapuram et al. do.

    .. math:: \|D_Xf\|\le\|V\|\Bigl(\sigma_\infty + 2\sigma'_\infty\|A\|\,\tfrac1n\textstyle\sum_i|x_i|^2\Bigr),\qquad
              \sigma_\infty = n\max_{ij}\sigma(S_{ij}),\quad\sigma'_\infty = n\max_{ij}\sigma'(S_{ij})

    Theorem 3.2 of their paper; :func:`local_upper` is never larger by more than rounding.

    Raises:
        AssumptionError: If there are biases of queries, keys or values.
    """
    require_kind(f, SigmoidAttention, "ramapuram_upper")
    require_plain(f, "ramapuram_upper")
    X = tokens_for(X, f)
    require_tokens(X, f.query)
    require_one_sequence(X)
    x = on_cpu(X)

    def head(part: MechanismHead) -> float:
        if any(length_upper(bias) > 0 for bias in (part.query_bias, part.key_bias, part.value_bias)):
            raise AssumptionError("ramapuram_upper is stated without biases; use local_upper.", field="attention")
        rows = _sigmoid_at_input(f, part, x, None)
        slope = rows.P * (1 - rows.P * len(x) / float(len(x) if f.count is None else f.count))
        n, eps = len(x), torch.finfo(torch.float64).eps
        mean = float(x.square().sum(-1).mean())
        grown = 1 + (rows.exponent + FORMULA_UNITS * n) * eps
        return coarse_norm(part.B) * n * grown * (float(rows.P.max()) + 2 * float(slope.max()) * part.norm_A * mean)

    return upper_bound(log(layer_upper(f, head)), "ramapuram_upper", GIVEN_INPUT, "Ramapuram et al., Theorem 3.2")


def linear_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound linear attention on n tokens in a ball.

    Normalised: :math:`\|V\|\bigl(\sqrt n + R\,(\|Q\|/\sqrt2 + \sqrt{n/2}\,\|K\|)\bigr)`: it grows like R, not like R².

    Without the denominator, with :math:`p = \sqrt k+\|Q\|R+|b_q|`, :math:`r = \sqrt k+\|K\|R+|b_k|` and Y the largest
    value: :math:`N\bigl(\|V\|pr + Y(r\|Q\| + p\|K\|)\bigr)`, N the ``count``, n by default.
    """
    require_plain(f, "this bound on linear attention")
    # without a denominator each of the n tokens counts for count / n
    return layer_upper(f, lambda part: _linear_head(part, n, radius, None if f.normalised else float(f.count or n)))


def _linear_head(part: MechanismHead, n: int, radius: float, count: float | None) -> float:
    norm_Q, norm_K, norm_V = coarse_norm(part.Q), coarse_norm(part.K), coarse_norm(part.B)
    if count is None:
        return norm_V * (math.sqrt(n) + radius * (norm_Q / math.sqrt(2) + math.sqrt(n / 2) * norm_K))
    root = math.sqrt(len(part.Q))
    p = root + norm_Q * radius + length_upper(part.query_bias)
    r = root + norm_K * radius + length_upper(part.key_bias)
    most = norm_V * radius + length_upper(part.value_bias)
    return count * (norm_V * p * r + most * (r * norm_Q + p * norm_K))


def _linear_at_input(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    if not f.normalised:
        raise AssumptionError("local_upper is about linear attention with a denominator.", field="attention")
    q, k, y = projected(part, x)
    # features elu + 1 and their derivatives
    a, b = (torch.nn.functional.elu(z) + 1 for z in (q, k))
    da, db = (z.clamp_max(0).exp() for z in (q, k))
    kappa = a @ b.mT
    P = kappa if hidden is None else kappa.masked_fill(hidden, 0.0)
    P = P / P.sum(-1, keepdim=True)
    # Scores are logarithms of κ = ⟨a, b⟩: their gradients are those of κ divided by it.
    shares = kappa[..., None]
    return MechanismAtInput(
        P=P,
        output_gradient=output_gradients(P, y),
        query_gradient=(da[:, None] * b / shares) @ part.Q,
        key_gradient=((a[:, None] * db / shares) @ part.K).norm(dim=-1),
        exponent=16 * float(torch.cat((q, k)).abs().max()),
        value_diameter=diameter(y),
        norm_V=coarse_norm(part.B),
    )


def entmax_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound entmax attention on n tokens in a ball.

    .. math:: \|V\|\Bigl(\sqrt n + R\,p_q\,N^{\alpha-1} + (N/n)^{\alpha-1}\sqrt n\,\kappa_nR\,p_k\Bigr)

    with N the ``count``, n by default (slopes are :math:`g_j = m_j^{\alpha-1}P_j^{2-\alpha}`, :math:`m_j = N/n`),
    :math:`p_q, p_k` the slopes of scores, :math:`\kappa_n = \sqrt n` for the sparsemax (α = 2) and
    :math:`\kappa_n = 2\sqrt n\,(1+(n-1)^{1/3})^{-3/2} < 2` for α = 1.5.
    """
    require_plain(f, "this bound on entmax attention")
    count = float(n if f.count is None else f.count)
    return layer_upper(f, lambda part: _entmax_head(part, n, radius, f.alpha, count))


def _entmax_head(part: MechanismHead, n: int, radius: float, alpha: float, count: float) -> float:
    query_gradient, key_gradient = part.score_gradient_bounds(radius)
    if alpha == 2:
        slopes, moment = count, math.sqrt(n) * (count / n)
    else:
        slopes, moment = math.sqrt(count), entmax_deviation(n) * math.sqrt(count / n)
    return coarse_norm(part.B) * (
        math.sqrt(n) + radius * query_gradient * slopes + math.sqrt(n) * moment * radius * key_gradient
    )


def entmax_deviation(n: int) -> float:
    r"""Bound :math:`(\sum_lP_l(t_l-\bar t)^2)^{1/2}`, :math:`|t|\le1`, :math:`\bar t` the mean under :math:`\sqrt P`.

    It is :math:`2\sqrt n\,(1+(n-1)^{1/3})^{-3/2}`: one for two tokens, two in the limit.

    Example:
        >>> round(entmax_deviation(2), 12), round(entmax_deviation(28), 12)
        (1.0, 1.322875655532)
    """
    return 2 * math.sqrt(n) / (1 + (n - 1) ** (1 / 3)) ** 1.5


def _entmax_at_input(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> float:
    if f.count not in (None, len(x)):
        raise AssumptionError("local_upper of entmax attention needs count to be n, or left out.", field="attention")
    q, k, y = projected(part, x)
    n, S = len(x), part.scale * q @ k.mT
    S = S if hidden is None else S.masked_fill(hidden, -torch.inf)
    z = (f.alpha - 1) * (S - S.amax(-1, keepdim=True))
    z = z.clamp_min(-4.0)  # the support ends within one of the largest
    t = z - _threshold(z, f.alpha)
    exponent = 16 * float((part.scale * q @ k.mT).abs().max())
    if f.alpha == 2 and bool((t.abs() <= n * (exponent + FORMULA_UNITS) * torch.finfo(t.dtype).eps).any()):
        return math.inf  # which side of the edge a token is on, rounding cannot tell
    t = t.clamp_min(0)
    # weights t^(1/(α−1)), and their slopes g up to normalisation
    P, g = (t, (t > 0).to(t)) if f.alpha == 2 else (t.square(), t)
    # The derivative of entmax is diag(g) − gg^⊤/Σg: a covariance under g/Σg, times Σg.
    total = g.sum(-1, keepdim=True)
    rows = MechanismAtInput(
        P=P,
        output_gradient=total[..., None] * output_gradients(g / total, y),
        query_gradient=(part.scale * k @ part.Q).expand(n, -1, -1),
        key_gradient=(part.scale * q @ part.K).norm(dim=-1)[:, None].expand(n, n),
        exponent=n * exponent,
        value_diameter=n * diameter(y),
        norm_V=coarse_norm(part.B),
    )
    return three_terms(rows)


def _threshold(z: Tensor, alpha: float) -> Tensor:
    """Return τ by bisection: the sum of the weights decreases in it."""
    low, high = (torch.full_like(z[:, :1], end) for end in (-1.0, 0.0))
    for _halving in range(80):
        middle = (low + high) / 2
        above = (z - middle).clamp_min(0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def sinkhorn_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound Sinkhorn attention on tokens in a ball, however many: :math:`\|V\|(1 + R(p_q + p_k))`.

    Without biases that is :math:`\|V\|(1 + 2\|A\|R^2)`. Biases of queries or keys cancel.
    """
    require_plain(f, "this bound on Sinkhorn attention", causal=False)
    return layer_upper(f, lambda part: _sinkhorn_head(part, radius))


def _sinkhorn_head(part: MechanismHead, radius: float) -> float:
    return coarse_norm(part.B) * (1 + 2 * part.norm_A * radius**2)


def _sinkhorn_at_input(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> float:
    q, k, y = projected(part, x)
    P = _balanced(part.scale * q @ k.mT)
    if P is None:
        return math.inf
    # Doubly stochastic weights: rows and columns are both probabilities, and each has its own covariance.
    query = _spread(P, part.scale * k, part.Q)
    key = _spread(P.mT, part.scale * q, part.K)
    value = coarse_norm(part.B) * coarse_norm(P) + _spread(P, y, torch.eye(y.shape[-1], dtype=y.dtype)) * (query + key)
    return value * (1 + LOOSE)


def _spread(P: Tensor, y: Tensor, M: Tensor) -> float:
    r"""Return the largest :math:`\|\mathrm{Cov}_i(y)^{1/2}M\|` over the rows i, and a share for rounding."""
    # Around the mean of each row: differences of squares would cancel.
    centred = y - (P @ y)[:, None]
    moved = centred @ M
    gram = torch.einsum("ij,ijd,ije->ide", P, moved, moved)
    error = len(P) * FORMULA_UNITS * torch.finfo(y.dtype).eps * float(moved.square().sum(-1).max())
    return math.sqrt(float(torch.linalg.eigvalsh(gram)[:, -1].max()) + error)


def _balanced(S: Tensor) -> Tensor | None:
    """Return weights whose rows and columns sum to one, or none if they are not found."""
    # Sinkhorn's iteration in logarithms: rows, then columns, until both sum to one
    for _step in range(BALANCING):
        S = S - S.logsumexp(-1, keepdim=True)
        off = S.logsumexp(-2, keepdim=True)
        if float(off.abs().max()) < LOOSE / 100:
            return S.exp()
        S = S - off
    return None


OTHER_WEIGHTS: dict[type[MultiHead], MechanismTheorems] = {
    SigmoidAttention: MechanismTheorems(
        in_ball=sigmoid_ball,
        proof="ours, after Ramapuram et al.: the largest slopes",
        at_input=by_three_terms(_sigmoid_at_input),
    ),
    LinearAttention: MechanismTheorems(
        in_ball=linear_ball,
        proof="ours: slopes of logarithms are at most one",
        at_input=by_three_terms(_linear_at_input),
    ),
    EntmaxAttention: MechanismTheorems(
        in_ball=entmax_ball,
        proof="ours: three terms, sparse weights",
        at_input=_entmax_at_input,
    ),
    SinkhornAttention: MechanismTheorems(
        in_ball=sinkhorn_ball,
        proof="ours: doubly stochastic weights",
        at_input=_sinkhorn_at_input,
    ),
}
