"""Scales under which heads are put beside each other: any positive ones give a bound, some a better one."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.rounding import safe_norm

# So often the scales are improved.
ROUNDS = 2
# Scales stay in this range; heads that do nothing would have infinite ones.
RANGE = 1e8


@dataclass(frozen=True, kw_only=True, eq=False)
class Scales:
    r"""Scales :math:`s_h` for three sums over heads, and the norms that stand before them.

    Attributes:
        seen: For :math:`\sum_hB_h\,(\cdot)_h` with the pulls of other tokens.
        seen_factor: :math:`\|[B_h/s_h]_h\|` for them.
        key: The same for a row's own pull.
        key_factor: The norm for them.
        cross: For :math:`\sum_h\alpha^h\langle A_hf,e\rangle`.
        cross_factor: :math:`\min(\|(s_hA_h)_h\|, \|[s_hA_h]_h\|)`.
    """

    seen: Float[Tensor, " heads"]
    seen_factor: float
    key: Float[Tensor, " heads"]
    key_factor: float
    cross: Float[Tensor, " heads"]
    cross_factor: float

    @classmethod
    def of(
        cls,
        B: Float[Tensor, "heads out d"],
        A: tuple[Tensor, Tensor],
        gram: Float[Tensor, "m m"],
        weights: Float[Tensor, "heads n n"],
        values: Float[Tensor, " heads"],
        forms: Float[Tensor, " heads"],
        P: Float[Tensor, "heads n n"],
        keys: Float[Tensor, "heads n d"],
    ) -> "Scales":
        """Choose them."""
        seen, factor = _balanced(B, gram, weights)
        reach = (keys - keys.mean(1, keepdim=True)).norm(dim=-1).amax(1) * P.square().sum(-1).sqrt().amax(1)
        key, cross = _ratio(values, reach), _ratio(values, forms)
        lost = 1e-12 * float((forms * cross).sum())
        over = B / key[:, None, None]
        return cls(
            seen=seen,
            seen_factor=factor,
            key=key,
            key_factor=min(row_norm(over), stack_norm(over)) * (1 + 1e-11),
            cross=cross,
            cross_factor=min(stack_norm(cross[:, None, None] * form) for form in A) + lost,
        )


def row_norm(x: Float[Tensor, "heads a b"]) -> float:
    r"""Return :math:`\|[X_1\cdots X_H]\|`."""
    return safe_norm(x.transpose(0, 1).flatten(1))


def stack_norm(x: Float[Tensor, "heads a b"]) -> float:
    r"""Return :math:`\|(X_h)_h\|`, one block under the other."""
    return safe_norm(x.flatten(0, 1))


def _ratio(a: Float[Tensor, " heads"], b: Float[Tensor, " heads"]) -> Float[Tensor, " heads"]:
    """Return the square root of a quotient, of ordinary size whatever the two are."""
    a, b = a / a.max().clamp_min(1e-300), b / b.max().clamp_min(1e-300)
    return (a.clamp_min(1e-12) / b.clamp_min(1e-12)).sqrt().clamp(1 / RANGE, RANGE)


def _balanced(
    B: Float[Tensor, "heads out d"], gram: Float[Tensor, "m m"], weights: Float[Tensor, "heads n n"]
) -> tuple[Float[Tensor, " heads"], float]:
    """Return scales that make every head count as much on both sides, and the norm that stands before them.

    At the minimum of the product of two largest eigenvalues each head has the same share of both eigenvectors.
    """
    heads, n = weights.shape[:2]
    w = weights.sum((0, 1)).argmax()
    steep = (gram.diagonal().reshape(heads, n) * weights[:, :, w]).sum(1).sqrt()
    s = _ratio(B.flatten(1).norm(dim=1), steep)
    best = (torch.inf, s, torch.inf)
    for _ in range(ROUNDS):
        flat = (B / s[:, None, None]).transpose(0, 1).flatten(1)
        values, vectors = torch.linalg.eigh(flat @ flat.mT)
        size = (s[:, None] * weights[:, :, w].sqrt()).flatten()
        pulls, places = torch.linalg.eigh(size[:, None] * gram * size)
        factor = safe_norm(flat) * (1 + 1e-11)
        best = min(best, (float(values[-1] * pulls[-1]), s, factor), key=lambda x: x[0])
        left = (vectors[:, -1] @ flat).reshape(-1, heads, B.shape[2]).square().sum((0, 2)) / values[-1].clamp_min(
            1e-300
        )
        right = places[:, -1].reshape(heads, n).square().sum(1)
        s = (s * ((left + 1e-3) / (right + 1e-3)) ** 0.25).clamp(1 / RANGE, RANGE)
    _value, s, factor = best
    return s, factor
