r"""LayerNorm and RMSNorm in a Taylor model.

Let c be the token (centred for LayerNorm) with the additional constant coordinate :math:`\sqrt{d\epsilon_0}`,
:math:`N = |c|`, :math:`\hat c = c/N`. A change of the token is :math:`N(u\hat c + w)` with w orthogonal to
:math:`\hat c`, and turns :math:`\hat c` into

.. math:: \frac{(1+u)\hat c+w}\rho = \hat c + w - \tfrac12|w|^2\hat c - uw + r,\qquad \rho^2 = (1+u)^2+|w|^2,

with :math:`|\langle\hat c,r\rangle| \le \tfrac12W^2((1-U)^{-2}-1)+\tfrac38(W/(1-U))^4` and the rest of r at most
:math:`\max(\tfrac{U^2}{1-U},\tfrac{W^2}{2(1-U)^3})` times w, where :math:`|u|\le U<1` and :math:`|w|\le W`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.norms import Norm
from howsmooth.verification.taylor_model import ExpandedStage, Forms, TaylorModel


class NormExpansion(ExpandedStage):
    """A norm around the centre of what enters it.

    Args:
        norm: The map.
        model: What enters.
        forms: Whether what enters is bounded beyond its linear part by quadratic forms.
    """

    def __init__(self, norm: Norm, model: TaylorModel, *, forms: bool) -> None:
        (n, d), dtype = model.centre.shape, model.centre.dtype
        eye = torch.eye(d, dtype=dtype)
        centring = eye - 1 / d if norm.centred else eye
        c = model.centre @ centring
        self.length = length = (c.square().sum(-1) + d * norm.eps).sqrt()
        self.unit = c / length.unsqueeze(-1)
        constant = math.sqrt(d * norm.eps) / length  # the last coordinate of ĉ
        self.gain = norm.gain * math.sqrt(d)
        along = self.unit / length.unsqueeze(-1)  # u of a change, and w
        self.across = centring / length[:, None, None] - self.unit.unsqueeze(-1) * along.unsqueeze(-2)
        self.u1 = torch.einsum("nd,ndr->nr", along, model.derivative)
        self.w1 = torch.einsum("nkd,ndr->nkr", self.across, model.derivative)
        self.with_constant = torch.cat([self.w1, -(constant[:, None] * self.u1).unsqueeze(1)], 1)
        self.symbols = model.symbols
        U1 = model.symbols.linear_range(self.u1)
        each = torch.eye(n, dtype=dtype)
        self.U2 = model.beyond_linear(torch.einsum("nm,nd->nmd", each, along), forms=forms).size
        coordinates = torch.einsum("nm,nkd->nkmd", each, self.across).flatten(0, 1)
        self.w2 = model.beyond_linear(coordinates, forms=forms).size.unflatten(0, (n, d))
        squares = self.with_constant.mT @ self.with_constant
        self.W1 = model.symbols.quadratic_range(squares)[1].sqrt()
        W2 = (self.w2.square().sum(-1) + (constant * self.U2).square()).sqrt()
        self.U, W = U1 + self.U2, self.W1 + W2
        small = self.U < 1  # further away a token may change its sign: nothing is known of its norm
        room = torch.where(small, 1 - self.U, 1.0)
        bent = 0.5 * W.square() * self.U * (2 - self.U) / room.square() + 0.375 * (W / room) ** 4
        self.on_unit = torch.where(small, self.W1 * W2 + 0.5 * W2.square() + bent, torch.inf)
        shrunk = torch.maximum(self.U.square() / room, 0.5 * W.square() / room**3)
        self.on_across = torch.where(small, shrunk, torch.inf)
        bias = 0.0 if norm.bias is None else norm.bias
        self.value, self.linear = self.gain * self.unit + bias, self.gain.unsqueeze(-1) * self.w1

    def pull_back(self, functionals: Float[Tensor, "f n d"], forms: Forms) -> Float[Tensor, "f n d"]:
        r"""Pull back through w; add :math:`-\tfrac12|w_1|^2\hat c-u_1w_1` and what is left."""
        scaled = functionals * self.gain
        on_unit = (scaled * self.unit).sum(-1)
        on_w = torch.einsum("fnk,nkr->fnr", scaled, self.w1)
        sizes, sizes_beyond = self.symbols.linear_range(on_w), (scaled.abs() * self.w2).sum(-1)
        half = -0.5 * on_unit[..., None, None]
        forms.add(
            self.with_constant.flatten(0, 1),
            lambda: (half * self.with_constant).flatten(1, 2),
            0.5 * (on_unit.abs() * self.W1.square()).sum(1),
        )
        forms.add(self.u1, lambda: -on_w, (sizes * (self.U - self.U2)).sum(1))
        products = self.U2 * sizes + self.U * sizes_beyond
        remainder = on_unit.abs() * self.on_unit + products + self.on_across * (sizes + sizes_beyond)
        forms.add_remainder(remainder.sum(1))
        return torch.einsum("fnk,nkd->fnd", scaled, self.across)
