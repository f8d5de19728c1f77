"""Maps in closed form, compared with the outputs of the modules that they represent, part by part.

Maps are read from weights. Whatever else a module does (adapters, hooks, a replaced forward, code that has changed
since) is not in its weights, but shows in its outputs.
"""

import importlib.metadata
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

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
    from howsmooth.models.transformer import Transformer

# A part may differ by this multiple of the effect of one unit of rounding in its input. Families that are read right
# stay below 2 with weights of ordinary size, and below 9 with weights from a tenth to a hundred times that; adapters
# and hooks exceed ten thousand.
UNITS = 64
# Parts other than layers.
EMBEDDINGS, LAST_NORM, CLASSES, WORDS = "embeddings", "last norm", "classes", "words"


def rounding(
    f: Callable[[Tensor], Tensor], X: Float[Tensor, "*batch n d"], Y: Float[Tensor, "*batch m out"]
) -> tuple[Float[Tensor, "*batch m"], Float[Tensor, "*batch m"]]:
    r"""Return the difference between a map and the output of a module, token by token, and what rounding allows.

    A module and a map that agree up to rounding differ as if their input had been rounded once more, and their output
    too: :math:`|f(x)-y|\le 64\,(|f(x\circ(1\pm u))-f(x)|+u|y|)`, with signs at random. The unit u is that of float32 or
    of a coarser output, since modules compute angles, norms and softmax in float32 whatever their weights are.

    Args:
        f: The map.
        X: The input of the module.
        Y: Its output.
    """
    unit = max(torch.finfo(torch.float32).eps, torch.finfo(Y.dtype).eps)
    signs = torch.randint(2, X.shape, generator=torch.Generator().manual_seed(0)).to(X) * 2 - 1
    ours = f(X)
    Y = Y.to(ours)
    moved = (f(X * (1 + unit * signs)) - ours).norm(dim=-1)
    return (ours - Y).norm(dim=-1), UNITS * (moved + unit * Y.norm(dim=-1))


@torch.no_grad()
def differences(
    transformer: "Transformer", tokens: Tensor, padding: Bool[Tensor, "batch n"] | None = None, *, words: bool = False
) -> dict[int | str, str]:
    """Run a model at one input and return the parts that differ from their maps, each with a sentence.

    Args:
        transformer: The model and its maps.
        tokens: The input; one sequence is enough.
        padding: True for real tokens, if some are padding.
        words: Whether scores of words are compared too: for every token there are as many as the vocabulary has words.
    """
    base, ends, layers = transformer.module, transformer.ends, transformer.layers
    headed = not isinstance(ends.class_head, str) or (words and not isinstance(ends.language_head, str))
    model = transformer.with_head if headed and transformer.with_head is not None else base
    stem_path = None if ends.stem is None else ends.stem.path
    inputs = Counter(layer.attention_path for layer in layers) | Counter(layer.block_path for layer in layers)
    inputs |= Counter(() if stem_path is None else (stem_path,))
    outputs = {path for layer in layers for path in (layer.block_path, layer.output_path)} | {""}
    masks = {} if padding is None else {"attention_mask": padding.long()}
    with (
        recorded_calls(base, inputs) as calls,
        recorded_outputs(base, outputs) as results,
        without_cache(base),
        without_cache(model),
    ):
        scores = first_tensor(model(tokens, **masks))
    compared = _Comparison(transformer, padding, calls, results)
    compared.layers()
    compared.ends(stem_path)
    if model is not base:
        compared.head(model, tokens, scores)
    return compared.found


class _Comparison:
    """The maps of a model against one recorded forward pass; parts that differ are collected in ``found``."""

    def __init__(
        self,
        transformer: "Transformer",
        padding: Tensor | None,
        calls: dict[tuple[str, int], ModuleCall],
        outputs: dict[tuple[str, int], Tensor],
    ) -> None:
        self._transformer, self._padding, self._calls, self._outputs = transformer, padding, calls, outputs
        paths = [layer.block_path for layer in transformer.layers]
        self._block_calls, self._block_outputs = layer_by_layer(paths, calls), layer_by_layer(paths, outputs)
        self.found: dict[int | str, str] = {}

    def layers(self) -> None:
        """Compare the attention of every layer, then the whole blocks of those that agree."""
        base, layers = self._transformer.module, self._transformer.layers
        calls = layer_by_layer([layer.attention_path for layer in layers], self._calls)
        outputs = layer_by_layer([layer.output_path for layer in layers], self._outputs)
        for layer, call, output in zip(layers, calls, outputs, strict=True):
            if layer.attention is not None:
                name = f"the attention of layer {layer.index} ({layer.output_path!r})"
                module = base.get_submodule(layer.block_path)
                self._compare(layer.index, name, module, layer.padded(self._padding), call.tokens, output)
        for layer, call, output in zip(layers, self._block_calls, self._block_outputs, strict=True):
            if layer.attention is not None and layer.feed_forward is not None and layer.index not in self.found:
                f = block(layer, layer.padded(self._padding))
                name = f"layer {layer.index} ({layer.block_path!r})"
                self._compare(layer.index, name, call.module, f, call.tokens, output)

    def ends(self, stem_path: str | None) -> None:
        """Compare the stem and the final norm."""
        base, ends = self._transformer.module, self._transformer.ends
        if ends.stem is not None and ends.stem.maps and stem_path is not None:
            X, Y = self._calls[stem_path, 0].tokens, self._block_calls[0].tokens
            module = base.get_submodule(stem_path)
            self._compare(EMBEDDINGS, f"{stem_path!r}", module, Chain(*ends.stem.maps), X, Y)
        if ends.final:
            f, X = Chain(*ends.final), self._block_outputs[-1]
            self._compare(LAST_NORM, "what stands behind the last layer", base, f, X, self._outputs["", 0])

    def head(self, model: nn.Module, tokens: Tensor, scores: Tensor) -> None:
        """Compare the classifier, or the language head."""
        ends, X = self._transformer.ends, self._outputs["", 0]
        if not isinstance(ends.class_head, str):
            f = Chain(*ends.class_head.maps(X, tokens, self._padding))
            self._compare(CLASSES, "its classifier", model, f, X, scores.unsqueeze(-2))
        elif not isinstance(ends.language_head, str):
            self._compare(WORDS, "its head over the vocabulary", model, Chain(*ends.language_head), X, scores)

    def _compare(
        self, part: int | str, name: str, module: nn.Module, f: Callable[[Tensor], Tensor], X: Tensor, Y: Tensor
    ) -> None:
        try:
            difference, allowed = rounding(f, X, Y)
        except HowsmoothError:
            return  # the map refuses such an input, and raises the same error when it is measured
        counts = Y.isfinite().all(-1)  # if the module returns NaN there is nothing to compare
        if self._padding is not None and counts.shape == self._padding.shape:
            counts &= self._padding
        if bool((~(difference <= allowed) & counts).any()):
            size = float(difference[counts].norm() / Y[counts].norm())
            self.found[part] = f"{name} does not put out what its weights say ({percent(size)} off): {reason(module)}"


def reason(module: nn.Module) -> str:
    """Return why the outputs of a module may differ from its weights."""
    if module.training:
        return "it is in training mode; call model.eval() first"
    if why := not_in_its_weights(module):
        return why
    version = importlib.metadata.version("transformers")
    return f"the code of {type(module).__name__} in transformers {version} is not what is read here"
