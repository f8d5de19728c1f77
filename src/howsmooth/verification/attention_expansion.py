r"""Attention in a Taylor model: exact second order, and ranges of what is left.

For a query i of a head let :math:`b_j = a_j-\sum_jP_ja_j` be the centred changes of its scores, so that its weights
become :math:`P_je^{b_j}/Z` with :math:`Z=\sum_jP_je^{b_j}\ge1`. With :math:`o=\sum_jP_jv_j`, exactly,

.. math:: o' - o = \sum_jP_j\,b_j(v_j-o) + \sum_jP_j\,dv_j + \sum_jP_j\bigl(\tfrac12b_j^2(v_j-o) + b_j\,dv_j\bigr)
          + \sum_jP_j\bigl(\tfrac{e_3(b_j)}Z - (1-\tfrac1Z)(b_j+\tfrac12b_j^2)\bigr)(v_j-o)
          + \sum_jP_j\bigl(\tfrac{e_2(b_j)}Z - (1-\tfrac1Z)(1+b_j)\bigr)dv_j

where :math:`e_2(b)=e^b-1-b`, :math:`e_3=e_2-\tfrac12b^2` and :math:`1-1/Z\le\zeta/(1+\zeta)`,
:math:`\zeta=\sum_jP_je_2(|b_j|)`. Scores themselves change by :math:`s(\langle q,dk_j\rangle+\langle dq,k_j\rangle
+\langle dq,dk_j\rangle)`. The first two sums are linear, the third and :math:`\langle dq,dk_j\rangle` are quadratic
forms of the linear parts of dq, dk, dv; products with more factors are bounded by ranges.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.rounding import RANGE_SHARE
from howsmooth.verification.box_symbols import BoxSymbols
from howsmooth.verification.taylor_model import BATCH, ExpandedStage, Forms, TaylorModel


@dataclass(frozen=True, eq=False)
class Heads:
    """The projections of all heads, with one group of keys and values for each.

    Attributes:
        weights: Those of queries, keys and values.
        biases: Likewise.
        output: From heads to tokens.
        output_bias: What is added there.
        scale: The factor of the scores.
    """

    weights: tuple[Float[Tensor, "h e d"], Float[Tensor, "h e d"], Float[Tensor, "h v d"]]
    biases: tuple[Tensor, Tensor, Tensor]
    output: Float[Tensor, "h out v"]
    output_bias: Float[Tensor, " out"]
    scale: float

    @classmethod
    def of(cls, f: Attention) -> "Heads":
        """Read the heads of an attention map, refusing what the expansion has no formula for."""
        absent = {name: getattr(f, name) for name in ("softcap", "query_norm", "key_norm", "weights", "sink")}
        given = [name for name, value in absent.items() if value is not None]
        given += [name for name in ("rotary", "distances") if getattr(f.positions, name) is not None]
        if given:
            raise AssumptionError(f"boxes are verified for plain softmax attention; this one has {given[0]}.")
        shared = f.layout.shared
        weights = (f.query, f.key.repeat_interleave(shared, 0), f.value.repeat_interleave(shared, 0))
        biases = tuple(
            torch.zeros_like(w[..., 0]) if b is None else b.repeat_interleave(len(w) // len(b), 0)
            for w, b in zip(weights, (f.query_bias, f.key_bias, f.value_bias), strict=True)
        )
        h, v = len(f.query), f.value.shape[-2]
        # heads side by side are heads mixed by the identity
        side_by_side = torch.eye(h * v, dtype=f.dtype).reshape(h * v, h, v).movedim(1, 0)
        output = side_by_side if f.output is None else f.output
        bias = output.new_zeros(output.shape[1]) if f.output_bias is None else f.output_bias
        return cls(weights, (biases[0], biases[1], biases[2]), output, bias, f.score_scale)


class AttentionExpansion(ExpandedStage):
    """Attention around the centre of what enters it. Masks and biases are constants that are added to scores.

    Args:
        f: The map.
        model: What enters.
        forms: Whether scores beyond their first order are bounded by quadratic forms.
        all_forms: Whether queries, keys and values beyond theirs are too.
    """

    def __init__(self, f: Attention, model: TaylorModel, *, forms: bool, all_forms: bool) -> None:
        self.heads = Heads.of(f)
        self.q, self.k, self.v = (
            torch.einsum("hed,nd->hne", w, model.centre) + b[:, None]
            for w, b in zip(self.heads.weights, self.heads.biases, strict=True)
        )
        scores = self.heads.scale * self.q @ self.k.mT
        n = len(model.centre)
        f.positions.check(n)
        biases = torch.zeros_like(scores)  # scores themselves may overflow
        f.positions.apply(biases, slice(0, n), slice(0, n))
        self.P, self.hidden = torch.softmax(scores + biases, -1), biases == -torch.inf
        if bool(self.hidden.all(-1).any()):
            raise AssumptionError("boxes are verified where every token sees another; here a row is masked as a whole.")
        self.o = self.P @ self.v
        self.dq, self.dk, self.dv = (torch.einsum("hed,ndr->hner", w, model.derivative) for w in self.heads.weights)
        a = torch.einsum("hier,hje->hijr", self.dq, self.k) + torch.einsum("hie,hjer->hijr", self.q, self.dk)
        a = self.heads.scale * a
        self.db = a - torch.einsum("hij,hijr->hir", self.P, a)[:, :, None]
        range_of = model.symbols.linear_range
        self.q1, self.k1, self.v1 = range_of(self.dq), range_of(self.dk), range_of(self.dv)
        self.alpha1 = range_of(self.db)
        self.q2, self.k2, self.v2 = (self._beyond_linear(model, w, all_forms) for w in self.heads.weights)
        scale = abs(self.heads.scale)
        self.products = scale * torch.einsum("hie,hje->hij", self.q1, self.k1)
        self.products_beyond = scale * (
            torch.einsum("hie,hje->hij", self.q1, self.k2) + torch.einsum("hie,hje->hij", self.q2, self.k1 + self.k2)
        )
        self.alpha2 = self._scores_beyond_linear(model, forms)
        self._remainder_factors(model, forms)
        self._symbols: tuple[Tensor, Tensor] | None = None
        dO = torch.einsum("hij,hijr,hje->hier", self.P, self.db, self.v) + torch.einsum(
            "hij,hjer->hier", self.P, self.dv
        )
        self.value = torch.einsum("hov,hnv->no", self.heads.output, self.o) + self.heads.output_bias
        self.linear = torch.einsum("hov,hnvr->nor", self.heads.output, dO)

    def _beyond_linear(self, model: TaylorModel, weight: Tensor, forms: bool) -> Float[Tensor, "h n e"]:
        """Bound what queries, keys or values do beyond their linear parts."""
        n, (h, e, d) = len(model.centre), weight.shape
        if not model.stages:
            return weight.new_zeros(h, n, e)
        every = torch.einsum("nm,hed->hnemd", torch.eye(n, dtype=weight.dtype), weight).reshape(-1, n, d)
        return model.beyond_linear(every, forms=forms).size.reshape(h, n, e)

    def _scores_beyond_linear(self, model: TaylorModel, forms: bool) -> Float[Tensor, "h n n"]:
        """Bound what centred scores do beyond their linear parts."""
        h, n, _n = self.P.shape
        centring = torch.eye(n, dtype=self.P.dtype) - self.P.unsqueeze(2)  # h, i, j, l
        every = self.P.new_zeros(h, n, n, h, n, n)
        head, query = torch.meshgrid(torch.arange(h), torch.arange(n), indexing="ij")
        every[head, query, :, head, query] = centring
        every = every.reshape(-1, h, n, n)

        def start(part: slice, forms: Forms) -> None:
            self._add_score_products(every[part], forms)

        return model.beyond_linear(self._pull_scores(every), forms=forms, start=start).size.reshape(h, n, n)

    def _remainder_factors(self, model: TaylorModel, forms: bool) -> None:
        """Keep what multiplies a functional of :math:`v_j-o` and the range of one of dv in the remainder."""
        # what is masked changes nothing, however large its score; a weight that is rounded to zero may still grow
        alpha = (self.alpha1 + self.alpha2).masked_fill(self.hidden, 0.0)
        e2 = torch.expm1(alpha) - alpha
        zeta = (self.P * e2).sum(-1)
        if forms:
            zeta = torch.fmin(zeta, self._partition_function(model, alpha, e2))
        self.share = torch.nan_to_num(zeta / (1 + zeta), nan=1.0)
        share, square = self.share.unsqueeze(-1), 0.5 * alpha**2
        # beyond first order in b, from b² − b₁² and from the rest of the exponential and of the normalisation
        self.on_values = (
            self.products_beyond
            + 0.5 * self.alpha2 * (2 * self.alpha1 + self.alpha2)
            + (e2 - square).clamp_min(0)
            + share * (self.alpha2 + square)
        )
        self.on_changes = self.alpha2 + e2 + share * alpha

    def _partition_function(self, model: TaylorModel, alpha: Tensor, e2: Tensor) -> Float[Tensor, "h n"]:
        r"""Bound :math:`Z-1=\sum_jP_je_2(b_j)` by :math:`\sum_jP_jb_j^2`, a quadratic form and what is beyond it.

        :math:`e_2(b)/b^2` grows with b.
        """
        h, n, _n = self.P.shape
        steepest = torch.where(alpha > 1e-3, e2 / alpha.square(), torch.expm1(alpha) + 0.5).amax(-1)
        root = (self.P.sqrt().unsqueeze(-1) * self.db).flatten(0, 1)
        squares = torch.cat([model.symbols.quadratic_range(part.mT @ part)[1] for part in root.split(BATCH)])
        beyond = (self.P * self.alpha2.masked_fill(self.hidden, 0.0).square()).sum(-1)
        spread = squares.view(h, n).sqrt() + beyond.sqrt()
        return steepest * spread.square()

    def pull_back(self, functionals: Float[Tensor, "f n out"], forms: Forms) -> Float[Tensor, "f n d"]:
        """Pull linear functions of the tokens behind back to those before; add second orders and remainders."""
        on_heads = torch.einsum("fno,hov->fhnv", functionals, self.heads.output)
        centred = torch.einsum("fhiv,hjv->fhij", on_heads, self.v)
        centred = centred - torch.einsum("fhiv,hiv->fhi", on_heads, self.o).unsqueeze(-1)
        weights = self.P * centred  # of the scores, in the linear part
        sizes = torch.einsum("fhiv,hjv->fhij", on_heads.abs(), self.v1)
        sizes_beyond = torch.einsum("fhiv,hjv->fhij", on_heads.abs(), self.v2)
        ranges = 0.5 * weights.abs() * self.alpha1**2 + self.P * self.alpha1 * sizes

        def partners() -> Tensor:
            on_values = torch.einsum("hij,fhiv,hjvr->fhijr", self.P, on_heads, self.dv)
            return (0.5 * weights.unsqueeze(-1) * self.db + on_values).flatten(1, 3)

        forms.add(self.db.flatten(0, 2), partners, ranges.sum((1, 2, 3)))
        self._add_score_products(weights, forms, beyond=False)
        scores_mean, values_mean = (weights.abs() * self.alpha1).sum(-1), (self.P * sizes).sum(-1)
        if forms.matrices is not None:
            sizes, scores_mean, values_mean = self._closer_ranges(
                on_heads, weights, forms.symbols, (sizes, scores_mean, values_mean)
            )
        remainder = weights.abs() * self.on_values
        remainder = remainder + self.P * (self.alpha1 * sizes_beyond + self.on_changes * (sizes + sizes_beyond))
        means = scores_mean + values_mean + (self.P * sizes_beyond).sum(-1)
        forms.add_remainder(remainder.sum((1, 2, 3)) + (self.share * means).sum((1, 2)))
        on_values = torch.einsum("hij,fhiv,hvd->fjd", self.P, on_heads, self.heads.weights[2])
        return self._pull_scores(weights) + on_values

    def _closer_ranges(
        self, on_heads: Tensor, weights: Tensor, symbols: BoxSymbols, sums: tuple[Tensor, Tensor, Tensor]
    ) -> list[Tensor]:
        r"""Return the ranges of :math:`\langle\lambda,dv_j\rangle`, of their mean and of the mean of scores.

        Each is one linear function of the symbols; ``sums`` bounds them by the ranges of its summands.
        """
        db, dv = self._on_symbols(symbols)
        f, h, n, v = on_heads.shape
        by_key = on_heads.movedim(1, 0).reshape(h, 1, f * n, v).expand(h, n, f * n, v)
        every = (
            _sizes(by_key, dv).view(h, n, f, n).permute(2, 0, 3, 1),
            _sizes(weights.movedim(0, 2), db).movedim(2, 0),
            _sizes(on_heads.movedim(0, 2), torch.einsum("hij,hjvs->hivs", self.P, dv)).movedim(2, 0),
        )
        return [torch.fmin(x, y * (1 + RANGE_SHARE) + RANGE_SHARE * x) for x, y in zip(sums, every, strict=True)]

    def _on_symbols(self, symbols: BoxSymbols) -> tuple[Float[Tensor, "h n n s"], Float[Tensor, "h n v s"]]:
        """Return the linear parts of scores and values on all symbols."""
        if self._symbols is None:
            self._symbols = symbols.coefficients(self.db), symbols.coefficients(self.dv)
        return self._symbols

    def _add_score_products(self, weights: Float[Tensor, "f h n n"], forms: Forms, *, beyond: bool = True) -> None:
        r"""Add :math:`s\sum w_{ij}\langle dq_i,dk_j\rangle`."""

        def partners() -> Tensor:
            return self.heads.scale * torch.einsum("fhij,hjer->fhier", weights, self.dk).flatten(1, 3)

        ranges = (weights.abs() * self.products).sum((1, 2, 3))
        forms.add(self.dq.flatten(0, 2), partners, ranges)
        if beyond:
            forms.add_remainder((weights.abs() * self.products_beyond).sum((1, 2, 3)))

    def _pull_scores(self, weights: Float[Tensor, "f h n n"]) -> Float[Tensor, "f n d"]:
        """Pull linear functions of the scores, to first order in queries and keys, back to the tokens."""
        on_queries = torch.einsum("fhij,hje,hed->fid", weights, self.k, self.heads.weights[0])
        on_keys = torch.einsum("fhij,hie,hed->fjd", weights, self.q, self.heads.weights[1])
        return self.heads.scale * (on_queries + on_keys)


def _sizes(left: Float[Tensor, "h n m k"], right: Float[Tensor, "h n k s"]) -> Float[Tensor, "h n m"]:
    """Return the sums of absolute values of the rows of products of matrices, one product after the other."""
    pairs = zip(left.flatten(0, 1), right.flatten(0, 1), strict=True)
    # of the symbols of a patch, few tokens see any in the first layer
    found = [(x @ y[:, (y != 0).any(0)]).abs().sum(-1) for x, y in pairs]
    return torch.stack(found).unflatten(0, left.shape[:2])
