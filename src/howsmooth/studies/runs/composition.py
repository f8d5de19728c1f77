"""Layers do not multiply: the product of what blocks do alone against what they do together, layer by layer."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.markup import paragraph
from howsmooth.studies.kinds.text import WholeRecord
from howsmooth.studies.records import grouped
from howsmooth.studies.runs.result_table import ResultTable
from howsmooth.studies.runs.summary import Typical, mean_constant, typical_of
from howsmooth.wording import count, grows, number, power_of_ten

# Beyond this a float has no number, and before that nobody wants to count the digits.
MANY_DIGITS = 7


@dataclass(frozen=True, kw_only=True)
class Depth:
    """What is known at one layer: geometric means over the windows, as products of means are means of products."""

    layer: int  # which layer
    block: float  # the constant of its block alone
    log_product: float  # log₁₀ of the product of the constants of all blocks up to here
    to: float  # the constant of all blocks up to here, together
    typical_to: Typical | None  # what they multiply random noise by, root mean square over the windows
    onward: float  # the constant of everything from what enters this layer to the end of the model
    typical_onward: Typical | None  # what that multiplies random noise by

    @property
    def log_gap(self) -> float:
        r""":math:`\log_{10}` of how many times too large the product is."""
        return self.log_product - math.log10(self.to) if self.to > 0 else math.inf

    @property
    def cells(self) -> dict[str, str]:
        """What a table says of it."""
        return {
            "layer": str(self.layer),
            "block": number(self.block),
            "product": large(self.log_product),
            "to here": number(self.to),
            "gap": large(self.log_gap),
            "typical to here": str(self.typical_to or "—"),
            "from here": number(self.onward),
            "typical from here": str(self.typical_onward or "—"),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Composition(ResultTable):
    """What the blocks of a model do alone and together, at windows of one length."""

    EXPENDABLE = ("typical from here", "gap", "from here", "typical to here")
    model: str
    text: str
    length: int  # how many tokens the windows have
    windows: int
    depths: tuple[Depth, ...]  # what is known at each layer, as far as it is known
    blocks: int  # how many blocks the model has

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        return f"{self.model} as a whole on {self.text}, {count(self.windows, 'window')} of {self.length} tokens"

    @property
    def sentence(self) -> str:
        """What was found, in a sentence."""
        first, last, known = self.depths[0], self.depths[-1], len(self.depths)
        blocks = count(self.blocks, "block")
        return (
            f"At {count(self.length, 'token')} the constants of the "
            f"{blocks if known == self.blocks else f'first {known} of {blocks}'} of {self.model} multiply to "
            f"{large(last.log_product)}; through the whole model the worst perturbation {grows(first.onward)}."
        )

    @property
    def cells(self) -> list[dict[str, str]]:
        """One row for each layer."""
        return [depth.cells for depth in self.depths]

    def meaning(self, columns: Sequence[str]) -> str:
        """Say what the columns that are shown mean."""
        there = " ".join(columns)
        said = " ".join(meaning for column, meaning in LEGEND.items() if column in there)
        return f"{said} Geometric means over the windows."

    def _repr_html_(self) -> str:
        return super()._repr_html_() + paragraph(self.sentence)


LEGEND = {
    "block": "Block: the constant of one block alone.",
    "product": "Product: of all blocks up to here.",
    "to here": "To here: of these blocks together, known to 1 %.",
    "gap": "Gap: how many times too large the product is.",
    "from here": "From here: of everything from what enters this block to the end of the model, likewise.",
    "typical": "Typical: what random noise is multiplied by, root mean square over the windows, with its 95 % interval "
    "over random directions.",
}


def compositions(records: Iterable[WholeRecord]) -> list[Composition]:
    """Return what is known of each model, text and length, the shortest windows first."""
    groups = grouped(records, lambda r: (r.ask.model, r.ask.window.text, r.ask.length))
    found = (_composed(place, some) for place, some in sorted(groups.items()))
    return [composition for composition in found if composition.depths]


def _composed(place: tuple[str, str, int], records: Sequence[WholeRecord]) -> Composition:
    model, text, length = place
    # products of means are means of products at the same windows alone: those of a run that was stopped are fewer
    every = grouped(records, lambda r: (r.ask.map, r.ask.layer))
    windows = set.intersection(*({r.ask.window.index for r in some} for some in every.values()))
    by_map = grouped((r for r in records if r.ask.window.index in windows), lambda r: (r.ask.map, r.ask.layer))
    depths, log_product, layer = [], 0.0, 0
    # an unfinished run ends at the first layer that lacks something
    while (depth := _depth(by_map, layer, log_product)) is not None:
        depths.append(depth)
        log_product, layer = depth.log_product, layer + 1
    about: dict[str, Any] = {"model": model, "text": text, "length": length, "windows": len(windows)}
    return Composition(depths=tuple(depths), blocks=max(r.ask.blocks for r in records), **about)


def _depth(by_map: dict[tuple[str, int], list[WholeRecord]], layer: int, log_product: float) -> Depth | None:
    whole = by_map.get(("model", 0))
    last = whole is not None and layer == whole[0].ask.blocks - 1
    block = by_map.get(("block", layer))
    to = whole if last else by_map.get((f"to:{layer}", 0))
    onward = whole if layer == 0 else by_map.get((f"from:{layer}", layer))
    if block is None or to is None or onward is None:
        return None
    alone = mean_constant(block)
    return Depth(
        layer=layer,
        block=alone,
        log_product=log_product + (math.log10(alone) if alone > 0 else -math.inf),
        to=mean_constant(to),
        typical_to=typical_of(to),
        onward=mean_constant(onward),
        typical_onward=typical_of(onward),
    )


def large(log10: float) -> str:
    """Write a number by its decimal logarithm, which may be far beyond a float.

    Example:
        >>> large(math.log10(410_000)), large(1000.5), large(math.inf)
        ('410,000', '3.16·10¹⁰⁰⁰', '∞')
    """
    if math.isinf(log10) or abs(log10) < MANY_DIGITS:
        return number(10**log10 if log10 < math.inf else math.inf)
    power = math.floor(log10)
    return f"{number(10 ** (log10 - power))}·{power_of_ten(power)}"
