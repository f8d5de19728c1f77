"""What a scheme is: a function from numbers to rounded numbers, its name, and the bits that it needs."""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, nearest

# Rounds a tensor along its last axis; the name of the parameter is given too, for schemes that look it up.
Rounding = Callable[[Tensor, str], Tensor]
# Bits of a number that no scheme rounds: what models are published in.
UNROUNDED_BITS = 16.0
FAMILIES = ("integers", "floats", "pruning", "gguf_types", "checkpoints", "own_code")
# Where an error enters, by the first word of a scheme; the weights of linear maps if there is none of these.
PLACES = ("weights", "embeddings", "kv", "kv-channel", "residual", "kernel")


@dataclass(frozen=True, kw_only=True, eq=False)
class Scheme:
    """One way to round numbers.

    Attributes:
        name: What it is called.
        rounded: Returns a tensor (…, rows, columns) rounded along its columns; given the name of the parameter, too.
        number_bits: Bits for each number.
        scale_bits: Bits for each group of numbers that share a scale.
        group: How many numbers share a scale; none for a row of the matrix, 0 for the whole matrix.
        place: Where its error enters: one of ``PLACES``.
        by_name: Whether it looks parameters up by their names, and takes them in the shape that they have there.
    """

    name: str
    rounded: Rounding
    number_bits: float
    scale_bits: float = 0.0
    group: int | None = 0
    place: str = "weights"
    by_name: bool = False

    def __repr__(self) -> str:
        """Return its name."""
        return f"Scheme({self.name})"

    def error(self, W: Float[Tensor, "*shape"], name: str = "") -> Float[Tensor, "*shape"]:
        """Return what rounding adds to a tensor.

        Raises:
            AssumptionError: If the scheme returns another shape, or NaN, or infinity.
        """
        found = self.rounded(W, name)
        if found.shape != W.shape:
            raise AssumptionError(
                f"the scheme {self.name!r} must keep the shape {tuple(W.shape)} of {name!r}, got {tuple(found.shape)}.",
                field="schemes",
            )
        if not math.isfinite(float(found.sum())):  # a sum is read once, and as NaN as its terms
            raise AssumptionError(
                f"the scheme {self.name!r} makes NaN or infinity of {name!r}; its range is too small.", field="schemes"
            )
        return found.to(W.dtype) - W

    def bits(self, W: Tensor) -> float:
        """Return the bits of each number of a matrix, scales included."""
        columns = W.shape[-1]
        scales = 1 / W.numel() if self.group == 0 else math.ceil(columns / (self.group or columns)) / columns
        return self.number_bits + self.scale_bits * scales


class SchemeWords(NamedTuple):
    """A scheme as it was typed: its name, its first word, and the options behind colons."""

    name: str
    first: str
    options: list[str]

    def unknown(self, expected: str) -> AssumptionError:
        """Return the error for options that the family does not have."""
        given = ":".join(self.options)
        return AssumptionError(f"{self.name!r}: {expected}, got {given!r}.", field="schemes")


def scheme(name: str) -> Scheme:
    """Return the scheme of a name.

    Args:
        name: ``int4:g64``, ``int8:channel``, ``int4:g64:asym``, ``nf4``, ``fp8``, ``e5m2``, ``bf16``, ``prune:0.5``,
            ``prune:2:4``, ``gguf:Q4_0``, ``against:MODEL`` (the weights of another checkpoint), or a function of the
            user's own, ``mine.py:function``. In front of it may stand where the error enters: ``embeddings:``, ``kv:``
            (groups within a token of the cache), ``kv-channel:`` (groups of tokens), ``residual:`` or ``kernel:``; the
            weights of linear maps otherwise.

    Raises:
        AssumptionError: If there is no such scheme.

    Example:
        >>> scheme("int4:g64").number_bits
        4
    """
    place, _, rest = name.partition(":")
    place, rest = (place, rest) if place in PLACES and rest else (PLACES[0], name)
    first, *options = rest.split(":")
    words = SchemeWords(name, first, options)
    known: list[str] = []
    for family in FAMILIES:
        module = importlib.import_module(f"howsmooth.budgets.schemes.{family}")
        known += module.NAMES
        found = module.read(words)
        if found is not None:
            return replace(found, name=name, place=place)
    raise AssumptionError(
        f"there is no scheme {name!r}, and it names no function of a file{nearest(first, known)}", field="schemes"
    )


def grouped(W: Tensor, group: int | None, round_groups: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of groups (…, numbers) to consecutive columns; short last groups are filled up with zeros."""
    if group == 0:
        return round_groups(W.flatten()[None])[0].view_as(W)
    if group is None or group >= W.shape[-1]:
        return round_groups(W)
    missing = -W.shape[-1] % group
    padded = W if not missing else _with_zeros(W, missing)
    return round_groups(padded.unflatten(-1, (-1, group))).flatten(-2)[..., : W.shape[-1]]


def _with_zeros(W: Tensor, count: int) -> Tensor:
    import torch

    return torch.nn.functional.pad(W, (0, count))


def group_option(words: SchemeWords, options: Sequence[str], default: int | None) -> int | None:
    """Return the size of groups among options: ``tensor``, ``channel`` or ``g64``."""
    for option in options:
        if option in ("tensor", "channel"):
            default = 0 if option == "tensor" else None
        elif option[:1] == "g" and option[1:].isdecimal() and int(option[1:]) > 0:
            default = int(option[1:])
        else:
            raise words.unknown("options are tensor, channel (one scale for each row) or g64 (for 64 numbers)")
    return default
