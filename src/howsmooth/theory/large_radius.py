"""Theorem 6: tokens pushed to infinity; every token attends to one other, and the constant has a limit."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.markup import strict_json
from howsmooth.theory.assumptions import refuse_biases, refuse_many_heads, require_scores_alone
from howsmooth.theory.at_input.head_at_input import HeadAtInput, heads_at_input
from howsmooth.theory.heads import log, on_cpu
from howsmooth.theory.results import LARGEST
from howsmooth.validation import tokens_for


@dataclass(frozen=True, kw_only=True)
class LargeRadiusLimit:
    r"""The limit of :math:`\|D_{RX}f\|` as R grows, and how fast it is approached.

    Attributes:
        value: :math:`\|V\|\,(\max_j\#\{i : j_i = j\})^{1/2}`.
        gap: The smallest difference between the largest and the second largest score of a row at R = 1.
        followers: How many tokens attend to the most attended one.
        length: The number of tokens.
        norm_V: :math:`\|V\|`.
        norm_A: :math:`\|A\|`.
        spread: The largest distance between two tokens at R = 1.
        steepness: :math:`\max_i|Ax_i|` at R = 1.
    """

    value: float
    gap: float
    followers: int
    length: int
    norm_V: float
    norm_A: float
    spread: float
    steepness: float

    def error(self, radius: float) -> float:
        r"""Bound the distance between :math:`\|D_{RX}f\|` and the limit at R = ``radius``.

        .. math:: \|V\|\,\varepsilon\,\bigl(\sqrt{2n} + \|A\|D^2R^2 + \sqrt{2n}\,\max_i|Ax_i|\,D\,R^2\bigr),\qquad
                  \varepsilon = (n-1)\,e^{-\mathrm{gap}\,R^2}

        where D is the largest distance between two tokens.
        """
        if self.length == 1:
            return 0.0
        n, square = self.length, radius**2
        # the weight of all tokens but the chosen one, in logarithms: the exponential vanishes for large radii
        log_strays = math.log(n - 1) - self.gap * square
        size = math.sqrt(2 * n) * (1 + self.steepness * self.spread * square) + self.norm_A * self.spread**2 * square
        log_error = log_strays + log(self.norm_V * size)
        return math.exp(log_error) if log_error < LARGEST else math.inf

    def __repr__(self) -> str:
        """Show the limit and the gap."""
        return f"LargeRadiusLimit: ‖D_RX f‖ → {self.value:.5g}, gap {self.gap:.5g}, error(R) = O(R² exp(−gap·R²))"

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json({"value": self.value, "gap": self.gap, "followers": self.followers, "n": self.length})


def large_radius_limit(attention: Attention, X: Float[Tensor, "n d"]) -> LargeRadiusLimit:
    r"""Return the limit of the local constant at :math:`RX` as :math:`R\to\infty`.

    If every row has a unique largest score, :math:`j_i = \arg\max_j\langle Ax_i,x_j\rangle`, weights become one-hot and

    .. math:: \|D_{RX}f\| \to \|V\|\,\bigl(\max_j\#\{i : j_i = j\}\bigr)^{1/2} \le \|V\|\sqrt n.

    Masks restrict the arg max to what a token sees.

    Raises:
        AssumptionError: If two scores of a row tie (there the constant grows like R²: ``tied_pair``), for several
            heads, or if scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> f = Attention.single_head(A=identity, V=identity)
        >>> large_radius_limit(f, torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)).followers
        2
    """
    refuse_many_heads(attention, "the large-radius limit", "hs.local_lipschitz at growing radii")
    require_scores_alone(attention, "the large-radius limit", "hs.local_lipschitz at growing radii")
    refuse_biases(attention, "the large-radius limit", "hs.local_lipschitz at growing radii")
    mask = attention.positions.mask
    if mask is not None and mask.is_floating_point():
        raise AssumptionError("the large-radius limit takes boolean masks, got an additive one.", field="attention")
    X = tokens_for(X, attention)
    (alone,) = heads_at_input(attention, X)
    view = alone.mixed()
    gap, chosen = _gap(view)
    # In the limit P is a 0–1 matrix with one entry in each row; its norm is the root of its fullest column.
    followers = int(chosen.bincount().max())
    tokens = on_cpu(X)
    return LargeRadiusLimit(
        value=view.value_norm * math.sqrt(followers),
        gap=gap,
        followers=followers,
        length=tokens.shape[0],
        norm_V=view.value_norm,
        norm_A=view.head.norm_A,
        spread=float(torch.cdist(tokens, tokens, compute_mode="donot_use_mm_for_euclid_dist").max()),
        steepness=float((view.q @ view.head.K).norm(dim=-1).max()),
    )


def _gap(view: HeadAtInput) -> tuple[float, Tensor]:
    """Return the smallest gap of a row, and the largest score's place in every row."""
    scores = (view.q @ view.k.mT).masked_fill(view.log_P == -torch.inf, -torch.inf)
    chosen = scores.argmax(-1)
    if scores.shape[1] == 1:
        return math.inf, chosen
    first, second = scores.topk(2, dim=-1).values.unbind(-1)
    # a tie up to rounding has no limit: there the derivative grows with the radius
    gaps = first - second
    row = int(gaps.argmin())
    scale = float(scores[scores.isfinite()].abs().max())
    if float(gaps[row]) <= 1e-12 * scale:
        raise AssumptionError(
            f"row {row} has two largest scores that tie: no limit, the constant grows like R² there; see tied_pair.",
            field="X",
        )
    return float(gaps[row]), chosen
