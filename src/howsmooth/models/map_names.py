"""Names of the maps that can be measured, parsed without torch: parts of a layer, and spans of layers."""

import re
from dataclasses import dataclass

from howsmooth.errors import AssumptionError

# Maps of the whole model; a span of layers is written with their numbers.
MODEL_MAPS = ("model", "network", "sentence", "logits", "classes")
SPANS = ("to:3", "from:3", "layers:2-4")
# All that can be measured; head:3 stands for any head, and so do the numbers in spans.
MAPS = ("attention", "heads", "head:3", "normed", "residual", "mlp", "block", *MODEL_MAPS, *SPANS)
SPAN = re.compile(r"(?:(to|from):(\d+)|(layers):(\d+)-(\d+))", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class LayerSpan:
    """Consecutive layers, and whether the stem in front of all layers and the final norm belong to the map."""

    first: int
    last: int
    from_embeddings: bool = False  # whether it begins at the sum of the embeddings, not at the input of the first layer
    to_the_end: bool = False  # whether the final norm is included


@dataclass(frozen=True, kw_only=True)
class MapName:
    """The parsed name of a map."""

    text: str  # the name as it was written
    kind: str  # the name without its numbers, such as attention, head, model or to
    head: int | None = None  # which head, for head:3
    layers: tuple[int, ...] = ()  # the numbers in the name of a span of layers

    @classmethod
    def parse(cls, name: "str | MapName") -> "MapName":
        """Parse the name of a map.

        >>> MapName.parse("layers:2-4").span(6)
        LayerSpan(first=2, last=4, from_embeddings=False, to_the_end=False)
        """
        if isinstance(name, MapName):
            return name
        if name.startswith("head:"):
            return cls(text=name, kind="head", head=_head_number(name))
        if name.startswith(("to:", "from:", "layers:")):
            return cls._span(name)
        if name not in MAPS:
            raise AssumptionError(f"map must be one of {', '.join(MAPS)}, got {name!r}.", field="map")
        return cls(text=name, kind=name)

    @classmethod
    def _span(cls, name: str) -> "MapName":
        found = SPAN.fullmatch(name)
        if found is None:
            raise AssumptionError(
                f"layers are named by their numbers, as in {', '.join(SPANS)}, got {name!r}.", field="map"
            )
        kind, *numbers = (part for part in found.groups() if part is not None)
        layers = tuple(map(int, numbers))
        if layers[0] > layers[-1]:
            first, last = numbers
            raise AssumptionError(
                f"{name!r} holds no layer: the first one comes first, as in layers:{last}-{first}.", field="map"
            )
        return cls(text=name, kind=kind, layers=layers)

    def __str__(self) -> str:
        return self.text

    @property
    def spans_layers(self) -> bool:
        """Whether it is a map of many layers, measured once and not at every layer."""
        return self.kind in MODEL_MAPS or bool(self.layers)

    @property
    def reads_block(self) -> bool:
        """Whether a map of one layer reads the input of the block, rather than that of attention."""
        return self.kind in ("normed", "residual", "mlp", "block")

    @property
    def from_embeddings(self) -> bool:
        """Whether it begins at the sum of the embeddings, before any norm of theirs."""
        return self.kind in ("network", "classes")

    def span(self, count: int) -> LayerSpan:
        """Return the layers of a map of many layers, in a model that has ``count``."""
        if not self.layers:
            return LayerSpan(first=0, last=count - 1, from_embeddings=self.from_embeddings, to_the_end=True)
        (low, *_), (*_, high) = self.layers, self.layers
        first, last = {"to": (0, high), "from": (low, count - 1)}.get(self.kind, (low, high))
        if not (0 <= first < count and 0 <= last < count):
            raise AssumptionError(f"the model has the layers 0 to {count - 1}, got the map {self.text!r}.", field="map")
        return LayerSpan(first=first, last=last, to_the_end=self.kind == "from")


def _head_number(name: str) -> int:
    try:
        return int(name.removeprefix("head:"))
    except ValueError as error:
        raise AssumptionError(f"a head is named by its number, as in head:3, got {name!r}.", field="map") from error
