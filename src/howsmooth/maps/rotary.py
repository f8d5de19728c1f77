"""Rotary position embeddings: an orthogonal rotation of queries and keys."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.protocols import take
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_finite


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotary(TensorDataclass):
    r"""Turn coordinate pair ``m`` of the token at position ``s`` by the angle :math:`s\,\omega_m`.

    :math:`\omega_m = \text{base}^{-2m/\text{dim}}` unless ``frequencies`` are given. The rotation is orthogonal, so it
    changes no norm, and its transpose is the rotation by the opposite angles.

    Attributes:
        base: The base of the geometric frequencies.
        dim: How many leading coordinates are rotated (``None``: all). Even.
        interleaved: Pairs are ``(0, 1), (2, 3), …`` instead of the half-split ``(m, m + dim/2)``.
        positions: The position of each token (``None``: 0, 1, 2, …).
        frequencies: Explicit frequencies, ``dim/2`` of them.
        reach: The longest sequence that the frequencies are meant for (``None``: any).
    """

    base: float = 10_000.0
    dim: int | None = None
    interleaved: bool = False
    positions: Shaped[Tensor, "*batch n"] | None = None
    frequencies: Float[Tensor, " half"] | None = None
    reach: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.base < math.inf:
            raise AssumptionError(f"the rotary base must be positive and finite, got {self.base}.", field="base")
        for name, x in (("positions", self.positions), ("frequencies", self.frequencies)):
            if x is not None:
                require_finite(x, f"rotary {name}")
        if self.dim is not None and (self.dim < 2 or self.dim % 2):
            raise ShapeError(f"the rotary dimension must be even and positive, got {self.dim}.", field="dim")

    def check_width(self, k: int) -> None:
        """Refuse heads whose dimension ``k`` cannot be rotated."""
        dim = k if self.dim is None else self.dim
        if dim % 2:
            raise ShapeError(
                f"the rotary dimension must be even, got heads of dimension {k}; set Rotary(dim=…).", field="dim"
            )
        if dim > k:
            raise ShapeError(f"the rotary dimension {dim} exceeds the head dimension {k}.", field="dim")
        if self.frequencies is not None and self.frequencies.shape != (dim // 2,):
            raise ShapeError(
                f"frequencies must have {dim // 2} entries, got {tuple(self.frequencies.shape)}.", field="frequencies"
            )

    def check(self, n: int) -> None:
        """Refuse ``n`` tokens that explicit positions do not fit, or that frequencies are not meant for."""
        if self.reach is not None and n > self.reach:
            raise AssumptionError(
                f"the rotary frequencies are meant for {self.reach} tokens at most, got {n}; give shorter sequences "
                "or other frequencies.",
                field="X",
            )
        if self.positions is not None and self.positions.shape[-1] != n:
            raise ShapeError(
                f"rotary positions must be given for each of {n} tokens, got {self.positions.shape[-1]}.",
                field="positions",
            )

    def rotation(self, n: int, k: int, like: Tensor) -> "Rotation":
        """Return the rotation of ``n`` tokens with heads of dimension ``k``."""
        dim = k if self.dim is None else self.dim
        frequencies = self.frequencies
        if frequencies is None:
            exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=like.device) / dim
            frequencies = self.base**-exponents
        positions = torch.arange(n, device=like.device) if self.positions is None else self.positions
        # in float64: at position 10⁵ a float32 angle is off by 10⁻²
        angles = positions.double()[..., None] * frequencies.double()
        cos, sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
        return Rotation(cos=cos.unsqueeze(-3), sin=sin.unsqueeze(-3), interleaved=self.interleaved)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotation:
    """The rotation of given tokens, applied to ``(*batch, heads, n, k)``."""

    cos: Float[Tensor, "*batch 1 n half"]
    sin: Float[Tensor, "*batch 1 n half"]
    interleaved: bool

    @property
    def T(self) -> "Rotation":
        """The transpose, which is the inverse."""
        return Rotation(cos=self.cos, sin=-self.sin, interleaved=self.interleaved)

    def take(self, batch: tuple[int, ...], index: Tensor) -> "Rotation":
        """Pick the rotations of some entries of the batch."""
        cos, sin = (take(x, batch, index, event=3) for x in (self.cos, self.sin))
        return Rotation(cos=cos, sin=sin, interleaved=self.interleaved)

    def __call__(self, x: Float[Tensor, "*batch heads n k"]) -> Float[Tensor, "*batch heads n k"]:
        """Rotate the leading coordinates of every token; the rest stays."""
        dim = 2 * self.cos.shape[-1]
        head, tail = x[..., :dim], x[..., dim:]
        a, b = (head[..., ::2], head[..., 1::2]) if self.interleaved else head.chunk(2, dim=-1)
        pairs = (a * self.cos - b * self.sin, a * self.sin + b * self.cos)
        rotated = torch.stack(pairs, dim=-1).flatten(-2) if self.interleaved else torch.cat(pairs, dim=-1)
        return torch.cat((rotated, tail), dim=-1) if tail.shape[-1] else rotated
