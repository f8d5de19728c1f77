"""A norm over the queries, or over the keys, of all heads together."""

import dataclasses
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.norms import Norm, NormJacobian, RMSNorm, require_spread
from howsmooth.maps.protocols import take
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_agreement


@dataclass(frozen=True, kw_only=True, eq=False)
class JointNorm(TensorDataclass):
    r"""Divide the queries of each head by the root mean square of those of all heads.

    .. math:: q_h \mapsto \alpha_h\circ q_h/\sigma + \beta_h,\qquad \sigma^2 = \tfrac1p\,|Mx + m|^2 + \epsilon

    M holds the query projections of all heads, so a head alone needs nothing else of the others: it keeps its own
    :math:`\alpha_h` and the same :math:`\sigma`.

    Attributes:
        gain: :math:`\alpha`.
        bias: :math:`\beta`, or ``None`` for zero.
        weight: M, the projections of all heads, one above the other.
        shift: m, their biases, or ``None`` for zero.
        eps: Added to the mean square under the root.
    """

    gain: Float[Tensor, "... heads k"]
    bias: Float[Tensor, "... heads k"] | None
    weight: Float[Tensor, "... p d"]
    shift: Float[Tensor, "... p"] | None
    eps: float

    @classmethod
    def over(
        cls, norm: RMSNorm, weight: Float[Tensor, "*w heads k d"], shift: Float[Tensor, "*w heads k"] | None
    ) -> "JointNorm":
        """Let a norm act on what projections put out, all heads in one row."""
        heads = weight.shape[-3]
        return cls(
            gain=norm.gain.unflatten(0, (heads, -1)),
            bias=None if norm.bias is None else norm.bias.unflatten(0, (heads, -1)),
            weight=weight.flatten(-3, -2),
            shift=None if shift is None else shift.flatten(-2),
            eps=norm.eps,
        )

    def head(self, h: int) -> "JointNorm":
        """Restrict to head ``h``."""
        bias = None if self.bias is None else self.bias[..., h : h + 1, :]
        return dataclasses.replace(self, gain=self.gain[..., h : h + 1, :], bias=bias)

    def per_head(self, repeats: int) -> "JointNorm":
        """Turn heads into a batch axis; each group of keys serves ``repeats`` heads."""

        def spread(x: Tensor) -> Tensor:
            return x.repeat_interleave(repeats, dim=-2).unsqueeze(-2)

        return dataclasses.replace(
            self,
            gain=spread(self.gain),
            bias=None if self.bias is None else spread(self.bias),
            weight=self.weight.unsqueeze(-3),
            shift=None if self.shift is None else self.shift.unsqueeze(-2),
        )

    def linearise(
        self, q: Float[Tensor, "*batch heads n k"], X: Float[Tensor, "*batch n d"]
    ) -> tuple[Float[Tensor, "*batch heads n k"], "JointNormJacobian"]:
        """Normalise the queries of the tokens ``X``, and differentiate, unchecked."""
        whole = X @ self.weight.mT
        whole = whole if self.shift is None else whole + self.shift.unsqueeze(-2)
        scale = (whole.square().mean(-1, keepdim=True) + self.eps).sqrt()
        require_spread(scale, self.eps)
        gradient = (whole / scale) @ self.weight / self.weight.shape[-2]
        scale = scale.unsqueeze(-3)
        found = JointNormJacobian(gain=self.gain.unsqueeze(-2), z=q / scale, scale=scale, scale_gradient=gradient)
        value = found.gain * found.z
        return value if self.bias is None else value + self.bias.unsqueeze(-2), found


@dataclass(frozen=True, kw_only=True, eq=False)
class JointNormJacobian:
    r"""The derivative of a joint norm, in the queries of some heads and in the tokens.

    .. math:: dq_h \mapsto \alpha_h\circ\bigl(dq_h - z_h\langle c, e\rangle\bigr)/\sigma,\qquad
              \langle c, e\rangle = d\sigma = \tfrac1{p\sigma}\langle Mx+m,\,Me\rangle

    All that the other heads do is in one covector c for each token.

    Attributes:
        gain: :math:`\alpha`.
        z: Queries over :math:`\sigma`.
        scale: :math:`\sigma`.
        scale_gradient: c.
    """

    gain: Float[Tensor, "... heads 1 k"]
    z: Float[Tensor, "*batch heads n k"]
    scale: Float[Tensor, "*batch 1 n 1"]
    scale_gradient: Float[Tensor, "*batch n d"]

    def jvp(self, dq: Float[Tensor, "*batch heads n k"], E: Float[Tensor, "*batch n d"]) -> Tensor:
        """Push a perturbation of the tokens, and of the queries that comes of it, to the normalised queries."""
        along = (self.scale_gradient * E).sum(-1, keepdim=True).unsqueeze(-3)
        return self.gain * (dq - self.z * along) / self.scale

    def vjp(self, G: Float[Tensor, "*batch heads n k"]) -> tuple[Tensor, Float[Tensor, "*batch n d"]]:
        """Pull a cotangent back to the queries, and past them to the tokens."""
        g = self.gain * G / self.scale
        along = (self.z * g).sum((-3, -1)).unsqueeze(-1)
        return g, -self.scale_gradient * along

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int = 3) -> "JointNormJacobian":
        """Pick entries of the leading ``batch`` axes, ``event`` axes being left: heads, tokens, coordinates."""
        return JointNormJacobian(
            gain=take(self.gain, batch, index, event=event),
            z=take(self.z, batch, index, event=event),
            scale=take(self.scale, batch, index, event=event),
            scale_gradient=take(self.scale_gradient, batch, index, event=event - 1),
        )


HeadNorm = Norm | JointNorm | None


def acting_norm(norm: HeadNorm, weight: Float[Tensor, "*w heads k d"], bias: Tensor | None) -> HeadNorm:
    """Return a norm as it acts on the projections by ``weight``: on all heads together if its gain is that long."""
    if isinstance(norm, RMSNorm) and norm.gain.shape[0] != weight.shape[-2]:
        return JointNorm.over(norm, weight, bias)
    return norm


def normalise(x: Tensor, norm: HeadNorm, X: Tensor) -> tuple[Tensor, NormJacobian | JointNormJacobian | None]:
    """Return the normalised queries or keys ``x`` of the tokens ``X``, and the derivative of the norm, unchecked."""
    if norm is None:
        return x, None
    return norm.linearise(x, X) if isinstance(norm, JointNorm) else (norm.apply(x), norm.linearise(x))


def check_head_norm(norm: Norm | JointNorm, query: Float[Tensor, "*w heads k d"], count: int, name: str) -> None:
    """Refuse a norm that fits neither one head of queries or keys nor all ``count`` of them."""
    if not isinstance(norm, Norm | JointNorm):
        raise DtypeError(
            f"{name} must be an hs.maps.LayerNorm or an hs.maps.RMSNorm, got {type(norm).__name__}.", field=name
        )
    require_agreement(norm.gain, query, name, "query")
    if isinstance(norm, JointNorm):  # made for this map, or for the one that it is a head of
        return
    k, shape = query.shape[-2], tuple(norm.gain.shape)
    if shape not in ((k,), (count * k,)):
        raise ShapeError(
            f"the gain of {name} must have the shape ({k},) for each head or ({count * k},) for all, got {shape}.",
            field=name,
        )
    if shape != (k,) and not isinstance(norm, RMSNorm):
        raise AssumptionError(
            f"{name} over all heads must be an hs.maps.RMSNorm, got {type(norm).__name__}; "
            "a LayerNorm is that of projections whose mean over rows is taken off.",
            field=name,
        )


def of_each_head(norm: NormJacobian | JointNormJacobian | None) -> NormJacobian | None:
    """Return the derivative of a norm that acts on each head alone.

    Raises:
        AssumptionError: If it acts on all heads together.
    """
    if isinstance(norm, JointNormJacobian):
        raise AssumptionError("this does not know norms over all heads together.", field="attention")
    return norm
