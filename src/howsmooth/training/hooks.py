"""What attention layers read while a model is trained: kept by hooks, as the forward pass goes by."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from howsmooth.errors import AssumptionError
from howsmooth.models.base import load
from howsmooth.models.calls import Call
from howsmooth.models.part_calls import PartCall
from howsmooth.models.sites import Site
from howsmooth.models.tracing import Place
from howsmooth.models.transformer import Transformer
from howsmooth.training.batches import NAMES, real_tokens


class RecordedInputs:
    """What the attention layers of a model read in its last forward pass.

    Attributes:
        transformer: The model, layer by layer.
        real: True for real tokens, where some were padding.
    """

    def __init__(self, model: nn.Module) -> None:
        """Begin to listen; the model is left in the mode it is in."""
        self.transformer = borrowed(model)
        self.real: Tensor | None = None
        self._calls: dict[str, list[Call]] = {}
        self._hooks: list[Any] = []
        paths = {path for site in self.transformer.sites for path in (site.reads, site.block)}
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
    def paused(self) -> Iterator[None]:
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
        site, sites = self.transformer.sites[layer], self.transformer.sites
        # a module that several layers share is called once for each of them
        attention, block = (
            self._call(path, [getattr(other, side) for other in sites[:layer]].count(path))
            for side, path in (("reads", site.reads), ("block", site.block))
        )
        return attention_part(site, attention, block), attention.tokens, block.module

    def _call(self, path: str, turn: int) -> Call:
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
            call = Call(module=part, positional=positional, named=named)
            self._calls.setdefault(path, []).append(call)

        return keep


def attention_part(site: Site, attention: Call, block: Call) -> Any:
    """Return the attention of a layer, with the output projection, as a callable that autograd can follow.

    Why not the closed form: it is read from weights without their graph.
    """
    if site.attention is None:
        return site.called("attention", attention, block)
    places = (Place(path=site.writes, side="writes"),)
    return PartCall(call=block, root=site.block, places=places, enters=site.reads)


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
