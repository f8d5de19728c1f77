"""The displacement of attention under one swap: a row and a column of the scores change."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.maps.attention import Attention

# The intermediate results of one batch of candidates should stay in cache.
BATCH_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectedTokens:
    """Queries (scaled), keys and values of some tokens, every head with keys of its own."""

    q: Float[Tensor, "heads m k"]
    k: Float[Tensor, "heads m k"]
    v: Float[Tensor, "heads m v"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SwapDisplacement:
    r"""Attention at a sequence, of which one token is replaced by each of many.

    Another token at position p has another key and another value, which row i sees in column p, and another query,
    which makes row p anew. With :math:`\tilde o_i` the mean of row i without token p and t the weight of the new one,

    .. math:: o'_i - o_i = (\tilde o_i - o_i) + t_i(v' - \tilde o_i),
              \qquad t_i = \mathrm{sigmoid}\bigl(s'_{ip} - \log\textstyle\sum_{j\ne p}e^{s_{ij}}\bigr)

    in every head. The squared norm of what the output projection makes of it is a quadratic form in the weights t of
    all heads, whose coefficients are inner products with the new value. So no row is projected out for a candidate:
    it costs O(d² + n·heads·d) in matrix products where the layer itself costs O(n·d² + n²·d).
    """

    attention: Attention
    tokens: ProjectedTokens  # what the sequence is projected to
    bias: Float[Tensor, "heads n n"]  # what is added to every score, −∞ where a token may not be seen
    scores: Float[Tensor, "heads n n"]  # the scores before that, capped
    means: Float[Tensor, "heads n v"]  # what each row attends to, head by head
    origin: Float[Tensor, "heads n v"]  # the same at the sequence that displacements are counted from
    gram: Float[Tensor, "heads v heads v"]  # WᵀW of the output projection of all heads side by side

    @classmethod
    def at(
        cls, attention: Attention, X: Float[Tensor, "n d"], *, origin: "SwapDisplacement | None" = None
    ) -> "SwapDisplacement":
        """Prepare what all swaps share; displacements are counted from another sequence's output, if one is given."""
        n, whole = X.shape[0], slice(0, X.shape[0])
        tokens = _projected(attention, X, torch.arange(n, device=X.device))
        bias = X.new_zeros(attention.layout.heads, n, n)
        attention.positions.apply(bias, whole, whole)
        products, distances = tokens.q @ tokens.k.mT, attention.positions.distances
        if distances is not None:
            products = products + distances.times(1.0, attention.score_scale).scores(tokens.q, tokens.k, whole, whole)
        scores = _capped(products, attention.softcap)
        means = torch.softmax(scores + bias, dim=-1) @ tokens.v
        return cls(
            attention=attention,
            tokens=tokens,
            bias=bias,
            scores=scores,
            means=means,
            origin=means if origin is None else origin.means,
            gram=_gram(attention),
        )

    @property
    def batch(self) -> int:
        """How many candidates are taken at a time."""
        heads, n, _v = self.means.shape
        return max(64, BATCH_BYTES // (n * heads * heads * self.means.element_size()))

    def displacements(self, p: int, rows: Float[Tensor, "c d"]) -> Float[Tensor, " c"]:
        """Return how far the output moves, in the Euclidean norm, when token ``p`` becomes each of the rows."""
        column = _QuadraticForm.of(self, p)
        found = []
        for some in rows.split(self.batch):
            new = _projected(self.attention, some, torch.full((len(some),), p, device=rows.device))
            found.append((self._replaced_row(p, new) + column.squares(self, new)).clamp(min=0).sqrt())
        return torch.cat(found)

    def _replaced_row(self, p: int, new: ProjectedTokens) -> Float[Tensor, " c"]:
        """Return how far the output of the replaced token moves, squared: it has another query."""
        scores, itself = new.q @ self.tokens.k.mT, (new.q * new.k).sum(-1)
        distances = self.attention.positions.distances
        if distances is not None:
            here = distances.reach - 1
            ahead, scaled = slice(here - p, here - p + scores.shape[-1]), self.attention.score_scale * distances.queries
            scores = scores + new.q @ distances.keys[:, ahead].mT + (scaled[:, ahead] * self.tokens.k).sum(-1)[:, None]
            itself = itself + (new.q * distances.keys[:, here, None] + new.k * scaled[:, here, None]).sum(-1)
        scores[..., p] = itself
        P = torch.softmax(_capped(scores, self.attention.softcap) + self.bias[:, p, None], dim=-1)
        values = self.tokens.v.index_fill(1, torch.tensor([p], device=P.device), 0.0)
        moved = P @ values + P[..., p, None] * new.v - self.origin[:, p, None]
        joined = moved.transpose(0, 1).flatten(1)
        return (joined @ self.gram.flatten(2).flatten(0, 1) * joined).sum(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _QuadraticForm:
    r"""The squared displacement of all other rows as a quadratic form in the weights t of a new token at one position.

    .. math:: \text{constant} + 2\sum_{hr}t_{hr}\,(\langle\text{slope}_{hr},v_h\rangle - \text{intercept}_{hr})
              + \sum_{hgr}t_{hr}t_{gr}\,\langle v_h-\tilde o_{hr},\,G_{hg}(v_g-\tilde o_{gr})\rangle

    with :math:`G = W^\top W`, h and g heads, r rows, v the new value, and
    :math:`t = \mathrm{sigmoid}(\mathrm{cap}(\langle\text{queries},k\rangle + \text{fixed}) + \text{shift})`.
    """

    # the vectors whose products with a new key are its scores, for each row that may see it
    queries: Float[Tensor, "heads rows k"]
    fixed: Float[Tensor, "heads rows"]  # the part of the scores that does not depend on the key
    shift: Float[Tensor, "heads rows"]  # the bias of the scores, less the log-sum-exp of all other scores of the row
    # the squared displacement if the new token gets no weight, with that of rows that do not see it
    constant: Float[Tensor, ""]
    slope: Float[Tensor, "heads rows v"]  # the factor of a new value in the linear part
    intercept: Float[Tensor, "heads rows"]  # the rest of the linear part
    known: Float[Tensor, "heads rows others v"]  # the factor of a new value in the quadratic part, Gõ
    inner: Float[Tensor, "heads rows others"]  # ⟨õ, Gõ⟩

    @classmethod
    def of(cls, swap: SwapDisplacement, p: int) -> "_QuadraticForm":
        rows = _visible_rows(swap.bias[:, :, p], p)
        queries, fixed = _column_queries(swap, rows, p)
        rest, weight = _without(swap, rows, p)
        moved = rest - swap.origin[:, rows]  # where the token is taken away
        slope = torch.einsum("hvgw,grw->hrv", swap.gram, moved)
        known = torch.einsum("hvgw,grw->hrgv", swap.gram, rest)
        return cls(
            queries=queries,
            fixed=fixed,
            shift=swap.bias[:, rows, p] - weight,
            constant=(moved * slope).sum() + _unaffected_rows(swap, rows, p),
            slope=slope,
            intercept=(slope * rest).sum(-1),
            known=known,
            inner=torch.einsum("hrv,hrgv->hrg", rest, known),
        )

    def squares(self, swap: SwapDisplacement, new: ProjectedTokens) -> Float[Tensor, " c"]:
        """Return how far the outputs of these rows move, squared and added up."""
        scores = _capped(self.queries @ new.k.mT + self.fixed[..., None], swap.attention.softcap)
        t = torch.sigmoid(scores + self.shift[..., None])  # (heads, rows, c)
        linear = (t * (self.slope @ new.v.mT - self.intercept[..., None])).sum((0, 1))
        products = torch.bmm(self.known.flatten(1, 2), new.v.mT).unflatten(1, self.known.shape[1:3])
        # by rows and pairs of heads: the largest thing here, so it is read once
        pairs = products.mul_(-2).add_(self.inner[..., None]).mul_(t.transpose(0, 1)).sum(2)
        return self.constant + 2 * linear + (pairs * t).sum((0, 1)) + _value_terms(swap.gram, t, new.v)


def _value_terms(gram: Tensor, t: Float[Tensor, "heads rows c"], v: Float[Tensor, "heads c v"]) -> Float[Tensor, " c"]:
    """Return the part of the quadratic form that new values have with themselves, all rows together."""
    total = t.new_zeros(t.shape[-1])
    for h in range(len(v)):
        weights = (t[h] * t).sum(1)  # (heads, c)
        mixed = (v[h] @ gram[h].flatten(1)).unflatten(1, gram.shape[2:])  # (c, heads, v)
        total += ((mixed * v.transpose(0, 1)).sum(-1) * weights.mT).sum(-1)
    return total


def _unaffected_rows(swap: SwapDisplacement, rows: Tensor, p: int) -> Float[Tensor, ""]:
    """Return how far the rows that do not see a token are from the origin, squared: earlier swaps moved them."""
    moved = swap.means - swap.origin
    moved = moved.index_fill(1, torch.cat((rows, rows.new_tensor([p]))), 0.0)
    return torch.einsum("hrv,hvgw,grw->", moved, swap.gram, moved)


def _visible_rows(column: Float[Tensor, "heads n"], p: int) -> Int[Tensor, " rows"]:
    """Return the other rows that may see a token."""
    visible = (column > -math.inf).any(0)
    visible[p] = False
    return visible.nonzero()[:, 0]


def _column_queries(swap: SwapDisplacement, rows: Tensor, p: int) -> tuple[Tensor, Tensor]:
    """Return what a new key at a position meets in each row, and the part of the score that it does not change."""
    q, distances = swap.tokens.q[:, rows], swap.attention.positions.distances
    if distances is None:
        return q, q.new_zeros(q.shape[:-1])
    offsets = distances.reach - 1 + p - rows
    scaled = swap.attention.score_scale * distances.queries[:, offsets]
    return q + scaled, (q * distances.keys[:, offsets]).sum(-1)


def _without(
    swap: SwapDisplacement, rows: Tensor, p: int
) -> tuple[Float[Tensor, "heads rows v"], Float[Tensor, "heads rows"]]:
    """Return what each row would attend to without a token, and the logarithm of what the others weigh together."""
    place = torch.tensor([p], device=rows.device)
    logits = (swap.scores + swap.bias)[:, rows].index_fill(2, place, -math.inf)
    # a row that saw nothing else has no mean left, and the new token gets all its weight
    P = torch.softmax(logits, dim=-1).nan_to_num(0.0)
    return P @ swap.tokens.v, logits.logsumexp(-1)


def _projected(attention: Attention, X: Float[Tensor, "m d"], places: Int[Tensor, " m"]) -> ProjectedTokens:
    """Return queries, keys and values of tokens, each at its place."""
    q, k, v = attention.project(X, places=places)
    k, v = (x.repeat_interleave(attention.layout.shared, dim=0) for x in (k, v))
    return ProjectedTokens(q=q, k=k, v=v)


def _gram(attention: Attention) -> Float[Tensor, "heads v heads v"]:
    layout = attention.layout
    width = layout.heads * layout.v
    if attention.output is None:  # heads stand side by side, and do not mix
        joined = torch.eye(width, dtype=attention.dtype, device=attention.query.device)
    else:
        joined = attention.output.movedim(0, 1).flatten(1)
    return (joined.mT @ joined).view(layout.heads, layout.v, layout.heads, layout.v)


def _capped(S: Tensor, softcap: float | None) -> Tensor:
    return S if softcap is None else softcap * torch.tanh(S / softcap)
