"""Schemes: functions from numbers to rounded numbers, by their names, with the bits that each of them needs."""

import functools
import importlib.util
import math
import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, FileError, ShapeError, nearest
from howsmooth.validation import require_dense, require_finite, require_floating, require_numbers

# Rounds a tensor along its last axis; the name of the parameter is given too, for schemes that look it up.
Rounding = Callable[[Tensor, str], Tensor]
# Bits of a number that no scheme rounds, which is what models are published in; bits of a scale.
UNROUNDED_BITS, SCALE_BITS = 16.0, 16
# Where an error enters, by the first word of a scheme; the weights of linear maps if there is none of these.
PLACES = ("weights", "embeddings", "kv", "kv-channel", "residual", "kernel")
# Where numbers are computed anew and not kept, so that they take no space.
COMPUTED = ("residual", "kernel")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
NF4_GROUP = 64
# What a name that is unknown is compared with.
KNOWN = [f"int{bits}" for bits in range(2, 9)]
KNOWN += ["nf4", *EIGHT_BITS, *HALF, "prune:0.5", "prune:2:4", "gguf:Q8_0", "against:MODEL"]


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
        require_floating(W, "W")
        _require_matrix(W)
        require_finite(W, "W")
        found = self.rounded(W, name)
        if found.shape != W.shape:
            raise AssumptionError(
                f"the scheme {self.name!r} must keep the shape {tuple(W.shape)} of {name!r}, got {tuple(found.shape)}.",
                field="schemes",
            )
        if not math.isfinite(float(found.detach().sum())):  # a sum is read once, and as NaN as its terms
            raise AssumptionError(
                f"the scheme {self.name!r} makes NaN or infinity of {name!r}; its range is too small.", field="schemes"
            )
        return found.to(W.dtype) - W

    def bits(self, W: Tensor) -> float:
        """Return the bits of each number of a matrix, scales included."""
        require_dense(W, "W")
        _require_matrix(W)
        columns = W.shape[-1]
        scales = 1 / W.numel() if self.group == 0 else math.ceil(columns / (self.group or columns)) / columns
        return self.number_bits + self.scale_bits * scales


def _require_matrix(W: Tensor) -> None:
    require_numbers(W, "W")
    if not W.ndim:
        raise ShapeError("W must have an axis of numbers that are rounded together, got a number.", field="W")


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
    place = place_of(name)
    rest = name.removeprefix(f"{place}:")
    first, *options = rest.split(":")
    words = SchemeWords(name, first, options)
    for read in FAMILIES:
        found = read(words)
        if found is not None:
            return replace(found, name=name, place=place)
    raise AssumptionError(
        f"there is no scheme {name!r}, and it names no function of a file{nearest(first, KNOWN)}", field="schemes"
    )


def place_of(name: str) -> str:
    """Return where the errors of a scheme enter, by its name."""
    place, _, rest = name.partition(":")
    return place if place in PLACES and rest else PLACES[0]


def grouped(W: Tensor, group: int | None, round_groups: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of groups (…, numbers) to consecutive columns; short last groups are filled up with zeros."""
    if group == 0:
        return round_groups(W.flatten()[None])[0].view_as(W)
    if group is None or group >= W.shape[-1]:
        return round_groups(W)
    missing = -W.shape[-1] % group
    padded = torch.nn.functional.pad(W, (0, missing)) if missing else W
    return round_groups(padded.unflatten(-1, (-1, group))).flatten(-2)[..., : W.shape[-1]]


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


def _integers(words: SchemeWords) -> Scheme | None:
    """Read ``int4:g64:asym``; one scale for each row unless told otherwise."""
    if not re.fullmatch("int[2-8]", words.first):
        return None
    bits, asymmetric = int(words.first[3:]), "asym" in words.options
    group = group_option(words, [option for option in words.options if option != "asym"], None)
    rounding = functools.partial(with_zero_point if asymmetric else symmetric, bits=bits)
    return _scaled(words, rounding, bits, group, scale_bits=SCALE_BITS + bits * asymmetric)


def _scaled(
    words: SchemeWords, rounding: Callable[[Tensor], Tensor], bits: int, group: int | None, *, scale_bits: int
) -> Scheme:
    return Scheme(
        name=words.name,
        rounded=lambda W, _name: grouped(W, group, rounding),
        number_bits=bits,
        scale_bits=scale_bits,
        group=group,
    )


def _positive(scale: Tensor) -> Tensor:
    """Return the scale of each group; one for groups of zeros."""
    return scale.where(scale > 0, 1.0)


def symmetric(groups: Tensor, bits: int) -> Tensor:
    r"""Round to :math:`s\{-2^{b-1},\dots,2^{b-1}-1\}` with :math:`s = 2\max|w|/(2^b-1)`, as compressed-tensors does."""
    top = 2 ** (bits - 1)
    scale = _positive(groups.abs().amax(-1, keepdim=True) * (2 / (2**bits - 1)))
    return (groups / scale).round_().clamp_(-top, top - 1).mul_(scale)


def with_zero_point(groups: Tensor, bits: int) -> Tensor:
    r"""Round to :math:`s\{-z,\dots,2^b-1-z\}`, which covers zero and every number; z is whole, so that zero stays."""
    low, high = groups.amin(-1, keepdim=True).clamp_(max=0), groups.amax(-1, keepdim=True).clamp_(min=0)
    scale = _positive((high - low) / (2**bits - 1))
    zero = (-low / scale).round_()
    return (groups / scale).round_().add_(zero).clamp_(0, 2**bits - 1).sub_(zero).mul_(scale)


def _floats(words: SchemeWords) -> Scheme | None:
    """Read ``nf4:g64``, ``fp8:channel``, ``e5m2``, ``bf16``, ``fp16``."""
    if words.first in HALF:
        if words.options:
            raise words.unknown("numbers of sixteen bits have no scale, and no option")
        dtype = HALF[words.first]
        return Scheme(name=words.name, rounded=lambda W, _name: W.to(dtype).to(W.dtype), number_bits=16)
    if words.first in EIGHT_BITS:
        rounding = functools.partial(eight_bits, dtype=EIGHT_BITS[words.first])
        return _scaled(words, rounding, 8, group_option(words, words.options, 0), scale_bits=SCALE_BITS)
    if words.first == "nf4":
        return _scaled(words, nf4, 4, group_option(words, words.options, NF4_GROUP), scale_bits=SCALE_BITS)
    return None


def eight_bits(groups: Tensor, dtype: torch.dtype) -> Tensor:
    """Scale the largest number of a group to the largest one of the dtype, and round."""
    scale = _positive(groups.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max)
    return (groups / scale).to(dtype).to(groups.dtype).mul_(scale)


@functools.cache
def nf4_levels() -> Tensor:
    r"""Return the sixteen levels of NF4 (Dettmers et al. 2023): quantiles of a normal distribution, scaled to [−1, 1].

    Eight quantiles from ½ to the offset :math:`1-\tfrac12(\tfrac1{32}+\tfrac1{30})` make the positive levels, seven the
    negative ones, and zero is a level.
    """
    offset = 1 - (1 / 32 + 1 / 30) / 2
    positive = torch.special.ndtri(torch.linspace(offset, 0.5, 9, dtype=torch.float64))[:-1]
    negative = -torch.special.ndtri(torch.linspace(offset, 0.5, 8, dtype=torch.float64))[:-1]
    levels = torch.cat([positive, torch.zeros(1, dtype=torch.float64), negative]).sort().values
    return levels / levels.max()


def nf4(groups: Tensor) -> Tensor:
    """Scale the largest number of a group to one, and take the nearest level."""
    levels = nf4_levels().to(groups)
    scale = _positive(groups.abs().amax(-1, keepdim=True))
    places = torch.bucketize((groups / scale).contiguous(), (levels[1:] + levels[:-1]) / 2)
    return levels[places].mul_(scale)


def _pruning(words: SchemeWords) -> Scheme | None:
    """Read ``prune:0.5`` (half of the numbers become zero) and ``prune:2:4`` (two of every four are kept)."""
    if words.first != "prune":
        return None
    expected = "prune:0.5 removes that share of the numbers, prune:2:4 keeps 2 of every 4"
    whole = [int(option) for option in words.options if option.isdecimal()]
    if len(whole) == len(words.options) == 2:
        kept, of = whole
        if not 0 < kept < of:
            raise words.unknown(expected)
        # which numbers are kept takes log₂ binomial(M, N) bits at least; hardware spends two for each kept one of four
        bits = (kept / of) * (UNROUNDED_BITS + (of - 1).bit_length())
        return Scheme(
            name=words.name,
            rounded=lambda W, _name: grouped(W, of, lambda groups: largest(groups, kept)),
            number_bits=bits,
        )
    share = words.options[0] if len(words.options) == 1 else ""
    if not re.fullmatch(r"0?\.\d+", share) or not 0 < float(share) < 1:
        raise words.unknown(expected)
    # one bit for each number tells whether it is kept
    return Scheme(
        name=words.name,
        rounded=lambda W, _name: above_share(W, float(share)),
        number_bits=1 + (1 - float(share)) * UNROUNDED_BITS,
    )


def largest(groups: Tensor, kept: int) -> Tensor:
    """Keep the largest numbers of each group."""
    where = groups.abs().topk(kept, dim=-1).indices
    return torch.zeros_like(groups).scatter(-1, where, groups.gather(-1, where))


def above_share(W: Tensor, share: float) -> Tensor:
    """Set a share of all numbers to zero, the smallest ones."""
    size = W.abs().flatten()
    count = round(share * size.numel())
    pruned = W.flatten().clone()
    pruned[size.argsort(stable=True)[:count]] = 0
    return pruned.view_as(W)


def _gguf_types(words: SchemeWords) -> Scheme | None:
    """Read ``gguf:Q4_0`` and other types that the package can write."""
    if words.first != "gguf":
        return None
    if importlib.util.find_spec("gguf") is None:
        raise AssumptionError(f"{words.name!r} needs the package gguf; pip install gguf.", field="schemes")
    import gguf

    types = {kind.name: kind for kind in gguf.GGMLQuantizationType if _writes(kind)}
    wanted = ":".join(words.options).upper()
    if wanted not in types:
        raise AssumptionError(
            f"the package gguf has no quantiser for {wanted or 'no type'} (k-quants need llama.cpp: quantise with it "
            f"and name its file with against=){nearest(wanted, types)}",
            field="schemes",
        )
    numbers, size = gguf.GGML_QUANT_SIZES[types[wanted]]

    def rounded(W: Tensor, name: str) -> Tensor:
        if W.shape[-1] % numbers:
            raise AssumptionError(
                f"{wanted} needs rows that are a multiple of {numbers} long, but {name!r} has {W.shape[-1]} columns.",
                field="schemes",
            )
        array = W.detach().float().cpu().numpy()
        written = gguf.dequantize(gguf.quantize(array, types[wanted]), types[wanted])
        return torch.from_numpy(written.astype("float32")).reshape(W.shape).to(W)

    return Scheme(name=words.name, rounded=rounded, number_bits=8 * size / numbers)


def _writes(kind: Any) -> bool:
    """Return whether the package has a quantiser of its own for a type."""
    import gguf
    import numpy as np

    numbers, _size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.quantize(np.zeros((1, numbers), dtype=np.float32), kind)
    except NotImplementedError:
        return False
    return True


def _checkpoints(words: SchemeWords) -> Scheme | None:
    """Read ``against:other/model``: what it takes to go from one checkpoint to the other."""
    if words.first != "against":
        return None
    model = ":".join(words.options)
    if not model:
        raise words.unknown("name a model, as in against:other/model")

    def rounded(W: Tensor, name: str) -> Tensor:
        # one of the two may have been loaded with its head, whose module puts a prefix in front of names
        read = next((read for key, read in checkpoint(model).items() if _same(key, name)), None)
        if read is None:
            raise AssumptionError(f"{model!r} has no parameter {name!r}.", field="schemes")
        found = read()
        if found.shape != W.shape:
            raise ShapeError(
                f"{name!r} has the shape {tuple(W.shape)} here and {tuple(found.shape)} in {model!r}; the other "
                "checkpoint must be of the same model.",
                field="schemes",
            )
        return found.to(W)

    return Scheme(name=words.name, rounded=rounded, number_bits=UNROUNDED_BITS, by_name=True)


def _same(key: str, name: str) -> bool:
    return key == name or key.endswith(f".{name}") or name.endswith(f".{key}")


@functools.lru_cache(maxsize=1)
def checkpoint(model: str) -> dict[str, Callable[[], Tensor]]:
    """Return what reads the parameters of another model, by their names; the last model is kept."""
    from howsmooth.models.load import load

    found = load(model)
    if found.stream is not None:
        return {name: functools.partial(found.stream.files.read, name) for name in found.stream.files.places}
    return {name: p.detach for name, p in (found.with_head or found.module).named_parameters()}


def _own_code(words: SchemeWords) -> Scheme | None:
    """Read ``mine.py:function``, a function from a tensor to a rounded one; its attribute ``bits`` says its size."""
    if not words.first.endswith(".py"):
        return None
    if len(words.options) != 1:
        raise words.unknown("name one function of the file, as in mine.py:function")
    if not Path(words.first).is_file():
        raise FileError(f"there is no file {words.first!r} with the scheme {words.name!r}.", field="schemes")
    found = runpy.run_path(words.first).get(words.options[0])
    if not callable(found):
        raise AssumptionError(f"{words.first!r} has no function {words.options[0]!r}.", field="schemes")
    bits = float(getattr(found, "bits", UNROUNDED_BITS))
    return Scheme(name=words.name, rounded=lambda W, _name: found(W), number_bits=bits)


FAMILIES = (_integers, _floats, _pruning, _gguf_types, _checkpoints, _own_code)
