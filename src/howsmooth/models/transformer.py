"""A transformer as attention layers that can be measured."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError, ShapeError, UnsupportedModelError
from howsmooth.markup import paragraph, table
from howsmooth.models.activations import Activations, check_model_map
from howsmooth.models.attention_layer import COLUMNS, AttentionLayer
from howsmooth.models.autograd.hooks import ModuleCall, layer_by_layer, recorded_calls
from howsmooth.models.autograd.unknown_family import ROWS, with_traced_parts
from howsmooth.models.inputs.text import OTHER_WAYS, SpecialTokens, Text, Tokenizer, cut, tokens_of, window_count
from howsmooth.models.loading.adapters import merged
from howsmooth.models.map_names import MapName
from howsmooth.models.module_comparison import differences
from howsmooth.models.parts.ends import Ends, embed
from howsmooth.models.streaming import BlockStream
from howsmooth.spectral.autograd import TORCH_LAYERS
from howsmooth.validation import plain_mode, require_boolean, tensor_of, token_ids


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Transformer:
    """A model whose attention layers are known.

    Attributes:
        name: The name, path or hub id it was loaded from.
        module: The model without its head, in eval mode.
        layers: Its attention layers, in the order in which they run.
        tokenizer: The tokenizer; none for models of pictures, or if the model came without one.
        notes: Remarks that a reader of its numbers needs.
        ends: The stem in front of its blocks, and its output heads.
        with_head: The model with its head, as it was loaded; none if it has no head of its own.
        compared: Filled once the maps were compared with the module at a first input.
        stream: What brings its blocks into memory one by one; none if all of them are there. Then the weights of
            ``layers`` and ``module`` are not in memory; those of :meth:`layer` and of activations are.
    """

    name: str
    module: nn.Module
    layers: tuple[AttentionLayer, ...]
    tokenizer: Tokenizer | None = None
    notes: tuple[str, ...] = ()
    ends: Ends = field(default_factory=Ends)
    with_head: nn.Module | None = None
    compared: set[str] = field(default_factory=set)
    stream: BlockStream | None = None

    def __repr__(self) -> str:
        first = self.layers[0].attention
        how = "by autograd" if first is None else str(first)
        return f"Transformer({self.name}, {len(self.layers)} layers{', streamed' if self.stream else ''}, {how})"

    def _repr_html_(self) -> str:
        notes = "".join(paragraph(f"Note: {note}.") for note in self.notes)
        return table(COLUMNS, (layer.as_row() for layer in self.layers), caption=self.name) + notes

    @property
    def max_length(self) -> int | None:
        """The longest sequence that the model has positions for; none if its configuration names no limit."""
        config: Any = getattr(self.module, "config", None)
        limit = getattr(config, "max_position_embeddings", None)
        embedding: Any = getattr(getattr(self.module, "embeddings", None), "position_embeddings", None)
        if limit is not None and isinstance(getattr(embedding, "padding_idx", None), int):
            return limit - embedding.padding_idx - 1  # RoBERTa and MPNet start counting positions behind the padding id
        return limit

    def layer(self, layer: int) -> AttentionLayer:
        """Return one attention layer, with its weights."""
        self.check_layer(layer)
        return self.layers[layer] if self.stream is None else self.stream.layer(layer)

    def check_layer(self, layer: int) -> None:
        """Raise an AssumptionError for a layer that the model does not have."""
        if not 0 <= layer < len(self.layers):
            raise AssumptionError(
                f"{self.name!r} has the layers 0 to {len(self.layers) - 1}, got {layer}.", field="layer"
            )

    def check_map(self, name: str, layer: int = 0) -> int:
        """Check that the model has a map, and return the layer at which it begins.

        Args:
            name: The name of the map.
            layer: The layer of a map of one layer.
        """
        parsed = MapName.parse(name)
        if parsed.spans_layers:
            return check_model_map(self.layers, self.ends, parsed).first
        self.check_layer(layer)
        self.layers[layer].check(name)
        return layer

    @property
    def device(self) -> torch.device:
        """The device it computes on."""
        return next(self.module.parameters()).device if self.stream is None else torch.device(self.stream.files.device)

    @property
    def digest(self) -> str:
        """A hash of the weights."""
        return weights_digest(self.module, None if self.stream is None else self.stream.stored)

    def windows(
        self, text: Text, *, length: int, count: int, special_tokens: bool = False, stride: int | None = None
    ) -> Tensor:
        """Cut a text into windows of exactly ``length`` tokens: consecutive, non-overlapping, from the beginning.

        With a ``stride``, window i begins at token ``i * stride`` instead.
        """
        tokens, frame = self._read(text, length, special_tokens)
        return torch.tensor(cut(tokens, text.name, range(count), length=length, frame=frame, stride=stride))

    def room(self, text: Text, *, length: int, special_tokens: bool = False, stride: int | None = None) -> int:
        """Count the windows of exactly ``length`` tokens that :meth:`windows` could cut from a text."""
        tokens, frame = self._read(text, length, special_tokens)
        return window_count(tokens, length=length, frame=frame, stride=stride)

    def _read(self, text: Text, length: int, special_tokens: bool) -> tuple[list[int], SpecialTokens]:
        """Return the tokens of a text, and the special tokens around a window of it."""
        tokenizer = self.require_tokenizer()
        self.require_positions(length, f"got a length of {length}", field="length")
        frame = tokenizer.frame() if special_tokens else ([], [])
        return tokens_of(tokenizer, text.content, text.name), frame

    def require_in_memory(self, what: str) -> None:
        """Raise an UnsupportedModelError for what runs the whole module, if its blocks are streamed."""
        if self.stream is not None:
            raise UnsupportedModelError(
                f"{what} needs all weights of {self.name!r} in memory, and they are streamed; load it with "
                "streamed=False.",
                field="streamed",
            )

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, or raise an UnsupportedModelError if there is none."""
        if self.tokenizer is None:
            raise UnsupportedModelError(
                f"{self.name!r} comes without a tokenizer, so it cannot read a text. {OTHER_WAYS}", field="tokenizer"
            )
        return self.tokenizer

    def require_positions(self, length: int, got: str, *, field: str) -> None:
        """Raise an AssumptionError if the model has fewer positions."""
        limit = self.max_length
        if limit is not None and length > limit:
            raise AssumptionError(
                f"{self.name!r} has positions for {limit} tokens, {got}; at most {limit} fit.", field=field
            )

    @plain_mode()
    def embed(
        self, tokens: Int[Tensor, "*batch n"], *, padding: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch n e"]:
        """Return the sum of the embeddings of tokens at their positions, before any norm.

        The model adds up embeddings of the token, its position and its type, scaled if the model scales. The sum is the
        input of the map ``network``; :func:`hs.tokens.invert` finds the tokens again.

        Args:
            tokens: The token ids.
            padding: True for real tokens, if some are padding.
        """
        tokens = token_ids(tokens)
        _require_padding(padding, tokens)
        return embed(self, tokens, padding)

    @plain_mode()
    @torch.no_grad()
    def activations(
        self,
        tokens: Tensor | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        padding: Bool[Tensor, "batch n"] | None = None,
        **inputs: Any,
    ) -> Activations:
        """Run the model once on a batch of inputs, and keep the inputs of each attention layer and each block.

        Args:
            tokens: The token ids, one row for each window; for models of pictures, the pixels; for torch's own layers,
                hidden states ``(batch, n, d)``, whether they are ``batch_first`` or not. One sequence may come without
                the axis of the batch; what a tokenizer returns may be given as it is.
            padding: True for real tokens, if some are padding.
            inputs: Other arguments of the model by their names: those that a tokenizer returns, or ``mask=``,
                ``src_mask=`` and ``is_causal=`` of torch's layers, whose maps are masked accordingly.
        """
        tokens, padding, named = _arguments(self.module, tokens, padding, inputs)
        _require_padding(padding, tokens)
        with embedded(self.module, tokens):
            return self._activations(tokens, padding, named)

    def _activations(self, tokens: Tensor, padding: Tensor | None, named: Mapping[str, Any]) -> Activations:
        layers = self.layers
        if any(layer.attention is None and layer.traced is None for layer in layers):
            layers = tuple(with_traced_parts(merged(self.module), list(layers), tokens[:ROWS]).layers)
        device = self.device
        padding = None if padding is None else padding.to(device)
        named = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in named.items()}
        run = ModuleCall.of(self.module, tokens.to(device), padding, named)
        if self.stream is not None:
            return self.stream.activations(run, padding, self.ends)
        paths = Counter(path for layer in layers for path in {layer.attention_path, layer.block_path})
        stem = None if self.ends.stem is None else self.ends.stem.path
        paths.update(() if stem is None else (stem,))
        with recorded_calls(self.module, paths) as calls:
            run(run.tokens)
        rows = None if named else 1  # which axis of other arguments is that of sequences is not known
        self._compare(run.tokens[:rows], None if padding is None else padding[:rows], named)
        attention_calls = layer_by_layer([layer.attention_path for layer in layers], calls)
        masked = (layer.as_called(attention_calls[layer.index], padding=padding is not None) for layer in layers)
        return Activations(
            layers=tuple(masked),
            padding=padding,
            ends=self.ends,
            run=run,
            embedded=None if stem is None else calls[stem, 0],
            attention_calls=attention_calls,
            block_calls=layer_by_layer([layer.block_path for layer in layers], calls),
        )

    def _compare(self, tokens: Tensor, padding: Tensor | None, named: Mapping[str, Any]) -> None:
        """Compare the maps with the module once: at the first sequence that is run."""
        if self.compared:
            return
        if found := differences(self, tokens, padding, named=named):
            raise UnsupportedModelError(
                f"{next(iter(found.values()))}; load the model as it is now: what is not in its weights is then "
                "differentiated by autograd.",
                field="model",
            )
        self.compared.add("first input")


def weights_digest(module: nn.Module, stored: Callable[[str], Tensor | None] | None = None) -> str:
    """Return a hash of the weights of a module, in memory or as they are ``stored``; those in files are read once."""
    found = hashlib.blake2b(digest_size=8)
    for name, value in module.state_dict().items():
        found.update(name.encode())
        found_there = None if stored is None else stored(name)
        if found_there is None and value.is_meta:  # a pooler that nothing reads
            continue
        value = value if found_there is None else found_there
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _arguments(
    module: nn.Module, tokens: Any, padding: Any, inputs: dict[str, Any]
) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
    """Return the tokens of a batch, True for real ones if some are padding, and other arguments of a model."""
    if isinstance(tokens, Mapping):
        inputs, tokens = {**tokens, **inputs}, None
    names = [name for name in ("input_ids", "pixel_values") if name in inputs]
    if (tokens is None) != bool(names):
        raise AssumptionError("give tokens, or what a tokenizer returns, and not both.", field="tokens")
    tokens = tensor_of(inputs.pop(names[0]) if tokens is None else tokens, "tokens")
    mask = inputs.pop("attention_mask", None)
    if padding is None and mask is not None:
        real = tensor_of(mask, "attention_mask").bool()
        padding = None if bool(real.all()) else real
    padding = None if padding is None else tensor_of(padding, "padding")
    tokens = tokens.to(next(module.parameters()).dtype) if tokens.is_floating_point() else token_ids(tokens)
    # one sequence of token ids, one of hidden states for a layer of torch, or one picture
    least = 2 + tokens.is_floating_point() * (1 if isinstance(module, TORCH_LAYERS) else 2)
    if tokens.ndim == least - 1 and (least < 4 or getattr(module, "main_input_name", "") == "pixel_values"):
        tokens, padding = tokens.unsqueeze(0), padding if padding is None or padding.ndim > 1 else padding.unsqueeze(0)
    return tokens, padding, inputs


@contextmanager
def embedded(module: nn.Module, tokens: Tensor) -> Iterator[None]:
    """Say what a module reads, where it cannot read these tokens."""
    if isinstance(module, TORCH_LAYERS) and not tokens.is_floating_point():
        raise DtypeError(
            f"{type(module).__name__} reads hidden states (batch, n, d), not token ids; give those, or measure it as "
            "it is, by hs.local_lipschitz(module, X).",
            field="tokens",
        )
    try:
        yield
    except RuntimeError as error:
        if not (tokens.is_floating_point() and "indices" in str(error)):
            raise
        raise DtypeError(
            f"{type(module).__name__} reads token ids, got {str(tokens.dtype).removeprefix('torch.')} numbers.",
            field="tokens",
        ) from error
    except IndexError as error:
        if tokens.is_floating_point():
            raise
        raise AssumptionError(
            f"{type(module).__name__} has no embedding for a token of {int(tokens.min())} to {int(tokens.max())}, or "
            f"no position for one of {tokens.shape[-1]}; are these the ids of its own tokenizer?",
            field="tokens",
        ) from error


def _require_padding(padding: Tensor | None, tokens: Tensor) -> None:
    if padding is None:
        return
    require_boolean(padding, "padding")
    shape = tokens.shape[:-1] if tokens.is_floating_point() else tokens.shape  # hidden states, or token ids
    if padding.shape != shape:
        raise ShapeError(
            f"padding must have one entry for each token, {tuple(shape)}, got {tuple(padding.shape)}.",
            field="padding",
        )
    if not bool(padding.any(-1).all()):
        raise AssumptionError(
            "padding must leave every sequence a real token (True); leave out sequences that have none.",
            field="padding",
        )
