"""Theorem 14: attention between largest tokens, for any number of tokens in a ball."""

import dataclasses

from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import refuse_norms, require_attention, require_size
from howsmooth.theory.ball.softmax import log_enclosing_radius, score_gradient_bounds
from howsmooth.theory.heads import combine_heads, heads_of, log, log_sum
from howsmooth.theory.results import Bound, upper_bound


def token_upper(attention: Attention, *, radius: float) -> Bound:
    r"""Bound the Lipschitz constant between largest tokens, :math:`\max_i|e_i|`, for every number of tokens.

    .. math:: |f(X)_i - f(Y)_i| \le \|V\|\,\bigl(1 + 2\|A\|R^2\bigr)\,\max_j|x_j - y_j|

    for all X and Y whose tokens lie in the ball of radius R, masked or not; for measures it is the constant in
    :math:`W_\infty`. Neither :math:`\sqrt n` nor an exponential appears: both come from adding up squares over tokens.
    A query bias b adds :math:`s|K^\top b|R` to one of the two :math:`\|A\|R^2`; beside a sink, biases of keys and
    values count as in :func:`sharp_upper`; under rotary positions :math:`s\|Q\|\|K\|` stands for :math:`\|A\|`.

    Raises:
        AssumptionError: If the radius is not positive, queries or keys are normalised, or the map is not softmax
            attention.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> token_upper(Attention.single_head(A=identity, V=identity), radius=2.0).digits
        '9.0001'
    """
    require_size(1, radius)
    sink = isinstance(attention, Attention) and attention.sink is not None
    plain = dataclasses.replace(attention, sink=None) if sink else attention
    require_attention(plain)
    refuse_norms(plain, "token_upper")
    heads = heads_of(plain)
    # each row's weights are those of a measure, so both score terms see one spread of the values
    gradients = [log(sum(score_gradient_bounds(attention, head, radius))) for head in heads]

    def bound(norm: float, bias: float, gradient: float) -> float:
        spread = log_enclosing_radius(log(norm) + log(radius), bias if sink else 0.0)
        return log_sum((log(norm), spread + gradient))

    mixed = [bound(head.norm_WV, head.norm_Wb, each) for head, each in zip(heads, gradients, strict=True)]
    alone = [
        bound(head.norm_V, float(head.value_bias.norm()), each) for head, each in zip(heads, gradients, strict=True)
    ]
    domain = f"any number of tokens in the ball of radius {radius:g}, largest token"
    return upper_bound(combine_heads(heads, mixed, alone), "token_upper", domain, "ours: rows of a Markov matrix")
