"""A transformer as attention layers that can be measured: read from a module, a folder, a hub, or made at random."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError, NonFiniteError, ShapeError, UnsupportedModelError
from howsmooth.maps.attention import Attention
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models import unknown, views
from howsmooth.models.calls import Call, listening
from howsmooth.models.embedding import embed
from howsmooth.models.frame import Frame, frame
from howsmooth.models.loading import Loaded, load_by_name, tokenizer_named
from howsmooth.models.map_names import is_whole
from howsmooth.models.padded_calls import RealTokensCall
from howsmooth.models.placing import placed
from howsmooth.models.registry import FAMILIES, ONE_SIDED, reader
from howsmooth.models.rest import Run
from howsmooth.models.sites import Measurable, Site, reads_the_block, seeing_both_sides
from howsmooth.models.text import OTHER_WAYS, HubTokenizer, Text, Tokenizer
from howsmooth.models.whole import check_whole, whole_map
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
    """

    name: str
    module: nn.Module
    sites: tuple[Site, ...]
    tokenizer: Tokenizer | None = None
    notes: tuple[str, ...] = ()
    frame: Frame = field(default_factory=Frame)

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
    def activations(self, tokens: Tensor, *, padding: Bool[Tensor, "batch n"] | None = None) -> "Activations":
        """Run the model once on a batch of inputs, and keep what enters each attention layer and each block.

        Args:
            tokens: The numbers of tokens, one row for each window; for models of pictures, the pixels.
            padding: True for real tokens, where some are padding.

        Raises:
            AssumptionError: If a sequence has no real token.
            DtypeError: If ``padding`` is not boolean.
            ShapeError: If it does not have the shape of ``tokens``.
        """
        _require_padding(padding, tokens)
        sites = self.sites
        if any(site.attention is None and site.anatomy is None for site in sites):
            sites = tuple(unknown.resolved(self.module, list(sites), tokens[: unknown.ROWS]))
        paths = Counter(path for site in sites for path in {site.reads, site.block})
        reads = None if self.frame.ends is None else self.frame.ends.reads
        paths.update(() if reads is None else (reads,))
        with listening(self.module, paths) as heard:
            device = next(self.module.parameters()).device
            padding = None if padding is None else padding.to(device)
            masks = {} if padding is None else {"attention_mask": padding.long()}
            run = Run(module=self.module, tokens=tokens.to(device), named=masks)
            run()
        return Activations(
            sites=sites,
            padding=padding,
            frame=self.frame,
            run=run,
            embedded=None if reads is None else heard[reads, 0],
            attention_calls=_in_turn([site.reads for site in sites], heard),
            block_calls=_in_turn([site.block for site in sites], heard),
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Activations:
    """What enters each layer.

    Attributes:
        sites: The layers.
        padding: True for real tokens, where some are padding.
        attention_calls: How the model called each attention module.
        block_calls: How it called each block.
        frame: What stands around the blocks.
        run: How the model was run.
        embedded: How it called what reads the sum of the embeddings, where that is not the first block.
    """

    sites: tuple[Site, ...]
    padding: Bool[Tensor, "batch n"] | None
    frame: Frame
    run: Run
    embedded: Call | None
    attention_calls: tuple[Call, ...]
    block_calls: tuple[Call, ...]

    def __repr__(self) -> str:
        """Say what was run."""
        return views.activations_line(self)

    def _repr_html_(self) -> str:
        return views.activations_html(self)

    @property
    def attention(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """What attention reads, one tensor for each layer."""
        return tuple(call.tokens.detach() for call in self.attention_calls)

    @property
    def blocks(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """What the block reads, likewise."""
        return tuple(call.tokens.detach() for call in self.block_calls)

    def at(self, layer: int, name: str = "attention") -> tuple[Measurable, Float[Tensor, "batch n d"]]:
        """Return a map of a layer or of many, and the tokens that enter it: what :func:`hs.local_lipschitz` takes.

        Of a layer: ``attention``, ``heads``, ``head:3``, ``normed``, ``residual``, ``mlp``, ``block``. Of many:
        ``model`` (from what enters the first block to the last hidden states), ``network`` (the same from the sum of
        the embeddings), ``sentence`` and ``logits`` (a sequence of one token), ``to:3``, ``from:3``, ``layers:2-4``;
        then ``layer`` is the one at which the map begins, or 0.
        Where some tokens are padding it is the map among the real ones, so that every sequence has the constant that it
        has alone.
        """
        site = self._site(layer)
        if is_whole(name):
            return whole_map(self, layer, name)
        X = (self.blocks if reads_the_block(name) else self.attention)[layer]
        if name == "mlp":
            X = site.feeding(X, self.padding)
        elif site.attention is None or (name == "block" and site.feed_forward is None):
            return self._called(site.called(name, self.attention_calls[layer], self.block_calls[layer])), X
        return site.map(name, padding=self.padding), X

    def _called(self, call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return what was called among real tokens."""
        if self.padding is None or bool(self.padding.all()):
            return call
        return RealTokensCall(call=call, real=self.padding)

    def per_head(self, layer: int) -> tuple[Attention | RealTokens, Float[Tensor, "batch 1 n d"]]:
        """Return all heads of a layer as one batch of maps, and the tokens that enter them.

        ``hs.local_lipschitz(*found.per_head(layer))`` measures every head at every window in one Krylov iteration, with
        estimates of the shape ``(windows, heads)``: entry ``[w, h]`` is that of ``found.at(layer, f"head:{h}")``.

        Raises:
            AssumptionError: If the model has no such layer, or its family is not known.
        """
        site = self._site(layer)
        # the axis of size one is where the heads stand: they read the same tokens
        X = self.attention[layer].unsqueeze(-3)
        heads = site.padded(self.padding).per_head()
        if self.padding is None or bool(self.padding.all()):
            return heads, X
        return RealTokens(map=heads, real=self.padding.unsqueeze(-2)), X

    def _site(self, layer: int) -> Site:
        if not 0 <= layer < len(self.sites):
            raise AssumptionError(
                f"layer must name one of {len(self.sites)}, 0 to {len(self.sites) - 1}, got {layer}.", field="layer"
            )
        return self.sites[layer]


def load(
    name_or_path: str | nn.Module,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: Any = None,
    family: str = "",
) -> Transformer:
    """Load a transformer.

    Args:
        name_or_path: A built-in name (``reviews``, ``minilm``, ``smollm2``), a folder, a GGUF file, a hub id,
            ``random:gpt2`` for a family's default shape with random weights, or a module in memory.
        device: Where to put it.
        dtype: The numbers to compute with; those of the model by default, but float32 where they are of half precision.
        tokenizer: A tokenizer of the transformers library, or a folder or hub id that has one, where the model comes
            without.
        family: Of which family it is, where its config.json does not say.

    Raises:
        UnsupportedModelError: If nothing can be loaded under this name, or the model has no attention.
        NonFiniteError: If its weights hold NaN or infinity.
        DeviceError: If there is no such device here.
        DtypeError: If the numbers are not real floating-point ones.
    """
    if isinstance(name_or_path, nn.Module):
        loaded, name = Loaded(module=name_or_path, tokenizer=None), type(name_or_path).__name__
        name = f"{name}@{weights_digest(name_or_path)}"  # so that no two are mistaken
    elif isinstance(name_or_path, str):
        loaded, name = load_by_name(name_or_path, family=family), name_or_path
    else:
        raise DtypeError(f"a model is a name, a folder or a module, got {type(name_or_path).__name__}.", field="model")
    trunk, about_trunk = _trunk(loaded.module)
    borrowed = isinstance(name_or_path, nn.Module)
    moved, about_numbers = placed(trunk, device=device, dtype=dtype, borrowed=borrowed)
    base = moved.eval()
    _require_finite(base, name)
    sites, about_sites = _sites(base, name)
    own = loaded.tokenizer if tokenizer is None else _given(tokenizer)
    notes = loaded.notes + about_trunk + about_numbers + about_sites
    around = frame(loaded.module, base, sites, loaded.sentence)
    return Transformer(name=name, module=base, sites=sites, tokenizer=own, notes=notes, frame=around)


def read_anew(transformer: Transformer, module: nn.Module) -> Transformer:
    """Return a borrowed model with its maps read again, as after a training step; nothing is checked, nothing run.

    Args:
        transformer: What ``load`` made of the module.
        module: The module itself, with its head.
    """
    if any(site.attention is None for site in transformer.sites):
        return transformer  # its modules are differentiated as they are
    if not {*map(id, transformer.module.parameters())} <= {*map(id, module.parameters())}:
        return load(module)  # half precision was copied
    sites, _notes = _sites(transformer.module, transformer.name)
    return replace(transformer, sites=sites, frame=frame(module, transformer.module, sites, None))


def _given(tokenizer: Any) -> Tokenizer:
    return tokenizer_named(tokenizer) if isinstance(tokenizer, str) else HubTokenizer(tokenizer)


def weights_digest(module: nn.Module) -> str:
    """Return a hash of the weights of a module."""
    found = hashlib.blake2b(digest_size=8)
    for name, value in module.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _trunk(module: nn.Module) -> tuple[Any, tuple[str, ...]]:
    """Return the model without its head; of an encoder and a decoder, the encoder; of text and pictures, the text.

    Say what had to be overlooked.
    """
    base: Any = getattr(module, "base_model", module)
    if all(isinstance(getattr(base, part, None), nn.Module) for part in ("text_model", "vision_model")):
        return base.text_model, (
            "of its two towers that of text is measured; hs.load(model.vision_model) has the other",
        )
    config: Any = getattr(base, "config", None)
    flag, family = getattr(config, "is_encoder_decoder", False), getattr(config, "model_type", None)
    parts = {part for part in ("encoder", "decoder") if isinstance(getattr(base, part, None), nn.Module)}
    # anybody can write the flag into a config.json; what counts is what the model is made of
    if len(parts) == 2 if family in FAMILIES else flag and "decoder" in parts:
        return base.get_encoder(), ()
    if not flag:
        return base, ()
    note = f"its configuration says is_encoder_decoder, but this {type(base).__name__} has no decoder beside an encoder"
    return base, (f"{note}: the flag is not heeded",)


def _sites(base: nn.Module, name: str) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    config: Any = getattr(base, "config", None)
    family = str(getattr(config, "model_type", type(base).__name__))
    read = reader(family)
    if read is not None and getattr(config, "is_causal", True):
        return tuple(read(base)), ()
    if family in ONE_SIDED:
        raise UnsupportedModelError(
            f"{name!r} says is_causal = False, which the family {family!r} heeds in part only, so that its mask is not "
            "known; take it out of the configuration.",
            field="model",
        )
    if read is not None:  # decoders may be told to see both sides, as those that embed sentences are
        return tuple(seeing_both_sides(site) for site in read(base)), ()
    found = tuple(unknown.sites(base))
    if not found:
        raise UnsupportedModelError(
            f"{name!r} is of the family {family!r}, which is not known, and has no module that calls itself attention.",
            field="model",
        )
    note = f"the family {family!r} has no closed form here: its attention modules are differentiated by autograd"
    return found, (note,)


def _require_finite(base: nn.Module, name: str) -> None:
    for parameter, value in base.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise NonFiniteError(
                f"the weights of {name!r} hold NaN or infinity, first in {parameter!r}.", field="model"
            )


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


def _in_turn(paths: list[str], heard: dict[tuple[str, int], Call]) -> tuple[Call, ...]:
    """Return one call for each layer; a module that several layers share was called once for each of them."""
    return tuple(heard[path, paths[:i].count(path)] for i, path in enumerate(paths))
