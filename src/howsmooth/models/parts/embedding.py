"""The input embeddings of a model: their sum at each position, before any norm, for tokens or the whole vocabulary."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, ShapeError, UnsupportedModelError
from howsmooth.maps.norms import Norm
from howsmooth.models.autograd.hooks import ModuleCall
from howsmooth.models.autograd.module_calls import input_of
from howsmooth.models.families.parameters import token_table
from howsmooth.models.parts.ends import EndMap

if TYPE_CHECKING:  # a transformer embeds its tokens
    from howsmooth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True, eq=False)
class Lexicon:
    r"""Every input that a position can have: :math:`x = w_v + g_i` for the token v at position i, before any norm.

    Attributes:
        words: :math:`w`, one row for each token of the vocabulary, scaled or projected as the model does it.
        places: :math:`g`, one row for each position: its embedding and that of the token type; zero where positions
            enter in attention.
    """

    words: Float[Tensor, "v e"]
    places: Float[Tensor, "n e"]

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
    path = _entry_path(transformer)
    _require_tokens(transformer, tokens)
    device = next(transformer.module.parameters()).device
    rows = tokens.reshape(-1, tokens.shape[-1]).to(device)
    named = {} if padding is None else {"attention_mask": padding.reshape(rows.shape).to(device).long()}
    found = input_of(path, ModuleCall(module=transformer.module, positional=(rows,), named=named))
    return found.reshape(*tokens.shape, found.shape[-1])


@torch.no_grad()
def lexicon(transformer: "Transformer", n: int) -> Lexicon:
    """Return all inputs that a model can have at ``n`` positions, none of which is padding."""
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


def _require_tokens(transformer: "Transformer", tokens: object) -> None:
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dtype == torch.bool:
        got = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise DtypeError(f"tokens must be a tensor of whole numbers, got {got}.", field="tokens")
    if tokens.ndim < 1 or tokens.numel() == 0:
        raise ShapeError(
            f"tokens must have the shape (*batch, n) with n >= 1, got {tuple(tokens.shape)}.", field="tokens"
        )
    table = token_table(transformer.module)
    size = 0 if table is None else table.num_embeddings
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= size:
        raise AssumptionError(
            f"{transformer.name!r} knows the tokens 0 to {size - 1:,}, got {least if least < 0 else most}.",
            field="tokens",
        )
    transformer.require_positions(tokens.shape[-1], f"got {tokens.shape[-1]}", field="tokens")
