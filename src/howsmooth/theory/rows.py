"""At one input: a certificate for all heads at once, row by row."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.rounding import NOTHING, safe_norm
from howsmooth.theory.traces import largest_eigenvalues
from howsmooth.theory.views import View

# Outputs are looked at closely in as many directions as this number of products allows; the others enter by a trace.
PRODUCTS = 4e8
# So many blocks of the second term are decomposed; the others enter by their Frobenius norm.
BLOCKS = 8
# So many numbers of a batch of rows are held at once.
NUMBERS = 2**21
UNIT = torch.finfo(torch.float64).eps


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubt:
    r"""How far the parts of a certificate may be from what is true; one number for each head, or head and row.

    Attributes:
        change: The share of a weight that may be wrong, :attr:`~howsmooth.theory.rounding.Rounding.change`, with the
            weights that are too small to be kept.
        reach: How far true values :math:`W_hV_hx_j` are from their middle, at most.
        wrong: How far a computed value is from the true one.
        keys: How far true keys are from their middle, times :math:`\|Q_h\|`.
        wrong_keys: How far a computed key is from the true one, times :math:`\|Q_h\|`.
        pull: The largest that the true :math:`|g^h_i|` may be.
        wrong_pull: How far the computed :math:`g^h_i` is from the true one.
        lost: What the product :math:`W_hV_h` may have lost.
        norms: Bounds on :math:`\|P^h\|`, for the true weights.
        values: Bounds on :math:`\|W_hV_h\|`.
    """

    change: Float[Tensor, "heads n"]
    reach: Float[Tensor, " heads"]
    wrong: Float[Tensor, " heads"]
    keys: Float[Tensor, " heads"]
    wrong_keys: Float[Tensor, " heads"]
    pull: Float[Tensor, "heads n"]
    wrong_pull: Float[Tensor, "heads n"]
    lost: Float[Tensor, " heads"]
    norms: Float[Tensor, " heads"]
    values: Float[Tensor, " heads"]

    @classmethod
    def of(cls, views: list[View]) -> "Doubt":
        """Gather what rounding may have done to every head."""
        change, pull, wrong_pull, others = [], [], [], []
        for view, W in zip(views, outputs(views), strict=True):
            r, head, n = view.rounding, view.head, len(view.P)
            K, stretch, Q = float(head.K.norm()), safe_norm(W), safe_norm(head.Q)
            wrong, lost = stretch * r.value, sum(head.V.shape) * UNIT * float(W.norm()) * float(head.V.norm())
            off = r.query * K + 2 * len(head.K) * UNIT * view.q.norm(dim=-1) * K
            change.append(r.change + n * NOTHING * r.growth)
            pull.append((1 + 64 * UNIT) * (view.q @ head.K).norm(dim=-1) + off)
            wrong_pull.append(off)
            reach, keys = stretch * (view.reach + 2 * r.value), Q * (view.key_reach + 2 * r.key)
            others.append((reach, wrong, keys, Q * r.key, lost, view.norm_P(), safe_norm(W @ head.V) + lost))
        numbers = torch.tensor(others, dtype=torch.float64).mT
        names = ("reach", "wrong", "keys", "wrong_keys", "lost", "norms", "values")
        return cls(
            change=torch.stack(change),
            pull=torch.stack(pull),
            wrong_pull=torch.stack(wrong_pull),
            **dict(zip(names, numbers, strict=True)),
        )

    def of_weights(self) -> float:
        r"""Bound :math:`\|\sum_h\delta P^h\otimes B_h\|` for what may be wrong in the weights and in the products."""
        share = self.change.amax(-1) + 64 * self.change.shape[1] * UNIT
        return float((share * self.norms * self.values + self.lost * self.norms).sum())

    def of_second(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        r"""Return what the second term of every row may have lost, and the most that it can be.

        Covariances of any weights are at most the product of both reaches, and with weights that are wrong by a share
        of c they are wrong by that share of it.
        """
        most = (self.reach * self.keys)[:, None]
        share = self.change + (8 * self.change.shape[1] + 64) * UNIT
        lost = share * most + 4 * (self.wrong * self.keys + self.wrong_keys * self.reach)[:, None]
        return lost.sum(0), most.sum(0).expand(len(share[0]))

    def of_third(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        r"""Return the same for the third term.

        With :math:`\alpha_j = P_{ij}(y_j-\bar y_i)`, :math:`|\alpha|` is at most the reach of values for any weights,
        and wrong by a share of 2c of it: by c in the weights, and by c in the mean.
        """
        reach, wrong = self.reach[:, None], self.wrong[:, None]
        share = 2 * self.change + (8 * self.change.shape[1] + 64) * UNIT
        lost = (share * reach + 4 * wrong) * self.pull + reach * self.wrong_pull
        return lost.sum(0), (reach * self.pull).sum(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    r"""All heads at n tokens.

    Attributes:
        P: Attention weights.
        g: :math:`\partial S_{ij}/\partial x_j = A_hx_i + K_h^\top b_h`, the same for every j.
        y: Values :math:`W_hV_hx_j`.
        B: :math:`W_hV_h`.
        doubt: How far all this may be from what is true.
    """

    P: Float[Tensor, "heads n n"]
    g: Float[Tensor, "heads n d"]
    y: Float[Tensor, "heads n out"]
    B: Float[Tensor, "heads out d"]
    doubt: Doubt

    @classmethod
    def of(cls, views: list[View]) -> "Rows":
        """Put the heads beside each other; concatenated heads have outputs of their own."""
        W = outputs(views)
        return cls(
            P=torch.stack([view.P for view in views]),
            g=torch.stack([view.q @ view.head.K for view in views]),
            # a common shift changes no difference, and what is small loses less
            y=torch.stack([(view.y - view.y.mean(0)) @ w.mT for view, w in zip(views, W, strict=True)]),
            B=torch.stack([w @ view.head.V for view, w in zip(views, W, strict=True)]),
            doubt=Doubt.of(views),
        )

    def bound(self) -> float:
        r"""Bound the first and the third term.

        Row i of the third maps E to :math:`\sum_jZ_{ij}e_j` with
        :math:`Z_{ij} = \sum_h\alpha^h_{ij}{g^h_i}^\top`, :math:`\alpha^h_{ij} = P^h_{ij}(y^h_j-\bar y^h_i)`, so its
        squared norm is :math:`\lambda_{\max}(\sum_jZ_{ij}Z_{ij}^\top)`, and rows add up.
        """
        near = self._directions()
        heads, n = self.P.shape[:2]
        at_once = max(1, NUMBERS // (heads * n * near.shape[1]))
        lost, most = self.doubt.of_third()
        squares = torch.cat([self._third(rows, near) for rows in torch.arange(n).split(at_once)])
        rows = torch.minimum(squares.sqrt() + lost, most)
        # pulls whose squares are too small for a float
        rows = rows + NOTHING * float(self.doubt.reach.sum()) * (1 + float(self.doubt.pull.max()))
        return self._first() + (1 + 16 * n * UNIT) * float(rows.norm())

    def _directions(self) -> Float[Tensor, "out r"]:
        """Return an orthonormal basis of where outputs move most by the third term; any basis gives a bound."""
        heads, n, out = self.y.shape
        steep = (self.P.square() * self.g.square().sum(-1, keepdim=True)).sum(1)  # how much token j counts
        middle = (steep[..., None] * self.y).sum(1) / steep.sum(1).clamp_min(1e-300)[:, None]
        scattered = (steep.sqrt()[..., None] * (self.y - middle[:, None])).flatten(0, 1)
        scattered = scattered / scattered.abs().max().clamp_min(1e-300)
        _values, vectors = torch.linalg.eigh(scattered.mT @ scattered)
        return vectors[:, -min(out, max(1, math.isqrt(int(PRODUCTS / (heads * n**2))))) :]

    def _third(self, rows: Tensor, near: Float[Tensor, "out r"]) -> Float[Tensor, " rows"]:
        r"""Bound squared norms of rows: :math:`\lambda_{\max}(M) \le \lambda_{\max}(M_{11}) + \mathrm{tr}\,M_{22}`.

        The largest eigenvalue of a positive matrix is at most the sum of those of its diagonal blocks: one in the
        chosen directions, one in all others. There the Gram matrix of the pulls is at most a diagonal one.
        """
        P, g = self.P[:, rows], self.g[:, rows]
        pulls = torch.einsum("hid,kid->ihk", g, g)
        y = self.y @ near
        alpha = P[..., None] * (y[:, None] - (P @ y)[:, :, None])
        # the square root of that Gram matrix makes the double sum over heads a single one
        values, vectors = torch.linalg.eigh(pulls)
        root = vectors * values.clamp_min(0).sqrt()[:, None]
        mixed = (root.mT @ alpha.transpose(0, 1).flatten(2)).reshape(len(rows), -1, near.shape[1])
        seen = largest_eigenvalues(mixed.mT @ mixed)
        # what the products above may have lost of the whole
        whole = pulls.diagonal(dim1=1, dim2=2).sum(-1) * alpha.square().sum((0, 2, 3))
        seen = seen + 64 * sum(self.y.shape) * UNIT * whole
        if near.shape[0] == near.shape[1]:
            return seen
        far = self.y - y @ near.mT
        w, length = P.square(), far.square().sum(-1)
        mean = P @ far
        spread = (w @ length[..., None])[..., 0] - 2 * (mean * (w @ far)).sum(-1) + w.sum(-1) * mean.square().sum(-1)
        rounding = 64 * sum(self.y.shape) * UNIT * w.sum(-1) * length.amax(-1)[:, None]
        return seen + ((spread.clamp_min(0) + rounding).mT * pulls.abs().sum(-1)).sum(-1)

    def _first(self) -> float:
        r"""Bound :math:`\|\sum_hP^h\otimes B_h\|`: heads apart, or what they share and what they do not.

        With :math:`\bar P` the mean over heads, the sum is
        :math:`\bar P\otimes\sum_hB_h + \sum_h(P^h-\bar P)\otimes B_h`, and the second part is at most
        :math:`\|[B_1\cdots B_H]\|\,\|(P^h-\bar P)_h\|`.
        """
        mean, doubt = self.P.mean(0), self.doubt
        shared = safe_norm(mean) * safe_norm(self.B.sum(0))
        beside = safe_norm(self.B.transpose(0, 1).flatten(1)) * safe_norm((self.P - mean).flatten(0, 1))
        return min(float((doubt.norms * doubt.values).sum()), shared + beside + doubt.of_weights())


def outputs(views: list[View]) -> list[Float[Tensor, "out v"]]:
    """Return the output projection of every head; concatenated heads have slices of the identity."""
    given = [view.head.W for view in views if view.head.W is not None]
    width = views[0].y.shape[1]
    return given or list(torch.eye(len(views) * width, dtype=torch.float64).split(width, 1))


def second_term(views: list[View]) -> Float[Tensor, " n"]:
    r"""Bound :math:`\|\sum_hW_hV_hC_i^hA_h\|` for every row i.

    The largest blocks are decomposed, the others enter by the Frobenius norm.
    """
    W = torch.cat(outputs(views), dim=1)
    Q = torch.cat([view.head.Q for view in views])
    covariance = torch.stack([view.covariance() for view in views], dim=1)  # n, heads, v, k
    heads, v, k = covariance.shape[1:]
    inner = (W.mT @ W).reshape(heads, v, heads, v).transpose(1, 2)
    outer = (Q @ Q.mT).reshape(heads, k, heads, k).transpose(1, 2)
    square = torch.zeros(len(covariance), dtype=W.dtype)
    for h in range(heads):
        for m in range(heads):
            square += ((inner[m, h] @ covariance[:, h] @ outer[h, m]) * covariance[:, m]).sum((1, 2))
    whole = covariance.square().sum((1, 2, 3)).sqrt() * W.norm() * Q.norm()
    lost = 8 * (heads * (v + k) + sum(W.shape) + sum(Q.shape)) * UNIT
    # heads that cancel leave the rounding of a square, whose root is much larger
    size = (square.clamp_min(0) + lost * whole.square()).sqrt()
    for i in size.argsort(descending=True)[:BLOCKS].tolist():
        mixed = torch.einsum("ohv,hvk->ohk", W.reshape(-1, heads, v), covariance[i]).flatten(1)
        size[i] = torch.minimum(size[i], safe_norm(mixed @ Q) + lost * whole[i])
    return size


def rows_upper(views: list[View]) -> float:
    """Return the certificate: the second term, block by block, and the other two row by row.

    It is infinite where numbers leave the range of floats.
    """
    try:
        rows = Rows.of(views)
        lost, most = rows.doubt.of_second()
        found = float(torch.minimum(second_term(views) + lost, most).max()) + rows.bound()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # such numbers have no eigenvalues
        return math.inf
    return math.inf if math.isnan(found) else found
