"""Tokens as a model reads them: embeddings added up at their positions, before any norm; and the whole vocabulary."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError, ShapeError, UnsupportedModelError
from howsmooth.maps.norms import Norm
from howsmooth.models.calls import Call, without_cache
from howsmooth.models.ends import End
from howsmooth.models.reading import token_table

if TYPE_CHECKING:  # a transformer embeds its tokens
    from howsmooth.models.transformer import Transformer


class _Enough(Exception):  # noqa: N818 — no error: what enters was heard, and the rest need not run
    """Stop a model where its embeddings end."""


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


# Where tokens can be looked at before they meet: as the sum of their embeddings, as the first block reads them, and as
# its attention does.
STAGES = ("embeddings", "block", "attention")


def entrance(transformer: "Transformer", stage: str) -> tuple[End | Norm, ...]:
    """Return the maps, each on tokens alone, from the sum of the embeddings to a stage.

    Raises:
        AssumptionError: If there is no such stage, or the family has no closed form.
    """
    if stage not in STAGES:
        raise AssumptionError(f"tokens are found at {', '.join(STAGES)}; got {stage!r}.", field="at")
    _where(transformer)
    ends, first = transformer.frame.ends, transformer.sites[0]
    assert ends is not None  # or it would have been refused
    before = () if first.before is None else (first.before,)
    return {"embeddings": (), "block": ends.before, "attention": (*ends.before, *before)}[stage]


@torch.no_grad()
def embed(transformer: "Transformer", tokens: Int[Tensor, "*batch n"], padding: Tensor | None = None) -> Tensor:
    """Return the sum of the embeddings at their positions, as the model adds them up; it runs so far, and no further.

    Raises:
        AssumptionError: If a token is beyond the vocabulary, or there are more tokens than positions.
        DtypeError: If the tokens are no whole numbers.
        ShapeError: If they have no axis of positions, or are none.
        UnsupportedModelError: If it is not known where the model adds up its embeddings, or it reads no tokens.
    """
    path = _where(transformer)
    _require_tokens(transformer, tokens)
    device = next(transformer.module.parameters()).device
    rows = tokens.reshape(-1, tokens.shape[-1]).to(device)
    named = {} if padding is None else {"attention_mask": padding.reshape(rows.shape).to(device).long()}
    found = _heard(transformer.module, path, rows, named)
    return found.reshape(*tokens.shape, found.shape[-1])


@torch.no_grad()
def lexicon(transformer: "Transformer", n: int) -> Lexicon:
    """Return all inputs that a model can have at ``n`` positions, none of which is padding.

    Raises:
        AssumptionError: If the model has fewer positions.
        UnsupportedModelError: If its embeddings are not the sum of one for the token and one for the position.
    """
    words = _words(transformer)
    padding = getattr(getattr(transformer.module, "config", None), "pad_token_id", None)
    # positions may be counted from the first token that is no padding
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
    _where(transformer)
    table = token_table(module)
    assert table is not None  # or it would have been refused
    words = table(torch.arange(table.num_embeddings, device=table.weight.device))  # called: some scale what they hold
    narrow: Any = getattr(getattr(module, "decoder", module), "project_in", None)  # as in OPT's 350M model
    words = words if narrow is None else narrow(words)
    return words * getattr(module, "embedding_multiplier", 1.0)  # as in Granite


def _where(transformer: "Transformer") -> str:
    """Return the module that reads the sum of the embeddings."""
    ends = transformer.frame.ends
    if ends is None or token_table(transformer.module) is None:
        why = "it reads no tokens" if ends is not None else "where they are added up is not known for its family"
        raise UnsupportedModelError(f"the embeddings of {transformer.name!r} cannot be read: {why}.", field="model")
    return transformer.sites[0].block if ends.reads is None else ends.reads


def _heard(module: nn.Module, path: str, tokens: Tensor, named: Mapping[str, Any]) -> Tensor:
    """Run a model until the part at a path is called, and return the hidden states that it is called with."""
    heard: list[Tensor] = []
    here = threading.get_ident()

    def keep(part: nn.Module, positional: tuple[Any, ...], given: dict[str, Any]) -> None:
        if threading.get_ident() == here:  # somebody else may run the same module meanwhile
            heard.append(Call(module=part, positional=positional, named=given).tokens.detach())
            raise _Enough

    hook = module.get_submodule(path).register_forward_pre_hook(keep, prepend=True, with_kwargs=True)
    try:
        with without_cache(module):
            module(tokens, **named)
    except _Enough:
        pass
    finally:
        hook.remove()
    return heard[0]


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
    limit = transformer.max_length
    if limit is not None and tokens.shape[-1] > limit:
        raise AssumptionError(
            f"{transformer.name!r} has positions for {limit} tokens, got {tokens.shape[-1]}.", field="tokens"
        )
