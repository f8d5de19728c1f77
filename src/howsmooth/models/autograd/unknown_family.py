"""Models without a reader: attention modules are found by name, their parts and heads by running the model once.

torch's own layers (nn.MultiheadAttention, nn.TransformerEncoderLayer) have a closed form in any model. What weights do
not tell (masks, what joins blocks, pooling) is read off one forward pass whose tensors were all kept, and holds as far
as the outputs agree.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import ACTIVATIONS, Pointwise
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain
from howsmooth.maps.mlp import MLP, Dense
from howsmooth.maps.norms import LayerNorm
from howsmooth.maps.protocols import Map
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.autograd.hooks import hooked, is_self_attention, without_cache
from howsmooth.models.autograd.module_calls import PartCall
from howsmooth.models.autograd.traced_parts import (
    NO_HEADS,
    TensorLocation,
    TracedCall,
    TracedParts,
    trace,
    traced_parts,
)
from howsmooth.models.families.parameters import (
    ACTIVATION_CLASSES,
    activation_of,
    layer_norm,
    linear,
    post_norm_mlp,
    pre_norm_mlp,
)
from howsmooth.models.parts.ends import Backbone, ClassHead, Stem
from howsmooth.spectral.autograd import TORCH_LAYERS, oriented

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


# Modules that change nothing in eval mode.
NOTHING = (nn.Dropout, nn.Identity)
# Entrywise functions that a forward may call by themselves, between modules.
FUNCTIONS = ("relu", "gelu", "tanh", "silu", "gelu_tanh")
# By how much a step may differ from what was seen, as a share of its size.
AGREEMENT = 1e-4
NOT_JOINED = (
    "its blocks do not read each other's outputs, or are not all nn.TransformerEncoderLayer; hs.local_lipschitz and "
    "hs.attack take the module as a callable, and hs.certify takes what hs.verification.read_module(module, X) reads"
)


def with_closed_form(model: nn.Module, layer: AttentionLayer, calls: Sequence[TracedCall]) -> AttentionLayer:
    """Return a layer whose attention is torch's with its closed form; others as they are."""
    attention = model.get_submodule(layer.attention_path)
    call = next((call.call for call in calls if call.path == layer.attention_path), None)
    parent, _dot, name = layer.attention_path.rpartition(".")
    block: Any = model.get_submodule(parent)
    inside = isinstance(block, nn.TransformerEncoderLayer) and name == "self_attn"
    if not isinstance(attention, nn.MultiheadAttention) or not (inside or (call and is_self_attention(call))):
        return layer
    try:
        closed = dataclasses.replace(layer, attention=Attention.from_torch(attention))
    except AssumptionError:
        return layer
    if inside:
        read = pre_norm_mlp if block.norm_first else post_norm_mlp
        parts = read(block.norm1, block.norm2, block.linear1, block.activation, block.linear2)
        closed = dataclasses.replace(closed, block_path=parent, traced=None, **parts)
    return closed if call is None else closed.as_called(call)


def ends(model: nn.Module, layers: list[AttentionLayer], calls: Sequence[TracedCall]) -> Backbone:
    """Return layers that were read as a backbone, with what stands behind the last block as far as it was seen.

    The input of the first block counts as the sum of embeddings: what is before it is not read.
    """
    found = {call.path: call for call in reversed(calls)}  # the first call of each
    blocks = [found.get(layer.block_path) for layer in layers]
    once = len({layer.block_path for layer in layers}) == len(layers)
    ran = [block for block in blocks if block is not None and block.outputs]
    closed = once and len(ran) == len(layers) and all(layer.feed_forward is not None for layer in layers)
    joined = all(torch.equal(a.outputs[0], b.inputs[0]) for a, b in itertools.pairwise(ran))
    if not (closed and joined):
        alone = isinstance(model, nn.MultiheadAttention)  # it is all of the model, and no block
        return Backbone(layers=layers, stem=Stem() if alone else None, class_head=NOT_JOINED)
    steps = _steps_behind(calls, ran[-1], found[""])
    if isinstance(steps, str):
        return Backbone(layers=layers, stem=None, class_head=steps)
    if not any(isinstance(step, str) for step in steps):
        why = "it returns one output for each token, and no class of a sequence"
        return Backbone(layers=layers, final=tuple(steps), class_head=why)
    at = next(i for i, step in enumerate(steps) if isinstance(step, str))
    read_out, classes = _joined(steps[at + 1 :]), found[""].outputs[0].shape[-1]
    if read_out is None:
        return Backbone(layers=layers, stem=None, class_head="no linear layer follows its pooling")
    head = ClassHead(read_out=read_out, pooling=steps[at], labels=tuple(map(str, range(classes))))
    return Backbone(layers=layers, final=tuple(steps[:at]), class_head=head)


def _steps_behind(calls: Sequence[TracedCall], last: TracedCall, whole: TracedCall) -> list[Any] | str:
    """Return the maps from the output of the last block to that of the model; a pooling is given by its name."""
    x, where = oriented(last.call.module, last.outputs[0]), last.path
    leaves = [call for call in calls if call.begin > last.end and not any(call.call.module.children())]
    steps: list[Any] = []
    for call in sorted(leaves, key=lambda call: call.begin):
        between = _between(x, call.inputs[0]) if call.inputs and call.outputs else None
        if between is None:
            continue  # it is not on the way
        part = _leaf(call.call.module, x.dtype)
        if part is None:
            return f"{call.path!r} behind its last block is a {type(call.call.module).__name__}, which is not read here"
        steps, x, where = [*steps, *between, *part], call.outputs[0], call.path
    between = None if not whole.outputs else _between(x, oriented(whole.call.module, whole.outputs[0]))
    if between is None:
        return (
            f"what its forward does behind {where!r} was not understood (linear layers, norms, activations, and the "
            "mean, the first or the last token are); hs.local_lipschitz and hs.attack take the module as a callable, "
            "and hs.certify takes what hs.verification.read_module(module, X) reads"
        )
    return [*steps, *between]


def _between(x: Tensor, y: Tensor) -> list[Any] | None:
    """Return what makes ``y`` of ``x``, the output of one module and the input of a later one, or ``None``."""
    return next((step for step, value in _candidates(x) if _agree(value, y)), None)


def _candidates(x: Tensor) -> Iterator[tuple[list[Any], Tensor]]:
    """Yield what may follow a tensor: another order of its axes, a pooling, a function, or several of these."""
    for y in (x, x.transpose(0, 1)) if x.ndim == 3 else (x,):
        pooled: list[tuple[list[Any], Tensor]] = [([], y)]
        if y.ndim == 3:
            pooled += [(["mean"], y.mean(1)), (["first"], y[:, 0]), (["last"], y[:, -1])]
        yield from pooled
        for step, z in pooled:
            for name in FUNCTIONS:
                yield [*step, Pointwise(activation=name, dtype=z.dtype)], ACTIVATIONS[name].value(z)


def _agree(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and bool((x - y).norm() <= AGREEMENT * y.norm())


def _leaf(module: nn.Module, dtype: torch.dtype) -> list[Map] | None:
    """Return a module behind the blocks as maps, or ``None``."""
    if isinstance(module, NOTHING):
        return []
    if isinstance(module, nn.Linear):
        return [linear(module)]
    if isinstance(module, nn.LayerNorm) and module.elementwise_affine and len(module.normalized_shape) == 1:
        return [layer_norm(module)]
    known = isinstance(module, nn.GELU) or type(module).__name__ in ACTIVATION_CLASSES
    return [Pointwise(activation=activation_of(module), dtype=dtype)] if known else None


def _joined(steps: list[Any]) -> MLP | Dense | Chain | None:
    """Return the steps behind a pooling as one map."""
    match steps:
        case [Dense()]:
            return steps[0]
        case [Dense() as up, Pointwise() as act, Dense() as down]:
            return MLP(up=up.weight, up_bias=up.bias, down=down.weight, down_bias=down.bias, activation=act.activation)
        case [] | [Pointwise()] | [LayerNorm()]:
            return None
    return Chain(*steps)
