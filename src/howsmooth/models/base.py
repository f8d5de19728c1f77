"""From a module, a folder, a hub or a name to a transformer: its trunk, its attention layers, what is around them."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from howsmooth.errors import DtypeError, NonFiniteError, UnsupportedModelError
from howsmooth.models import unknown
from howsmooth.models.adapters import merged, require_plain_weights, without_wrapper
from howsmooth.models.comparison import CLASSES, EMBEDDINGS, LAST_NORM, WORDS, differences
from howsmooth.models.frame import Frame, frame
from howsmooth.models.loading import Loaded, load_by_name, tokenizer_named
from howsmooth.models.placing import placed
from howsmooth.models.registry import FAMILIES, ONE_SIDED, reader
from howsmooth.models.sentence_embedding import SentenceEmbedding
from howsmooth.models.sites import Site, by_autograd, seeing_both_sides
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
        module = without_wrapper(name_or_path)
        require_plain_weights(module)
        loaded, name = Loaded(module=module, tokenizer=None), type(name_or_path).__name__
        name = f"{name}@{weights_digest(name_or_path)}"  # so that no two are mistaken
    elif isinstance(name_or_path, str):
        loaded, name = load_by_name(name_or_path, family=family), name_or_path
        require_plain_weights(loaded.module)
    else:
        raise DtypeError(f"a model is a name, a folder or a module, got {type(name_or_path).__name__}.", field="model")
    borrowed = isinstance(name_or_path, nn.Module)
    whole, about_numbers = placed(loaded.module, device=device, dtype=dtype, borrowed=borrowed)
    base, about_trunk = _trunk(whole.eval())
    _require_finite(base, name)
    own = loaded.tokenizer if tokenizer is None else _given(tokenizer)
    transformer = Transformer(
        name=name,
        module=base,
        sites=(),
        tokenizer=own,
        notes=loaded.notes + about_trunk + about_numbers,
        with_head=None if whole is base else whole,
    )
    return _compared(_read(transformer, whole, loaded.sentence))


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
    return replace(_read(transformer, without_wrapper(module), None), notes=transformer.notes)


def _read(transformer: Transformer, module: nn.Module, told: SentenceEmbedding | str | None) -> Transformer:
    """Return a model with its layers, and what stands around them, read from weights that hold their adapters."""
    plain = merged(module)
    about = () if plain is module else ("its adapters are read as peft merges them into the weights of a copy",)
    trunk, _about = _trunk(plain)
    try:
        sites, about_sites = _sites(trunk, transformer.name)
        around = frame(plain, trunk, sites, told)
    except (AttributeError, TypeError, RuntimeError) as error:  # a part of the family is not what it is made of
        why = f"its layers are not those of the family {trunk.config.model_type!r} ({error})"
        sites, about_sites = _unknown(trunk, transformer.name, why)
        around = Frame()
    return replace(transformer, sites=sites, frame=around, notes=transformer.notes + about + about_sites)


def _compared(transformer: Transformer) -> Transformer:
    """Run a model once at random tokens; what its maps do not put out is differentiated by autograd, and said."""
    tokens = unknown.trial(transformer.module)
    if tokens is None or all(site.attention is None for site in transformer.sites):
        return transformer
    try:
        found = differences(transformer, tokens[:1], words=True)
    except Exception:  # modules refuse inputs in ways of their own; the first real ones are tried in their place
        return transformer
    if not found:
        return transformer
    around = transformer.frame
    if EMBEDDINGS in found or LAST_NORM in found:
        around = replace(around, ends=None)
    around = replace(around, classes=found.get(CLASSES, around.classes), head=found.get(WORDS, around.head))
    return replace(
        transformer,
        sites=tuple(by_autograd(site) if site.layer in found else site for site in transformer.sites),
        frame=around,
        notes=transformer.notes + tuple(f"{why}; {_instead(part)}" for part, why in found.items()),
    )


def _instead(part: int | str) -> str:
    """Say what becomes of a part that is not what its weights say."""
    if isinstance(part, int):
        return "the layer is differentiated by autograd"
    if part in (EMBEDDINGS, LAST_NORM):
        return "maps that begin at the embeddings are refused, those that end behind it are differentiated by autograd"
    return "scores of it are refused"


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
    return _unknown(base, name, f"the family {family!r} has no closed form here")


def _unknown(base: nn.Module, name: str, why: str) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    """Find attention modules that are not read."""
    found = tuple(unknown.sites(base))
    if not found:
        raise UnsupportedModelError(
            f"{name!r} cannot be measured: {why}, and it has no module that calls itself attention.", field="model"
        )
    return found, (f"{why}: its attention modules are differentiated by autograd",)


def _require_finite(base: nn.Module, name: str) -> None:
    for parameter, value in base.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise NonFiniteError(
                f"the weights of {name!r} hold NaN or infinity, first in {parameter!r}.", field="model"
            )
