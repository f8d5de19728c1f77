"""Two tokens that tie in a whole layer: those of its heads, and one pair tied in all of them."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.frame import Frame
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.theory.heads import Head, heads_of, log
from howsmooth.theory.worst_inputs.tied_pair import TiedPair, best_pair

# So many heads of a layer are looked at for its best tied pair: those with the largest product of norms.
PROMISING = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerPair:
    r"""The tokens, the perturbation that moves their outputs, and the logarithm of how far.

    Attributes:
        X: The tokens.
        E: The unit perturbation, of the pair alone.
        log_value: The logarithm of what the pair proves of the whole layer, a lower bound.
    """

    X: Float[Tensor, "n d"]
    E: Float[Tensor, "n d"]
    log_value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class TiedPairs(ABC):
    """The tied pairs of one layer, on sequences of n tokens in a ball."""

    attention: Attention
    n: int
    radius: float

    @abstractmethod
    def of_heads(self) -> list[LayerPair]:
        """Return the best pair of every head that has one."""

    @abstractmethod
    def in_ball(self, heads: int | None) -> list[LayerPair]:
        """Return the pairs among which the best is, from so many heads that promise most."""

    @abstractmethod
    def on_sphere(self) -> list[LayerPair]:
        """Return the pairs among which the best is whose tokens are all as long as the ball allows."""


class PlainTiedPairs(TiedPairs):
    """Pairs of a layer whose scores do not depend on positions: all others are copies of one token."""

    def of_heads(self) -> list[LayerPair]:
        """Return the best pair of every head that has one."""
        return pairs_in(self.attention, self.n, self._frame(solid=True))

    def in_ball(self, heads: int | None) -> list[LayerPair]:
        """Return the pairs of so many heads, and one tied in all of them."""
        frame = self._frame(solid=True)
        pairs = best_pairs(self.attention, self.n, frame, heads=heads)
        pairs = [*pairs, *tied_in_all(self.attention, pairs, self.n, frame)]
        return [_in_layer(self.attention, pair, self.n) for pair in pairs]

    def on_sphere(self) -> list[LayerPair]:
        """Return the best pair of every head whose tokens are all of one length."""
        return pairs_in(self.attention, self.n, self._frame(solid=False))

    def _frame(self, *, solid: bool) -> Frame:
        return Frame.ball(self.attention.d, self.radius, solid=solid)


def pairs_in(attention: Attention, n: int, frame: Frame) -> list[LayerPair]:
    """Return the best pair of every head that has one, anywhere."""
    return [_in_layer(attention, pair, n) for pair in best_pairs(attention, n, frame)]


def _in_layer(attention: Attention, pair: TiedPair, n: int) -> LayerPair:
    return LayerPair(X=pair.tokens(n), E=pair.perturbation(n), log_value=proven(attention, pair, n))


def best_pairs(attention: Attention, n: int, frame: Frame, *, heads: int | None = None) -> list[TiedPair]:
    """Find the best tied pair of every head that has one; heads without scores or values have none.

    With ``heads``, only so many are looked at: those that promise most, by the product of their two norms.
    """
    pairs, refusal = [], None
    promising = heads_of(attention)
    if heads is not None:
        promising = tuple(sorted(promising, key=lambda head: head.norm_A * head.norm_WV, reverse=True)[:heads])
    for head in promising:
        try:
            pairs.append(best_pair(head, frame, n))
        except AssumptionError as error:
            refusal = error
    if refusal is not None and not pairs:
        raise refusal
    return pairs


def tied_in_all(attention: Attention, pairs: list[TiedPair], n: int, frame: Frame) -> list[TiedPair]:
    r"""Turn the best of some pairs so that it ties in all heads at once; nothing where that is not possible.

    The pair is :math:`c\pm z`. With z beside c and every :math:`g_h = A_hy + K_h^\top b_h`, y the copies' place, all
    heads answer together to the best direction:

    .. math:: \sqrt{2(n-2)}\,\Bigl\|\sum_hp_h\,(W_hV_hz)\,g_h^\top\Bigr\|,\qquad
              p_h = \frac1{2+(n-2)e^{-\langle g_h,\,c-y\rangle}}.

    In a ball or on a sphere only: there z may turn without leaving the domain.
    """
    heads = heads_of(attention)
    round_ball = not frame.centred and not bool(frame.centre.any()) and bool((frame.stretch == frame.stretch[0]).all())
    if len(heads) < 2 or len(heads) + 2 > attention.d or not round_ball:
        return []
    pair = max(pairs, key=lambda found: found.log_value)
    middle, half = (pair.first + pair.second) / 2, (pair.first - pair.second) / 2
    g = torch.stack([(head.Q @ pair.copies + head.query_bias) @ head.K for head in heads])
    known = torch.cat((g, middle[None]))
    known = known / known.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    basis, values, _right = torch.linalg.svd(known.mT, full_matrices=False)
    basis = basis[:, values > 1e-12]
    z = half
    for _twice in range(2):  # what rounding leaves of the scores after one projection would break the tie
        z = z - basis @ (basis.mT @ z)
    if not float(z.norm()) > 1e-6 * float(half.norm()):
        return []
    z = z * (half.norm() / z.norm())
    share = 1 / (2 + (n - 2) * torch.exp(-(g @ (middle - pair.copies)).clamp_min(-700.0)))
    parts = [p * torch.outer(_moved(head, z), pull) for p, head, pull in zip(share, heads, g, strict=True)]
    response = torch.cat(parts) if attention.output is None else torch.stack(parts).sum(0)
    _left, sizes, right = torch.linalg.svd(response, full_matrices=False)
    log_value = 0.5 * math.log(2 * (n - 2)) + log(float(sizes[0]))
    return [TiedPair(first=middle + z, second=middle - z, copies=pair.copies, direction=right[0], log_value=log_value)]


def _moved(head: Head, z: Float[Tensor, " d"]) -> Float[Tensor, " out"]:
    return head.V @ z if head.W is None else head.W @ (head.V @ z)


def proven(attention: Attention, pair: TiedPair, n: int) -> float:
    """Return the logarithm of the bound: the formula for one head, the response to the same direction for several."""
    if attention.layout.heads == 1:
        return pair.log_value
    wide = attention.to(torch.float64, "cpu")
    return log(float(wide.jacobian(pair.tokens(n)).jvp(pair.perturbation(n)).norm()))
