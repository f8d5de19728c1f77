"""Inputs of attention layers, recorded by hooks in the forward pass of training, and the batches of that pass."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.autograd.hooks import ModuleCall
from howsmooth.models.autograd.module_calls import PartCall
from howsmooth.models.autograd.traced_parts import TensorLocation
from howsmooth.models.load import load
from howsmooth.models.loading.adapters import unwrapped
from howsmooth.models.transformer import Transformer

# Under these names batches of the transformers library hold the inputs of the model.
NAMES = ("input_ids", "pixel_values", "inputs", "x")


class RecordedInputs:
    """The inputs of the attention layers of a model in its last forward pass.

    Attributes:
        transformer: The model, layer by layer.
        real: True for real tokens, where some were padding.
    """

    def __init__(self, model: nn.Module) -> None:
        self.transformer = read_layers(model)
        self.real: Tensor | None = None
        self._calls: dict[str, list[ModuleCall]] = {}
        self._hooks: list[Any] = []
        paths = {path for part in self.transformer.layers for path in (part.attention_path, part.block_path)}
        base = self.transformer.module
        self._hooks.append(base.register_forward_pre_hook(self._begin, with_kwargs=True))
        for path in paths:
            part, keep = base.get_submodule(path), self._keep(path)
            self._hooks.append(part.register_forward_pre_hook(keep, prepend=True, with_kwargs=True))

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.forget()

    def forget(self) -> None:
        """Drop the recorded inputs, which hold the graph of a forward pass."""
        self._calls.clear()
        self.real = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing meanwhile: parts of the model run once more."""
        kept, self._calls = self._calls, {}
        real = self.real
        try:
            yield
        finally:
            self._calls, self.real = kept, real

    def part(self, layer: int) -> tuple[PartCall | Any, Tensor, nn.Module]:
        """Return the attention of a layer as it was called, the tokens that entered it, and the module it runs."""
        layers = self.transformer.layers
        # a module that several layers share is called once for each of them
        attention, block = (
            self._call(paths[layer], paths[:layer].count(paths[layer]))
            for paths in ([part.attention_path for part in layers], [part.block_path for part in layers])
        )
        return attention_part(layers[layer], attention, block), attention.tokens, block.module

    def _call(self, path: str, turn: int) -> ModuleCall:
        calls = self._calls.get(path, [])
        if len(calls) <= turn:
            raise AssumptionError(
                "no forward pass was heard: call the model first, then the penalty, once for each pass. A compiled "
                "model runs no hooks: give the batch, as in penalty(batch).",
                field="batch",
            )
        return calls[turn]

    def _begin(self, _module: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        # what a checkpointed pass repeated on the way back is not of this one
        self.forget()
        tokens = next((x for x in (*positional, *(named.get(name) for name in NAMES)) if isinstance(x, Tensor)), None)
        if tokens is not None:
            self.real = real_tokens(named.get("attention_mask"), tokens)

    def _keep(self, path: str) -> Any:
        def keep(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            call = ModuleCall(module=part, positional=positional, named=named)
            self._calls.setdefault(path, []).append(call)

        return keep


def attention_part(layer: AttentionLayer, attention: ModuleCall, block: ModuleCall) -> Any:
    """Return the attention of a layer, with the output projection, as a callable that autograd can follow.

    Why not the closed form: it is read from weights without their graph.
    """
    if layer.attention is None:
        return layer.called("attention", attention, block)
    locations = (TensorLocation(path=layer.projection_path, side="output"),)
    return PartCall(call=block, root=layer.block_path, locations=locations, enters=(layer.attention_path, 0))


def read_layers(model: nn.Module) -> Transformer:
    """Read the layers of a model that stays in the mode it is in."""
    model = unwrapped(model)
    with mode_restored(model):
        return load(model)


@contextlib.contextmanager
def mode_restored(model: nn.Module) -> Iterator[None]:
    """Restore the training mode of every module at the end."""
    training = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, was_training in training:
            module.training = was_training


def with_fixed_padding(X: Tensor, fixed: Tensor, real: Tensor) -> Tensor:
    """Return tokens whose padding is held fixed."""
    return torch.where(real.unsqueeze(-1), X, fixed.detach())


def read_batch(batch: Any) -> tuple[Tensor, Bool[Tensor, "batch n"] | None]:
    """Return the tokens or pixels of a batch, and True for real tokens where some are padding.

    A batch is a tensor, a dictionary with ``input_ids`` or ``pixel_values`` and perhaps ``attention_mask``, or a tuple
    that begins with one of these, such as inputs and labels.
    """
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple | list) and batch:
        return read_batch(batch[0])
    if isinstance(batch, Mapping):
        tokens = next((batch[name] for name in NAMES if isinstance(batch.get(name), Tensor)), None)
        if tokens is not None:
            return tokens, real_tokens(batch.get("attention_mask"), tokens)
        raise AssumptionError(
            f"a batch must hold one of {', '.join(NAMES)}, got {', '.join(map(repr, batch)) or 'nothing'}.",
            field="batch",
        )
    raise AssumptionError(
        f"a batch must be a tensor, a dictionary or a tuple that begins with one, got {type(batch).__name__}.",
        field="batch",
    )


def real_tokens(mask: object, tokens: Tensor) -> Bool[Tensor, "batch n"] | None:
    """Return True for real tokens, where a mask of the transformers library says that some are padding."""
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape[:2] or tokens.ndim != 2:
        return None
    real = mask != 0 if mask.dtype != torch.bool else mask
    return None if bool(real.all()) else real
