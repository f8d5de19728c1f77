"""The head of a language model: from its last hidden states to a score for each word of the vocabulary."""

from typing import Any

from torch import Tensor, nn

from howsmooth.maps.activations import Pointwise, soft_cap
from howsmooth.maps.dense import Dense
from howsmooth.models.reading import token_table

# Their heads are one matrix on the last hidden states.
PLAIN = frozenset(
    (
        *("bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gptj", "granite"),
        *("llama", "mistral", "mixtral", "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen3"),
    )
)
DIVIDED = ("granite",)
CAPPED = ("gemma2", "gemma3_text")
HEADS = ("ForCausalLM", "LMHeadModel")
Head = tuple[Dense | Pointwise, ...]


def has_a_head_of_its_own(config: Any) -> bool:
    """Tell whether the weights of a model hold a head that is not its embeddings, going by its configuration."""
    (kind, *_others) = getattr(config, "architectures", None) or [""]
    return config.model_type in PLAIN and kind.endswith(HEADS) and not _tied(config)


def language_head(module: nn.Module, base: Any) -> Head | str:
    """Read the head of a model, or say why it has none.

    Args:
        module: The model as it was loaded.
        base: The model without its head.
    """
    config = getattr(base, "config", None)
    family = getattr(config, "model_type", None)
    if family not in PLAIN:
        return "it is not of a family whose head over the vocabulary is read here"
    like = next(base.parameters())
    own: Any = getattr(module, "get_output_embeddings", lambda: None)() if module is not base else None
    if own is None and not _tied(config):
        return "it came without a head, and its embeddings are not tied to one"
    table = token_table(base) if own is None else own
    if table is None:
        return "it came without a head, and its embeddings cannot be found"
    return _head(table.weight.detach().to(like), getattr(own, "bias", None), config)


def _head(weight: Tensor, bias: Tensor | None, config: Any) -> Head:
    # anybody can write these into a config.json; only some families heed them
    factor = 1 / config.logits_scaling if config.model_type in DIVIDED else 1.0
    cap = config.final_logit_softcapping if config.model_type in CAPPED else None
    shift = None if bias is None else factor * bias.detach().to(weight)
    linear = Dense(weight=weight if factor == 1.0 else factor * weight, bias=shift)
    return (linear,) if not cap else (linear, Pointwise(activation=soft_cap(float(cap)), dtype=weight.dtype))


def _tied(config: Any) -> bool:
    return bool(getattr(config, "tie_word_embeddings", False))
