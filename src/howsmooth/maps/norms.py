"""LayerNorm and RMSNorm as maps with derivatives; norms over the queries or keys of all heads together."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.norm_image import Ellipsoid
from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.linear_operators import Operator, on_tokens, take
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.torch_internals import is_batched, project_out, recorded
from howsmooth.validation import (
    require_agreement,
    require_finite,
    require_floating,
    require_parameter,
    require_tokens,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm(TensorDataclass):
    r"""What LayerNorm and RMSNorm share: :math:`x \mapsto \alpha\circ z + \beta` with normalised :math:`z`."""

    gain: Float[Tensor, " d"]  # α
    bias: Float[Tensor, " d"] | None = None  # β, or none for zero
    eps: float = 1e-5  # added to the mean square under the root

    centred = False  # overridden by LayerNorm

    def __post_init__(self) -> None:
        require_floating(self.gain, "gain")
        if self.gain.ndim != 1 or not self.gain.numel():
            raise ShapeError(
                f"gain must have one axis with an entry for each coordinate, got {tuple(self.gain.shape)}.",
                field="gain",
            )
        require_finite(self.gain, "gain")
        if not 0 <= self.eps < math.inf:
            raise AssumptionError(f"eps must not be negative and must be finite, got {self.eps}.", field="eps")
        if self.bias is not None:
            require_parameter(self.bias, tuple(self.gain.shape), self.gain, "bias", "gain")

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Normalise every token."""
        require_tokens(X, self.gain)
        return self.apply(X)

    def apply(self, X: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Normalise every token, unchecked."""
        z, _scale = self._normalised(X)
        scaled = self.gain * z
        return scaled if self.bias is None else scaled + self.bias

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "NormJacobian":
        """Differentiate at ``X``."""
        require_tokens(X, self.gain)
        return self.linearise(X)

    def value_and_jacobian(self, X: Tensor, *, memory: int = 0) -> "tuple[Tensor, NormJacobian]":
        """Return the value and the derivative at ``X``, which share ``z``; ``memory`` is for maps with weights."""
        found = self.jacobian(X)
        scaled = self.gain * found.z
        return scaled if self.bias is None else scaled + self.bias, found

    def linearise(self, X: Float[Tensor, "*batch n d"]) -> "NormJacobian":
        """Differentiate at ``X``, unchecked."""
        z, scale = self._normalised(X)
        return NormJacobian(z=z, stretch=self.gain / scale, centred=self.centred, **on_tokens(z))

    def _normalised(self, X: Tensor) -> tuple[Tensor, Tensor]:
        centred = X - X.mean(-1, keepdim=True) if self.centred else X
        scale = (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()
        require_spread(scale, self.eps)
        return centred / scale, scale

    @property
    def image(self) -> Ellipsoid:
        r"""The closure of what the norm can output.

        Since :math:`|z|^2 \le d`, with equality in the limit, this is the ellipsoid
        :math:`\{\alpha\circ z+\beta : |z|\le\sqrt d\}`, for LayerNorm with :math:`z \perp 1`.
        """
        bias = torch.zeros_like(self.gain) if self.bias is None else self.bias
        return Ellipsoid(gain=self.gain, centre=bias, centred=self.centred)


def require_spread(scale: Tensor, eps: float) -> None:
    """Refuse tokens that no norm can scale: without eps a constant one has no direction, and 0/0 is no number."""
    if eps == 0 and not is_batched(scale) and bool((scale == 0).any()):
        raise AssumptionError(
            "eps = 0 and a token without spread: the norm is not differentiable there; give eps.", field="eps"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RMSNorm(Norm):
    r"""Divide every token by its root mean square.

    .. math:: f(x) = \alpha\circ z + \beta,\qquad z = x\big/\sqrt{\tfrac1d|x|^2 + \epsilon}

    Example:
        >>> RMSNorm(gain=torch.ones(2), eps=0.0)(torch.tensor([[3.0, 3.0]]))
        tensor([[1., 1.]])
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerNorm(Norm):
    r"""Centre every token and divide it by its standard deviation.

    .. math:: f(x) = \alpha\circ z + \beta,\qquad z = (x-\bar x)\big/\sqrt{\mathrm{var}(x) + \epsilon}

    Example:
        >>> LayerNorm(gain=torch.ones(2), eps=0.0)(torch.tensor([[1.0, 5.0]]))
        tensor([[-1.,  1.]])
    """

    centred = True


@dataclass(frozen=True, kw_only=True, eq=False)
class NormJacobian(Operator):
    r"""The derivative of a norm: token by token, and symmetric but for the gain.

    .. math:: J E = (\alpha/\sigma)\circ\Pi E,\quad J^\top G = \Pi\bigl((\alpha/\sigma)\circ G\bigr),\quad
              \Pi E = \bar E - z\,\mathrm{mean}(z\circ\bar E),

    with :math:`\bar E` the centred perturbation for LayerNorm and ``E`` itself for RMSNorm.
    """

    z: Float[Tensor, "*batch n d"]
    stretch: Float[Tensor, "*batch n d"]  # α/σ, the gain over each token's scale
    centred: bool

    def _push(self, E: Tensor) -> Tensor:
        return self.stretch * self._projected(E)

    def _pull(self, G: Tensor) -> Tensor:
        return self._projected(self.stretch * G)

    def take(self, index: Tensor) -> "NormJacobian":
        """Pick some operators of the batch."""
        return self.taken(self.batch, index, event=2)

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "NormJacobian":
        """Pick entries of the leading ``batch`` axes, ``event`` axes being left."""
        z, stretch = (take(x, batch, index, event=event) for x in (self.z, self.stretch))
        return dataclasses.replace(self, z=z, stretch=stretch, batch=tuple(z.shape[:-2]))

    def _projected(self, E: Tensor) -> Tensor:
        if self.centred:
            if not recorded(E, self.z):
                return project_out(E, self.z)
            E = E - E.mean(-1, keepdim=True)
        # Π is symmetric, since z sums to zero where tokens are centred: one function serves both products
        return torch.addcmul(E, self.z, (self.z * E).mean(-1, keepdim=True), value=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class JointNorm(TensorDataclass):
    r"""Divide the queries of each head by the root mean square of those of all heads.

    .. math:: q_h \mapsto \alpha_h\circ q_h/\sigma + \beta_h,\qquad \sigma^2 = \tfrac1p\,|Mx + m|^2 + \epsilon

    M holds the query projections of all heads, so a head alone needs nothing else of the others: it keeps its own
    :math:`\alpha_h` and the same :math:`\sigma`.
    """

    gain: Float[Tensor, "... heads k"]  # α
    bias: Float[Tensor, "... heads k"] | None  # β, or none for zero
    weight: Float[Tensor, "... p d"]  # M, the projections of all heads, one above the other
    shift: Float[Tensor, "... p"] | None  # m, their biases, or none for zero
    eps: float  # added to the mean square under the root

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
        # c = ∇σ = Mᵀ(Mx + m)/(pσ): kept as one covector for each token, whatever the number of heads
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
    """

    gain: Float[Tensor, "... heads 1 k"]  # α
    z: Float[Tensor, "*batch heads n k"]  # queries over σ
    scale: Float[Tensor, "*batch 1 n 1"]  # σ
    scale_gradient: Float[Tensor, "*batch n d"]  # c

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
    """Return the derivative of a norm that acts on each head alone."""
    if isinstance(norm, JointNormJacobian):
        raise AssumptionError("this does not know norms over all heads together.", field="attention")
    return norm
