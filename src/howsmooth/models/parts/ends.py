"""Both ends of a model: the stem between its embeddings and its blocks, the final norm, and the output heads."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Bool
from torch import Tensor, nn

from howsmooth.files import read_bytes
from howsmooth.maps.mlp import Dense
from howsmooth.maps.norms import LayerNorm, RMSNorm
from howsmooth.maps.pooling import Pooling, onto_sphere
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.families.parameters import token_table
from howsmooth.models.parts.output_heads import ClassHead, LanguageHead, class_head, language_head

EndMap = LayerNorm | RMSNorm | Dense
# The poolings of sentence-transformers that can be read, as 1_Pooling/config.json names them.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
POOLING_NAMES = {"cls": "first", "mean": "mean", "lasttoken": "last"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Stem:
    """The maps from the sum of the embeddings to the input of the first block.

    Attributes:
        path: The module that reads the sum of the embeddings; none if that is the first block.
        maps: The maps, each on tokens alone.
    """

    path: str | None = None
    maps: tuple[EndMap, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """One vector for each sequence.

    Attributes:
        pooling: The token that is taken, ``first`` or ``last``, or their ``mean``.
        normalised: Whether it is divided by its norm.
    """

    pooling: str = "mean"
    normalised: bool = True

    def maps(self, X: Tensor, real: Bool[Tensor, "batch n"] | None, d: int) -> tuple[Pooling | RMSNorm, ...]:
        """Return the maps from the last hidden states, ``d`` wide, to the embedding."""
        pool = getattr(Pooling, self.pooling)
        pooled = pool(n=X.shape[-2], like=X) if real is None else pool(real=real, like=X)
        return (pooled, onto_sphere(d, X)) if self.normalised else (pooled,)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ends:
    """Both ends of a model; a string instead of a head is the reason why it has none.

    Attributes:
        stem: The maps in front of the first block; none for an unknown family.
        final: The maps from the output of the last block to the last hidden states: a norm, a projection.
        language_head: From the last hidden states to scores of words.
        sentence_embedding: From the last hidden states to one vector.
        class_head: From the last hidden states to scores of labels.
    """

    stem: Stem | None = None
    final: tuple[EndMap, ...] = ()
    language_head: LanguageHead | str = "it has no head that is read here"
    sentence_embedding: SentenceEmbedding | str = "nothing says how it embeds a sentence"
    class_head: ClassHead | str = "it has no classifier that is read here"


def read_ends(
    module: nn.Module,
    base: nn.Module,
    layers: tuple[AttentionLayer, ...],
    *,
    stem: Stem | None,
    final: tuple[EndMap, ...],
    sentence: SentenceEmbedding | str | None,
) -> Ends:
    """Read both ends of a model.

    Args:
        module: The model as it was loaded.
        base: The model without its head.
        layers: Its layers.
        stem: The maps in front of the first block.
        final: The maps behind the last block.
        sentence: How the files beside the weights say that it embeds sentences; none if they do not.
    """
    return Ends(
        stem=stem,
        final=final,
        language_head=language_head(module, base),
        sentence_embedding=_default_sentence_embedding(base, layers) if sentence is None else sentence,
        class_head=class_head(module, base),
    )


def _default_sentence_embedding(base: Any, layers: tuple[AttentionLayer, ...]) -> SentenceEmbedding | str:
    """Return the usual embedding of encoders of text: the mean of the tokens, normalised."""
    if any(layer.attention is None for layer in layers):
        return "nothing says how it embeds a sentence"
    if token_table(base) is None:
        return "it reads no text"
    if any(layer.closed_form.positions.causal for layer in layers):
        return "it is a decoder, and nothing beside its weights says how it embeds a sentence"
    return SentenceEmbedding()


def read_sentence_embedding(find: Callable[[str], Path | None]) -> SentenceEmbedding | str | None:
    """Read how a sentence-transformers model embeds a sentence.

    Args:
        find: Returns the path of a file of the model, or ``None`` if it has none of that name.

    Returns:
        The embedding, or why it cannot be read; none if no file describes it.
    """
    modules = _read_json(find("modules.json"))
    if not isinstance(modules, list) or not all(isinstance(entry, dict) for entry in modules):
        return None
    kinds = [str(entry.get("type", "")).rsplit(".", 1)[-1] for entry in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        return f"its modules.json makes a sentence of {', '.join(kinds)}, which is not read here"
    config = _read_json(find(f"{modules[1].get('path', '')}/config.json"))
    pooling = _pooling(config if isinstance(config, dict) else {})
    if pooling is None:
        return "its sentences are pooled in a way that is not read here (the mean, the first or the last token are)"
    return SentenceEmbedding(pooling=pooling, normalised="Normalize" in kinds)


def _pooling(config: dict[str, Any]) -> str | None:
    """Return the pooling of a configuration, if there is one alone and it can be read."""
    if isinstance(config.get("pooling_mode"), str):
        return POOLING_NAMES.get(config["pooling_mode"])
    flags = [name for name, wanted in config.items() if name.startswith("pooling_mode_") and wanted is True]
    return POOLING_FLAGS.get(flags[0]) if len(flags) == 1 else None


def _read_json(file: Path | None) -> Any:
    try:
        return None if file is None else json.loads(read_bytes(file, "a file beside the weights"))
    except (OSError, ValueError):
        return None
