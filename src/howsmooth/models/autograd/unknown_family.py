"""Families without a reader: attention modules are found by name, their parts and heads by running the model once."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.autograd.hooks import hooked, without_cache
from howsmooth.models.autograd.module_calls import PartCall
from howsmooth.models.autograd.traced_parts import (
    NO_HEADS,
    TensorLocation,
    TracedCall,
    TracedParts,
    trace,
    traced_parts,
)
from howsmooth.models.families.torch_layers import ends, with_closed_form
from howsmooth.models.parts.ends import Backbone
from howsmooth.spectral.autograd import TORCH_LAYERS

# How many sequences, and of how many tokens, a model is tried with.
ROWS, LENGTH = 2, 6
# Attributes that hold the number of heads, and modules that project to the values.
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
VALUE_PROJECTIONS = ("v_proj", "value", "value_proj", "v_lin", "v_linear", "v", "wv")


def backbone(model: Any) -> Backbone:
    """Return the innermost modules whose class is called attention, with their parts; cross-attention is left out.

    Those of torch have a closed form, and a model all of whose blocks are torch's has its ends read too.
    """
    named = [path for path, module in model.named_modules() if _is_attention(path, module)]
    innermost = [path for path in named if not any(other.startswith(f"{path}.") for other in named)]
    # layers are in a list; attention outside of it, as for pooling, is no layer
    listed = [path for path in innermost if any(part.isdigit() for part in path.split("."))]
    innermost = listed or innermost
    found = [
        AttentionLayer(
            index=i, attention=None, attention_path=path, projection_path=path, block_path=_block(path, innermost)
        )
        for i, path in enumerate(innermost)
    ]
    return with_traced_parts(model, found, random_inputs(model))


@torch.no_grad()
def with_traced_parts(model: nn.Module, layers: list[AttentionLayer], inputs: Tensor | None) -> Backbone:
    """Return the layers with their parts, as far as a forward pass at some inputs shows them."""
    calls: list[TracedCall] = []
    if inputs is not None:
        try:
            with without_cache(model):
                calls = trace(model, inputs)
                # the number of tokens of a picture is known to the model alone
                shape = tuple(inputs.shape) if inputs.ndim == 2 else (len(inputs),)
                layers = [dataclasses.replace(layer, traced=_parts_and_heads(calls, layer, shape)) for layer in layers]
        except Exception:  # unknown modules refuse inputs in ways of their own; the first real ones are tried later
            calls = []
    layers = [with_closed_form(model, layer, calls) for layer in layers]
    if not layers or any(layer.attention is None for layer in layers):
        return Backbone(layers=layers, stem=None)
    return ends(model, layers, calls)


def _parts_and_heads(calls: list[TracedCall], layer: AttentionLayer, shape: tuple[int, ...]) -> TracedParts | None:
    found = traced_parts(calls, attention_path=layer.attention_path, block_path=layer.block_path, shape=shape)
    if found is None or isinstance(found.heads, str):
        return found
    attention = next(call for call in calls if call.path == layer.attention_path)
    projection = next(call for call in calls if call.path == found.projection)
    count = concatenated_heads(attention, projection)
    return dataclasses.replace(found, head_count=NO_HEADS if count is None else count)


def concatenated_heads(attention: TracedCall, projection: TracedCall) -> int | None:
    """Return how many heads are concatenated in the input of the output projection; none if that cannot be verified.

    Noise is added to the values of the first group of heads; then their coordinates must change, and no others.
    """
    module, width = attention.call.module, projection.inputs[0].shape[-1]
    count = _head_count(module)
    found = ((path, part) for path, part in module.named_modules() if path.rpartition(".")[2] in VALUE_PROJECTIONS)
    path, values = next(found, ("", None))
    if count is None or width % count or not isinstance(values, nn.Linear):
        return None
    v = width // count
    groups, remainder = divmod(values.out_features, v)
    if remainder or not groups or count % groups:
        return None
    inside = projection.path.startswith(f"{attention.path}.")
    read = TensorLocation(path=projection.path, side="input")
    written = TensorLocation(path=attention.path, side="output")
    heads = PartCall(call=attention.call, root=attention.path, locations=(read if inside else written,))
    noise = torch.randn(values.out_features, generator=torch.Generator().manual_seed(0)).to(values.weight)
    noise[v:] = 0
    X = attention.call.tokens
    with hooked(module, outputs={path: lambda output, _turn: output + noise}):
        perturbed = heads(X)
    changed = (perturbed - heads(X)).flatten(0, -2).abs().amax(0) > 0
    expected = torch.arange(width, device=changed.device) < v * (count // groups)
    return count if torch.equal(changed, expected) else None


def random_inputs(model: Any, rows: int = ROWS) -> Tensor | None:
    """Return random inputs of the kind that a model takes, if that is known."""
    generator, config = torch.Generator().manual_seed(0), getattr(model, "config", None)
    parameter = next(model.parameters())
    if isinstance(model, TORCH_LAYERS):
        attention = next(part for part in model.modules() if isinstance(part, nn.MultiheadAttention))
        return torch.randn((rows, LENGTH, attention.embed_dim), generator=generator).to(parameter)
    if getattr(model, "main_input_name", "") == "pixel_values":
        size = getattr(config, "image_size", None)
        if not isinstance(size, int):
            return None
        shape = (rows, getattr(config, "num_channels", 3), size, size)
        return torch.randn(shape, generator=generator).to(parameter)
    tables = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
    # ids that are in every table are in that of tokens, whichever it is; tables of types have a few rows
    words = getattr(config, "vocab_size", min([size for size in tables if size > LENGTH], default=None))
    if not isinstance(words, int) or words < 2:
        return None
    # the first ids are those of special tokens, which some models treat differently
    return torch.randint(words // 2, words, (rows, LENGTH), generator=generator).to(parameter.device)


def _is_attention(path: str, module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    # a decoder without its encoder keeps the module of cross-attention, and does not run it
    last = path.rpartition(".")[2].lower()
    other = f"{path} {kind}".lower()  # torch's decoder layers call theirs multihead_attn
    return "attention" in kind and "cross" not in other and not last.startswith(("enc", "multihead_attn"))


def _block(path: str, others: list[str]) -> str:
    """Return the largest module around attention, and around no other, that is in a list of layers."""
    parts = path.split(".")
    numbered = [".".join(parts[: i + 1]) for i, part in enumerate(parts) if part.isdigit()]
    alone = (block for block in numbered if sum(f"{other}.".startswith(f"{block}.") for other in others) == 1)
    return next(alone, path)


def _head_count(module: nn.Module) -> int | None:
    config: Any = getattr(module, "config", None)
    for name in HEAD_COUNTS:
        found = getattr(module, name, getattr(config, name, None))
        if isinstance(found, int) and found > 0:
            return found
    return None
