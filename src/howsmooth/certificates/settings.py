"""What a certificate can be asked for; checked without torch."""

import math

from howsmooth.errors import AssumptionError, nearest

# Where words move: the sum of their embeddings, before any norm; or the input of the attention of a layer.
PLACES = ("embeddings", "attention")
NORMS = {"1": 1.0, "2": 2.0, "inf": math.inf}


def check_place(at: str, layer: int) -> None:
    """Refuse a place where nothing moves.

    Raises:
        AssumptionError: If there is no such place, or it has no layers.
    """
    if at not in PLACES:
        raise AssumptionError(f"words move at {' or '.join(PLACES)}, got {at!r}{nearest(at, PLACES)}", field="at")
    if at == PLACES[0] and layer:
        raise AssumptionError(
            f"embeddings come before all layers, got layer {layer}; leave it out, or say at attention.", field="layer"
        )


def norm_named(p: str) -> float:
    """Return the p of a norm that is written as a word.

    Raises:
        AssumptionError: If it is not 1, 2 or inf.
    """
    if p not in NORMS:
        raise AssumptionError(f"p must be one of {', '.join(NORMS)}, got {p!r}.", field="p")
    return NORMS[p]


def checked_norm(p: float) -> float:
    """Return p as a float.

    Raises:
        AssumptionError: If ``p`` is not 1, 2 or infinity.
    """
    if float(p) not in NORMS.values():
        raise AssumptionError(f"p must be 1, 2 or infinity, got {p}.", field="p")
    return float(p)
