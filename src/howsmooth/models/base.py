"""A transformer as attention layers that can be measured: read from a module, a folder, a hub, or made at random."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.errors import DtypeError, NonFiniteError, UnsupportedModelError
from howsmooth.models.registry import FAMILIES, reader
from howsmooth.models.sites import Site


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Transformer:
    """A model whose attention layers are known.

    Attributes:
        name: Where it came from.
        module: The model without its head, in eval mode.
        sites: Its attention layers, in the order in which they run.
    """

    name: str
    module: nn.Module
    sites: tuple[Site, ...]

    def __repr__(self) -> str:
        """Say what it is."""
        return f"Transformer({self.name}, {len(self.sites)} layers, {self.sites[0].attention})"

    @torch.no_grad()
    def activations(self, tokens: Int[Tensor, "batch n"]) -> "Activations":
        """Run the model once on windows of tokens, and keep what enters each attention layer and each block."""
        with _listening(self) as heard:
            self.module(tokens.to(next(self.module.parameters()).device))
        return Activations(
            attention=tuple(heard[site.layer, "reads"] for site in self.sites),
            blocks=tuple(heard[site.layer, "block"] for site in self.sites),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Activations:
    """What enters each layer.

    Attributes:
        attention: What attention reads, one tensor for each layer.
        blocks: What the block reads, likewise.
    """

    attention: tuple[Float[Tensor, "batch n d"], ...]
    blocks: tuple[Float[Tensor, "batch n d"], ...]


def load(
    source: str | nn.Module, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Transformer:
    """Load a transformer.

    Args:
        source: A module in memory, a folder, a hub id, or ``random:gpt2`` for a family's default shape with random
            weights.
        device: Where to put it.
        dtype: The numbers to compute with; those of the model by default.

    Raises:
        UnsupportedModelError: If the family is not known, or nothing can be loaded under this name.
    """
    if isinstance(source, nn.Module):
        model, name = source, type(source).__name__
    elif isinstance(source, str):
        model, name = _from_name(source), source
    else:
        raise DtypeError(f"a model is a name, a folder or a module, got {type(source).__name__}.")
    base: Any = getattr(model, "base_model", model)
    base = base.to(device=device, dtype=dtype).eval()
    for parameter, value in base.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise NonFiniteError(f"the weights of {name!r} hold NaN or infinity, first in {parameter!r}.")
    family = str(getattr(getattr(base, "config", None), "model_type", type(base).__name__))
    read = reader(family)
    if read is None:
        raise UnsupportedModelError(f"the family {family!r} is not known{_nearest(family)}.")
    return Transformer(name=name, module=base, sites=tuple(read(base)))


def _from_name(name: str) -> nn.Module:
    from transformers import CONFIG_MAPPING, AutoModel

    if name.startswith("random:"):
        family = name.removeprefix("random:")
        if family not in FAMILIES:
            raise UnsupportedModelError(f"there is no family {family!r}{_nearest(family)}.")
        return AutoModel.from_config(CONFIG_MAPPING[family]())
    try:
        return AutoModel.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(
            f"no model can be loaded from {name!r}: neither a folder with a config.json nor a hub id within reach."
        ) from error


def _nearest(family: str) -> str:
    near = difflib.get_close_matches(family, FAMILIES, n=3, cutoff=0.4)
    return f"; did you mean {', '.join(near)}?" if near else f"; known are {', '.join(FAMILIES)}"


@contextmanager
def _listening(transformer: Transformer) -> Iterator[dict[tuple[int, str], Tensor]]:
    """Keep the hidden states that enter attention and blocks while the model runs."""
    heard: dict[tuple[int, str], Tensor] = {}
    calls: dict[str, int] = {}
    modules = dict(transformer.module.named_modules())
    by_path: dict[str, list[tuple[int, str]]] = {}
    for site in transformer.sites:
        by_path.setdefault(site.reads, []).append((site.layer, "reads"))
        by_path.setdefault(site.block, []).append((site.layer, "block"))

    def listener(path: str) -> Any:
        def keep(_module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            # weights shared by several layers are called once for each of them
            place = by_path[path][calls.get(path, 0)]
            calls[path] = calls.get(path, 0) + 1
            heard[place] = (positional[0] if positional else named["hidden_states"]).detach()

        return keep

    hooks = [modules[path].register_forward_pre_hook(listener(path), with_kwargs=True) for path in by_path]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
