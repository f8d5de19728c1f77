"""Families that are not known: their attention modules are found by name, and their parts by running them once."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.models.anatomy import NO_HEADS, Anatomy, anatomy_of
from howsmooth.models.calls import without_cache
from howsmooth.models.sites import Site
from howsmooth.models.tracing import Event, trace
from howsmooth.models.value_heads import heads_in_a_row

# How many sequences, and of how many tokens, a model is tried with.
ROWS, LENGTH = 2, 6


def sites(model: Any) -> list[Site]:
    """Find the innermost modules that call themselves attention, and their parts; cross-attention is left out."""
    named = [path for path, module in model.named_modules() if _is_attention(path, module)]
    innermost = [path for path in named if not any(other.startswith(f"{path}.") for other in named)]
    # layers stand in a list; what stands beside it, as attention that pools, is none
    listed = [path for path in innermost if any(part.isdigit() for part in path.split("."))]
    innermost = listed or innermost
    found = [
        Site(layer=i, attention=None, reads=path, writes=path, block=_block(path, innermost))
        for i, path in enumerate(innermost)
    ]
    return resolved(model, found, trial(model))


@torch.no_grad()
def resolved(model: nn.Module, found: list[Site], inputs: Tensor | None) -> list[Site]:
    """Return the layers with their parts, as far as a run at some inputs shows them."""
    if inputs is None:
        return found
    try:
        with without_cache(model):
            events = trace(model, inputs)
            # pictures are cut into tokens, nobody but the model knows how many
            shape = tuple(inputs.shape) if inputs.ndim == 2 else (len(inputs),)
            return [dataclasses.replace(site, anatomy=_anatomy(events, site, shape)) for site in found]
    except Exception:  # strangers refuse inputs in ways of their own; the first real ones are tried in their place
        return found


def _anatomy(events: list[Event], site: Site, shape: tuple[int, ...]) -> Anatomy | None:
    found = anatomy_of(events, reads=site.reads, block=site.block, shape=shape)
    if found is None or isinstance(found.heads, str):
        return found
    own = next(event for event in events if event.path == site.reads)
    projection = next(event for event in events if event.path == found.projection)
    count = heads_in_a_row(own, projection)
    return dataclasses.replace(found, head_count=NO_HEADS if count is None else count)


def _is_attention(path: str, module: nn.Module) -> bool:
    own = type(module).__name__.lower()
    # a decoder that stands alone keeps a module for what an encoder would say, and does not run it
    last = path.rpartition(".")[2].lower()
    return "attention" in own and "cross" not in f"{path} {own}".lower() and not last.startswith("enc")


def trial(model: Any) -> Tensor | None:
    """Return random inputs of the kind that a model takes, if that can be told."""
    generator, config = torch.Generator().manual_seed(0), getattr(model, "config", None)
    parameter = next(model.parameters())
    if getattr(model, "main_input_name", "") == "pixel_values":
        size = getattr(config, "image_size", None)
        if not isinstance(size, int):
            return None
        shape = (ROWS, getattr(config, "num_channels", 3), size, size)
        return torch.randn(shape, generator=generator).to(parameter)
    words = next((part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)), None)
    words = getattr(config, "vocab_size", words)
    if not isinstance(words, int) or words < 2:
        return None
    # the first numbers are those of special tokens, which some models treat apart
    return torch.randint(words // 2, words, (ROWS, LENGTH), generator=generator).to(parameter.device)


def _block(path: str, others: list[str]) -> str:
    """Return the largest module around attention, and around no other, that stands in a list of layers."""
    parts = path.split(".")
    numbered = [".".join(parts[: i + 1]) for i, part in enumerate(parts) if part.isdigit()]
    alone = (block for block in numbered if sum(f"{other}.".startswith(f"{block}.") for other in others) == 1)
    return next(alone, path)
