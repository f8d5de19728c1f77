r"""Theorem 1, rotary positions: the form of a score depends on a distance, :math:`A_\delta = K^\top\Theta_\delta Q`.

:math:`s\|Q\|\|K\|` bounds every one of them, but rotations that turn little within n tokens leave most of what cancels
in :math:`K^\top Q`. So every distance that occurs has a bound of its own.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Rotary
from howsmooth.theory.heads import Head
from howsmooth.theory.linalg.matrix_norms import matrix_norm, triangular_factor

# Longer sequences have too many distances to look at; their bounds have norms of queries and keys instead.
LONGEST = 4096
# So many distances are worked on at a time.
CHUNK = 256
# Columns of an unmasked layer meet different distances: they are taken in so many groups.
GROUPS = 4


def distances(attention: Attention, n: int) -> list[range]:
    r"""Return ranges of distances i − j, such that every token j meets those of one of them, each at most once.

    Masked, a token is seen from :math:`0\dots n-1` places behind it at most, so one range will do. None where positions
    are given one by one, and where sequences are too long.
    """
    positions = attention.positions
    if positions.rotary is None or positions.rotary.positions is not None or n > LONGEST:
        return []
    # Θ_iᵀΘ_j depends on i − j alone, so n tokens have fewer than 2n forms.
    furthest = n if positions.window is None else min(n, positions.window)
    if positions.causal:
        return [range(furthest)]
    # Unmasked, token j sees distances from −j to n − 1 − j: neighbouring columns share nearly all of them.
    ends = sorted({round(n * g / GROUPS) for g in range(GROUPS + 1)})
    groups = itertools.pairwise(ends)
    return [range(max(1 - last, 1 - furthest), min(n - first, furthest)) for first, last in groups]


@dataclass(kw_only=True, eq=False)
class RotaryDistances:
    """Rotary positions, and the distances that occur among so many tokens.

    Not a frozen value: the forms of a head are decomposed once, for the bound of that head and for that of the layer.
    """

    rotary: Rotary  # the positions
    groups: list[range]  # ranges of distances, see :func:`distances`; never none
    # the results of :func:`largest_forms` so far
    known: dict[Head, tuple[float, float]] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, attention: Attention, n: int) -> "RotaryDistances | None":
        """Return the distances among n tokens; ``None`` where bounds do not depend on them."""
        rotary, groups = attention.positions.rotary, distances(attention, n)
        return cls(rotary=rotary, groups=groups) if rotary is not None and groups else None

    def query_gradient(self, head: Head, radius: float) -> float:
        r"""Bound :math:`|\partial S_{ij}/\partial x_i|` in a ball.

        .. math:: \max_\delta\|A_\delta\|R + \max_\delta|Q^\top\Theta_\delta^\top b_k|
        """
        if head not in self.known:
            largest = [largest_forms(head, self.rotary, group) for group in self.groups]
            self.known[head] = max(form for form, _shift in largest), max(shift for _form, shift in largest)
        form, shift = self.known[head]
        return head.norm_Q * (form * head.norm_K * radius + shift * float(head.key_bias.norm()))

    def key_gradient(self, head: Head, radius: float) -> float:
        r"""Bound :math:`\bigl(\sum_i|\partial S_{ij}/\partial x_j|^2\bigr)^{1/2}` in a ball, along any one direction.

        .. math:: R\,\Bigl\|\sum_\delta A_\delta A_\delta^\top\Bigr\|^{1/2} + \Bigl\|\sum_\delta
                  K^\top\Theta_\delta b_q(K^\top\Theta_\delta b_q)^\top\Bigr\|^{1/2}
        """
        # Units first: a sum of n squares of large norms would leave the range of floats.
        keys, found = _unit(head.K), 0.0
        for group in self.groups:
            parts = (gram_factor(x, keys, self.rotary, group) for x in (_unit(head.Q), _unit(head.query_bias[:, None])))
            form, shift = (matrix_norm(factor) + error for factor, error in parts)
            found = max(found, head.norm_Q * form * radius + shift * float(head.query_bias.norm()))
        return head.norm_K * found


def largest_forms(head: Head, rotary: Rotary, group: range) -> tuple[float, float]:
    r"""Return the largest :math:`\|A_\delta\|_2` and :math:`|Q^\top\Theta_\delta^\top b_k|` of some distances.

    In units of :math:`s\|Q\|\|K\|` and :math:`s\|Q\||b_k|`, so that nothing overflows.
    """
    queries, keys, bias = _unit(head.reduced_Q), _unit(head.reduced_K), _unit(head.key_bias[None])
    form, shift = 0.0, 0.0
    for rotated in _rotated(queries, rotary, group):
        form = max(form, float(torch.linalg.matrix_norm(keys.mT @ rotated, 2).max()))
        shift = max(shift, float((bias @ rotated).norm(dim=-1).max()))
    error = _rotation_error(head.Q, group)
    return min(form + error, 1.0), min(shift + error, 1.0)


def gram_factor(
    queries: Float[Tensor, "k m"], keys: Float[Tensor, "k d"], rotary: Rotary, group: Sequence[float]
) -> tuple[Float[Tensor, "r d"], float]:
    r"""Return F with :math:`F^\top F = \sum_\delta A_\delta A_\delta^\top`, and what rounding took from its norm.

    :math:`\sum_\delta A_\delta A_\delta^\top = K^\top(\sum_\delta\Theta_\delta QQ^\top\Theta_\delta^\top)K`: the sum is
    gathered in k dimensions, by its triangular factor, which loses nothing by squares.
    """
    # R of a growing stack: the factor of all distances so far is updated by QR, and squares are never formed.
    factor = queries.new_zeros(0, len(queries))
    for rotated in _rotated(triangular_factor(queries), rotary, group):
        factor = torch.linalg.qr(torch.cat((factor, rotated.mT.flatten(0, 1)))).R
    error = _rotation_error(queries, group) * math.sqrt(len(group)) * float(queries.norm()) * float(keys.norm())
    return factor @ keys, error


def _unit(x: Float[Tensor, "a b"]) -> Float[Tensor, "a b"]:
    """Divide by the norm; nothing stays nothing."""
    size = matrix_norm(x)
    return x / size if size > 0 else x


def _rotated(queries: Float[Tensor, "k r"], rotary: Rotary, group: Sequence[float]) -> list[Float[Tensor, "c k r"]]:
    r"""Return :math:`\Theta_\delta Q` for every distance, some at a time."""
    k = len(queries)
    found = []
    for chunk in torch.tensor(group).split(CHUNK):
        rotation = dataclasses.replace(rotary, positions=chunk).rotation(len(chunk), k, queries)
        found.append(rotation(queries.mT[:, None].expand(-1, len(chunk), -1)).permute(1, 2, 0))
    return found


def _rotation_error(x: Float[Tensor, "k d"], group: Sequence[float]) -> float:
    """Return the rounding of angles, and of sums of so many products, in units of the norms of the factors."""
    return 4 * (len(group) + sum(x.shape)) * torch.finfo(x.dtype).eps
