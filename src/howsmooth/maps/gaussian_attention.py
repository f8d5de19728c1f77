r"""Attention of a Gaussian measure: the affine map that moves its tokens, and the derivative on Gaussian measures.

Weights :math:`e^{\langle t, y\rangle}` turn :math:`\mathcal N(m,\Sigma)` into :math:`\mathcal N(m+\Sigma t,\Sigma)`, so
the mean of values that a token sees is affine in the token, and Gaussian measures stay Gaussian.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import Operator
from howsmooth.maps.heads import MultiHead
from howsmooth.validation import require_agreement


@runtime_checkable
class Gaussian(Protocol):
    """A Gaussian measure, as far as attention needs to know it."""

    @property
    def mean(self) -> Float[Tensor, " d"]:
        """Its mean m."""

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """Its covariance Σ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianAttention:
    r"""What attention does to the tokens of :math:`\mu = \mathcal N(m,\Sigma)`: an affine map.

    .. math:: \Gamma_\mu(x) = b + \sum_hB_h\bigl(m + \Sigma(G_hx + g_h)\bigr),\qquad
              B_h = W_hV_h,\quad G_h = s\,K_h^\top Q_h,\quad g_h = s\,K_h^\top b_q

    With ``residual`` the token itself is added.
    """

    mean: Float[Tensor, " d"]
    covariance: Float[Tensor, "d d"]
    values: Float[Tensor, "heads out d"]  # B
    scores: Float[Tensor, "heads d d"]  # G
    shifts: Float[Tensor, "heads d"]  # g
    bias: Float[Tensor, " out"]  # b
    residual: bool = False

    @classmethod
    def of(cls, attention: MultiHead, scale: float, measure: Gaussian) -> "GaussianAttention":
        """Return the map of softmax attention whose scores are multiplied by ``scale``, or refuse it."""
        _require_linear_scores(attention)
        require_agreement(measure.mean, attention.query, "the measure", "attention")
        if measure.mean.shape[-1] != attention.d:
            raise AssumptionError(
                f"attention moves tokens of dimension {attention.d}, got a Gaussian of dimension "
                f"{measure.mean.shape[-1]}.",
                field="measure",
            )
        heads, shared = attention.layout.heads, attention.layout.shared
        key, value = (x.repeat_interleave(shared, dim=0) for x in (attention.key, attention.value))
        output = attention.output
        if output is None:  # heads are concatenated: W is a column block of the identity
            output = torch.eye(attention.out).to(value).reshape(attention.out, heads, -1).transpose(0, 1)
        tilt = key.mT * scale
        bias = value.new_zeros(attention.out) if attention.output_bias is None else attention.output_bias
        if attention.value_bias is not None:
            bias = bias + (output @ attention.value_bias.repeat_interleave(shared, dim=0)[..., None]).sum(0)[:, 0]
        none = value.new_zeros(heads, attention.d)
        return cls(
            mean=measure.mean,
            covariance=measure.covariance,
            values=output @ value,
            scores=tilt @ attention.query,
            shifts=none if attention.query_bias is None else (tilt @ attention.query_bias[..., None])[..., 0],
            bias=bias,
        )

    @cached_property
    def matrix(self) -> Float[Tensor, "out d"]:
        r"""The linear part :math:`M = \sum_hB_h\Sigma G_h`, plus the identity for a residual map."""
        linear = (self.values @ self.covariance @ self.scores).sum(0)
        return linear + torch.eye(len(linear)).to(linear) if self.residual else linear

    @cached_property
    def offset(self) -> Float[Tensor, " out"]:
        r"""What is added: :math:`b + \sum_hB_h(m + \Sigma g_h)`."""
        seen = self.mean + self.shifts @ self.covariance
        return self.bias + (self.values @ seen[..., None]).sum(0)[:, 0]

    def __call__(self, points: Float[Tensor, "*n d"]) -> Float[Tensor, "*n out"]:
        """Move tokens."""
        return points @ self.matrix.mT + self.offset

    def with_residual(self) -> "GaussianAttention":
        """Return the map that adds the token itself."""
        if self.values.shape[-2] != self.mean.shape[-1]:
            raise AssumptionError("a residual connection needs outputs of the dimension of tokens.", field="attention")
        return dataclasses.replace(self, residual=True)

    def jacobian(self) -> "GaussianJacobian":
        r"""Differentiate :math:`\mu\mapsto(\Gamma_\mu)_\sharp\mu` on Gaussian measures."""
        return GaussianJacobian.of(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianJacobian(Operator):
    r"""The derivative of :math:`\mathcal N(m,\Sigma)\mapsto\mathcal N(\Gamma(m), M\Sigma M^\top)` in :math:`W_2`.

    A tangent vector is a velocity field :math:`\dot m + S(x - m)` with S symmetric, :math:`\dot\Sigma = S\Sigma+\Sigma
    S`, and has the squared norm :math:`|\dot m|^2+\operatorname{tr}S\Sigma S`. With :math:`\Sigma = U\Lambda U^\top`
    and :math:`\dot\Sigma = U(Z\circ c)U^\top`, :math:`c_{ij} = \sqrt{2(\lambda_i+\lambda_j)}`, that is
    :math:`|\dot m|^2+\|Z\|_F^2`: a vector of the domain has the row :math:`\dot m` and then the rows of Z.

    The codomain has the same of the image, and rows for what leaves its support if that is degenerate: the image of
    a token moves by :math:`(\dot M+MS)(x-m)`, and of that no point of the support determines
    :math:`P_0\dot M\Sigma^{1/2}(I-\Pi)`, with :math:`P_0` the projection on the kernel of :math:`M\Sigma M^\top` and
    :math:`\Pi` that on the row space of :math:`M\Sigma^{1/2}`.
    """

    map: GaussianAttention
    basis: Float[Tensor, "d d"]  # U
    factors: Float[Tensor, "d d"]  # c
    image_basis: Float[Tensor, "out out"]
    image_inverse: Float[Tensor, "out out"]  # 1/c of the image, zero where both eigenvalues vanish
    kernel: Float[Tensor, "out out"]  # P₀
    unseen: Float[Tensor, "d d"]  # Σ^½(I − Π)

    @classmethod
    def of(cls, f: GaussianAttention) -> "GaussianJacobian":
        """Differentiate at the measure of the map."""
        (out, d), like = f.matrix.shape, f.matrix
        basis, root, factors = _coordinates(f.covariance)
        left, singular, right = torch.linalg.svd(f.matrix @ root)
        rank = int((singular > max(out, d) * torch.finfo(like.dtype).eps * singular.max()).sum())
        squares = like.new_zeros(out)
        squares[:rank] = singular[:rank].square()
        sums = (2 * (squares[:, None] + squares)).sqrt()
        return cls(
            map=f,
            basis=basis,
            factors=factors,
            image_basis=left,
            image_inverse=torch.where(sums > 0, 1 / sums, 0.0),
            kernel=left[:, rank:] @ left[:, rank:].mT,
            unseen=root @ right[rank:].mT @ right[rank:],
            batch=(),
            domain=(1 + d, d),
            codomain=(1 + out + d, out),
            dtype=like.dtype,
            device=like.device,
        )

    def _push(self, E: Tensor) -> Tensor:
        f = self.map
        mean, covariance = E[0], self.basis @ (_symmetric(E[1:]) * self.factors) @ self.basis.mT
        tilts = f.scores @ f.mean + f.shifts  # G m + g
        moved = (f.values @ covariance @ tilts[..., None]).sum(0)[:, 0] + f.values.sum(0) @ mean + f.matrix @ mean
        matrix = (f.values @ covariance @ f.scores).sum(0)
        image = 2 * _symmetric(matrix @ f.covariance @ f.matrix.mT) + f.matrix @ covariance @ f.matrix.mT
        seen = (self.image_basis.mT @ image @ self.image_basis) * self.image_inverse
        return torch.cat((moved[None], seen, (self.kernel @ matrix @ self.unseen).mT))

    def _pull(self, G: Tensor) -> Tensor:
        f, out = self.map, self.image_basis.shape[0]
        moved, left = G[0], G[1 + out :].mT
        image = self.image_basis @ (_symmetric(G[1 : 1 + out]) * self.image_inverse) @ self.image_basis.mT
        matrix = 2 * image @ f.matrix @ f.covariance + self.kernel @ left @ self.unseen.mT
        tilts = f.scores @ f.mean + f.shifts
        covariance = f.matrix.mT @ image @ f.matrix
        covariance = covariance + (f.values.mT @ (matrix @ f.scores.mT + moved[:, None] * tilts[:, None, :])).sum(0)
        mean = (f.values.sum(0) + f.matrix).mT @ moved
        return torch.cat((mean[None], (self.basis.mT @ _symmetric(covariance) @ self.basis) * self.factors))


def _coordinates(covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the eigenvectors U of a covariance, its root, and the factors c of tangent vectors."""
    squares, basis = torch.linalg.eigh(covariance)
    squares = squares.clamp(min=0)
    return basis, (basis * squares.sqrt()) @ basis.mT, (2 * (squares[:, None] + squares)).sqrt()


def _symmetric(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def _require_linear_scores(attention: MultiHead) -> None:
    """Refuse attention whose scores are no linear function of what a token sees."""
    order = attention.positions
    reasons = {
        "a sink": getattr(attention, "sink", None) is not None,
        "a soft cap": getattr(attention, "softcap", None) is not None,
        "norms of queries or keys": attention.query_norm is not None or attention.key_norm is not None,
        "a mask or positions": any(value is not None and value is not False for value in vars(order).values()),
        "token weights of its own": attention.weights is not None,
        "a batch of weights": attention.query.ndim > 3,
    }
    for what, present in reasons.items():
        if present:
            raise AssumptionError(
                f"attention with {what} does not keep Gaussian measures Gaussian; draw tokens with measure.sample(n) "
                "and use hs.transport.DiscreteMeasure.",
                field="attention",
            )
