r"""What a forward pass in single precision adds to every stage, bounded a priori.

Executed in floats of unit roundoff :math:`u = 2^{-24}`, a stage puts out :math:`g(\hat x)+\rho` for what it is given,
:math:`\hat x`. A bound on :math:`|\rho|` at every token is one more remainder of Theorem 11, along all directions. Sums
of k products are off by :math:`\gamma_k = ku/(1-ku)` of the sum of absolute values, in any order, fused or not;
exponentials, error functions and hyperbolic tangents by at most four units. Lengths bound all sums of absolute values.
"""

from typing import Any

import numpy as np

Array = Any  # arrays of numpy, and its scalars
UNIT = 2.0**-24
# These formulas add up numbers that are not negative, in double precision.
RAISED = 1 + 1e-9


def gamma(k: int) -> float:
    """Return the relative error of a sum of k products."""
    return k * UNIT / (1 - k * UNIT)


def rounding_errors(stage: Any, step: Any, T: Array, change: dict[str, Array]) -> Array:
    """Bound the rounding errors of a stage at every token, from lengths T of tokens and how far images move at most."""
    kinds = {"norm": _norm, "attention": _attention, "mlp": _mlp, "pooling": _pooling}
    found, size = kinds[step.kind](stage, step, T, change)
    if step.settings.get("residual"):
        found = found + 2 * UNIT * (T + size + found)
    return np.where(np.isfinite(found), found, np.inf) * RAISED


def _bias(step: Any, name: str) -> float:
    return float(np.linalg.norm(step.arrays.get(name, np.zeros(1))))


def _pooling(stage: Any, step: Any, T: Array, change: dict[str, Array]) -> tuple[Array, Array]:
    size = np.abs(stage.weights) @ T
    return gamma(len(T) + 1) * size, size


def _norm(stage: Any, step: Any, T: Array, change: dict[str, Array]) -> tuple[Array, Array]:
    d, u = stage.d, change["u"]
    N = np.where(u < 0.999, stage.length.lower * (1 - u), np.nan)  # the shortest that a centred token gets
    # the mean square may be computed with or without the mean taken off first
    r = gamma(2 * d + 8) * (T / N) ** 2 + 8 * UNIT
    gain = float(stage.gain.size.max())
    found = gain * ((1 + r) * 3 * gamma(d + 1) * T / N + r + 4 * UNIT) + 2 * UNIT * _bias(step, "bias")
    return np.where(r < 0.5, found, np.nan), np.full(len(T), gain + _bias(step, "bias"))


def _attention(stage: Any, step: Any, T: Array, change: dict[str, Array]) -> tuple[Array, Array]:
    at, (heads, n, v) = stage.at, stage.at.v.shape
    parts = {"query": at.q, "key": at.k, "value": at.v}
    Q, K, V = (np.linalg.norm(x.size, axis=-1) + change[name] for name, x in parts.items())
    d, k = at.projections[0].shape[1:]
    scale = abs(step.settings["scale"])
    biases = (scale * _bias(step, "query_bias"), _bias(step, "key_bias"), _bias(step, "value_bias"))
    eq, ek, ev = (
        gamma(d + 4) * (np.linalg.norm(x.size, axis=(1, 2))[:, None] * T + b)
        for x, b in zip(at.projections, biases, strict=True)
    )
    q, ek_j, K_j = (Q + eq)[:, :, None], ek[:, None, :], (K + ek)[:, None, :]
    scores = Q[:, :, None] * ek_j + eq[:, :, None] * K_j + gamma(k + 4) * q * K_j
    worst = scores.max(-1) + 4 * UNIT * (q * K_j).max(-1)  # also of the difference to the largest score
    weights = np.expm1(2 * worst + 2 * gamma(n + 16))  # relative
    most, lost = V.max(-1)[:, None], ev.max(-1)[:, None]
    each = weights * most + (1 + weights) * (lost + gamma(n + 2) * (most + lost))
    together, side = np.linalg.norm(each, axis=0), np.linalg.norm(most + lost, axis=0)
    W, bias = float(np.linalg.norm(at.output.size)), _bias(step, "output_bias")
    return W * together + gamma(heads * v + 2) * (W * (side + together) + bias), W * (side + together) + bias


def _mlp(stage: Any, step: Any, T: Array, change: dict[str, Array]) -> tuple[Array, Array]:
    h, d = step.arrays["up"].shape
    rows, bias = np.linalg.norm(step.arrays["up"], axis=1), np.abs(step.arrays.get("up_bias", np.zeros(h)))
    y = stage.hidden.size + change["units"]
    wrong = gamma(d + 2) * (rows * T[:, None] + bias)
    # slopes are at most 1.13, and activations no longer than what they are given
    units = np.linalg.norm(1.13 * wrong + 8 * UNIT * (y + wrong), axis=1)
    W, size = float(np.linalg.norm(step.arrays["down"])), np.linalg.norm(y, axis=1) + units
    bias = _bias(step, "down_bias")
    return W * units + gamma(h + 2) * (W * size + bias), W * size + bias
