"""What stands around the blocks of a model: its ends, its head, and how it embeds a sentence."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from howsmooth.models.class_head import ClassHead, class_head
from howsmooth.models.ends import Ends
from howsmooth.models.language_head import Head, language_head
from howsmooth.models.reading import token_table
from howsmooth.models.registry import ends_reader
from howsmooth.models.sentence_embedding import SentenceEmbedding
from howsmooth.models.sites import Site


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Frame:
    """What stands around the blocks.

    Attributes:
        ends: The maps in front of the first block and behind the last; none for a family that is not known.
        head: From the last hidden states to scores of words, or why there is none.
        sentence: How a sentence becomes one vector, or why it does not.
        classes: From the last hidden states to scores of labels, or why there is none.
    """

    ends: Ends | None = None
    head: Head | str = "it has no head that is read here"
    sentence: SentenceEmbedding | str = "nothing says how it embeds a sentence"
    classes: ClassHead | str = "it has no classifier that is read here"


def frame(module: nn.Module, base: nn.Module, sites: tuple[Site, ...], told: SentenceEmbedding | str | None) -> Frame:
    """Read what stands around the blocks of a model.

    Args:
        module: The model as it was loaded.
        base: The model without its head.
        sites: Its layers.
        told: What the files beside its weights say about sentences, if they do.
    """
    config: Any = getattr(base, "config", None)
    read = ends_reader(str(getattr(config, "model_type", "")))
    return Frame(
        ends=None if read is None else read(base),
        head=language_head(module, base),
        sentence=_usual(base, sites) if told is None else told,
        classes=class_head(module, base),
    )


def _usual(base: Any, sites: tuple[Site, ...]) -> SentenceEmbedding | str:
    """Return what encoders of text do where nothing is said: the mean of the tokens, normalised."""
    if any(site.attention is None for site in sites):
        return "nothing says how it embeds a sentence"
    if token_table(base) is None:
        return "it reads no text"
    if any(site.exact.positions.causal for site in sites):
        return "it is a decoder, and nothing beside its weights says how it embeds a sentence"
    return SentenceEmbedding()
