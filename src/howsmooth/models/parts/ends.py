"""Both ends of a model: the sum of its embeddings, the stem behind it, the final norm, and the output heads."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.files import read_bytes
from howsmooth.maps.activations import Pointwise, soft_cap
from howsmooth.maps.affine import Pooling, onto_sphere
from howsmooth.maps.composition import Chain
from howsmooth.maps.mlp import MLP, Dense
from howsmooth.maps.norms import LayerNorm, Norm, RMSNorm
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.autograd.hooks import ModuleCall
from howsmooth.models.autograd.module_calls import input_of
from howsmooth.models.families.parameters import linear, token_table
from howsmooth.validation import token_ids

if TYPE_CHECKING:  # a transformer embeds its tokens
    from howsmooth.models.transformer import Transformer

# Language models whose head is one matrix on the last hidden states.
LANGUAGE_FAMILIES = frozenset(
    (
        *("bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gptj", "granite"),
        *("llama", "mistral", "mixtral", "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen3"),
    )
)
# Anybody can write a scale or a cap of the logits into a config.json; only these families use them.
SCALED_LOGITS = ("granite",)
CAPPED_LOGITS = ("gemma2", "gemma3_text")
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
LanguageHead = tuple[Dense | Pointwise, ...]
CLASSIFIER = "ForSequenceClassification"
NO_CLASSIFIER = "it was not trained to classify sentences: nothing of its weights is a classifier"
# A linear layer, an activation and another linear layer on the first token, in one module.
TWO_LAYER_HEADS = {**dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), "tanh"), "electra": "gelu"}
# One matrix on the last token that is not padding.
LAST_TOKEN_HEADS = LANGUAGE_FAMILIES - {"granite"}
CLASSIFIER_FAMILIES = frozenset((*TWO_LAYER_HEADS, *LAST_TOKEN_HEADS, "bert", "albert", "distilbert"))
EndMap = LayerNorm | RMSNorm | Dense | Pointwise
# The poolings of sentence-transformers that can be read, as 1_Pooling/config.json names them.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
POOLING_NAMES = {"cls": "first", "mean": "mean", "lasttoken": "last"}


def has_untied_head(config: Any) -> bool:
    """Return whether the weights hold a language head that is not tied to the embeddings, by the configuration."""
    (kind, *_others) = getattr(config, "architectures", None) or [""]
    return config.model_type in LANGUAGE_FAMILIES and kind.endswith(LANGUAGE_MODELS) and not _tied(config)


def has_tied_head(base: nn.Module) -> bool:
    """Return whether the scores of words are those of a head that is tied to the embeddings of a model."""
    config: Any = getattr(base, "config", None)
    return getattr(config, "model_type", None) in LANGUAGE_FAMILIES and _tied(config)


def language_head(module: nn.Module, base: Any) -> LanguageHead | str:
    """Read the language head of a model, or return why it has none; ``base`` is the model without its head."""
    config = getattr(base, "config", None)
    family = getattr(config, "model_type", None)
    if family not in LANGUAGE_FAMILIES:
        return "it is not of a family whose head over the vocabulary is read here"
    like = next(base.parameters())
    head: Any = getattr(module, "get_output_embeddings", lambda: None)() if module is not base else None
    if head is None and not _tied(config):
        return "it came without a head, and its embeddings are not tied to one"
    table = token_table(base) if head is None else head
    if table is None:
        return "it came without a head, and its embeddings cannot be found"
    return _head(table.weight.detach().to(like), getattr(head, "bias", None), config)


def _head(weight: Tensor, bias: Tensor | None, config: Any) -> LanguageHead:
    factor = 1 / config.logits_scaling if config.model_type in SCALED_LOGITS else 1.0
    cap = config.final_logit_softcapping if config.model_type in CAPPED_LOGITS else None
    shift = None if bias is None else factor * bias.detach().to(weight)
    linear = Dense(weight=weight if factor == 1.0 else factor * weight, bias=shift)
    return (linear,) if not cap else (linear, Pointwise(activation=soft_cap(float(cap)), dtype=weight.dtype))


def _tied(config: Any) -> bool:
    return bool(getattr(config, "tie_word_embeddings", False))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassHead:
    """The head of a classifier of sentences."""

    read_out: MLP | Dense | Chain  # from one token to a score for each label
    pooling: str  # which token it reads, first or last (of those that are no padding), or their mean
    labels: tuple[str, ...]  # the names of the classes
    padding_token: int | None = None  # the id of the padding token; none if the model has none

    def maps(
        self, X: Float[Tensor, "batch n d"], tokens: Int[Tensor, "batch n"], real: Bool[Tensor, "batch n"] | None
    ) -> tuple[Pooling, MLP | Dense | Chain]:
        """Return the maps from the last hidden states to the scores.

        The module finds padding by its id, whether attention masks it or not; tokens that are not ``real`` fill up the
        batch.
        """
        if self.pooling == "first":
            return (Pooling.first(n=X.shape[-2], like=X), self.read_out)
        if self.pooling == "mean":
            of: dict[str, Any] = {"n": X.shape[-2]} if real is None else {"real": real}
            return (Pooling.mean(**of, like=X), self.read_out)
        real = X.new_ones(X.shape[:-1], dtype=torch.bool) if real is None else real
        words = real if self.padding_token is None else real & (tokens != self.padding_token)
        # if all tokens are padding, the modules take the first
        first = real & (real.cumsum(-1) == 1)
        kept = torch.where(words.any(-1, keepdim=True), words, first)
        # one sequence takes the same token whatever it is perturbed to, in a batch of any size
        return (Pooling.last(real=kept[0] if len(kept) == 1 else kept, like=X), self.read_out)


def has_classes(config: Any) -> bool:
    """Return whether the weights hold a classifier that can be read, by the configuration."""
    (kind, *_others) = getattr(config, "architectures", None) or [""]
    return config.model_type in CLASSIFIER_FAMILIES and kind.endswith(CLASSIFIER)


def class_head(module: nn.Module, base: Any) -> ClassHead | str:
    """Read the classifier of a model, or return why it has none; ``base`` is the model without its head."""
    config: Any = getattr(module, "config", None)
    if not type(module).__name__.endswith(CLASSIFIER):
        return NO_CLASSIFIER
    if config.model_type not in CLASSIFIER_FAMILIES:
        return f"the classifiers of the family {config.model_type!r} are not read here"
    labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    like = next(base.parameters())
    read_out = _read_out(module, base, config.model_type).to(like.dtype, like.device)
    return ClassHead(
        read_out=read_out,
        pooling="last" if config.model_type in LAST_TOKEN_HEADS else "first",
        labels=labels,
        padding_token=config.get_text_config().pad_token_id,
    )


def _read_out(module: Any, base: Any, family: str) -> MLP | Dense:
    if family in LAST_TOKEN_HEADS:
        return linear(module.score)
    if family in TWO_LAYER_HEADS:
        head = module.classifier
        return _two_layers(head.dense, head.out_proj, TWO_LAYER_HEADS[family])
    if family == "distilbert":
        return _two_layers(module.pre_classifier, module.classifier, "relu")
    pooler = base.pooler if family == "albert" else base.pooler.dense
    return _two_layers(pooler, module.classifier, "tanh")


def _two_layers(first: Any, second: Any, activation: str) -> MLP:
    up = linear(first)
    # the pooler is a part of the model, which may have been moved; the classifier behind it was not
    down = linear(second).to(up.weight.dtype, up.weight.device)
    return MLP(up=up.weight, up_bias=up.bias, down=down.weight, down_bias=down.bias, activation=activation)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stem:
    """The maps from the sum of the embeddings to the input of the first block."""

    path: str | None = None  # the module that reads the sum of the embeddings; none if that is the first block
    maps: tuple[EndMap, ...] = ()  # the maps, each on tokens alone


@dataclass(frozen=True, kw_only=True, eq=False)
class Backbone:
    """A model without its head."""

    layers: list[AttentionLayer]  # its layers, in the order in which they run
    stem: Stem | None = field(default_factory=Stem)  # from the sum of embeddings to the first layer; none if unknown
    final: tuple[EndMap, ...] = ()  # the maps behind the last layer
    class_head: ClassHead | str | None = None  # the classifier of a model without a configuration, or why it has none


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """One vector for each sequence."""

    pooling: str = "mean"  # the token that is taken, first or last, or their mean
    normalised: bool = True  # whether it is divided by its norm

    def maps(self, X: Tensor, real: Bool[Tensor, "batch n"] | None, d: int) -> tuple[Pooling | RMSNorm, ...]:
        """Return the maps from the last hidden states, ``d`` wide, to the embedding."""
        pool = getattr(Pooling, self.pooling)
        pooled = pool(n=X.shape[-2], like=X) if real is None else pool(real=real, like=X)
        return (pooled, onto_sphere(d, X)) if self.normalised else (pooled,)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ends:
    """Both ends of a model; a string instead of a head is the reason why it has none."""

    stem: Stem | None = None  # the maps in front of the first block; none for an unknown family
    final: tuple[EndMap, ...] = ()  # from the last block to the last hidden states: a norm, a projection
    language_head: LanguageHead | str = "it has no head that is read here"  # → scores of words
    sentence_embedding: SentenceEmbedding | str = "nothing says how it embeds a sentence"  # → one vector
    class_head: ClassHead | str = "it has no classifier that is read here"  # → scores of labels


def default_sentence_embedding(base: Any, layers: tuple[AttentionLayer, ...]) -> SentenceEmbedding | str:
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

    Return why if it cannot be read, and none if no file describes it; ``find`` returns the path of a file, or none.
    """
    modules = _read_json(find("modules.json"))
    if not isinstance(modules, list) or not all(isinstance(entry, dict) for entry in modules):
        return None
    kinds = [str(entry.get("type", "")).rsplit(".", 1)[-1] for entry in modules]
    return sentence_embedding(kinds, lambda: _read_json(find(f"{modules[1].get('path', '')}/config.json")))


def sentence_embedding(kinds: list[str], config: Callable[[], Any]) -> SentenceEmbedding | str:
    """Return what modules of sentence-transformers make of a sentence, by their kinds and the pooling's settings."""
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        return f"its modules make a sentence of {', '.join(kinds)}, which is not read here"
    found = config()
    pooling = _pooling(found if isinstance(found, dict) else {})
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Lexicon:
    r"""Every input that a position can have: :math:`x = w_v + g_i` for the token v at position i, before any norm."""

    words: Float[Tensor, "v e"]  # w, one row for each token of the vocabulary, scaled or projected as the model does it
    places: Float[Tensor, "n e"]  # g, one row for each position and token type; zero if positions enter in attention

    def __call__(self, tokens: Int[Tensor, "*batch n"]) -> Float[Tensor, "*batch n e"]:
        """Return the sum of the embeddings."""
        return self.words[tokens] + self.places


# Before tokens interact, each can be taken as the sum of its embeddings, as input of the first block, or of its
# attention.
STAGES = ("embeddings", "block", "attention")


def entrance(transformer: "Transformer", stage: str) -> tuple[EndMap | Norm, ...]:
    """Return the maps, each on tokens alone, from the sum of the embeddings to a stage."""
    if stage not in STAGES:
        raise AssumptionError(f"tokens are found at {', '.join(STAGES)}; got {stage!r}.", field="at")
    _entry_path(transformer)
    stem, first = transformer.ends.stem, transformer.layers[0]
    assert stem is not None  # or it would have been refused
    norm = () if first.pre_norm is None else (first.pre_norm,)
    return {"embeddings": (), "block": stem.maps, "attention": (*stem.maps, *norm)}[stage]


@torch.no_grad()
def embed(transformer: "Transformer", tokens: Int[Tensor, "*batch n"], padding: Tensor | None = None) -> Tensor:
    """Return the sum of the embeddings at their positions: the model runs until it has added them up."""
    path, tokens = _entry_path(transformer), token_ids(tokens)
    require_known(transformer, tokens)
    rows = tokens.reshape(-1, tokens.shape[-1]).to(transformer.device)
    named = {} if padding is None else {"attention_mask": padding.reshape(rows.shape).to(rows.device).long()}
    with nullcontext() if transformer.stream is None else transformer.stream.words(rows):
        found = input_of(path, ModuleCall(module=transformer.module, positional=(rows,), named=named))
    return found.reshape(*tokens.shape, found.shape[-1])


@torch.no_grad()
def lexicon(transformer: "Transformer", n: int) -> Lexicon:
    """Return all inputs that a model can have at ``n`` positions, none of which is padding."""
    transformer.require_in_memory("a look at every token")
    words = _words(transformer)
    padding = getattr(getattr(transformer.module, "config", None), "pad_token_id", None)
    # not the padding token: positions may be counted from the first other token
    real = [v for v in (0, 1, len(words) - 2, len(words) - 1) if v != padding]
    rows = torch.tensor([real[0], real[-1]], device=words.device)[:, None].expand(-1, n)
    sums = embed(transformer, rows)
    places = sums - words[rows]
    size = sums.abs().amax() + words.abs().amax()
    if not bool((places[-1] - places[0]).abs().amax() <= 1e3 * torch.finfo(words.dtype).eps * size):
        raise UnsupportedModelError(
            f"the embeddings of {transformer.name!r} are not the sum of one for the token and one for the position.",
            field="model",
        )
    return Lexicon(words=words, places=places[0])


def _words(transformer: "Transformer") -> Float[Tensor, "v e"]:
    module: Any = transformer.module
    _entry_path(transformer)
    table = token_table(module)
    assert table is not None  # or it would have been refused
    words = table(torch.arange(table.num_embeddings, device=table.weight.device))  # called: some scale what they hold
    narrow: Any = getattr(getattr(module, "decoder", module), "project_in", None)  # as in OPT's 350M model
    words = words if narrow is None else narrow(words)
    return words * getattr(module, "embedding_multiplier", 1.0)  # as in Granite


def _entry_path(transformer: "Transformer") -> str:
    """Return the path of the module that reads the sum of the embeddings."""
    stem = transformer.ends.stem
    if stem is None or token_table(transformer.module) is None:
        why = "it reads no tokens" if stem is not None else "where they are added up is not known for its family"
        raise UnsupportedModelError(f"the embeddings of {transformer.name!r} cannot be read: {why}.", field="model")
    return transformer.layers[0].block_path if stem.path is None else stem.path


def require_known(transformer: "Transformer", tokens: Tensor) -> None:
    """Refuse token ids beyond the vocabulary, and more of them than there are positions."""
    table = token_table(transformer.module)
    size = 0 if table is None else table.num_embeddings
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= size:
        raise AssumptionError(
            f"{transformer.name!r} knows the tokens 0 to {size - 1:,}, got {least if least < 0 else most}.",
            field="tokens",
        )
    transformer.require_positions(tokens.shape[-1], f"got {tokens.shape[-1]}", field="tokens")
