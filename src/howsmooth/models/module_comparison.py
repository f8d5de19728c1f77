"""Maps in closed form, compared with the outputs of the modules that they represent, part by part.

Maps are read from weights. Whatever else a module does (adapters, hooks, a replaced forward, code that has changed
since) is not in its weights, but shows in its outputs.
"""

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howsmooth.errors import HowsmoothError
from howsmooth.maps.composition import Chain
from howsmooth.models.autograd.hooks import (
    ModuleCall,
    first_tensor,
    layer_by_layer,
    recorded_calls,
    recorded_outputs,
    without_cache,
)
from howsmooth.models.loading.adapters import not_in_its_weights
from howsmooth.models.parts.block import block
from howsmooth.wording import percent

if TYPE_CHECKING:  # a transformer is compared with its module
    from howsmooth.models.attention_layer import AttentionLayer
    from howsmooth.models.parts.ends import EndMap, Ends
    from howsmooth.models.transformer import Transformer

# A part may differ by this multiple of the effect of one unit of rounding in its input. Families that are read right
# stay below 2 with weights of ordinary size, and below 9 with weights from a tenth to a hundred times that; adapters
# and hooks exceed ten thousand.
UNITS = 64
# Parts other than layers.
EMBEDDINGS, LAST_NORM, CLASSES, WORDS = "embeddings", "last norm", "classes", "words"
Calls = dict[tuple[str, int], ModuleCall]
Outputs = dict[tuple[str, int], Tensor]


def rounding(
    f: Callable[[Tensor], Tensor],
    X: Float[Tensor, "*batch n d"],
    Y: Float[Tensor, "*batch m out"],
    *,
    rotary: bool = False,
) -> tuple[Float[Tensor, "*batch m"], Float[Tensor, "*batch m"]]:
    r"""Return the difference between a map and the output of a module, token by token, and what rounding allows.

    A module and a map that agree up to rounding differ as if their input had been rounded once more, and their output
    too: :math:`|f(x)-y|\le 64\,(|f(x\circ(1\pm u))-f(x)|+u|y|)`, with signs at random. The unit u is that of float32 or
    of a coarser output, since modules compute angles, norms and softmax in float32 whatever their weights are. The
    angle of a rotary embedding grows with the position, and so does its rounding error: by n/2 units for the last of n
    tokens, which turns queries and keys by as much as if they had been rounded so many times. Twice that is allowed,
    for what signs at random miss.
    """
    unit = max(torch.finfo(torch.float32).eps, torch.finfo(Y.dtype).eps)
    signs = torch.randint(2, X.shape, generator=torch.Generator().manual_seed(0)).to(X) * 2 - 1
    ours = f(X)
    Y = Y.to(ours)
    moved = (f(X * (1 + unit * signs)) - ours).norm(dim=-1)
    turned = X.shape[-2] if rotary else 0
    return (ours - Y).norm(dim=-1), UNITS * (moved + unit * Y.norm(dim=-1)) + turned * moved


@torch.no_grad()
def differences(
    transformer: "Transformer",
    tokens: Tensor,
    padding: Bool[Tensor, "batch n"] | None = None,
    *,
    words: bool = False,
    named: Mapping[str, Any] | None = None,
) -> dict[int | str, str]:
    """Run a model at one input and return the parts that differ from their maps, each with a sentence.

    Scores of ``words`` are compared on demand: for every token there are as many as the vocabulary has words.
    """
    base, ends, layers = transformer.module, transformer.ends, transformer.layers
    headed = not isinstance(ends.class_head, str) or (words and not isinstance(ends.language_head, str))
    model = transformer.with_head if headed and transformer.with_head is not None else base
    stem_path = None if ends.stem is None else ends.stem.path
    inputs = Counter(layer.attention_path for layer in layers) | Counter(layer.block_path for layer in layers)
    inputs |= Counter(() if stem_path is None else (stem_path,))
    outputs = {path for layer in layers for path in (layer.block_path, layer.output_path)} | {""}
    run = ModuleCall.of(model, tokens, padding, named)
    with (
        recorded_calls(base, inputs) as calls,
        recorded_outputs(base, outputs) as results,
        without_cache(base),
        without_cache(model),
    ):
        scores = first_tensor(model(*run.positional, **run.named))
    parts = [*_layers(transformer, padding, calls, results)]
    if transformer.with_head is base:  # a model of the user's own has its final norm and its head in one module
        X = layer_by_layer([layer.block_path for layer in layers], results)[-1]
        parts += _head(ends, model, X, tokens, padding, scores, ends.final)
    else:
        parts += _ends(transformer, calls, results)
        parts += _head(ends, model, results["", 0], tokens, padding, scores, ()) if model is not base else ()
    found: dict[int | str, str] = {}
    for part in parts:
        if part.key not in found and (why := part.difference(padding)):  # blocks follow the attention of all layers
            found[part.key] = why
    return found


class _Part(NamedTuple):
    """One part: a map, the module that it represents, and the module's input and output."""

    key: int | str
    name: str
    module: nn.Module
    f: Callable[[Tensor], Tensor]
    X: Tensor
    Y: Tensor
    rotary: bool = False  # whether it turns queries and keys by angles that grow with the position

    def difference(self, padding: Tensor | None) -> str:
        """Return a sentence if the map differs from the output by more than rounding."""
        try:
            difference, allowed = rounding(self.f, self.X, self.Y, rotary=self.rotary)
        except HowsmoothError:
            return ""  # the map refuses such an input, and raises the same error when it is measured
        counts = self.Y.isfinite().all(-1)  # if the module returns NaN there is nothing to compare
        if padding is not None and counts.shape == padding.shape:
            counts &= padding
        if not bool((~(difference <= allowed) & counts).any()):
            return ""
        size = percent(float(difference[counts].norm() / self.Y[counts].norm()))
        return f"{self.name} does not put out what its weights say ({size} off): {reason(self.module)}"


def _layers(transformer: "Transformer", padding: Tensor | None, calls: Calls, outputs: Outputs) -> Iterator[_Part]:
    """Yield the attention of every layer, then the blocks."""
    layers = [layer for layer in transformer.layers if layer.attention is not None]
    every = transformer.layers
    attention_calls = layer_by_layer([layer.attention_path for layer in every], calls)
    attention_outputs = layer_by_layer([layer.output_path for layer in every], outputs)
    block_calls = layer_by_layer([layer.block_path for layer in every], calls)
    block_outputs = layer_by_layer([layer.block_path for layer in every], outputs)
    layers = [layer.as_called(attention_calls[layer.index], padding=padding is not None) for layer in layers]
    layers = [layer for layer in layers if layer.attention is not None]
    for layer in layers:
        i, module = layer.index, transformer.module.get_submodule(layer.block_path)
        yield _attention_part(layer, module, padding, attention_calls[i].tokens, attention_outputs[i])
    for layer in layers:
        if layer.feed_forward is not None:
            i = layer.index
            yield _block_part(layer, block_calls[i].module, padding, block_calls[i].tokens, block_outputs[i])


def _attention_part(layer: "AttentionLayer", module: nn.Module, padding: Tensor | None, X: Tensor, Y: Tensor) -> _Part:
    name = f"the attention of layer {layer.index} ({layer.output_path!r})"
    return _Part(layer.index, name, module, layer.padded(padding), X, Y, _is_rotary(layer))


def _block_part(layer: "AttentionLayer", module: nn.Module, padding: Tensor | None, X: Tensor, Y: Tensor) -> _Part:
    name = f"layer {layer.index} ({layer.block_path!r})"
    return _Part(layer.index, name, module, block(layer, layer.padded(padding)), X, Y, _is_rotary(layer))


def _is_rotary(layer: "AttentionLayer") -> bool:
    return layer.attention is not None and layer.attention.positions.rotary is not None


@torch.no_grad()
def layer_difference(
    layer: "AttentionLayer",
    padding: Tensor | None,
    attention: tuple[ModuleCall, Tensor],
    whole: tuple[ModuleCall, Tensor],
) -> str:
    """Return a sentence if the maps of one layer differ from what its attention and its block put out, else nothing.

    Both are given by their call and their output; the first sequence of the batch is compared.
    """
    (call, Y), (block_call, Z) = attention, whole
    padding = None if padding is None else padding[:1]
    parts = [_attention_part(layer, block_call.module, padding, call.tokens[:1], Y[:1])]
    if layer.feed_forward is not None:
        parts.append(_block_part(layer, block_call.module, padding, block_call.tokens[:1], Z[:1]))
    return next(filter(None, (part.difference(padding) for part in parts)), "")


def _ends(transformer: "Transformer", calls: Calls, outputs: Outputs) -> Iterator[_Part]:
    """Yield the stem and the final norm."""
    base, ends, paths = transformer.module, transformer.ends, [layer.block_path for layer in transformer.layers]
    if ends.stem is not None and ends.stem.maps and (path := ends.stem.path) is not None:
        X, Y = calls[path, 0].tokens, calls[paths[0], 0].tokens
        yield _Part(EMBEDDINGS, f"{path!r}", base.get_submodule(path), Chain(*ends.stem.maps), X, Y)
    if ends.final:
        X, Y = layer_by_layer(paths, outputs)[-1], outputs["", 0]
        yield _Part(LAST_NORM, "what stands behind the last layer", base, Chain(*ends.final), X, Y)


def _head(
    ends: "Ends",
    model: nn.Module,
    X: Tensor,
    tokens: Tensor,
    padding: Tensor | None,
    scores: Tensor,
    before: tuple["EndMap", ...],
) -> Iterator[_Part]:
    """Yield the classifier, or the language head."""
    if not isinstance(ends.class_head, str):
        f = Chain(*before, *ends.class_head.maps(X, tokens, padding))
        yield _Part(CLASSES, "its classifier", model, f, X, scores.unsqueeze(-2))
    elif not isinstance(ends.language_head, str):
        yield _Part(WORDS, "its head over the vocabulary", model, Chain(*ends.language_head), X, scores)


def reason(module: nn.Module) -> str:
    """Return why the outputs of a module may differ from its weights."""
    if module.training:
        return "it is in training mode; call model.eval() first"
    if why := not_in_its_weights(module):
        return why
    if not any(kind.__module__.startswith("transformers") for kind in type(module).__mro__):
        return f"the forward of {type(module).__name__} does more than its parts say"
    version = importlib.metadata.version("transformers")
    return f"the code of {type(module).__name__} in transformers {version} is not what is read here"
