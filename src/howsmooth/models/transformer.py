"""A transformer as attention layers that can be measured."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError, ShapeError, UnsupportedModelError
from howsmooth.models import unknown, views
from howsmooth.models.activations import Activations
from howsmooth.models.adapters import merged
from howsmooth.models.calls import in_turn, listening
from howsmooth.models.comparison import differences
from howsmooth.models.embedding import embed
from howsmooth.models.frame import Frame
from howsmooth.models.map_names import is_whole
from howsmooth.models.rest import Run
from howsmooth.models.sites import Site
from howsmooth.models.text import OTHER_WAYS, Text, Tokenizer
from howsmooth.models.whole import check_whole
from howsmooth.models.windows import room, windows


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Transformer:
    """A model whose attention layers are known.

    Attributes:
        name: Where it came from.
        module: The model without its head, in eval mode.
        sites: Its attention layers, in the order in which they run.
        tokenizer: What turns text into its inputs; none for models of pictures, or of unknown origin.
        notes: What a reader of its numbers has to know.
        frame: What stands around its blocks.
        with_head: The model with its head, as it was loaded; none where that is all of it.
        compared: Filled once the maps were compared with the module at a first input.
    """

    name: str
    module: nn.Module
    sites: tuple[Site, ...]
    tokenizer: Tokenizer | None = None
    notes: tuple[str, ...] = ()
    frame: Frame = field(default_factory=Frame)
    with_head: nn.Module | None = None
    compared: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        """Say what it is."""
        first = self.sites[0].attention
        return f"Transformer({self.name}, {len(self.sites)} layers, {'by autograd' if first is None else first})"

    def _repr_html_(self) -> str:
        return views.transformer_html(self)

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
            raise AssumptionError(
                f"{self.name!r} has the layers 0 to {len(self.sites) - 1}, got {layer}.", field="layer"
            )
        return self.sites[layer]

    def check_map(self, name: str, layer: int = 0) -> int:
        """Refuse a map that the model does not have; return the layer at which it begins.

        Args:
            name: Which map.
            layer: Of which layer; a map of many layers says itself where it begins.

        Raises:
            AssumptionError: If it has no such map, or no such layer.
        """
        if is_whole(name):
            return check_whole(self.sites, self.frame, name).first
        self.site(layer).check(name)
        return layer

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
        tokenizer = self._reading(length)
        return windows(tokenizer, text, length=length, count=count, special_tokens=special_tokens, stride=stride)

    def room(self, text: Text, *, length: int, special_tokens: bool = False, stride: int | None = None) -> int:
        """Count the windows of exactly ``length`` tokens that :meth:`windows` could cut from a text.

        Raises:
            AssumptionError: If the model has fewer positions.
            UnsupportedModelError: If the model has no tokenizer.
        """
        return room(self._reading(length), text, length=length, special_tokens=special_tokens, stride=stride)

    def _reading(self, length: int) -> Tokenizer:
        """Return the tokenizer, if there is one and the model has positions for so many tokens."""
        if self.tokenizer is None:
            raise UnsupportedModelError(
                f"{self.name!r} comes without a tokenizer, so it cannot read a text. {OTHER_WAYS}",
                field="tokenizer",
            )
        limit = self.max_length
        if limit is not None and length > limit:
            raise AssumptionError(
                f"{self.name!r} has positions for {limit} tokens, got a length of {length}.", field="length"
            )
        return self.tokenizer

    def embed(
        self, tokens: Int[Tensor, "*batch n"], *, padding: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch n e"]:
        """Return the sum of the embeddings of tokens at their positions, before any norm.

        It is what the model adds up: of the token, its position and its type, scaled where the model scales. What
        enters the map ``network``; :func:`hs.invert` finds the tokens again.

        Args:
            tokens: The numbers of tokens.
            padding: True for real tokens, where some are padding.

        Raises:
            AssumptionError: If a token is beyond the vocabulary, or there are more tokens than positions.
            UnsupportedModelError: If it is not known where the model adds up its embeddings, or it reads no tokens.
        """
        _require_padding(padding, tokens)
        return embed(self, tokens, padding)

    @torch.no_grad()
    def activations(self, tokens: Tensor, *, padding: Bool[Tensor, "batch n"] | None = None) -> Activations:
        """Run the model once on a batch of inputs, and keep what enters each attention layer and each block.

        Args:
            tokens: The numbers of tokens, one row for each window; for models of pictures, the pixels.
            padding: True for real tokens, where some are padding.

        Raises:
            AssumptionError: If a sequence has no real token.
            DtypeError: If ``padding`` is not boolean.
            ShapeError: If it does not have the shape of ``tokens``.
            UnsupportedModelError: If the maps of the layers do not put out what the module does, at the first input.
        """
        _require_padding(padding, tokens)
        sites = self.sites
        if any(site.attention is None and site.anatomy is None for site in sites):
            sites = tuple(unknown.resolved(merged(self.module), list(sites), tokens[: unknown.ROWS]))
        paths = Counter(path for site in sites for path in {site.reads, site.block})
        reads = None if self.frame.ends is None else self.frame.ends.reads
        paths.update(() if reads is None else (reads,))
        with listening(self.module, paths) as heard:
            device = next(self.module.parameters()).device
            padding = None if padding is None else padding.to(device)
            masks = {} if padding is None else {"attention_mask": padding.long()}
            run = Run(module=self.module, tokens=tokens.to(device), named=masks)
            run()
        self._compare(run.tokens[:1], None if padding is None else padding[:1])
        return Activations(
            sites=sites,
            padding=padding,
            frame=self.frame,
            run=run,
            embedded=None if reads is None else heard[reads, 0],
            attention_calls=in_turn([site.reads for site in sites], heard),
            block_calls=in_turn([site.block for site in sites], heard),
        )

    def _compare(self, tokens: Tensor, padding: Tensor | None) -> None:
        """Refuse maps that are not what the module is, once: at the first sequence that is run."""
        if self.compared:
            return
        if found := differences(self, tokens, padding):
            raise UnsupportedModelError(
                f"{next(iter(found.values()))}; load the model as it is now: what is not in its weights is then "
                "differentiated by autograd.",
                field="model",
            )
        self.compared.add("first input")


def weights_digest(module: nn.Module) -> str:
    """Return a hash of the weights of a module."""
    found = hashlib.blake2b(digest_size=8)
    for name, value in module.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _require_padding(padding: Tensor | None, tokens: Tensor) -> None:
    if padding is None:
        return
    if padding.dtype != torch.bool:
        raise DtypeError(
            f"padding must be boolean, True for real tokens, got {padding.dtype}; convert with .bool().",
            field="padding",
        )
    if padding.shape != tokens.shape:
        raise ShapeError(
            f"padding must have one entry for each token, {tuple(tokens.shape)}, got {tuple(padding.shape)}.",
            field="padding",
        )
    if not bool(padding.any(-1).all()):
        raise AssumptionError(
            "padding must leave every sequence a real token (True); leave out sequences that have none.",
            field="padding",
        )
