"""The remainder of LayerNorm and RMSNorm."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.sizes import Ball, Squares
from howsmooth.certificates.stages import Bent, First
from howsmooth.maps.norms import Norm


class NormStage(Bent):
    r"""A norm at tokens x.

    With c the token (centred for LayerNorm) and the constant coordinate :math:`\sqrt{d\epsilon}` beside it,
    :math:`N = |c|`, :math:`\hat c = c/N`: what enters is :math:`u = \hat c\cdot\delta/N` along c and w, the rest over
    N, across. Then :math:`c+\delta = N((1+u)\hat c + w)` and its direction differs from :math:`\hat c + w` by

    .. math:: \hat c\Bigl(\frac{1+u}\rho - 1\Bigr) + w\Bigl(\frac1\rho - 1\Bigr),\qquad \rho^2 = (1+u)^2+|w|^2 .
    """

    name = "norm"

    def __init__(self, norm: Norm, X: Float[Tensor, "n d"]) -> None:
        """Look at the norm at ``X``."""
        n, d = X.shape
        jacobian = norm.jacobian(X)
        self._unit = jacobian.z / math.sqrt(d)  # ĉ without the constant coordinate
        centred = X - X.mean(-1, keepdim=True) if norm.centred else X
        self._length = (centred.square().sum(-1, keepdim=True) + d * norm.eps).sqrt()
        # the square root of P − ĉĉᵀ: what is left of ĉ itself is the share of the constant coordinate, |ĉ|² = 1 − left²
        left = math.sqrt(d * norm.eps) / self._length[:, 0]
        eye = torch.eye(d, dtype=X.dtype)
        centring = eye - 1 / d if norm.centred else eye
        shrink = 1 / (1 + left)
        self._across = centring - shrink[:, None, None] * self._unit[:, :, None] * self._unit[:, None, :]
        self._shrunk, self._centred = shrink[:, None] * self._unit, norm.centred
        self._gain = norm.gain * math.sqrt(d)
        self._n = n

    @property
    def tokens(self) -> Tensor:
        """The token of every group of directions."""
        return torch.arange(self._n).repeat(2)

    def directions(self) -> list[Tensor]:
        """Return the direction of every token, and all that is across."""
        n, d = self._unit.shape
        along, across = self._unit.new_zeros(n, 1, n, d), self._unit.new_zeros(n, d, n, d)
        every = torch.arange(n)
        along[every, 0, every] = self._gain * self._unit
        # column r of diag(γ)·root: the root is symmetric
        across[every, :, every] = self._gain * self._across
        return [along, across]

    def through(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> tuple[Tensor, Tensor]:
        """Return the sizes of u and w at every token, and what leaves: w by the root once more."""
        u, w = self._parts(bundle)
        again = torch.addcmul(w, (w * self._unit).sum(-1, keepdim=True), self._shrunk, value=-1)
        return torch.cat((ball.numbers(u), ball.vectors(w)), dim=-1), self._gain * again

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound both parts of the remainder, by what they are or by what a direction can be."""
        return self._all(sizes[: self._n], sizes[self._n :])

    def second(self, bundle: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n d"]:
        r"""Return :math:`-\tfrac12|w|^2` along and :math:`-uw` across."""
        u, w = self._parts(bundle[0])
        a, b, times = Squares().packed(len(u))
        lengths = -0.5 * torch.einsum("rnd,snd->rsn", w, w)[a, b]
        across = torch.einsum("rnd,nde->rne", w, self._across)
        turned = torch.stack([_crossed(u[:, i], across[:, i], a, b) for i in range(self._n)], dim=1)
        found = times[:, None, None] * (lengths[..., None] * self._unit - turned)
        return (self._gain * found)[None]

    def beyond(self, one: Tensor, rest: Tensor, inside: Tensor | None = None) -> Tensor:
        """Bound what is of third order, or all of it."""
        u1, w1, u, w = one[: self._n], one[self._n :], (one + rest)[: self._n], (one + rest)[self._n :]
        inside = u < 1
        room = torch.where(inside, 1 - u, 1.0)
        twice = (rest[self._n :] * (w + w1)) / 2
        along = twice + 0.5 * w.square() * u * (2 - u) / room.square() + 0.375 * (w / room) ** 4
        turned = rest[: self._n] * w + u1 * rest[self._n :]
        across = turned + w * torch.maximum(u.square() / room, 0.5 * w.square() / room**3)
        whole = self._all(u, w) + torch.cat((0.5 * w1.square(), u1 * w1))
        return torch.where(inside.repeat(2), torch.minimum(torch.cat((along, across)), whole), whole)

    def turning(self, tokens: Tensor) -> tuple[Float[Tensor, "1 r n d"], Float[Tensor, "1 pairs n d"]]:
        r"""Return first and second order of a token that turns: :math:`\hat c\sqrt{1-|w|^2} + w`, :math:`w = \xi/N`.

        A norm sees the direction of :math:`c+e` only, and those are all within :math:`\sin\varphi\le|e|_2/N` of
        :math:`\hat c`: an embedding behind which a norm follows may as well turn by :math:`|\xi|_2\le|e|_2`.
        """
        n, d = self._unit.shape
        r = len(tokens) * d
        bundle = self._unit.new_zeros(len(tokens), d, n, d)
        along = self._unit.new_zeros(len(tokens), d, n, d)
        for place, i in enumerate(tokens.tolist()):
            bundle[place, :, i] = self._gain * self._across[i] / self._length[i]
            along[place, :, i] = -0.5 * self._gain * self._unit[i] / self._length[i].square()
        a, b, _times = Squares().packed(r)
        pairs = self._unit.new_zeros(len(a), n, d)
        pairs[a == b] = along.flatten(0, 1)
        return bundle.flatten(0, 1)[None], pairs[None]

    def turned(self, eps: float, tokens: Tensor, exact: bool) -> Float[Tensor, " groups"]:
        """Bound what turning by ``eps`` leaves: nothing across, along all or what is beyond an exact second order.

        No token may turn to nothing: nothing is proven from there on.
        """
        sine = self._unit.new_zeros(self._n)
        sine[tokens] = eps / self._length[tokens, 0]
        cosine = (1 - sine.square()).clamp_min(0).sqrt()
        along = sine**4 / (2 * (1 + cosine).square()) if exact else sine.square() / (1 + cosine)
        along = torch.where(sine < 1, along, torch.inf)
        return torch.cat((along, torch.zeros_like(along)))

    def _parts(self, columns: Float[Tensor, "*more n d"]) -> tuple[Tensor, Tensor]:
        """Return u and w of columns, w in the coordinates of the root."""
        u = ((columns * self._unit).sum(-1, keepdim=True) / self._length)[..., 0]
        # the root is the identity but for two directions
        centred = columns - columns.mean(-1, keepdim=True) if self._centred else columns
        return u, torch.addcmul(centred / self._length, u[..., None], self._shrunk, value=-1)

    def _all(self, u: Float[Tensor, " n"], w: Float[Tensor, " n"]) -> Float[Tensor, " groups"]:
        inside = u < 1
        room = torch.where(inside, 1 - u, 1.0)
        # differences of nearly equal numbers, written without them
        slope, length = (w / room).square(), ((1 + u).square() + w.square()).sqrt()
        along = slope / ((1 + slope).sqrt() * (1 + (1 + slope).sqrt()))
        shorter, longer = u / room, (2 * u + u.square() + w.square()) / (length * (length + 1))
        across = torch.minimum(torch.maximum(shorter, longer) * w, 1 + w)
        return torch.cat((torch.where(inside, along, 2.0), torch.where(inside, across, 1 + w)))


def _crossed(u: Float[Tensor, " r"], w: Float[Tensor, "r d"], a: Tensor, b: Tensor) -> Float[Tensor, "pairs d"]:
    """Return the symmetric form behind u times w."""
    return 0.5 * (u[a, None] * w[b] + u[b, None] * w[a])
