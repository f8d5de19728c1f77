"""From a module, a folder, a hub or a name to a transformer: its trunk, its attention layers, what is around them."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from howsmooth.errors import DtypeError, NonFiniteError, UnsupportedModelError
from howsmooth.models import unknown
from howsmooth.models.frame import frame
from howsmooth.models.loading import Loaded, load_by_name, tokenizer_named
from howsmooth.models.placing import placed
from howsmooth.models.registry import FAMILIES, ONE_SIDED, reader
from howsmooth.models.sites import Site, seeing_both_sides
from howsmooth.models.text import HubTokenizer, Tokenizer
from howsmooth.models.transformer import Transformer, weights_digest


def load(
    name_or_path: str | nn.Module,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: Any = None,
    family: str = "",
) -> Transformer:
    """Load a transformer.

    Args:
        name_or_path: A built-in name (``reviews``, ``minilm``, ``smollm2``), a folder, a GGUF file, a hub id,
            ``random:gpt2`` for a family's default shape with random weights, or a module in memory.
        device: Where to put it.
        dtype: The numbers to compute with; those of the model by default, but float32 where they are of half precision.
        tokenizer: A tokenizer of the transformers library, or a folder or hub id that has one, where the model comes
            without.
        family: Of which family it is, where its config.json does not say.

    Raises:
        UnsupportedModelError: If nothing can be loaded under this name, or the model has no attention.
        NonFiniteError: If its weights hold NaN or infinity.
        DeviceError: If there is no such device here.
        DtypeError: If the numbers are not real floating-point ones.
    """
    if isinstance(name_or_path, nn.Module):
        loaded, name = Loaded(module=name_or_path, tokenizer=None), type(name_or_path).__name__
        name = f"{name}@{weights_digest(name_or_path)}"  # so that no two are mistaken
    elif isinstance(name_or_path, str):
        loaded, name = load_by_name(name_or_path, family=family), name_or_path
    else:
        raise DtypeError(f"a model is a name, a folder or a module, got {type(name_or_path).__name__}.", field="model")
    trunk, about_trunk = _trunk(loaded.module)
    borrowed = isinstance(name_or_path, nn.Module)
    moved, about_numbers = placed(trunk, device=device, dtype=dtype, borrowed=borrowed)
    base = moved.eval()
    _require_finite(base, name)
    sites, about_sites = _sites(base, name)
    own = loaded.tokenizer if tokenizer is None else _given(tokenizer)
    notes = loaded.notes + about_trunk + about_numbers + about_sites
    around = frame(loaded.module, base, sites, loaded.sentence)
    return Transformer(name=name, module=base, sites=sites, tokenizer=own, notes=notes, frame=around)


def read_anew(transformer: Transformer, module: nn.Module) -> Transformer:
    """Return a borrowed model with its maps read again, as after a training step; nothing is checked, nothing run.

    Args:
        transformer: What ``load`` made of the module.
        module: The module itself, with its head.
    """
    if any(site.attention is None for site in transformer.sites):
        return transformer  # its modules are differentiated as they are
    if not {*map(id, transformer.module.parameters())} <= {*map(id, module.parameters())}:
        return load(module)  # half precision was copied
    sites, _notes = _sites(transformer.module, transformer.name)
    return replace(transformer, sites=sites, frame=frame(module, transformer.module, sites, None))


def _given(tokenizer: Any) -> Tokenizer:
    return tokenizer_named(tokenizer) if isinstance(tokenizer, str) else HubTokenizer(tokenizer)


def _trunk(module: nn.Module) -> tuple[Any, tuple[str, ...]]:
    """Return the model without its head; of an encoder and a decoder, the encoder; of text and pictures, the text.

    Say what had to be overlooked.
    """
    base: Any = getattr(module, "base_model", module)
    if all(isinstance(getattr(base, part, None), nn.Module) for part in ("text_model", "vision_model")):
        return base.text_model, (
            "of its two towers that of text is measured; hs.load(model.vision_model) has the other",
        )
    config: Any = getattr(base, "config", None)
    flag, family = getattr(config, "is_encoder_decoder", False), getattr(config, "model_type", None)
    parts = {part for part in ("encoder", "decoder") if isinstance(getattr(base, part, None), nn.Module)}
    # anybody can write the flag into a config.json; what counts is what the model is made of
    if len(parts) == 2 if family in FAMILIES else flag and "decoder" in parts:
        return base.get_encoder(), ()
    if not flag:
        return base, ()
    note = f"its configuration says is_encoder_decoder, but this {type(base).__name__} has no decoder beside an encoder"
    return base, (f"{note}: the flag is not heeded",)


def _sites(base: nn.Module, name: str) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    config: Any = getattr(base, "config", None)
    family = str(getattr(config, "model_type", type(base).__name__))
    read = reader(family)
    if read is not None and getattr(config, "is_causal", True):
        return tuple(read(base)), ()
    if family in ONE_SIDED:
        raise UnsupportedModelError(
            f"{name!r} says is_causal = False, which the family {family!r} heeds in part only, so that its mask is not "
            "known; take it out of the configuration.",
            field="model",
        )
    if read is not None:  # decoders may be told to see both sides, as those that embed sentences are
        return tuple(seeing_both_sides(site) for site in read(base)), ()
    found = tuple(unknown.sites(base))
    if not found:
        raise UnsupportedModelError(
            f"{name!r} is of the family {family!r}, which is not known, and has no module that calls itself attention.",
            field="model",
        )
    note = f"the family {family!r} has no closed form here: its attention modules are differentiated by autograd"
    return found, (note,)


def _require_finite(base: nn.Module, name: str) -> None:
    for parameter, value in base.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise NonFiniteError(
                f"the weights of {name!r} hold NaN or infinity, first in {parameter!r}.", field="model"
            )
