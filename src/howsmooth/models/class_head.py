"""The head of a classifier of sentences: from its last hidden states to a score for each label."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from howsmooth.maps.dense import Dense
from howsmooth.maps.mlp import MLP
from howsmooth.maps.pooling import Pooling
from howsmooth.models.ends import linear

HEAD = "ForSequenceClassification"
# A linear layer, an activation and another linear layer on the first token, in one module.
TWO_LAYERS = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), "tanh"),
    "electra": "gelu",
}
# One matrix on the last token that is not padding.
ON_THE_LAST = frozenset(
    (
        *("bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gptj", "llama"),
        *("mistral", "mixtral", "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen3"),
    )
)
FAMILIES = frozenset((*TWO_LAYERS, *ON_THE_LAST, "bert", "albert", "distilbert"))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassHead:
    """How a model tells classes apart.

    Attributes:
        read_out: From one token to a score for each label.
        last: Whether that is the last token that is not padding, and not the first token.
        labels: What the classes are called.
        padding_token: The number of the token that is padding, wherever it stands; none if the model has no such.
    """

    read_out: MLP | Dense
    last: bool
    labels: tuple[str, ...]
    padding_token: int | None = None

    def maps(
        self, X: Float[Tensor, "batch n d"], tokens: Int[Tensor, "batch n"], real: Bool[Tensor, "batch n"] | None
    ) -> tuple[Pooling, MLP | Dense]:
        """Return what stands behind the last hidden states.

        Args:
            X: Hidden states.
            tokens: The numbers of the tokens: padding is known by its number, whether attention sees it or not.
            real: True for the tokens of each sequence, where others only fill up the batch.
        """
        if not self.last:
            return (Pooling.first(n=X.shape[-2], like=X), self.read_out)
        own = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        words = own if self.padding_token is None else own & (tokens != self.padding_token)
        # where all tokens are padding, the modules take the first
        first = own & (own.cumsum(-1) == 1)
        kept = torch.where(words.any(-1, keepdim=True), words, first)
        # one sequence takes the same token whatever it is perturbed to, in a batch of any size
        return (Pooling.last(real=kept[0] if len(kept) == 1 else kept, like=X), self.read_out)


def has_classes(config: Any) -> bool:
    """Tell whether the weights of a model hold a classifier that is read here, going by its configuration."""
    (kind, *_others) = getattr(config, "architectures", None) or [""]
    return config.model_type in FAMILIES and kind.endswith(HEAD)


def class_head(module: nn.Module, base: Any) -> ClassHead | str:
    """Read the classifier of a model, or say why it has none.

    Args:
        module: The model as it was loaded.
        base: The model without its head.
    """
    config: Any = getattr(module, "config", None)
    if not type(module).__name__.endswith(HEAD):
        return "it was not trained to classify sentences: nothing of its weights is a classifier"
    if config.model_type not in FAMILIES:
        return f"the classifiers of the family {config.model_type!r} are not read here"
    labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    like = next(base.parameters())
    read_out = _read_out(module, base, config.model_type).to(like.dtype, like.device)
    return ClassHead(
        read_out=read_out,
        last=config.model_type in ON_THE_LAST,
        labels=labels,
        padding_token=config.get_text_config().pad_token_id,
    )


def _read_out(module: Any, base: Any, family: str) -> MLP | Dense:
    if family in ON_THE_LAST:
        return linear(module.score)
    if family in TWO_LAYERS:
        head = module.classifier
        return _two(head.dense, head.out_proj, TWO_LAYERS[family])
    if family == "distilbert":
        return _two(module.pre_classifier, module.classifier, "relu")
    pooler = base.pooler if family == "albert" else base.pooler.dense
    return _two(pooler, module.classifier, "tanh")


def _two(first: Any, second: Any, activation: str) -> MLP:
    up = linear(first)
    # the pooler is a part of the model, which may have been moved; the classifier behind it was not
    down = linear(second).to(up.weight.dtype, up.weight.device)
    return MLP(up=up.weight, up_bias=up.bias, down=down.weight, down_bias=down.bias, activation=activation)
