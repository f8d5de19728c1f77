"""How a model makes one vector of a sentence: what the files beside its weights say, or what encoders do."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from howsmooth.files import read_bytes
from howsmooth.maps.norms import RMSNorm
from howsmooth.maps.pooling import Pooling, onto_sphere

# What 1_Pooling/config.json calls what we can do.
MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
NAMES = {"cls": "first", "mean": "mean", "lasttoken": "last"}


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """One vector for each sequence.

    Attributes:
        pooling: Which token is taken, ``first`` or ``last``, or their ``mean``.
        normalised: Whether it is divided by its norm.
    """

    pooling: str = "mean"
    normalised: bool = True

    def maps(self, X: Tensor, real: Bool[Tensor, "batch n"] | None, d: int) -> tuple[Pooling | RMSNorm, ...]:
        """Return the maps from the last hidden states, ``d`` wide, to the embedding."""
        pool = getattr(Pooling, self.pooling)
        pooled = pool(n=X.shape[-2], like=X) if real is None else pool(real=real, like=X)
        return (pooled, onto_sphere(d, X)) if self.normalised else (pooled,)


def read_sentence_embedding(find: Callable[[str], Path | None]) -> SentenceEmbedding | str | None:
    """Read how a sentence-transformers model embeds a sentence.

    Args:
        find: Returns where a file of the model lies, or ``None`` if it has none of that name.

    Returns:
        How, or why we cannot; none if nothing is said.
    """
    listed = _json(find("modules.json"))
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        return None
    kinds = [str(entry.get("type", "")).rsplit(".", 1)[-1] for entry in listed]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        return f"its modules.json makes a sentence of {', '.join(kinds)}, which is not read here"
    pooling = _json(find(f"{listed[1].get('path', '')}/config.json"))
    mode = _mode(pooling if isinstance(pooling, dict) else {})
    if mode is None:
        return "its sentences are pooled in a way that is not read here (the mean, the first or the last token are)"
    return SentenceEmbedding(pooling=mode, normalised="Normalize" in kinds)


def _mode(config: dict[str, Any]) -> str | None:
    """Return which pooling a configuration asks for, if it is one alone and we know it."""
    if isinstance(config.get("pooling_mode"), str):
        return NAMES.get(config["pooling_mode"])
    asked = [name for name, wanted in config.items() if name.startswith("pooling_mode_") and wanted is True]
    return MODES.get(asked[0]) if len(asked) == 1 else None


def _json(file: Path | None) -> Any:
    try:
        return None if file is None else json.loads(read_bytes(file, "a file beside the weights"))
    except (OSError, ValueError):
        return None
