"""Theorems 1 and 2: softmax attention on sequences of n tokens in a ball; the paper's bounds, and sharper ones."""

import dataclasses
import math

from howsmooth.domains.domain import in_ball
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.theory.assumptions import (
    refuse_biases,
    refuse_many_heads,
    refuse_norms,
    require_causal_or_none,
    require_scores_alone,
    require_size,
)
from howsmooth.theory.ball.layer import layer_bound
from howsmooth.theory.ball.rotary_forms import RotaryDistances
from howsmooth.theory.heads import Head, combine_factors, combine_heads, heads_of, log, log_sum
from howsmooth.theory.linalg.matrix_norms import matrix_norm
from howsmooth.theory.mechanisms.theorems import mechanism_upper
from howsmooth.theory.results import Bound, lower_bound, upper_bound
from howsmooth.theory.worst_inputs.eigenvector import steepest_eigenvalue
from howsmooth.theory.worst_inputs.origin_token import OriginToken, best_origin_token
from howsmooth.theory.worst_inputs.tied_layer import tied_value


def discrete_upper(attention: Attention, *, n: int, radius: float) -> Bound:
    r"""Bound the Lipschitz constant on sequences of ``n`` tokens in a ball, as the paper does.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \sqrt3\,\|V\|\,\bigl(\|A\|^2R^4(4n+1) + n\bigr)^{1/2}

    Theorem 3.3 of [castin2024]; masks do not change it. Under rotary positions :math:`s\|Q\|\|K\|` stands for
    :math:`\|A\|`. :func:`sharp_upper` is always smaller.

    Raises:
        AssumptionError: If there are biases in the scores, or query and key norms.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> discrete_upper(Attention.single_head(A=-identity, V=identity), n=200, radius=4.0).digits
        '784.71'
    """
    require_size(n, radius)
    refuse_norms(attention, "the paper's bound")
    refuse_biases(attention, "the paper's bound", "sharp_upper, which covers them")
    heads = heads_of(attention)
    contrasts = (radius * score_gradient_bounds(attention, head, radius)[0] for head in heads)
    # in logarithms: the square of c may exceed the largest float
    logs = (0.5 * (math.log(3) + log_sum((2 * log(c) + math.log(4 * n + 1), math.log(n)))) for c in contrasts)
    log_value = combine_factors(heads, logs)
    return upper_bound(log_value, "discrete_upper", in_ball(n, radius), "the paper, Theorem 3.3")


def sharp_upper(attention: MultiHead, *, n: int, radius: float) -> Bound:
    r"""Bound the Lipschitz constant on sequences of ``n`` tokens in a ball.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \|V\|_2\,\bigl(\sqrt n + \|A\|_2 R^2\,(1 + \sqrt{n/2})\bigr)

    Heads add up by the triangle inequality, or as one concatenated map, or stand side by side under scales
    :math:`s_h`, whichever is smallest. Side by side, with :math:`B_h = W_hV_h`, :math:`\beta = \|[B_h/s_h]_h\|`,
    :math:`A_h^+ = [A_h, K_h^\top b_h/\tau]` for a query bias b and
    :math:`\gamma = \min(\|(s_hA_h^+)_h\|, \|[s_hA_h^+]_h\|)`, a layer has at most

    .. math:: \sqrt n\,\min\Bigl(\sum_h\|B_h\|,\,\beta|s|\Bigr) + \beta R^2\|(s_hA_h)_h\|
              + \sqrt{n/2}\,\beta R\,(R^2+\tau^2)^{1/2}\,\gamma,

    the last two a little less than added up. Each term has the best scales that a short search finds. Masks,
    relative biases and token weights do not change the bound. A query bias adds :math:`|K^\top b_q|\,s` to
    :math:`\|A\|R` in the last term. Beside a sink, biases of keys and values count, too: a head has at most

    .. math:: \|V\|\sqrt n + \rho\bigl(\|A\|R, s|Q^\top b_k|\bigr)\,\rho\bigl(\|V\|R, |b_v|\bigr)
              + \sqrt{n/2}\,\bigl(\|A\|R + s|K^\top b_q|\bigr)\,\rho\bigl(\|V\|R, |b_v|\bigr),\qquad
              \rho(r, b) = \max\bigl(r, \tfrac12(r+b)\bigr).

    Under rotary positions the form of a score depends on the distance,
    :math:`A_\delta = K^\top\Theta_\delta Q`: :math:`\max_\delta\|A_\delta\|` stands for the first :math:`\|A\|`, and
    :math:`\|\sum_\delta A_\delta A_\delta^\top\|^{1/2}`, over the distances from which a token is seen, for
    :math:`\sqrt n\,\|A\|`.

    Other mechanisms have bounds of their own, see :ref:`other-attentions`.

    Raises:
        AssumptionError: If ``n`` or ``radius`` is not positive, or if queries or keys are normalised.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> round(sharp_upper(Attention.single_head(A=identity, V=identity), n=2, radius=1.0).value, 4)
        3.4142
    """
    if isinstance(attention, MultiHead) and not isinstance(attention, Attention):
        return mechanism_upper(attention, n=n, radius=radius)
    require_size(n, radius)
    # Norms of heads are those of the map without its sink, which theorems on other bounds refuse.
    sink = isinstance(attention, Attention) and attention.sink is not None
    plain = dataclasses.replace(attention, sink=None) if sink else attention
    refuse_norms(plain, "sharp_upper")
    # a sink changes the key and query terms of the bound below, not the norms of a head
    heads = heads_of(plain)
    rotary = RotaryDistances.of(attention, n)
    terms = [log(_score_terms(attention, head, rotary, n, radius)) for head in heads]

    def bound(norm: float, bias: float, score_terms: float) -> float:
        values = log_enclosing_radius(log(norm) + log(radius), bias if sink else 0.0)
        return log_sum((log(norm) + 0.5 * log(n), values + score_terms))

    # the triangle inequality over heads, or all of them as one concatenated map
    mixed = [bound(head.norm_WV, head.norm_Wb, each) for head, each in zip(heads, terms, strict=True)]
    alone = [bound(head.norm_V, float(head.value_bias.norm()), each) for head, each in zip(heads, terms, strict=True)]
    log_value = combine_heads(heads, mixed, alone)
    # or side by side under scales, which is usually best for several heads
    log_value = min(log_value, log(layer_bound(attention, heads, rotary, n, radius)))
    return upper_bound(log_value, "sharp_upper", in_ball(n, radius), "ours: three terms, each sharp")


def discrete_lower(attention: Attention, *, n: int, radius: float) -> Bound:
    r"""Bound the Lipschitz constant from below, as the paper does.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \ge \|V\|\,\frac{\sqrt{n-1}}{1 + (n-1)e^{-2\gamma R^2}},\qquad
              \gamma = \max(-\gamma_\delta,\;\gamma_1/8)

    with :math:`\gamma_1\ge\dots\ge\gamma_\delta` the real eigenvalues of A. The paper takes V = I; any V is fine, since
    :math:`\|V(I+\kappa uu^\top)\| \ge \|V\|`. Masked or not. Attained at :func:`~howsmooth.theory.inputs.two_point`.

    Raises:
        AssumptionError: If A has no real eigenvalue (:func:`sharp_lower` needs none), or for several heads, or if
            scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> discrete_lower(Attention.single_head(A=-identity, V=identity), n=200, radius=2.0).digits
        '13.223'
    """
    require_size(n, radius)
    head = single_plain_head(attention, "the paper's lower bound")
    gamma = steepest_eigenvalue(head, "sharp_lower").gamma
    # The weight of the first token is 1/(1 + (n−1)e^(−2γR²)) in every other row.
    others = math.exp(log(n - 1) - 2 * gamma * radius**2)
    log_value = log(head.norm_WV) + 0.5 * log(n - 1) - math.log1p(others)
    return lower_bound(log_value, "discrete_lower", in_ball(n, radius), "the paper, two points on an eigenvector")


def sharp_lower(attention: Attention, *, n: int, radius: float, heads: int | None = None) -> Bound:
    r"""Bound the Lipschitz constant from below by two tokens that tie for the attention of all others.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \ge \sqrt{2(n-2)}\;p\,|Ae|\,rR\sin\theta\,|Vz|,\quad
              p = \frac1{2+(n-2)e^{-\Delta}},\quad \Delta = rR|Ae|\cos\theta - r^2\langle Ae,e\rangle

    for any unit e, :math:`z\perp Ae`, :math:`0<r\le R`, :math:`0<\theta\le\pi/2`; the best found is reported. Masked or
    not; a query bias b rotary Ae into :math:`Ae + K^\top b`. It needs no eigenvalue. For several heads, the response of
    the whole layer at each head's tokens in the same explicit direction; with ``heads``, at so many of them only, those
    with the largest :math:`\|A\|\|WV\|`: quicker, and nearly as high.

    Raises:
        AssumptionError: If ``n < 3``, ``d < 2``, or if scores are not :math:`\langle Ax,y\rangle` plus a query bias.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> sharp_lower(Attention.single_head(A=-identity, V=identity), n=200, radius=4.0).digits
        '159.19'
    """
    require_size(n, radius, least=3)
    log_value = tied_value(attention, n, radius, heads=heads)
    return lower_bound(log_value, "sharp_lower", in_ball(n, radius), "ours: two tokens tie for attention")


def kim_lower(attention: Attention, *, n: int, radius: float) -> Bound:
    r"""Bound the Lipschitz constant from below by a token at the origin: the :math:`R^2` growth of [kim2021].

    A token at 0 attends to all tokens equally. With the others at :math:`\pm Ru`, in equal numbers or nearly so,

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \ge \sqrt{\tfrac{n-1}n}\;\nu_n R^2\,
              \Bigl\|\sum_h (W_hV_hu)(A_h^\top u)^\top\Bigr\|,\qquad
              \nu_n = \tfrac{n-1}n - \tfrac{1}{n^2}[n\text{ even}]

    for any unit u: move the token along e and the others along :math:`-e/(n-1)`, so that the value term vanishes and
    :math:`V C A e` remains. Does not grow with n; exact constants for a few tokens. Masked: the token at 0 comes last.

    Raises:
        AssumptionError: If ``n < 2``, or if scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> kim_lower(Attention.single_head(A=identity, V=identity), n=2, radius=2.0).digits  # √½ · ¼ · 4
        '0.7071'
    """
    log_value, _token = origin_token_value(attention, n, radius)
    return lower_bound(log_value, "kim_lower", in_ball(n, radius), "ours, after Kim et al.: token at the origin")


def origin_token_value(attention: Attention, n: int, radius: float) -> tuple[float, OriginToken]:
    """Return the logarithm of what a token at the origin proves, and the input that does."""
    require_size(n, radius, least=2)
    require_scores_alone(attention, "kim_lower", "hs.maximise")
    require_causal_or_none(attention, "kim_lower", "hs.maximise")
    refuse_biases(attention, "kim_lower", "sharp_lower, which covers them")
    # The variance of ±1 signs and one zero under uniform weights: an odd number of signs leaves a mean of 1/n.
    spread = (n - 1) / n - (1 / n**2 if n % 2 == 0 else 0.0)
    token = best_origin_token(heads_of(attention))
    return log(math.sqrt((n - 1) / n) * spread * radius**2 * matrix_norm(token.response)), token


def score_gradient_bounds(attention: Attention, head: Head, radius: float) -> tuple[float, float]:
    r"""Bound how fast scores change: :math:`|\partial S_{ij}/\partial x_i|` and :math:`|\partial S_{ij}/\partial x_j|`.

    In plain scores the first is seen only through differences between keys, so a key bias does not count, but beside a
    sink, whose score has no gradient: there it is the radius of a ball that holds zero and the gradients of all others.
    """
    # Rotations leave norms and nothing else of A: one form for each distance, all at most ‖Q‖‖K‖.
    if attention.positions.rotary is not None:
        query_gradient = head.norm_Q * (head.norm_K * radius + float(head.key_bias.norm()))
        return query_gradient, head.norm_K * (head.norm_Q * radius + float(head.query_bias.norm()))
    query_gradient = head.norm_A * radius
    if attention.softcap is not None:
        query_gradient += head.norm_Qb  # a soft cap does not forget a shift of all scores of a row
    elif attention.sink is not None:
        query_gradient = max(query_gradient, (query_gradient + head.norm_Qb) / 2)
    return query_gradient, head.norm_A * radius + float((head.query_bias @ head.K).norm())


def log_enclosing_radius(log_radius: float, bias: float) -> float:
    r"""Return the logarithm of :math:`\max(r, (r+b)/2)`: the smallest ball around one of radius r and a point.

    Its centre is b away from the point: the values of all tokens, and the value zero of a sink.
    """
    return max(log_radius, log_sum((log_radius, log(bias))) - math.log(2))


def _score_terms(attention: Attention, head: Head, rotary: RotaryDistances | None, n: int, radius: float) -> float:
    """Bound the last two terms of one head whose values spread by one; see :func:`score_gradient_bounds`."""
    query, key = score_gradient_bounds(attention, head, radius)
    if rotary is None:
        return query + math.sqrt(n / 2) * key
    # Forms of distances, summed over the rows that see a token; never more than n times the norm of one.
    all_rows = min(rotary.key_gradient(head, radius), math.sqrt(n) * key)
    return rotary.query_gradient(head, radius) + all_rows / math.sqrt(2)  # never more than by norms


def single_plain_head(attention: Attention, theorem: str) -> Head:
    """Return the one head of a map whose scores are ⟨Ax, y⟩ alone, masked causally or not."""
    require_scores_alone(attention, theorem, "hs.maximise")
    refuse_many_heads(attention, theorem, "tied_pair, which measures the whole layer")
    refuse_biases(attention, theorem, "sharp_lower, which covers them")
    require_causal_or_none(attention, theorem, "hs.maximise")
    (head,) = heads_of(attention)
    return head
