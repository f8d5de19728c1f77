"""Theorems 3 and 4: certificates at one input from closed forms, without iteration."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.metrics import Metric, as_metrics
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.assumptions import has_key_norm, require_scores_alone
from howsmooth.theory.at_input.head_at_input import HeadAtInput, heads_at_input
from howsmooth.theory.at_input.rescaling import Rescaled
from howsmooth.theory.at_input.row_certificate import rows_upper
from howsmooth.theory.heads import Head, heads_of, log, output_norm
from howsmooth.theory.linalg.eigenvalue_bounds import largest_eigenvalues, largest_norms
from howsmooth.theory.linalg.matrix_norms import NOTHING, norm_upper
from howsmooth.theory.mechanisms.theorems import mechanism_local_upper
from howsmooth.theory.results import GIVEN_INPUT, Bound, upper_bound
from howsmooth.validation import require_sequences, tokens_for


def local_upper(
    attention: MultiHead, X: Float[Tensor, "n d"], *, rows: bool = True, metric: str | Metric = "total"
) -> Bound:
    r"""Bound the local constant at ``X``, deterministically.

    .. math:: \|D_Xf\| \le \|V\|\|P\|_2 + \max_i\|VC_iA\| + \Bigl(\sum_i|Ax_i|^2\,
              \lambda_{\max}\bigl(\textstyle\sum_jP_{ij}^2V(x_j-m_i)(x_j-m_i)^\top V^\top\bigr)\Bigr)^{1/2}

    Several heads with plain scores also have a certificate by rows, and the smallest one is returned:

    .. math:: \|D_Xf\| \le \max_i\Bigl\|\sum_hB_hC^h_iA_h\Bigr\| + \Bigl(\sum_i
              \lambda_{\max}\bigl(\textstyle\sum_jZ_{ij}Z_{ij}^\top\bigr)\Bigr)^{1/2},\qquad
              Z_{ij} = \sum_hP^h_{ij}B_h\bigl(I + (x_j-m^h_i){g^h_i}^\top\bigr)

    with :math:`B_h = W_hV_h` and :math:`g^h_i = A_hx_i + K_h^\top b_h`. It is 3 to 7 times smaller on layers of MiniLM
    and takes two to three times as long; ``rows=False`` leaves it out.

    Every feature of attention is covered by the first: in the last sum :math:`|Ax_i|` becomes
    :math:`|\partial S_{ij}/\partial x_j|`, which rotary positions, soft caps and key norms change. Heads add up, or
    count as one concatenated map. Costs O(n²kv) for each head; no products with the Jacobian. What the rounding of
    scores may have done to the weights is included, see
    :class:`~howsmooth.theory.at_input.head_at_input.HeadErrorBounds`.

    Between largest tokens (``metric="token"``) the bound is that of Theorem 14 at this input,
    :math:`\max_i\lambda_{\max}(\sum_jJ_{ij}J_{ij}^\top/w_{ij})^{1/2}` with the weights of the worst perturbation,
    within a percent of what is attained; see :mod:`howsmooth.spectral.token_norm`.

    Raises:
        AssumptionError: If the metric is neither ``total`` nor ``token``.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> f = Attention.single_head(A=identity, V=3 * identity)
        >>> round(local_upper(f, torch.ones(4, 2, dtype=torch.float64)).value, 9)
        3.0
    """
    name = as_metrics(metric).name
    if name == "token":
        upper = float(local_lipschitz(attention, X, metric=metric, confidence=1).upper)
        return upper_bound(log(upper), "local_upper", f"{GIVEN_INPUT}, largest token", "ours: weighted Gram matrices")
    if name != "total":
        raise AssumptionError(f"local_upper is proven in the metrics total and token, got {name!r}.", field="metric")
    if isinstance(attention, MultiHead) and not isinstance(attention, Attention):
        return mechanism_local_upper(attention, X)
    X = tokens_for(X, attention)
    require_sequences(X)
    (value,) = local_uppers(attention, X.unsqueeze(0), rows=rows)
    return upper_bound(log(value), "local_upper", GIVEN_INPUT, "ours: three terms at this input")


def local_uppers(attention: Attention, X: Float[Tensor, "batch n d"], *, rows: bool = True) -> list[float]:
    """Return what :func:`local_upper` proves at every input of a batch; the weights are read once."""
    unit = Rescaled.of(attention, X)
    heads = heads_of(unit.attention)
    return [unit.in_original_units(_best(unit.attention, x, heads, rows)) for x in unit.X]


def _best(attention: Attention, X: Tensor, heads: tuple[Head, ...], rows: bool) -> float:
    """Take the better of two certificates; the one by rows is about several heads with plain scores."""
    views = heads_at_input(attention, X, heads)
    plain = attention.positions.rotary is None and attention.softcap is None and not has_key_norm(attention)
    if not (rows and plain and len(heads) > 1):
        return _combined(attention, views, _three_terms, heads)
    by_rows = rows_upper(views)
    # the first of three terms alone is often more
    if by_rows <= _combined(attention, views, _value_term, heads):
        return by_rows
    return min(by_rows, _combined(attention, views, _three_terms, heads))


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
        >>> round(attention_map_upper(f, torch.ones(4, 2, dtype=torch.float64)).value, 9)
        3.0
    """
    require_scores_alone(attention, "attention_map_upper", "local_upper", shifted=True)
    unit = Rescaled.of(attention, tokens_for(X, attention))
    heads = heads_of(unit.attention)
    views = heads_at_input(unit.attention, unit.X, heads)
    return upper_bound(
        log(unit.in_original_units(_combined(unit.attention, views, _from_the_map, heads))),
        "attention_map_upper",
        GIVEN_INPUT,
        "ours, after Yudin et al.: from the attention map",
    )


def _value_term(view: HeadAtInput) -> tuple[float, float]:
    norm_P = view.norm_P()
    return view.value_norm * norm_P, view.head.norm_WV * norm_P


def _three_terms(view: HeadAtInput) -> tuple[float, float]:
    # Values before W for heads as one concatenated map, behind W for heads that add up: both bounds of Theorem 3.
    query_side, (moment, moment_error), norm_P = view.query_side(), view.key_side(), view.norm_P()
    W, mixed = view.head.reduced_W, view.mixed()
    norm_W, error = norm_upper(W), view.errors.value
    gradient = view.score_gradients().amax(-1)
    alone = _query_and_key(view, query_side, moment, moment_error, gradient, error)
    # values behind W: all that is linear in them is multiplied by it, which is cheaper than beginning anew
    moment, moment_error = W.mT @ moment @ W, moment_error * norm_W**2
    with_output = _query_and_key(mixed, W.mT @ query_side, moment, moment_error, gradient, error * norm_W)
    return view.value_norm * norm_P + alone, mixed.value_norm * norm_P + with_output


def _query_and_key(
    view: HeadAtInput,
    query_side: Tensor,
    moment: Tensor,
    moment_error: Tensor,
    gradient: Tensor,
    value_error: float,
) -> float:
    r"""Add the query and the key term of Theorem 3, each widened by its rounding errors.

    With weights that are wrong by a share of at most :math:`c_i` (:attr:`HeadErrorBounds.change`), covariances are
    wrong by :math:`c_i` times the radii of values and keys, and means of values by :math:`c_i` times their radius.
    Where nothing is known of the weights, the radii alone bound both terms.
    """
    # the theorem, for the computed weights: one number for each row
    query_term, key_term = largest_norms(query_side), (largest_eigenvalues(moment) + moment_error).sqrt()
    # what the true radii and gradients may be
    r, n, unit = view.errors, len(view.P), torch.finfo(moment.dtype).eps
    radius, key_radius = view.value_radius + 2 * value_error, view.key_radius + 2 * r.key
    norm_Q = r.query_slope * norm_upper(view.head.reduced_Q)
    gradient_error = r.query * r.key_slope * norm_upper(view.head.reduced_K)
    gradient = (1 + 64 * n * unit) * gradient + gradient_error
    # the true weights: other covariances, other means
    by_weights = (r.change + (8 * n + 64) * unit) * radius * key_radius
    by_values_and_keys = 4 * (value_error * key_radius + r.key * radius)
    query_term = query_term + norm_Q * (by_weights + by_values_and_keys)
    key_term = key_term + 2 * radius * (2 * r.change * gradient + gradient_error) + 4 * value_error * gradient
    # never more than for any weights at all
    query_term = torch.minimum(query_term, norm_Q * radius * key_radius)
    key_term = torch.minimum(r.growth * key_term, 2 * radius * gradient)
    return float(query_term.max()) + (1 + n * unit) * float(key_term.norm())


def _from_the_map(view: HeadAtInput) -> tuple[float, float]:
    r"""Return Theorem 4 for one head, with values before and after the output projection."""
    r, n = view.errors, len(view.P)
    # Centred keys: a shift of all scores of a row changes no weight.
    centred = view.k - view.k.mean(0)
    gradients = norm_upper(centred @ view.head.Q) + norm_upper(view.q @ view.head.K)
    gradients += math.sqrt(n) * (2 * r.key * norm_upper(view.head.Q) + float(r.query.max()) * norm_upper(view.head.K))
    norm_P, growth = view.norm_P(), float(r.growth.max())
    slope = min(0.5, growth * (softmax_slope(view.P) + n * NOTHING) * growth)  # a half is the most for any weights
    norm_W = norm_upper(view.head.reduced_W)

    def bound(at: HeadAtInput, value_error: float) -> float:
        spread = norm_upper(at.y - at.y.mean(0)) + 2 * math.sqrt(n) * value_error
        return at.value_norm * norm_P + slope * spread * gradients

    return bound(view, r.value), bound(view.mixed(), r.value * norm_W)


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
    attention: Attention,
    views: list[HeadAtInput],
    certificate: Callable[[HeadAtInput], tuple[float, float]],
    heads: tuple[Head, ...],
) -> float:
    """Combine heads in the better of two ways: the concatenation with V and the norm of all W, or the sum with WV."""
    alone, mixed = zip(*(certificate(view) for view in views), strict=True)
    stacked = math.hypot(*alone)
    return stacked if attention.output is None else min(sum(mixed), stacked * output_norm(heads))
