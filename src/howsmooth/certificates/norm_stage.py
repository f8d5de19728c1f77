r"""The remainder of LayerNorm and RMSNorm: :ref:`Theorem 11 <norm-remainder>`, :ref:`second order <second-order>`."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.image_norms import UnitBall, packed_pairs
from howsmooth.certificates.stages import FirstOrder, SmoothStage
from howsmooth.maps.norms import Norm


class NormStage(SmoothStage):
    r"""A norm at tokens x.

    Let c be the token (centred for LayerNorm) with the additional constant coordinate :math:`\sqrt{d\epsilon_0}`,
    :math:`N = |c|`, :math:`\hat c = c/N`. A change of the input splits into :math:`u = \hat c\cdot\delta/N` along c and
    w, the rest over N, across. Then :math:`c+\delta = N((1+u)\hat c + w)`, and its direction differs from
    :math:`\hat c + w` by

    .. math:: \hat c\Bigl(\frac{1+u}\rho - 1\Bigr) + w\Bigl(\frac1\rho - 1\Bigr),\qquad \rho^2 = (1+u)^2+|w|^2 .

    Norms of u at all tokens come first in what :meth:`propagate` returns, then those of w; so do remainders along
    and across.
    """

    name = "norm"

    def __init__(self, norm: Norm, X: Float[Tensor, "n d"]) -> None:
        """Evaluate the norm at ``X``."""
        n, d = X.shape
        jacobian = norm.jacobian(X)
        self._unit = jacobian.z / math.sqrt(d)  # ĉ without the constant coordinate
        centred = X - X.mean(-1, keepdim=True) if norm.centred else X
        self._length = (centred.square().sum(-1, keepdim=True) + d * norm.eps).sqrt()
        # The square root of P − ĉĉᵀ, where P centres. The constant coordinate of ĉ is `constant`, so that the others
        # have |ĉ|² = 1 − constant², and the root is P − ĉĉᵀ/(1 + constant).
        constant = math.sqrt(d * norm.eps) / self._length[:, 0]
        eye = torch.eye(d, dtype=X.dtype)
        centring = eye - 1 / d if norm.centred else eye
        shrink = 1 / (1 + constant)
        self._across = centring - shrink[:, None, None] * self._unit[:, :, None] * self._unit[:, None, :]
        self._shrunk, self._centred = shrink[:, None] * self._unit, norm.centred
        # Normalised tokens have length √d before the gain.
        self._gain = norm.gain * math.sqrt(d)
        self._n = n

    @property
    def tokens(self) -> Tensor:
        """The token of every group of directions."""
        return torch.arange(self._n).repeat(2)

    def directions(self) -> list[Tensor]:
        """Return the direction of every token, and all directions across it."""
        n, d = self._unit.shape
        along, across = self._unit.new_zeros(n, 1, n, d), self._unit.new_zeros(n, d, n, d)
        every = torch.arange(n)
        along[every, 0, every] = self._gain * self._unit
        # Column r of diag(γ)·root: the root is symmetric.
        across[every, :, every] = self._gain * self._across
        return [along, across]

    def propagate(self, columns: Float[Tensor, "groups r n d"], ball: UnitBall) -> tuple[Tensor, Tensor]:
        """Return the norms of u and w at every token, and what leaves: the root applied once more to w."""
        u, w = self._along_and_across(columns)
        norms = torch.cat((ball.scalar_norms(u.movedim(-1, 1)), ball.vector_norms(w.movedim(-1, 1))), dim=-1)
        leaving = w.addcmul_(self._unit[:, None] @ w, self._shrunk[..., None], value=-1)
        return norms, leaving.mul_(self._gain[:, None]).movedim(-1, 1)

    def remainder(self, norms: Tensor, first: FirstOrder) -> Tensor:
        """Bound both parts of the remainder."""
        return self._whole_remainder(*self._split(norms))

    def second_order(self, columns: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n d"]:
        r"""Return :math:`-\tfrac12|w|^2` along and :math:`-uw` across."""
        u, w = (part[0] for part in self._along_and_across(columns))
        a, b, factors = packed_pairs(w.shape[-1])
        factors = -0.5 * factors
        along = factors * (w.mT @ w).flatten(1).index_select(1, a * w.shape[-1] + b)
        left, right = factors * u.index_select(1, a), factors * u.index_select(1, b)
        w = (self._gain[:, None] * self._across) @ w
        found = w.new_empty(*w.shape[:2], len(a))
        # Token by token, which fits into the cache: of the product uw the symmetric form, at all pairs.
        for i, out in enumerate(found):
            torch.mul(w[i].index_select(1, b), left[i], out=out)
            out += w[i].index_select(1, a).mul_(right[i])
            out.addr_(self._gain * self._unit[i], along[i])
        return found.movedim(-1, 0)[None]

    def third_order_remainder(self, first: Tensor, later: Tensor, forms: Tensor | None = None) -> Tensor:
        r"""Bound :math:`R'`, or the whole remainder and the second order.

        Across :math:`u'w+u_1w'+w\max(\frac{u^2}{1-u},\frac{w^2}{2(1-u)^3})`, along
        :math:`\frac12(w^2-w_1^2)+\frac12w^2((1-u)^{-2}-1)+\frac38(\frac w{1-u})^4`, for u below 1.
        """
        (u1, w1), (u_later, w_later) = self._split(first), self._split(later)
        u, w = self._split(first + later)
        small = u < 1
        room = torch.where(small, 1 - u, 1.0)
        squares = (w_later * (w + w1)) / 2  # ½(w² − w₁²), without the difference
        # (1 + u)/ρ = (1 + x)^(−½) with x = (w/(1 + u))², and 0 ≤ (1 + x)^(−½) − 1 + ½x ≤ ⅜x².
        along = squares + 0.5 * w.square() * u * (2 - u) / room.square() + 0.375 * (w / room) ** 4
        products = u_later * w + u1 * w_later
        across = products + w * torch.maximum(u.square() / room, 0.5 * w.square() / room**3)
        both = self._whole_remainder(u, w) + torch.cat((0.5 * w1.square(), u1 * w1))
        return torch.where(small.repeat(2), torch.minimum(torch.cat((along, across)), both), both)

    def turning(self, tokens: Tensor) -> tuple[Float[Tensor, "1 r n d"], Float[Tensor, "1 k n d"]]:
        r"""Return first and second order of tokens that turn: :math:`\hat c\sqrt{1-|w|^2} + w`, :math:`w = \xi/N`.

        The second order is :math:`-\tfrac12|w|^2\hat c`, a multiple of the identity: one column for each token.

        :ref:`Turning <turning>`: a norm sees only the direction of :math:`c+e`, and these directions are within
        :math:`\sin\varphi\le|e|_2/N` of :math:`\hat c`. So a word before a norm may turn by :math:`|\xi|_2\le|e|_2`
        instead of moving by e.
        """
        n, d = self._unit.shape
        first = self._unit.new_zeros(len(tokens), d, n, d)
        squares = self._unit.new_zeros(len(tokens), n, d)
        for place, i in enumerate(tokens.tolist()):
            first[place, :, i] = self._gain * self._across[i] / self._length[i]
            squares[place, i] = -0.5 * self._gain * self._unit[i] / self._length[i].square()
        return first.flatten(0, 1)[None], squares[None]

    def turning_remainder(self, eps: float, tokens: Tensor, *, second_order: bool) -> Float[Tensor, " groups"]:
        """Bound the remainder of turning by ``eps``: nothing across; along, all or what is beyond the second order.

        A token that may turn by a right angle or more has no bound.
        """
        sine = self._unit.new_zeros(self._n)
        sine[tokens] = eps / self._length[tokens, 0]
        cosine = (1 - sine.square()).clamp_min(0).sqrt()
        # 1 − cos φ = sin²φ/(1 + cos φ), and 1 − ½sin²φ − cos φ = sin⁴φ/2(1 + cos φ)²: no differences.
        along = sine**4 / (2 * (1 + cosine).square()) if second_order else sine.square() / (1 + cosine)
        along = torch.where(sine < 1, along, torch.inf)
        return torch.cat((along, torch.zeros_like(along)))

    def _along_and_across(
        self, columns: Float[Tensor, "groups r n d"]
    ) -> tuple[Float[Tensor, "groups n r"], Float[Tensor, "groups n d r"]]:
        """Return u and w of columns, one behind another, w in the coordinates of the root."""
        x = columns.movedim(1, -1)
        u = (self._unit / self._length)[:, None] @ x
        # The root is the identity but for two directions: no product with a matrix is needed.
        w = x - x.mean(-2, keepdim=True) if self._centred else x.clone()
        w = w.div_(self._length[..., None]).addcmul_(u, self._shrunk[..., None], value=-1)
        return u[..., 0, :], w

    def _split(self, norms: Float[Tensor, " norms"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return norms[: self._n], norms[self._n :]

    def _whole_remainder(self, u: Float[Tensor, " n"], w: Float[Tensor, " n"]) -> Float[Tensor, " groups"]:
        """Bound both parts by their formulas; directions have length one, so they are also at most 2 and 1 + w."""
        small = u < 1
        room = torch.where(small, 1 - u, 1.0)
        # Differences of nearly equal numbers are written as quotients: 1 − 1/ρ would lose all digits of a small change.
        slope, rho = (w / room).square(), ((1 + u).square() + w.square()).sqrt()
        along = slope / ((1 + slope).sqrt() * (1 + (1 + slope).sqrt()))
        # 1/ρ − 1 is largest for the shortest token, ρ ≥ 1 − u, or smallest for the longest, ρ² ≤ (1 + u)² + w².
        shorter, longer = u / room, (2 * u + u.square() + w.square()) / (rho * (rho + 1))
        across = torch.minimum(torch.maximum(shorter, longer) * w, 1 + w)
        return torch.cat((torch.where(small, along, 2.0), torch.where(small, across, 1 + w)))
