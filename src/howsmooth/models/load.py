"""From a module, a folder, a hub id or a built-in name to a transformer."""

import copy
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from howsmooth.errors import DeviceError, DtypeError, NonFiniteError, UnsupportedModelError
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.autograd import unknown_family
from howsmooth.models.families.registry import FAMILIES, ONE_SIDED, reader
from howsmooth.models.inputs.text import HubTokenizer, Tokenizer
from howsmooth.models.loading.adapters import (
    changed_forward,
    merged,
    require_plain_weights,
    unwrapped,
    without_adapters,
)
from howsmooth.models.loading.pretrained import LoadedModel, load_by_name, tokenizer_named
from howsmooth.models.loading.weight_files import WeightFiles
from howsmooth.models.module_comparison import CLASSES, EMBEDDINGS, LAST_NORM, WORDS, differences
from howsmooth.models.parts.ends import (
    Backbone,
    ClassHead,
    Ends,
    SentenceEmbedding,
    class_head,
    default_sentence_embedding,
    language_head,
    sentence_embedding,
)
from howsmooth.models.streaming import BlockStream
from howsmooth.models.transformer import Transformer, weights_digest
from howsmooth.spectral.autograd import TORCH_LAYERS
from howsmooth.spectral.operators import HALF
from howsmooth.validation import is_finite, plain_mode, require_numbers
from howsmooth.wording import percent

Notes = tuple[str, ...]
_LOG = logging.getLogger("howsmooth")
STREAMED = "its weights are streamed"
IN_EVAL_MODE = "it was in training mode and is in eval mode now; call its train() again to go on training"


@plain_mode()
def load(
    name_or_path: str | os.PathLike[str] | nn.Module | Any,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: Any = None,
    family: str = "",
    streamed: bool | None = None,
) -> Transformer:
    """Load a transformer.

    Args:
        name_or_path: A built-in name (``reviews``, ``minilm``, ``smollm2``), a folder, a GGUF file, a hub id,
            ``random:gpt2`` for a family's default shape with random weights; a module in memory, compiled or not, a
            pipeline of transformers, or a SentenceTransformer.
        device: The device to compute on.
        dtype: The dtype to compute in; by default that of the model, but float32 for models in half precision.
        tokenizer: A tokenizer of the transformers library, or a folder or hub id that has one, for a model without.
        family: The family of the model, if its config.json does not name one.
        streamed: Whether weights stay in their files (safetensors or GGUF) and come into memory one block at a time,
            for models larger than memory; by default where they would take more than a third of the memory that is
            free. What needs the whole model at once (attacks on words, certificates) then refuses.

    A module in training is put in eval mode, and stays in it while its maps are used; a note says so. Call its
    ``train()`` again to go on training.

    Raises:
        UnsupportedModelError: If nothing can be loaded under this name, or the model has no attention.
        NonFiniteError: If its weights hold NaN or infinity.
        DeviceError: If the device cannot be used here.
        DtypeError: If the dtype is not a real floating-point one.
    """
    name_or_path, held_tokenizer, held_sentence = _held(name_or_path)
    tokenizer, about_mode = held_tokenizer if tokenizer is None else tokenizer, tuple[str, ...]()
    if isinstance(name_or_path, nn.Module):
        if streamed:
            raise UnsupportedModelError("a module in memory is not streamed; give its folder.", field="streamed")
        given = unwrapped(name_or_path)
        about_mode = (IN_EVAL_MODE,) if any(part.training for part in given.modules()) else ()
        given.eval()  # before weights are read, some of which change where they are read in training
        loaded = LoadedModel(module=without_adapters(given), tokenizer=None, sentence=held_sentence)
        require_plain_weights(loaded.module)  # before the digest, which quantised weights do not have
        # the digest keeps modules of one class apart
        name = f"{type(given).__name__}@{weights_digest(given)}"
    elif isinstance(name_or_path, str | os.PathLike):
        name = os.fspath(name_or_path)
        loaded = load_by_name(name, family=family, streamed=streamed)
        if loaded.files is not None:
            found = _streamed(loaded, loaded.files, name, device, dtype)
            return found if tokenizer is None else replace(found, tokenizer=as_tokenizer(tokenizer))
        require_plain_weights(loaded.module)
    else:
        raise DtypeError(f"a model is a name, a folder or a module, got {type(name_or_path).__name__}.", field="model")
    borrowed = isinstance(name_or_path, nn.Module)
    whole, about_dtype = placed(loaded.module, device=device, dtype=dtype, borrowed=borrowed)
    base, about_trunk = _trunk(whole.eval())
    _require_finite(base, name)
    transformer = Transformer(
        name=name,
        module=base,
        layers=(),
        tokenizer=loaded.tokenizer if tokenizer is None else as_tokenizer(tokenizer),
        notes=loaded.notes + about_trunk + about_dtype + about_mode,
        with_head=None if whole is base else whole,
    )
    read = _read(transformer, whole, loaded.sentence)
    found = _compared(read)
    if found is read and (why := changed_forward(whole)):
        why = f"{why}, which did nothing at random inputs and may do something at others: its bounds are of its weights"
        found = replace(found, notes=(*found.notes, why))
    _LOG.info("loaded %r%s", found, "".join(f"; {note}" for note in found.notes))
    return found


def _streamed(
    loaded: LoadedModel, files: WeightFiles, name: str, device: torch.device | str | None, dtype: torch.dtype | None
) -> Transformer:
    """Return a model whose blocks come from their files when they are needed."""
    wanted, notes = _checked_dtype(set(files.dtypes), device=device, dtype=dtype)
    wanted = next(iter(files.dtypes)) if wanted is None else wanted
    files = replace(files, rounded=dtype if dtype in HALF else None, dtype=wanted, device=device or "cpu")
    module = loaded.module.to(dtype=wanted).eval()
    for buffer_name, buffer in list(module.named_buffers()):
        parent, _dot, leaf = buffer_name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, buffer.to(files.device))
    base, _notes = _trunk(module)

    def read(part: nn.Module) -> Sequence[AttentionLayer]:
        return _backbone(part, name)[0].layers

    if base is not getattr(module, "base_model", module) or any(layer.attention is None for layer in read(base)):
        raise UnsupportedModelError(
            f"{name!r} cannot be streamed: its family has no closed form here, or is an encoder with a decoder; load "
            "it with streamed=False.",
            field="streamed",
        )
    stream = BlockStream(base, files, read, module)
    backbone, about_layers = _backbone(base, name)
    ends = Ends(
        stem=backbone.stem,
        final=backbone.final,
        language_head=f"{STREAMED}, and its head over the vocabulary is not read",
        sentence_embedding=default_sentence_embedding(base, stream.layers)
        if loaded.sentence is None
        else loaded.sentence,
        class_head=f"{STREAMED}, and no classifier is read",
    )
    found = Transformer(
        name=name,
        module=base,
        layers=stream.layers,
        tokenizer=loaded.tokenizer,
        notes=loaded.notes + notes + about_layers,
        ends=ends,
        with_head=None if module is base else module,
        stream=stream,
    )
    _LOG.info("loaded %r%s", found, "".join(f"; {note}" for note in (stream.note, *found.notes)))
    return found


def read_anew(transformer: Transformer, module: nn.Module) -> Transformer:
    """Return a borrowed model with its maps read again, as after a training step, without checks and without a run."""
    if any(layer.attention is None for layer in transformer.layers):
        return transformer  # its modules are differentiated as they are
    if not {*map(id, transformer.module.parameters())} <= {*map(id, module.parameters())}:
        return load(module)  # a model in half precision was copied
    return replace(_read(transformer, without_adapters(module), None), notes=transformer.notes)


def _read(transformer: Transformer, module: nn.Module, sentence: SentenceEmbedding | str | None) -> Transformer:
    """Return a model with its layers and both ends, read from weights that include adapters."""
    plain = merged(module)
    about = () if plain is module else ("its adapters are read as peft merges them into the weights of a copy",)
    trunk, _about = _trunk(plain)
    try:
        backbone, about_layers = _backbone(trunk, transformer.name)
        layers = tuple(backbone.layers)
        ends = Ends(
            stem=backbone.stem,
            final=backbone.final,
            language_head=language_head(plain, trunk),
            sentence_embedding=default_sentence_embedding(trunk, layers) if sentence is None else sentence,
            class_head=class_head(plain, trunk) if backbone.class_head is None else backbone.class_head,
        )
    except (AttributeError, TypeError, RuntimeError) as error:  # a module of the family is built differently
        why = f"its layers are not those of the family {trunk.config.model_type!r} ({error})"
        backbone, about_layers = _unknown(trunk, transformer.name, why)
        layers, ends = tuple(backbone.layers), Ends()
    own = isinstance(backbone.class_head, ClassHead)  # the whole module is the classifier
    with_head = transformer.module if own else transformer.with_head
    notes = transformer.notes + about + about_layers
    return replace(transformer, layers=layers, ends=ends, with_head=with_head, notes=notes)


def _compared(transformer: Transformer) -> Transformer:
    """Run a model once at random tokens; parts whose maps differ are differentiated by autograd, with a note."""
    # what was read off a few inputs is tried at many others
    rows = 64 if transformer.with_head is transformer.module else 1
    tokens = unknown_family.random_inputs(transformer.module, rows)
    if tokens is None or all(layer.attention is None for layer in transformer.layers):
        return transformer
    try:
        found = differences(transformer, tokens, words=True)
    except Exception:  # modules refuse inputs in ways of their own; they are compared at the first real ones instead
        return transformer
    if not found:
        return transformer
    ends = transformer.ends
    if EMBEDDINGS in found or LAST_NORM in found:
        ends = replace(ends, stem=None, final=())
    ends = replace(
        ends, class_head=found.get(CLASSES, ends.class_head), language_head=found.get(WORDS, ends.language_head)
    )
    return replace(
        transformer,
        layers=tuple(layer.by_autograd() if layer.index in found else layer for layer in transformer.layers),
        ends=ends,
        notes=transformer.notes + tuple(f"{why}; {_consequence(part)}" for part, why in found.items()),
    )


def _consequence(part: int | str) -> str:
    """Say how a part is treated that differs from its weights."""
    if isinstance(part, int):
        return "the layer is differentiated by autograd"
    if part in (EMBEDDINGS, LAST_NORM):
        return "maps that begin at the embeddings are refused, those that end behind it are differentiated by autograd"
    return "scores of it are refused"


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """Return a tokenizer by its name, of the transformers library, or as it is."""
    if isinstance(tokenizer, str | os.PathLike):
        return tokenizer_named(os.fspath(tokenizer))
    return tokenizer if isinstance(tokenizer, Tokenizer) else HubTokenizer(tokenizer)


def _held(model: Any) -> tuple[Any, Any, SentenceEmbedding | str | None]:
    """Return what a pipeline or a SentenceTransformer holds: model, tokenizer, sentence embedding; others as is."""
    if any(kind.__name__ == "SentenceTransformer" for kind in type(model).__mro__):
        parts = list(model.children())
        if not hasattr(parts[0], "auto_model"):
            raise UnsupportedModelError(
                f"this SentenceTransformer begins with {type(parts[0]).__name__}, not with a Transformer; there is no "
                "attention to read.",
                field="model",
            )
        kinds = [type(part).__name__ for part in parts]
        return parts[0].auto_model, model.tokenizer, sentence_embedding(kinds, lambda: parts[1].get_config_dict())
    if not isinstance(model, nn.Module) and isinstance(getattr(model, "model", None), nn.Module):
        return model.model, getattr(model, "tokenizer", None), None
    return model, None, None


def _trunk(module: nn.Module) -> tuple[Any, Notes]:
    """Return the model without its head, and notes; of an encoder and a decoder the encoder, of CLIP the text tower."""
    base: Any = getattr(module, "base_model", module)
    towers = [part for part in ("text_model", "vision_model") if isinstance(getattr(base, part, None), nn.Module)]
    if towers:  # of CLIP, with a projection behind each
        other = "of its two towers that of text is measured; hs.load(model.vision_model) has the other"
        return getattr(base, towers[0]), (other,) * (len(towers) - 1)
    config: Any = getattr(base, "config", None)
    flag, family = getattr(config, "is_encoder_decoder", False), getattr(config, "model_type", None)
    parts = {part for part in ("encoder", "decoder") if isinstance(getattr(base, part, None), nn.Module)}
    # anybody can write the flag into a config.json; the modules decide
    if len(parts) == 2 if family in FAMILIES else flag and "decoder" in parts:
        return base.get_encoder(), ()
    if not flag:
        return base, ()
    note = f"its configuration says is_encoder_decoder, but this {type(base).__name__} has no decoder beside an encoder"
    return base, (f"{note}: the flag is not heeded",)


def _backbone(base: nn.Module, name: str) -> tuple[Backbone, Notes]:
    """Read the layers of a model: in closed form, or those of an unknown family."""
    config: Any = getattr(base, "config", None)
    family = str(getattr(config, "model_type", type(base).__name__))
    read = reader(family)
    if read is not None and getattr(config, "is_causal", True):
        return read(base), ()
    if family in ONE_SIDED:
        raise UnsupportedModelError(
            f"{name!r} says is_causal = False, which the family {family!r} heeds in part only, so that its mask is not "
            "known; take it out of the configuration.",
            field="model",
        )
    if read is not None:  # decoders that embed sentences may be bidirectional
        backbone = read(base)
        return replace(backbone, layers=[layer.bidirectional() for layer in backbone.layers]), ()
    return _unknown(base, name, f"the family {family!r} has no closed form here")


def _unknown(base: nn.Module, name: str, why: str) -> tuple[Backbone, Notes]:
    """Find the attention modules of an unknown family."""
    found = unknown_family.backbone(base)
    if not found.layers:
        raise UnsupportedModelError(
            f"{name!r} has no layers that can be measured by name: {why}, and it has no module that calls itself "
            "attention; hs.local_lipschitz(module, X) and hs.attack(module, X, eps=…) take any module or callable on "
            "tensors as it is, hs.verification.read_module(module, X) reads your own classifier as maps with bounds "
            "and certificates, and a model that is built of nn.MultiheadAttention or nn.TransformerEncoderLayer is "
            "read here.",
            field="model",
        )
    if any(layer.attention is None for layer in found.layers):
        return found, (f"{why}: its attention modules are differentiated by autograd",)
    return found, _about_own_model(base, found)


def _about_own_model(base: nn.Module, found: Backbone) -> Notes:
    """Say what is read of a model of torch's layers, and what is not."""
    if isinstance(base, TORCH_LAYERS):
        return ()
    if found.stem is None:
        return (f"its attention is that of torch and read exactly, its ends are not: {found.class_head}",)
    return ("its blocks are those of torch and read exactly; what its first block reads counts as its embeddings",)


def _require_finite(base: nn.Module, name: str) -> None:
    for parameter, value in base.named_parameters():
        require_numbers(value, f"the weight {parameter!r} of {name!r}")
        if not is_finite(value):
            raise NonFiniteError(
                f"the weights of {name!r} hold NaN or infinity, first in {parameter!r}.", field="model"
            )


def placed(
    module: nn.Module, *, device: torch.device | str | None, dtype: torch.dtype | None, borrowed: bool = False
) -> tuple[nn.Module, tuple[str, ...]]:
    """Move a module to a device and a dtype; half precision is measured in float32.

    Half precision rounds the weights, and nothing else. A ``borrowed`` module is copied where its dtype changes. Notes
    are returned too.
    """
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    wanted, notes = _checked_dtype(dtypes, device=device, dtype=dtype)
    if borrowed and wanted is not None and dtypes != {wanted}:
        module = copy.deepcopy(module)
    if dtype in HALF:
        module = module.to(dtype=dtype)
    return module.to(device=device, dtype=wanted), notes


def _checked_dtype(
    dtypes: set[torch.dtype], *, device: torch.device | str | None, dtype: torch.dtype | None
) -> tuple[torch.dtype | None, tuple[str, ...]]:
    """Return the dtype to measure weights of some dtypes in, and notes; refuse devices and dtypes that do not do."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise DtypeError(f"dtype must be real floating-point numbers of torch, got {dtype!r}.", field="dtype")
    if device is not None:
        _require_device(device)
    if coarse := next((kind for kind in (*dtypes, dtype or torch.float32) if kind.itemsize < 2), None):
        raise UnsupportedModelError(
            f"numbers of {_name(coarse)} come with scales of their own, which are not read; convert the model to "
            "bfloat16 or float32 first.",
            field="model" if coarse in dtypes else "dtype",
        )
    return _computing_dtype(dtypes, dtype)


def _computing_dtype(dtypes: set[torch.dtype], given: torch.dtype | None) -> tuple[torch.dtype | None, tuple[str, ...]]:
    """Return the dtype to measure in, and notes."""
    if given is not None and given in HALF:
        how = f"its weights were rounded to {_name(given)}, as asked for, and are measured in float32"
        return torch.float32, (f"{how}; {_rounding_note(given)}",)
    half = next((kind for kind in dtypes if kind in HALF), None)
    if half is None:
        return given, ()
    wanted = torch.float32 if given is None else given
    how = f"its weights are {_name(half)}, and are measured as they are in {_name(wanted)}"
    return wanted, (f"{how}; {_rounding_note(half)}",)


def _rounding_note(half: torch.dtype) -> str:
    """Return the rounding error of a model that computes in half precision."""
    error = percent(torch.finfo(half).eps / 2)
    return f"run in {_name(half)}, every rounding of an activation would change it by up to {error}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _require_device(device: torch.device | str) -> None:
    """Try the device with one number: torch raises many kinds of errors."""
    try:
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceError(f"the device {str(device)!r} cannot be used here: {why}", field="device") from error
