"""Inputs that attain the lower bounds: built from the weights, measured on the whole layer."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.norms import Norm
from howsmooth.spectral.operators import HALF
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.assumptions import (
    has_key_bias,
    has_query_bias,
    require_causal_or_none,
    require_size,
)
from howsmooth.theory.discrete import in_ball, quiet_value, single_plain_head
from howsmooth.theory.eigenvalues import steepest_eigenvalue
from howsmooth.theory.heads import heads_of, matrix_norm, total_value
from howsmooth.theory.results import LARGEST, Witness
from howsmooth.theory.tied import Frame, TiedPair, best_pairs, require_tied
from howsmooth.theory.tied import proven as proven_by

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
    if attention.positions.relative_bias is not None or attention.weights is not None:
        raise AssumptionError("equal_tokens needs uniform weights at the origin; use hs.maximise.")
    if attention.positions.rotary is not None and has_key_bias(attention) and has_query_bias(attention):
        raise AssumptionError("equal_tokens needs uniform weights at the origin, rotary biases tilt them.")
    averaging = cesaro_norm(n) if attention.positions.causal else 1.0
    formula = averaging * matrix_norm(total_value(heads_of(attention)))
    tokens = torch.zeros(n, attention.d, dtype=torch.float64, device=attention.query.device)
    return measured_at(attention, tokens, "equal_tokens", in_ball(n, radius), formula)


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
    others = torch.arange(1, n) if attention.positions.causal else torch.full((n - 1,), n - 1)
    exponent = 2 * best.gamma * radius**2
    P = 1 / (1 + others.double() * math.exp(-exponent))
    kappa = exponent * (1 - P)
    Vu = head.mixed @ u

    def response(t: Tensor) -> float:
        rows = P[:, None] * (head.mixed @ t + (kappa * (u @ t))[:, None] * Vu)
        return float(rows.norm())

    V_top = torch.linalg.svd(head.mixed + kappa[-1] * Vu[:, None] * u, full_matrices=False).Vh[0]
    formula = max(response(t) for t in (u, V_top))
    tokens = torch.cat((best.far * u[None], (best.near * u).expand(n - 1, -1))) * radius
    return measured_at(attention, tokens, "two_point", in_ball(n, radius), formula)


def quiet_token(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return the input of ``kim_lower``: a token at the origin, which comes last, the others at :math:`\pm Ru`."""
    log_value, token = quiet_value(attention, n, radius)
    formula, u = math.exp(log_value) if log_value < LARGEST else math.inf, token.direction
    signs = torch.tensor([(-1.0) ** i for i in range(n - 1)] + [0.0], dtype=u.dtype, device=u.device)
    return measured_at(attention, radius * signs[:, None] * u, "quiet_token", in_ball(n, radius), formula)


def tied_pair(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return the input of ``sharp_lower``: two tokens tie for the attention of all others.

    :math:`x_{1,2} = R(\cos\theta\,w\pm\sin\theta\,z)`, others :math:`re`, with :math:`w = Ae/|Ae|`, :math:`z\perp w`;
    e, r, θ, z are optimised. Several heads: the best head's input, measured on the whole layer.

    Raises:
        AssumptionError: If n < 3 or d < 2, if A = 0, or if scores are not :math:`\langle Ax,y\rangle` plus a query
            bias.
    """
    return max(tied_pairs(attention, n, radius), key=lambda witness: witness.value)


def tied_pairs(attention: Attention, n: int, radius: float) -> tuple[Witness, ...]:
    """Return the tied pair of every head that has one, each measured on the whole layer."""
    require_size(n, radius, least=3)
    pairs = best_pairs(attention, n, partial(Frame.ball, radius=radius, solid=True))
    return tuple(_tied(attention, pair, n, "tied_pair", in_ball(n, radius)) for pair in pairs)


def tied_pair_on_sphere(attention: Attention, n: int, radius: float) -> Witness:
    r"""Return the best tied pair whose tokens all have :math:`|x_i| = R`, as after RMSNorm without gain."""
    require_size(n, radius, least=3)
    pairs = best_pairs(attention, n, partial(Frame.ball, radius=radius, solid=False))
    return _best(attention, pairs, n, "tied_pair_on_sphere", on_sphere(n, radius))


def tied_pair_on_image(attention: Attention, n: int, norm: Norm) -> Witness:
    r"""Return the best tied pair among the outputs of a LayerNorm or RMSNorm (as its eps vanishes).

    Tokens are :math:`\beta + \alpha\circ z` with :math:`|z| = \sqrt d` and, for LayerNorm, :math:`z\perp 1`. The
    constant is that of attention alone, at tokens that the norm can produce.
    """
    require_size(n, 1.0, least=3)
    require_tied(attention)
    if norm.gain.numel() != attention.d:
        raise AssumptionError(f"the norm must have dimension {attention.d} as attention has, got {norm.gain.numel()}.")
    pairs = best_pairs(attention, n, lambda _head: Frame.image(norm))
    return _best(attention, pairs, n, "tied_pair_on_image", f"{n} outputs of a {type(norm).__name__}")


def candidates(attention: Attention, n: int, radius: float) -> tuple[Witness, ...]:
    """Return every input of this file that applies in a ball."""
    builders: tuple[Callable[[Attention, int, float], Witness], ...] = (equal_tokens, two_point, quiet_token, tied_pair)
    found = []
    for build in builders:
        try:
            found.append(build(attention, n, radius))
        except AssumptionError:
            continue  # the theorem does not apply; the table of bounds says why
    return tuple(found)


def cesaro_norm(n: int) -> float:
    r"""Return the norm of :math:`x\mapsto(\tfrac1i\sum_{j\le i}x_j)_i`, which tends to 2.

    The inverse is bidiagonal, with i on the diagonal and −i beside it; its smallest singular value is the root of the
    smallest eigenvalue of a tridiagonal matrix.

    Example:
        >>> round(cesaro_norm(10), 4)
        1.4101
    """
    i = np.arange(1.0, n + 1)
    smallest = eigh_tridiagonal(i**2 + (i - 1) ** 2, -(i[:-1] ** 2), eigvals_only=True, select="i", select_range=(0, 0))
    return 1 / math.sqrt(float(smallest[0]))


def on_sphere(n: int, radius: float) -> str:
    """Say where tokens lie."""
    return f"{n} tokens on the sphere of radius {radius:g}"


def measured_at(attention: Attention, tokens: Tensor, name: str, domain: str, formula: float) -> Witness:
    """Measure the constant of the whole layer at some tokens, in its own precision (at least float32)."""
    dtype = torch.float32 if attention.dtype in HALF else attention.dtype
    tokens = tokens.to(dtype)
    generator = torch.Generator(device=tokens.device).manual_seed(0)
    estimate = local_lipschitz(attention.to(dtype), tokens, rtol=RTOL, generator=generator)
    proven = formula if math.isfinite(formula) else None  # beyond the largest float a formula proves nothing
    return Witness(tokens=tokens, measured=estimate, name=name, domain=domain, formula=proven)


def _tied(attention: Attention, pair: TiedPair, n: int, name: str, domain: str) -> Witness:
    return measured_at(attention, pair.tokens(n), name, domain, math.exp(proven_by(attention, pair, n)))


def _best(attention: Attention, pairs: list[TiedPair], n: int, name: str, domain: str) -> Witness:
    return max((_tied(attention, pair, n, name, domain) for pair in pairs), key=lambda witness: witness.value)
