"""A whole layer at one input, and how far everything that its second derivative is made of may move around it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.doubt import outputs
from howsmooth.theory.region import Region, softened
from howsmooth.theory.rounding import safe_norm
from howsmooth.theory.rows import Rows
from howsmooth.theory.traces import largest_norms
from howsmooth.theory.views import View


@dataclass(frozen=True, kw_only=True, eq=False)
class Centre:
    r"""All heads at X: vectors, their lengths, and how far rounding may have moved them.

    Attributes:
        P: Weights.
        alpha: :math:`\alpha^h_{ij} = P^h_{ij}W_hV_h(x_j-m^h_i)`.
        pull: :math:`g^h_i = A_hx_i + K_h^\top b_h`.
        keys: :math:`A_h^\top x_j`, up to a shift.
        B: :math:`W_hV_h`.
        A: Forms with the singular values and right singular vectors of :math:`A_h`, and of :math:`A_h^\top`.
        far: :math:`|W_hV_h(x_j-m^h_i)|`.
        far_alone: :math:`|V_h(x_j-m^h_i)|`.
        key_far: :math:`|A_h^\top(x_j-m^h_i)|`.
        near: Distances between values, values alone and keys.
        deviations: Their largest standard deviations under each row of weights.
        steep: :math:`|g^h_i|`.
        wrong: What rounding may have done to values, to values alone, to keys and to pulls.
        norms: :math:`\|W_hV_h\|, \|V_h\|, \|A_h\|, \|W_h\|`.
        beside: :math:`\|[W_h/\|W_h\|]_h\|`.
    """

    P: Float[Tensor, "heads n n"]
    alpha: Float[Tensor, "heads n n out"]
    pull: Float[Tensor, "heads n d"]
    keys: Float[Tensor, "heads n d"]
    B: Float[Tensor, "heads out d"]
    A: tuple[Float[Tensor, "heads r d"], Float[Tensor, "heads s d"]]
    far: Float[Tensor, "heads n n"]
    far_alone: Float[Tensor, "heads n n"]
    key_far: Float[Tensor, "heads n n"]
    near: tuple[Tensor, Tensor, Tensor]
    deviations: tuple[Tensor, Tensor, Tensor]
    steep: Float[Tensor, "heads n"]
    wrong: tuple[Tensor, Tensor, Tensor, Float[Tensor, "heads n"]]
    norms: tuple[Tensor, Tensor, Tensor, Tensor]
    beside: float

    @classmethod
    def of(cls, views: list[View]) -> "Centre":
        """Gather the heads."""
        rows, W = Rows.of(views), outputs(views)
        y, P, doubt = rows.y, rows.P, rows.doubt
        apart = y[:, None] - (P @ y)[:, :, None]
        keys = torch.stack([(view.k - view.k.mean(0)) @ view.head.Q for view in views])
        alone = torch.stack([view.y - view.y.mean(0) for view in views])
        heads = [view.head for view in views]
        stretch = numbers(safe_norm(w) for w in W)
        units = [w / (size if size > 0 else 1.0) for w, size in zip(W, stretch.tolist(), strict=True)]
        return cls(
            P=P,
            alpha=P[..., None] * apart,
            pull=rows.g,
            keys=keys,
            B=rows.B,
            A=(
                torch.stack([head.short_K.mT @ head.Q for head in heads]),
                torch.stack([head.short_Q.mT @ head.K for head in heads]),
            ),
            far=apart.norm(dim=-1),
            far_alone=_distances(P @ alone, alone),
            key_far=_distances(P @ keys, keys),
            near=(_distances(y, y), _distances(alone, alone), _distances(keys, keys)),
            deviations=(_deviations(P, y), _deviations(P, alone), _deviations(P, keys)),
            steep=rows.g.norm(dim=-1),
            wrong=(
                4 * doubt.wrong,
                numbers(4 * view.rounding.value for view in views),
                4 * doubt.wrong_keys,
                2 * doubt.wrong_pull,
            ),
            norms=(
                doubt.values,
                numbers(head.norm_V * (1 + 1e-12) for head in heads),
                numbers(head.norm_A for head in heads),
                stretch,
            ),
            beside=safe_norm(torch.cat(units, dim=1)),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    r"""How far vectors may have moved, on a ball; lengths at X, and the largest there.

    Attributes:
        P: The largest weights.
        change: How far weights move.
        alpha: By how much :math:`\alpha` changes; ``alone`` the same before the output projection.
        alone: See ``alpha``.
        keys: The largest :math:`|A^\top(x_j-m_i)|`.
        far: The largest :math:`|WV(x_j-m_i)|` of all tokens that a row sees.
        pull: By how much pulls change.
        slope: Bounds on the norm of the derivative of the softmax.
        spread: Diagonal matrices that the derivative of the softmax is below.
    """

    P: Float[Tensor, "heads n n"]
    change: Float[Tensor, "heads n n"]
    alpha: Float[Tensor, "heads n n"]
    alone: Float[Tensor, "heads n n"]
    keys: Float[Tensor, "heads n n"]
    far: Float[Tensor, "heads n"]
    pull: Float[Tensor, "heads n"]
    slope: Float[Tensor, "heads n"]
    spread: Float[Tensor, "heads n n"]

    @classmethod
    def of(cls, c: Centre, regions: list[Region], t: float, per_token: bool) -> "Moved":
        """Bound the movements on the ball of radius t, from what it does to the weights of each head."""
        up, down, drift, spread_of_scores = (
            torch.stack([getattr(r, name) for r in regions]) for name in ("P", "low", "drift", "spread")
        )
        change = torch.maximum(up - c.P, c.P - down).clamp_min(0)
        apart = 2.0 if per_token else math.sqrt(2)  # how far two tokens move from each other
        B, V, A = (x[:, None, None] for x in c.norms[:3])
        value, alone, key = (x[:, None, None] for x in c.wrong[:3])

        # the weight of all other tokens of a row
        rest = torch.minimum(1 - down, up.sum(-1, keepdim=True) - up).clamp(0, 1)

        def moved(far: Tensor, near: Tensor, deviation: Tensor, slope: Tensor, wrong: Tensor) -> Tensor:
            by_weights = torch.minimum((change * (far + wrong)).sum(-1), spread_of_scores * (deviation + wrong[..., 0]))
            by_mean = by_weights[..., None] + slope * (t + drift[..., None])
            # x_j − m_i is the mean of x_j − x_k over the others: where their weight is small, it moves little
            by_pairs = change @ (near + wrong) + rest * apart * slope * t
            return torch.minimum(by_mean, by_pairs) + wrong

        slope, spread = softened(up, down)
        farther = moved(c.far, c.near[0], c.deviations[0], B, value)
        return cls(
            P=up,
            change=change,
            alpha=change * c.far + up * farther,
            alone=change * c.far_alone + up * moved(c.far_alone, c.near[1], c.deviations[1], V, alone),
            keys=c.key_far + moved(c.key_far, c.near[2], c.deviations[2], A, key),
            far=torch.where(up > 0, c.far + farther, 0.0).amax(-1),
            pull=c.norms[2][:, None] * t + c.wrong[3],
            slope=slope,
            spread=spread,
        )


def _deviations(P: Float[Tensor, "heads n n"], x: Float[Tensor, "heads n r"]) -> Float[Tensor, "heads n"]:
    centred = x[:, None] - (P @ x)[:, :, None]
    return largest_norms(P.sqrt()[..., None] * centred)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def numbers(x: Iterable[float]) -> Tensor:
    """Return numbers as a vector."""
    return torch.tensor(list(x), dtype=torch.float64)
