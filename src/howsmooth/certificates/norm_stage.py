"""The remainder of LayerNorm and RMSNorm."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.stages import First, Stage
from howsmooth.maps.norms import Norm


class NormStage(Stage):
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
        # the square root of P − ĉĉᵀ: what is left of ĉ itself is the share of the constant coordinate
        size = self._unit.square().sum(-1)
        left = (1 - size).clamp_min(0).sqrt()
        eye = torch.eye(d, dtype=X.dtype)
        centring = eye - 1 / d if norm.centred else eye
        shrink = torch.where(size > 0, (1 - left) / size.clamp_min(1e-300), 0.0)
        self._across = centring - shrink[:, None, None] * self._unit[:, :, None] * self._unit[:, None, :]
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

    def seen(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> Float[Tensor, "groups sizes"]:
        """Return the sizes of u and w at every token."""
        u = ((bundle * self._unit).sum(-1, keepdim=True) / self._length)[..., 0]
        w = torch.einsum("grnd,nde->grne", bundle, self._across) / self._length
        return torch.cat((ball.numbers(u), ball.vectors(w)), dim=-1)

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound both parts of the remainder, by what they are or by what a direction can be."""
        u, w = sizes[: self._n], sizes[self._n :]
        inside = u < 1
        room = torch.where(inside, 1 - u, 1.0)
        along = torch.where(inside, 1 - (1 + (w / room).square()).rsqrt(), 2.0)
        shorter, longer = 1 / room - 1, 1 - ((1 + u).square() + w.square()).rsqrt()
        across = torch.where(inside, torch.minimum(torch.maximum(shorter, longer) * w, 1 + w), 1 + w)
        return torch.cat((along, across))
