"""A transformer as attention layers that can be measured: read from a module, a folder, a hub, or made at random."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError, NonFiniteError, ShapeError, UnsupportedModelError
from howsmooth.models import unknown
from howsmooth.models.calls import Call, listening
from howsmooth.models.loading import Loaded, load_by_name
from howsmooth.models.registry import reader
from howsmooth.models.sites import Measurable, Site, reads_the_block
from howsmooth.models.text import Text, Tokenizer, windows


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Transformer:
    """A model whose attention layers are known.

    Attributes:
        name: Where it came from.
        module: The model without its head, in eval mode.
        sites: Its attention layers, in the order in which they run.
        tokenizer: What turns text into its inputs; none for models of pictures, or of unknown origin.
        notes: What a reader of its numbers has to know.
    """

    name: str
    module: nn.Module
    sites: tuple[Site, ...]
    tokenizer: Tokenizer | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Say what it is."""
        first = self.sites[0].attention
        return f"Transformer({self.name}, {len(self.sites)} layers, {'by autograd' if first is None else first})"

    @property
    def max_length(self) -> int | None:
        """The longest sequence that the model has positions for; none if it does not say."""
        config: Any = getattr(self.module, "config", None)
        limit = getattr(config, "max_position_embeddings", None)
        table: Any = getattr(getattr(self.module, "embeddings", None), "position_embeddings", None)
        if limit is not None and isinstance(getattr(table, "padding_idx", None), int):
            return limit - table.padding_idx - 1  # RoBERTa and MPNet count positions from behind the padding
        return limit

    def site(self, layer: int) -> Site:
        """Return one attention layer.

        Raises:
            AssumptionError: If the model has no such layer.
        """
        if not 0 <= layer < len(self.sites):
            raise AssumptionError(f"{self.name!r} has the layers 0 to {len(self.sites) - 1}, got {layer}.")
        return self.sites[layer]

    @property
    def digest(self) -> str:
        """A hash of the weights."""
        return weights_digest(self.module)

    def windows(
        self, text: Text, *, length: int, count: int, special_tokens: bool = False, stride: int | None = None
    ) -> Tensor:
        """Cut a text into windows of exactly ``length`` tokens: consecutive, non-overlapping, from the beginning.

        With a ``stride``, window i begins at token ``i * stride`` instead.

        Raises:
            AssumptionError: If the text is too short, or the model has fewer positions.
            UnsupportedModelError: If the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise UnsupportedModelError(
                f"{self.name!r} comes without a tokenizer, so it cannot read a text; put one beside its weights, or "
                "call activations with tokens of your own."
            )
        limit = self.max_length
        if limit is not None and length > limit:
            raise AssumptionError(f"{self.name!r} has positions for {limit} tokens, got a length of {length}.")
        return windows(self.tokenizer, text, length=length, count=count, special_tokens=special_tokens, stride=stride)

    @torch.no_grad()
    def activations(self, tokens: Tensor, *, padding: Bool[Tensor, "batch n"] | None = None) -> "Activations":
        """Run the model once on a batch of inputs, and keep what enters each attention layer and each block.

        Args:
            tokens: The numbers of tokens, one row for each window; for models of pictures, the pixels.
            padding: True for real tokens, where some are padding.

        Raises:
            DtypeError: If ``padding`` is not boolean.
            ShapeError: If it does not have the shape of ``tokens``.
        """
        _require_padding(padding, tokens)
        paths = Counter(path for site in self.sites for path in {site.reads, site.block})
        with _without_cache(self.module), listening(self.module, paths) as heard:
            device = next(self.module.parameters()).device
            padding = None if padding is None else padding.to(device)
            masks = {} if padding is None else {"attention_mask": padding.long()}
            self.module(tokens.to(device), **masks)
        return Activations(
            sites=self.sites,
            padding=padding,
            attention_calls=_in_turn([site.reads for site in self.sites], heard),
            block_calls=_in_turn([site.block for site in self.sites], heard),
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Activations:
    """What enters each layer.

    Attributes:
        sites: The layers.
        padding: True for real tokens, where some are padding.
        attention_calls: How the model called each attention module.
        block_calls: How it called each block.
    """

    sites: tuple[Site, ...]
    padding: Bool[Tensor, "batch n"] | None
    attention_calls: tuple[Call, ...]
    block_calls: tuple[Call, ...]

    @property
    def attention(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """What attention reads, one tensor for each layer."""
        return tuple(call.tokens.detach() for call in self.attention_calls)

    @property
    def blocks(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """What the block reads, likewise."""
        return tuple(call.tokens.detach() for call in self.block_calls)

    def at(self, layer: int, name: str = "attention") -> tuple[Measurable, Float[Tensor, "batch n d"]]:
        """Return a map of a layer, and the tokens that enter it: what :func:`hs.local_lipschitz` takes."""
        if not 0 <= layer < len(self.sites):
            raise AssumptionError(f"layer must name one of {len(self.sites)}, 0 to {len(self.sites) - 1}, got {layer}.")
        site = self.sites[layer]
        X = (self.blocks if reads_the_block(name) else self.attention)[layer]
        if name == "block":
            return self.block_calls[layer], X
        if name == "attention" and site.attention is None:
            return self.attention_calls[layer], X
        return site.map(name, padding=self.padding), X


def load(
    name_or_path: str | nn.Module,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: Any = None,
) -> Transformer:
    """Load a transformer.

    Args:
        name_or_path: A built-in name (``minilm``, ``smollm2``), a folder, a GGUF file, a hub id, ``random:gpt2`` for a
            family's default shape with random weights, or a module in memory.
        device: Where to put it.
        dtype: The numbers to compute with; those of the model by default.
        tokenizer: A tokenizer of the transformers library, where the model comes without one.

    Raises:
        UnsupportedModelError: If nothing can be loaded under this name, or the model has no attention.
        NonFiniteError: If its weights hold NaN or infinity.
    """
    if isinstance(name_or_path, nn.Module):
        loaded, name = Loaded(module=name_or_path, tokenizer=None), type(name_or_path).__name__
        name = f"{name}@{weights_digest(name_or_path)}"  # so that no two are mistaken
    elif isinstance(name_or_path, str):
        loaded, name = load_by_name(name_or_path), name_or_path
    else:
        raise DtypeError(f"a model is a name, a folder or a module, got {type(name_or_path).__name__}.")
    base = _trunk(loaded.module).to(device=device, dtype=dtype).eval()
    _require_finite(base, name)
    sites, notes = _sites(base, name)
    own = loaded.tokenizer
    if tokenizer is not None:
        from howsmooth.models.text import HubTokenizer

        own = HubTokenizer(tokenizer)
    return Transformer(name=name, module=base, sites=sites, tokenizer=own, notes=loaded.notes + notes)


def weights_digest(module: nn.Module) -> str:
    """Return a hash of the weights of a module."""
    found = hashlib.blake2b(digest_size=8)
    for name, value in module.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _trunk(module: nn.Module) -> Any:
    """Return the model without its head; of an encoder and a decoder, the encoder."""
    base: Any = getattr(module, "base_model", module)
    return base.get_encoder() if getattr(getattr(base, "config", None), "is_encoder_decoder", False) else base


def _sites(base: nn.Module, name: str) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    family = str(getattr(getattr(base, "config", None), "model_type", type(base).__name__))
    read = reader(family)
    if read is not None:
        return tuple(read(base)), ()
    found = tuple(unknown.sites(base))
    if not found:
        raise UnsupportedModelError(
            f"{name!r} is of the family {family!r}, which is not known, and has no module that calls itself attention."
        )
    note = f"the family {family!r} has no closed form here: its attention modules are differentiated by autograd"
    return found, (note,)


def _require_finite(base: nn.Module, name: str) -> None:
    for parameter, value in base.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise NonFiniteError(f"the weights of {name!r} hold NaN or infinity, first in {parameter!r}.")


def _require_padding(padding: Tensor | None, tokens: Tensor) -> None:
    if padding is None:
        return
    if padding.dtype != torch.bool:
        raise DtypeError(f"padding must be boolean, True for real tokens, got {padding.dtype}; convert with .bool().")
    if padding.shape != tokens.shape:
        raise ShapeError(
            f"padding must have one entry for each token, {tuple(tokens.shape)}, got {tuple(padding.shape)}."
        )


def _in_turn(paths: list[str], heard: dict[tuple[str, int], Call]) -> tuple[Call, ...]:
    """Return one call for each layer; a module that several layers share was called once for each of them."""
    return tuple(heard[path, paths[:i].count(path)] for i, path in enumerate(paths))


@contextmanager
def _without_cache(module: nn.Module) -> Iterator[None]:
    """Keep decoders from remembering the keys of one call in the next."""
    config: Any = getattr(module, "config", None)
    kept = getattr(config, "use_cache", None)
    if kept is None:
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = kept
