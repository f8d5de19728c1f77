"""Theorem 2 and the paper's inputs: built from the weights on the CPU, measured where the layer lives."""

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from howsmooth.domains.domain import Sphere, in_ball
from howsmooth.domains.norm_image import HasImage, LayerNormImage, StretchedSphere
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.rounding import DOMAIN_UNITS
from howsmooth.spectral.operators import HALF
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.assumptions import has_key_bias, has_query_bias, require_causal_or_none, require_size
from howsmooth.theory.ball.softmax import origin_token_value, single_plain_head
from howsmooth.theory.heads import heads_of, total_value
from howsmooth.theory.linalg.matrix_norms import matrix_norm
from howsmooth.theory.results import LARGEST, Witness
from howsmooth.theory.worst_inputs.eigenvector import steepest_eigenvalue
from howsmooth.theory.worst_inputs.tied_layer import (
    PROMISING,
    LayerPair,
    pairs_in,
    pairs_in_ball,
    pairs_of_heads,
    pairs_on_sphere,
    require_tied,
)

# The measured constant of a witness: a bracket of this relative width.
RTOL = 1e-3


def equal_tokens(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return n tokens at the origin.

    There :math:`J = P\otimes\sum_hW_hV_h` with uniform weights, so the constant is :math:`\|\sum_hW_hV_h\|`, times
    the norm of the Cesàro operator when masked. The best input as long as :math:`\|A\|R^2` is small.

    Raises:
        AssumptionError: If weights are not uniform at the origin: biases under rotary positions or a soft cap, masks
            other than the causal one, relative biases, token weights.
    """
    require_size(n, radius)
    require_causal_or_none(attention, "equal_tokens", "hs.maximise")
    tilted = (attention.positions.relative_bias, attention.positions.position_bias, attention.weights)
    if any(x is not None for x in tilted):
        raise AssumptionError("equal_tokens needs uniform weights at the origin; use hs.maximise.", field="attention")
    if attention.positions.rotary is not None and _turned_at_the_origin(attention):
        raise AssumptionError(
            "equal_tokens needs uniform weights at the origin, rotary biases tilt them.", field="attention"
        )
    averaging = cesaro_norm(n) if attention.positions.causal else 1.0
    formula = averaging * matrix_norm(total_value(heads_of(attention)))
    tokens = torch.zeros(n, attention.d, dtype=torch.float64)
    return measured_at(attention, tokens, "equal_tokens", in_ball(n, radius), formula)


def _turned_at_the_origin(attention: Attention) -> bool:
    """Tell whether queries and keys at the origin are both other than zero: by a bias, or by that of their norm."""
    norms = (attention.query_norm, attention.key_norm)
    query, key = (norm is not None and norm.bias is not None and bool(norm.bias.any()) for norm in norms)
    return (query or has_query_bias(attention)) and (key or has_key_bias(attention))


def cesaro_norm(n: int) -> float:
    r"""Return the norm of :math:`x\mapsto(\tfrac1i\sum_{j\le i}x_j)_i`, which tends to 2.

    The inverse is bidiagonal, with i on the diagonal and −i beside it; its smallest singular value is the root of the
    smallest eigenvalue of a tridiagonal matrix.

    Example:
        >>> round(cesaro_norm(10), 4)
        1.4101
    """
    # in O(n), where the norm of a dense n × n matrix would take O(n³)
    i = np.arange(1.0, n + 1)
    smallest = eigh_tridiagonal(i**2 + (i - 1) ** 2, -(i[:-1] ** 2), eigvals_only=True, select="i", select_range=(0, 0))
    return 1 / math.sqrt(float(smallest[0]))


def two_point(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return the paper's input: one token far from all others, along a real eigenvector u of A.

    :math:`x_1 = -Ru`, others :math:`Ru`, when :math:`\gamma = -\gamma_\delta`; :math:`x_1 = Ru`, others
    :math:`Ru/2`, when :math:`\gamma = \gamma_1/8`. Moving :math:`x_1` along t moves row i > 1 by

    .. math:: P_iV(I + \kappa_iuu^\top)t,\qquad P_i = \frac1{1+N_ie^{-2\gamma R^2}},\quad \kappa_i = 2\gamma R^2(1-P_i)

    where row i sees :math:`N_i` of the others: n − 1, or i − 1 when masked.

    Raises:
        AssumptionError: If A has no real eigenvalue (:func:`tied_pair` needs none); for several heads; if n < 2.
    """
    require_size(n, radius, least=2)
    head = single_plain_head(attention, "two_point")
    best = steepest_eigenvalue(head, "tied_pair")
    u = best.direction
    # A masked row i sees i − 1 tokens beside the first; unmasked, all others.
    others = torch.arange(1, n) if attention.positions.causal else torch.full((n - 1,), n - 1)
    exponent = 2 * best.gamma * radius**2
    P = 1 / (1 + others.double() * math.exp(-exponent))
    kappa = exponent * (1 - P)
    Vu = head.mixed @ u

    def response(t: Tensor) -> float:
        rows = P[:, None] * (head.mixed @ t + (kappa * (u @ t))[:, None] * Vu)
        return float(rows.norm())

    # along u the slope is largest; along the top of V(I + κuuᵀ) the answer of the last row is
    V_top = torch.linalg.svd(head.mixed + kappa[-1] * Vu[:, None] * u, full_matrices=False).Vh[0]
    formula = max(response(t) for t in (u, V_top))
    tokens = torch.cat((best.first * u[None], (best.others * u).expand(n - 1, -1))) * radius
    return measured_at(attention, tokens, "two_point", in_ball(n, radius), formula)


def origin_token(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return the input of ``kim_lower``: a token at the origin, which comes last, the others at :math:`\pm Ru`."""
    log_value, token = origin_token_value(attention, n, radius)
    formula, u = math.exp(log_value) if log_value < LARGEST else math.inf, token.direction
    signs = torch.tensor([(-1.0) ** i for i in range(n - 1)] + [0.0], dtype=u.dtype, device=u.device)
    return measured_at(attention, radius * signs[:, None] * u, "origin_token", in_ball(n, radius), formula)


def tied_pair(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return the input of ``sharp_lower``: two tokens tie for the attention of all others.

    :math:`x_{1,2} = R(\cos\theta\,w\pm\sin\theta\,z)`, others :math:`re`, with :math:`w = Ae/|Ae|`, :math:`z\perp w`;
    e, r, θ, z are optimised. Several heads: the inputs of those that promise most by their norms, and one pair tied in
    all of them, measured on the whole layer; the best is returned. Under rotary positions every other token asks
    differently, see :ref:`the theory <rotary-pair>`.

    Raises:
        AssumptionError: If n < 3 or d < 2, if A = 0, or if scores are not :math:`\langle Ax,y\rangle` plus a query
            bias, turned or not.
    """
    require_size(n, radius, least=3)
    pairs = pairs_in_ball(attention, n, radius, heads=PROMISING)
    return _best(attention, pairs, "tied_pair", in_ball(n, radius))


def tied_pairs(attention: Attention, n: int, radius: float) -> tuple[Witness, ...]:
    """Return the tied pair of every head that has one, each measured on the whole layer."""
    require_size(n, radius, least=3)
    pairs = pairs_of_heads(attention, n, radius)
    return tuple(_tied(attention, pair, "tied_pair", in_ball(n, radius)) for pair in pairs)


def tied_pair_on_sphere(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return the best tied pair whose tokens all have :math:`|x_i| = R`, as after RMSNorm without gain."""
    require_size(n, radius, least=3)
    pairs = pairs_on_sphere(attention, n, radius)
    return _best(attention, pairs, "tied_pair_on_sphere", Sphere(radius).describe(n))


def tied_pair_on_image(attention: Attention, n: int, norm: HasImage) -> Witness:
    r"""Return the best tied pair among the outputs of a LayerNorm or RMSNorm (as its eps vanishes).

    Tokens are :math:`\beta + \alpha\circ z` with :math:`|z| = \sqrt d` and, for LayerNorm, :math:`z\perp 1`. The
    constant is that of attention alone, at tokens that the norm can produce.
    """
    require_size(n, 1.0, least=3)
    require_tied(attention, turned=False)
    image, d = LayerNormImage(norm), norm.image.gain.numel()
    if d != attention.d:
        raise AssumptionError(f"the norm must have dimension {attention.d} as attention has, got {d}.", field="norm")
    pairs = pairs_in(attention, n, StretchedSphere.image(norm.image))
    return _best(attention, pairs, "tied_pair_on_image", image.describe(n))


def candidates(attention: Attention, n: int, radius: float) -> tuple[Witness, ...]:
    """Return every input of this file that applies in a ball."""
    builders: tuple[Callable[[Attention, int, float], Witness], ...] = (
        equal_tokens,
        two_point,
        origin_token,
        tied_pair,
    )
    found = []
    for build in builders:
        try:
            found.append(build(attention, n, radius))
        except AssumptionError:
            continue  # the theorem does not apply; the table of bounds says why
    return tuple(found)


def measured_at(attention: Attention, tokens: Tensor, name: str, domain: str, formula: float) -> Witness:
    """Measure the constant of the whole layer at some tokens, as they are after rounding, in float64.

    Why the formula does not count where it says more: it assumes an exact tie, which rounding breaks.
    """
    dtype = torch.float32 if attention.dtype in HALF else attention.dtype
    # so many units in the last place below: rounding leaves tokens inside
    inside = 1 - DOMAIN_UNITS * torch.finfo(dtype).eps
    tokens = (inside * tokens).to(dtype)
    generator = torch.Generator().manual_seed(0)
    wide = attention.to(torch.float64, "cpu")
    found = local_lipschitz(wide, tokens.to("cpu", torch.float64), rtol=RTOL, seed=generator)
    proven = formula if formula <= float(found.upper) else None
    return Witness(tokens=tokens.to(attention.query.device), measured=found, name=name, domain=domain, formula=proven)


def _tied(attention: Attention, pair: LayerPair, name: str, domain: str) -> Witness:
    return measured_at(attention, pair.X, name, domain, math.exp(pair.log_value))


def _best(attention: Attention, pairs: list[LayerPair], name: str, domain: str) -> Witness:
    return max((_tied(attention, pair, name, domain) for pair in pairs), key=lambda witness: witness.value)
