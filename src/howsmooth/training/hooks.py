"""What attention layers read while a model is trained: kept by hooks, as the forward pass goes by."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from howsmooth.errors import AssumptionError
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.autograd.hooks import ModuleCall
from howsmooth.models.autograd.module_calls import PartCall
from howsmooth.models.autograd.tracing import TensorLocation
from howsmooth.models.load import load
from howsmooth.models.transformer import Transformer
from howsmooth.training.batches import NAMES, real_tokens


class Heard:
    """What the attention layers of a model read in its last forward pass.

    Attributes:
        transformer: The model, layer by layer.
        real: True for real tokens, where some were padding.
    """

    def __init__(self, model: nn.Module) -> None:
        """Begin to listen; the model is left in the mode it is in."""
        self.transformer = borrowed(model)
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
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.forget()

    def forget(self) -> None:
        """Let go of what was heard: it holds the graph of a forward pass."""
        self._calls.clear()
        self.real = None

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """Do not listen for a while: parts of the model run once more."""
        kept, self._calls = self._calls, {}
        real = self.real
        try:
            yield
        finally:
            self._calls, self.real = kept, real

    def part(self, layer: int) -> tuple[PartCall | Any, Tensor, nn.Module]:
        """Return the attention of a layer as it was called, the tokens that entered it, and the module it runs.

        Raises:
            AssumptionError: If the layer did not run.
        """
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
    return PartCall(call=block, root=layer.block_path, locations=locations, enters=layer.attention_path)


def borrowed(model: nn.Module) -> Transformer:
    """Read the layers of somebody else's model, which stays in the mode it is in."""
    model = unwrapped(model)
    training = {module: module.training for module in model.modules()}
    try:
        return load(model)
    finally:
        for module, was in training.items():
            module.training = was


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module itself, without what compiles it or spreads it over processes."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        inner = model.module if inner is None and isinstance(model, DistributedDataParallel) else inner
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def real_only(X: Tensor, fixed: Tensor, real: Tensor) -> Tensor:
    """Return tokens of which only the real ones are free."""
    return torch.where(real.unsqueeze(-1), X, fixed.detach())
