"""Theorem 3 for mechanisms other than softmax (Theorem 12): certificates at one input, from closed forms."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mechanisms.cosine import CosineAttention
from howsmooth.maps.mechanisms.differential import DifferentialAttention
from howsmooth.maps.mechanisms.entmax import EntmaxAttention
from howsmooth.maps.mechanisms.l2 import L2Attention
from howsmooth.maps.mechanisms.linear import LinearAttention
from howsmooth.maps.mechanisms.sigmoid import SigmoidAttention
from howsmooth.maps.mechanisms.sinkhorn import SinkhornAttention
from howsmooth.theory.assumptions import require_plain
from howsmooth.theory.ball.mechanisms import halves
from howsmooth.theory.heads import MechanismHead, coarse_norm, layer_upper, length_upper, log, on_cpu
from howsmooth.theory.results import Bound, upper_bound

HERE = "the given input"
# The rounding error of a sum of n terms, for each of them in units of the last place.
UNITS = 64
# How well weights have to be balanced, as a share, and how many steps that may take.
LOOSE, BALANCING = 1e-8, 2000


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


def mechanism_local_upper(f: Any, X: Float[Tensor, "n d"]) -> Bound:
    r"""Bound the local constant of attention of another kind at ``X``, deterministically.

    .. math:: \|D_Xf\|\le\|V\|\|P\| + \max_i\Bigl\|\sum_jM_{ij}(\partial_{x_i}S_{ij})^\top\Bigr\|
              + \Bigl(\sum_i\lambda_{\max}\bigl(\textstyle
              \sum_j|\partial_{x_j}S_{ij}|^2M_{ij}M_{ij}^\top\bigr)\Bigr)^{1/2}

    Of Sinkhorn attention, with covariances under the rows and the columns of the weights,
    :math:`\|V\|\|P\| + \max_i\|\mathrm{Cov}_i(y)\|^{1/2}\bigl(\max_i\|\mathrm{Cov}_i(sk)^{1/2}Q\|
    + \max_j\|\mathrm{Cov}_j(sq)^{1/2}K\|\bigr)`. Infinite where rounding leaves it open: at the edge of a sparse
    support, or where weights were not balanced.

    Raises:
        AssumptionError: If the map has a feature that the theorem does not cover.
    """
    make = AT_INPUT.get(type(f))
    if make is None:
        known = ", ".join(f"hs.{kind.__name__}" for kind in AT_INPUT)
        raise DtypeError(f"local_upper is about hs.Attention, {known}, got {type(f).__name__}.", field="attention")
    require_plain(f, "local_upper")
    x = on_cpu(X)
    if x.ndim != 2:
        raise AssumptionError(f"local_upper takes one input, (n, d), got {tuple(X.shape)}.", field="X")
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1) if f.positions.causal else None
    value = layer_upper(f, lambda part: make(f, part, x, hidden))
    return upper_bound(log(value), "local_upper", HERE, "ours: three terms at this input")


def _three_terms(rows: MechanismAtInput) -> float:
    n, eps = len(rows.P), torch.finfo(torch.float64).eps
    # weights, and what moves with them, are wrong by such a share of the largest that they can be
    error = math.expm1(min(2 * (rows.exponent + n + UNITS) * eps, 700.0)) + UNITS * n * eps
    query = torch.linalg.matrix_norm(rows.output_gradient.mT @ rows.query_gradient, ord=2)
    largest_gradient = rows.query_gradient.norm(dim=-1).amax(-1)
    gram = torch.einsum("ijo,ij,ijp->iop", rows.output_gradient, rows.key_gradient.square(), rows.output_gradient)
    key = torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0).sqrt()
    query = query + error * rows.value_diameter * largest_gradient * rows.P.sum(-1)
    key = key + error * rows.value_diameter * rows.key_gradient.amax(-1) * rows.P.sum(-1)
    value = rows.norm_V * coarse_norm(rows.P) * (1 + error) + float(query.max()) + float(key.norm())
    return value if math.isfinite(value) else math.inf


def _softmax(S: Tensor, hidden: Tensor | None) -> Tensor:
    return torch.softmax(S if hidden is None else S.masked_fill(hidden, -torch.inf), dim=-1)


def _projected(part: MechanismHead, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x @ part.Q.mT + part.query_bias, x @ part.K.mT + part.key_bias, x @ part.B.mT + part.value_bias


def _means(P: Tensor, y: Tensor) -> Tensor:
    """Return P_ij (y_j − ȳ_i), how the outputs of a softmax move with its scores."""
    return P[..., None] * (y - (P @ y)[:, None])


def _diameter(y: Tensor) -> float:
    return 2 * float((y - y.mean(0)).norm(dim=-1).max())


def _l2(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    q, k, y = _projected(part, x)
    y = part.scale * x @ part.Q.mT @ part.Q @ part.B.mT if f.tied else y
    apart = q[:, None] - k
    P = _softmax(-part.scale * apart.square().sum(-1), hidden)
    return MechanismAtInput(
        P=P,
        output_gradient=_means(P, y),
        query_gradient=-2 * part.scale * apart @ part.Q,
        key_gradient=2 * part.scale * (apart @ part.K).norm(dim=-1),
        exponent=16 * part.scale * float((q.norm(dim=-1).max() + k.norm(dim=-1).max()) ** 2),
        value_diameter=_diameter(y),
        norm_V=coarse_norm(part.scale * part.B @ part.Q.mT) * coarse_norm(part.Q) if f.tied else coarse_norm(part.B),
    )


def _sigmoid(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    q, k, y = _projected(part, x)
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


def _linear(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    if not f.normalised:
        raise AssumptionError("local_upper is about linear attention with a denominator.", field="attention")
    q, k, y = _projected(part, x)
    # features elu + 1 and their derivatives
    a, b = (torch.nn.functional.elu(z) + 1 for z in (q, k))
    da, db = (z.clamp_max(0).exp() for z in (q, k))
    kappa = a @ b.mT
    P = kappa if hidden is None else kappa.masked_fill(hidden, 0.0)
    P = P / P.sum(-1, keepdim=True)
    shares = kappa[..., None]
    return MechanismAtInput(
        P=P,
        output_gradient=_means(P, y),
        query_gradient=(da[:, None] * b / shares) @ part.Q,
        key_gradient=((a[:, None] * db / shares) @ part.K).norm(dim=-1),
        exponent=16 * float(torch.cat((q, k)).abs().max()),
        value_diameter=_diameter(y),
        norm_V=coarse_norm(part.B),
    )


def _cosine(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    if f.normalise_values:
        raise AssumptionError(
            "local_upper is about cosine attention whose values are not normalised.", field="attention"
        )
    if f.eps == 0:
        raise AssumptionError("local_upper needs eps > 0 in cosine attention.", field="attention")
    q, k, y = _projected(part, x)
    y = f.gain * y
    (u, nu), (w, nw) = ((z / r, r) for z, r in ((z, (z.square().sum(-1, keepdim=True) + f.eps).sqrt()) for z in (q, k)))
    tau, cosines = part.scale, u @ w.mT
    P = _softmax(tau * cosines, hidden)
    dq = tau * (w - cosines[..., None] * u[:, None]) / nu[:, None]
    dk = tau * (u[:, None] - cosines[..., None] * w) / nw
    return MechanismAtInput(
        P=P * abs(f.gain),
        output_gradient=_means(P, y),
        query_gradient=dq @ part.Q,
        key_gradient=(dk @ part.K).norm(dim=-1),
        exponent=16
        * abs(tau)
        * (1 + float(x.norm(dim=-1).max()) / math.sqrt(f.eps) * (coarse_norm(part.Q) + coarse_norm(part.K))),
        value_diameter=_diameter(y),
        norm_V=coarse_norm(part.B),
    )


def _dots(part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    """A softmax of scores, as in plain attention."""
    q, k, y = _projected(part, x)
    n, S = len(x), part.scale * q @ k.mT
    P = _softmax(S, hidden)
    return MechanismAtInput(
        P=P,
        output_gradient=_means(P, y),
        query_gradient=(part.scale * k @ part.Q).expand(n, -1, -1),
        key_gradient=(part.scale * q @ part.K).norm(dim=-1)[:, None].expand(n, n),
        exponent=16 * float(S.abs().max()),
        value_diameter=_diameter(y),
        norm_V=coarse_norm(part.B),
    )


def _differential(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> float:
    subtracted = float(on_cpu(f.subtracted).abs().max())
    return sum(
        factor * _three_terms(_dots(half, x, hidden))
        for half, factor in zip(halves(part), (1.0, subtracted), strict=True)
    )


def _entmax(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> float:
    if f.count not in (None, len(x)):
        raise AssumptionError("local_upper of entmax attention needs count to be n, or left out.", field="attention")
    q, k, y = _projected(part, x)
    n, S = len(x), part.scale * q @ k.mT
    S = S if hidden is None else S.masked_fill(hidden, -torch.inf)
    z = (f.alpha - 1) * (S - S.amax(-1, keepdim=True))
    z = z.clamp_min(-4.0)  # the support ends within one of the largest
    t = z - _threshold(z, f.alpha)
    exponent = 16 * float((part.scale * q @ k.mT).abs().max())
    if f.alpha == 2 and bool((t.abs() <= n * (exponent + UNITS) * torch.finfo(t.dtype).eps).any()):
        return math.inf  # which side of the edge a token is on, rounding cannot tell
    t = t.clamp_min(0)
    # weights t^(1/(α−1)), and their slopes g up to normalisation
    P, g = (t, (t > 0).to(t)) if f.alpha == 2 else (t.square(), t)
    total = g.sum(-1, keepdim=True)
    rows = MechanismAtInput(
        P=P,
        output_gradient=total[..., None] * _means(g / total, y),
        query_gradient=(part.scale * k @ part.Q).expand(n, -1, -1),
        key_gradient=(part.scale * q @ part.K).norm(dim=-1)[:, None].expand(n, n),
        exponent=n * exponent,
        value_diameter=n * _diameter(y),
        norm_V=coarse_norm(part.B),
    )
    return _three_terms(rows)


def _threshold(z: Tensor, alpha: float) -> Tensor:
    """Return τ by bisection: the sum of the weights decreases in it."""
    low, high = (torch.full_like(z[:, :1], end) for end in (-1.0, 0.0))
    for _halving in range(80):
        middle = (low + high) / 2
        above = (z - middle).clamp_min(0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def _sinkhorn(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> float:
    q, k, y = _projected(part, x)
    P = _balanced(part.scale * q @ k.mT)
    if P is None:
        return math.inf
    query = _spread(P, part.scale * k, part.Q)
    key = _spread(P.mT, part.scale * q, part.K)
    value = coarse_norm(part.B) * coarse_norm(P) + _spread(P, y, torch.eye(y.shape[-1], dtype=y.dtype)) * (query + key)
    return value * (1 + LOOSE)


def _spread(P: Tensor, y: Tensor, M: Tensor) -> float:
    r"""Return the largest :math:`\|\mathrm{Cov}_i(y)^{1/2}M\|` over the rows i, and a share for rounding."""
    centred = y - (P @ y)[:, None]
    moved = centred @ M
    gram = torch.einsum("ij,ijd,ije->ide", P, moved, moved)
    error = len(P) * UNITS * torch.finfo(y.dtype).eps * float(moved.square().sum(-1).max())
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


def _by_rows(
    make: Callable[[Any, MechanismHead, Tensor, Tensor | None], MechanismAtInput],
) -> Callable[[Any, MechanismHead, Tensor, Tensor | None], float]:
    return lambda f, part, x, hidden: _three_terms(make(f, part, x, hidden))


AT_INPUT: dict[type[MultiHead], Callable[[Any, MechanismHead, Tensor, Tensor | None], float]] = {
    L2Attention: _by_rows(_l2),
    SigmoidAttention: _by_rows(_sigmoid),
    LinearAttention: _by_rows(_linear),
    CosineAttention: _by_rows(_cosine),
    DifferentialAttention: _differential,
    EntmaxAttention: _entmax,
    SinkhornAttention: _sinkhorn,
}


def ramapuram_upper(f: Any, X: Float[Tensor, "n d"]) -> Bound:
    r"""Bound sigmoid attention at an input, as Ramapuram et al. do.

    .. math:: \|D_Xf\|\le\|V\|\Bigl(\sigma_\infty + 2\sigma'_\infty\|A\|\,\tfrac1n\textstyle\sum_i|x_i|^2\Bigr),\qquad
              \sigma_\infty = n\max_{ij}\sigma(S_{ij}),\quad\sigma'_\infty = n\max_{ij}\sigma'(S_{ij})

    Theorem 3.2 of their paper; :func:`local_upper` is never larger by more than rounding.

    Raises:
        AssumptionError: If there are biases of queries, keys or values.
    """
    if type(f) is not SigmoidAttention:
        raise DtypeError(
            f"ramapuram_upper is about hs.maps.SigmoidAttention, got {type(f).__name__}.", field="attention"
        )
    require_plain(f, "ramapuram_upper")
    x = on_cpu(X)

    def head(part: MechanismHead) -> float:
        if any(length_upper(bias) > 0 for bias in (part.query_bias, part.key_bias, part.value_bias)):
            raise AssumptionError("ramapuram_upper is stated without biases; use local_upper.", field="attention")
        rows = _sigmoid(f, part, x, None)
        slope = rows.P * (1 - rows.P * len(x) / float(len(x) if f.count is None else f.count))
        n, eps = len(x), torch.finfo(torch.float64).eps
        mean = float(x.square().sum(-1).mean())
        grown = 1 + (rows.exponent + UNITS * n) * eps
        return coarse_norm(part.B) * n * grown * (float(rows.P.max()) + 2 * float(slope.max()) * part.norm_A * mean)

    return upper_bound(log(layer_upper(f, head)), "ramapuram_upper", HERE, "Ramapuram et al., Theorem 3.2")
