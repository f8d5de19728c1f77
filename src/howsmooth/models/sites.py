"""One attention layer of a transformer: its exact map, its norms, and where its input is found."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual
from howsmooth.maps.norms import Norm

Measurable = Attention | Chain | Residual | Callable[[Tensor], Any]
# Which part of a layer is measured; head:3 stands for any head.
MAPS = ("attention", "heads", "head:3", "normed", "residual", "block")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Site:
    """One attention layer.

    Attributes:
        layer: Its number, from 0.
        attention: Its exact map: heads and output projection, with masks, biases and positions. None for a family that
            is not known: then the module itself is differentiated.
        reads: The module whose hidden states are what attention reads.
        writes: The module that puts out what attention puts out.
        block: The module of the whole block.
        before: The norm in front of attention.
        after: The norm behind attention, before the residual is added.
        outer: The norm behind the residual sum.
    """

    layer: int
    attention: Attention | None
    reads: str
    writes: str
    block: str
    before: Norm | None = None
    after: Norm | None = None
    outer: Norm | None = None

    def __repr__(self) -> str:
        """Say which layer it is, and what its attention is."""
        return f"Site(layer {self.layer}, {'by autograd' if self.attention is None else self.attention})"

    @property
    def exact(self) -> Attention:
        """The map in closed form.

        Raises:
            AssumptionError: If the family is not known.
        """
        if self.attention is None:
            raise AssumptionError(
                "this model's family has no closed form here: only the maps 'attention' and 'block' can be measured."
            )
        return self.attention

    def map(
        self, name: str = "attention", *, padding: Bool[Tensor, "*batch n"] | None = None
    ) -> Attention | Chain | Residual:
        """Return the map of a part of the layer: ``attention``, ``heads``, ``head:3``, ``normed`` or ``residual``.

        The first three read what attention reads; the others read what the block reads. The map of the whole block
        depends on how the model calls it: :meth:`Activations.at` has it.

        Args:
            name: Which part.
            padding: True for real tokens, where some are padding.
        """
        check_map(name)
        attention = self._padded(padding)
        if name == "attention":
            return attention
        if name == "heads":
            return dataclasses.replace(attention, output=None, output_bias=None)
        if name.startswith("head:"):
            return attention.head(_number(name))
        if name == "normed":
            return self._normed(attention)
        if name == "residual":
            branch = Chain(*(part for part in (self.before, attention, self.after) if part is not None))
            whole = Residual(branch)
            return whole if self.outer is None else Chain(whole, self.outer)
        raise AssumptionError("the block is measured as the model calls it; use transformer.activations(tokens).at(…).")

    def check(self, name: str) -> None:
        """Refuse a part that this layer does not have."""
        check_map(name)
        if name != "block" and not (name == "attention" and self.attention is None):
            self.map(name)

    def _padded(self, padding: Tensor | None) -> Attention:
        if padding is None:
            return self.exact
        positions = self.exact.positions
        if positions.window is None and bool(padding[..., 0].all()):
            return dataclasses.replace(self.exact, positions=dataclasses.replace(positions, padding=padding))
        # a padded token could be left with nothing to see; let it see itself, as nobody reads what comes out there
        itself = torch.eye(padding.shape[-1], dtype=torch.bool, device=padding.device)
        mask = padding[..., None, None, :] | itself
        return dataclasses.replace(self.exact, positions=dataclasses.replace(positions, mask=mask))

    def _normed(self, attention: Attention) -> Chain:
        if self.before is None:
            raise AssumptionError(
                "this model normalises behind attention, not in front of it; use map='residual', or 'attention'."
            )
        return Chain(self.before, attention)


def check_map(name: str) -> None:
    """Refuse a name that stands for no part of a layer."""
    if name not in MAPS and not name.startswith("head:"):
        raise AssumptionError(f"map must be one of {', '.join(MAPS)}, got {name!r}.")


def reads_the_block(name: str) -> bool:
    """Tell whether a map reads what the block reads, rather than what attention reads."""
    return name in ("normed", "residual", "block")


def _number(name: str) -> int:
    try:
        return int(name.removeprefix("head:"))
    except ValueError as error:
        raise AssumptionError(f"a head is named by its number, as in head:3, got {name!r}.") from error
