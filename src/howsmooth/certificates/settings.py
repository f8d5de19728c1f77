"""What a certificate (Theorem 11) can be asked for; checked without torch."""

import math

from howsmooth.errors import AssumptionError, nearest

# Where words move: the sum of their embeddings, before any norm; or the input of the attention of a layer.
PLACES = ("embeddings", "attention")
# The metrics that certificates are proven in: the p of |e|_p, over all coordinates that move.
NORMS = {"total": 2.0, "entries": math.inf, "sum": 1.0}


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


def norm_in(metric: str) -> float:
    """Return the p of the norm that a metric is, given by its name.

    Raises:
        AssumptionError: If no certificate is proven in it.
    """
    if metric not in NORMS:
        raise AssumptionError(
            f"certificates are proven in the metrics {', '.join(NORMS)} and hs.metrics.weighted, got {metric!r}; "
            "for one word, token is total.",
            field="metric",
        )
    return NORMS[metric]
