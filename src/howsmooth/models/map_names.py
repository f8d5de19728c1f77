"""Names of maps of many layers, read without torch: from which layer to which, and what stands at either end."""

import re
from dataclasses import dataclass

from howsmooth.errors import AssumptionError

# Maps of the whole model; those of some of its layers are written with their numbers.
WHOLE = ("model", "network", "sentence", "logits", "classes")
# These begin at the sum of the embeddings, before any norm of theirs.
FROM_EMBEDDINGS = ("network", "classes")
RANGES = ("to:3", "from:3", "layers:2-4")
RANGE = re.compile(r"(?:(to|from):(\d+)|layers:(\d+)-(\d+))", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Span:
    """Some consecutive layers, and whether what stands around all layers belongs to them.

    Attributes:
        first: The first layer.
        last: The last one.
        from_embeddings: Whether it begins at the sum of the embeddings, and not at what enters the first layer.
        to_the_end: Whether what stands behind the last layer belongs to it.
    """

    first: int
    last: int
    from_embeddings: bool = False
    to_the_end: bool = False


def is_whole(name: str) -> bool:
    """Tell whether a name stands for a map of many layers, measured once and not at every layer."""
    return name in WHOLE or name.startswith(("to:", "from:", "layers:"))


def check_whole_name(name: str) -> None:
    """Refuse a range of layers that is not written as one, or is empty.

    Raises:
        AssumptionError: If it is not.
    """
    if name in WHOLE:
        return
    found = RANGE.fullmatch(name)
    if found is None:
        raise AssumptionError(
            f"layers are named by their numbers, as in {', '.join(RANGES)}, got {name!r}.", field="map"
        )
    _way, _layer, first, last = found.groups()
    if first is not None and int(first) > int(last):
        raise AssumptionError(
            f"{name!r} holds no layer: the first one comes first, as in layers:{last}-{first}.", field="map"
        )


def span(name: str, layers: int) -> Span:
    """Return which layers a name stands for in a model that has so many.

    Raises:
        AssumptionError: If the model has no such layers.
    """
    check_whole_name(name)
    found = RANGE.fullmatch(name)
    if found is None:
        return Span(first=0, last=layers - 1, from_embeddings=name in FROM_EMBEDDINGS, to_the_end=True)
    way, layer, first, last = (int(part) if part and part.isdecimal() else part for part in found.groups())
    ends = {"to": (0, layer), "from": (layer, layers - 1)}.get(str(way), (first, last))
    if not all(0 <= int(end) < layers for end in ends):
        raise AssumptionError(f"the model has the layers 0 to {layers - 1}, got the map {name!r}.", field="map")
    begin, end = ends
    return Span(first=int(begin), last=int(end), to_the_end=way == "from")
