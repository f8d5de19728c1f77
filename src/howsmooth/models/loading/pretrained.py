"""From a name to a module and its tokenizer: built-in packages, folders, GGUF files, hub ids, random weights."""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import logging
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from howsmooth.errors import HowsmoothError, UnsupportedModelError
from howsmooth.files import available_memory, read_bytes, require_size
from howsmooth.models.families.registry import FAMILIES
from howsmooth.models.inputs.text import HubTokenizer, Tokenizer, WordNumbers
from howsmooth.models.loading.config_checks import check_config_file, parameter_count, require_model_memory
from howsmooth.models.loading.names import (
    BUILT_IN,
    RANDOM,
    built_in_path,
    check_model_name,
    check_reachable,
    check_tokenizer,
    check_weights,
    not_found,
)
from howsmooth.models.loading.weight_files import FORMER_HEAD, HEAD, GGUFWeights, WeightFiles, header
from howsmooth.models.parts.ends import SentenceEmbedding, has_classes, has_untied_head, read_sentence_embedding

# Special tokens with ids below this are at the beginning of a vocabulary, others at its end.
FIRST_IDS = 1000
# Files that are read into memory at once: configurations, vocabularies, merges, templates.
TEXT_FILES = (".json", ".jsonl", ".txt", ".model", ".jinja")
# Models whose weights take more than this share of the free memory are streamed.
STREAMED_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A module and its tokenizer."""

    module: nn.Module  # the module; without memory if its weights stay in files
    tokenizer: Tokenizer | None  # its tokenizer, if there is one
    notes: tuple[str, ...] = ()  # remarks that a reader of its numbers needs
    sentence: SentenceEmbedding | str | None = None  # its sentence embedding, or why it cannot be read; none: no file
    files: WeightFiles | None = None  # the files that its weights stay in; none if they were read


def load_by_name(name: str, *, family: str = "", streamed: bool | None = False) -> LoadedModel:
    """Load the model of a name; streamed ones without their weights. None decides by the memory that is free."""
    check_model_name(name)
    if name.startswith(RANDOM):
        if family and family != name.removeprefix(RANDOM):
            raise UnsupportedModelError(f"{name!r} names its family itself, got {family!r} too.", field="family")
        if streamed:
            raise UnsupportedModelError(
                f"the weights of {name!r} are in no file; leave streamed out.", field="streamed"
            )
        return _random(name.removeprefix(RANDOM))
    if name in BUILT_IN:
        note, path = BUILT_IN[name].note, built_in_path(name)
        check_weights(name, path)
        found = _pretrained(path, name, family, streamed)
        return dataclasses.replace(found, notes=(note,) if note else ())
    return _pretrained(Path(name), name, family, streamed)


def tokenizer_named(name: str) -> Tokenizer:
    """Load the tokenizer of a folder, a GGUF file, a hub id or a built-in model."""
    check_tokenizer(name)
    source, options = _source_of(name)
    with _quiet():
        found = _tokenizer(source, options)
    if found is None:
        raise UnsupportedModelError(
            f"no tokenizer that knows a word can be loaded from {name!r}; we need a folder with a tokenizer.json, or a "
            "hub id.",
            field="tokenizer",
        )
    return found


def image_processor(name: str) -> Any | None:
    """Return the image processor beside the weights of a model, if there is one."""
    import transformers
    from transformers.image_processing_base import ImageProcessingMixin

    if name.startswith(RANDOM) or "@" in name:  # random weights and modules in memory have no folder
        return None
    source, options = _source_of(name)
    with _quiet():
        try:
            # the same numbers whether torchvision is installed or not
            try:
                return transformers.AutoImageProcessor.from_pretrained(source, backend="pil", **options)
            except ImportError:  # some versions want torchvision before they look
                kind = ImageProcessingMixin.get_image_processor_dict(source)[0]["image_processor_type"]
                return getattr(transformers, f"{kind.removesuffix('Fast')}Pil").from_pretrained(source)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
            return None  # a note then says how pictures were prepared


def _source_of(name: str) -> tuple[str, dict[str, Any]]:
    """Return the folder or hub id of a model, and the options of the loader."""
    source, options, _notes = _locate(built_in_path(name) if name in BUILT_IN else Path(name), name)
    return source, options | {"trust_remote_code": False}


def _random(family: str) -> LoadedModel:
    from transformers import CONFIG_MAPPING, AutoModel

    config = CONFIG_MAPPING[family]()
    # the default shapes of some families are those of their largest models
    count = parameter_count(config)
    if count is not None:
        require_model_memory(config, count, RANDOM + family)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same weights in every process
        module = AutoModel.from_config(config)
    if not hasattr(config, "vocab_size"):
        return LoadedModel(module=module, tokenizer=None)
    special = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls")]
    first = 1 + max((number for number in special if number is not None and number < FIRST_IDS), default=-1)
    notes = ("the weights are random, and words are numbered in the order in which they first appear",)
    return LoadedModel(module=module, tokenizer=WordNumbers(config.vocab_size, first=first), notes=notes)


def _pretrained(path: Path, name: str, family: str, streamed: bool | None) -> LoadedModel:
    """Load a folder, a GGUF file or a hub id; pickles are read with ``weights_only``, code of the model is not run."""
    source, options, notes = _locate(path, name)
    options["trust_remote_code"] = False  # or the loader would stop and ask
    with _quiet(), _parsing_once() if "gguf_file" in options else contextlib.nullcontext():
        try:
            config = _configuration(source, options, name, family)
            count = parameter_count(config, path)
            if streamed or (streamed is None and _wants_streaming(config, count)):
                return _without_weights(config, source, options, notes, name)
            if count is not None:
                require_model_memory(config, count, name)
            if getattr(config, "quantization_config", None) is None:
                _require_real_weights(path, name)
            module, report = _kind(config).from_pretrained(
                source, config=config, weights_only=True, output_loading_info=True, **options
            )
        except HowsmoothError:
            raise
        except Exception as error:  # damaged folders make the loader raise anything
            raise UnsupportedModelError(_why_not_loaded(path, name, error), field="model") from error
        _require_complete(module, report["missing_keys"], name)
        if any(key.startswith(HEAD) for key in report["missing_keys"]):
            module = module.base_model  # the loader filled the head with random weights
        sentence = read_sentence_embedding(lambda file: _beside(source, options, file))
        return LoadedModel(module=module, tokenizer=_tokenizer(source, options), notes=notes, sentence=sentence)


def _kind(config: Any) -> Any:
    """Return the class of the transformers library that loads a model, with its head if its weights hold one."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

    if has_classes(config):
        return AutoModelForSequenceClassification
    return AutoModelForCausalLM if has_untied_head(config) else AutoModel


def _wants_streaming(config: Any, count: int | None) -> bool:
    """Return whether a model of so many parameters is streamed unless told otherwise: a third of free memory is less.

    Weights of half precision are measured in float32.
    """
    free = available_memory()
    if count is None or free is None or config.model_type not in FAMILIES:
        return False
    quantised, pair = getattr(config, "quantization_config", None) is not None, config.is_encoder_decoder
    return 4 * count > free * STREAMED_SHARE and not quantised and not pair


def _without_weights(
    config: Any, source: str, options: dict[str, Any], notes: tuple[str, ...], name: str
) -> LoadedModel:
    """Build a model on the meta device, and find its weights in their files."""
    with _parameters_on_meta():
        module = _kind(config).from_config(config)
    if "gguf_file" in options:
        files: WeightFiles = GGUFWeights.of_file(module, Path(source) / options["gguf_file"], name)
    else:
        stored = _safetensors(source, options, name)
        if has_untied_head(config) and not any(
            key.startswith((HEAD, FORMER_HEAD)) for file in stored for key in header(file)
        ):
            module = module.base_model
        files = WeightFiles.of(module, stored, name)
    sentence = read_sentence_embedding(lambda file: _beside(source, options, file))
    tokenizer = _tokenizer(source, options)
    return LoadedModel(module=module, tokenizer=tokenizer, notes=notes, sentence=sentence, files=files)


def _safetensors(source: str, options: dict[str, Any], name: str) -> list[Path]:
    """Return the safetensors files of a model: one, or those that an index lists."""
    if (index := _beside(source, options, "model.safetensors.index.json")) is not None:
        listed = json.loads(read_bytes(index, "the index of the weights", field="model"))["weight_map"].values()
        found = [_beside(source, options, file) for file in sorted(set(listed))]
    else:
        found = [_beside(source, options, "model.safetensors")]
    if None in found:
        raise UnsupportedModelError(
            f"{name!r} cannot be streamed: it has no safetensors files, or not all that its index lists; load it with "
            "streamed=False.",
            field="streamed",
        )
    return [file for file in found if file is not None]


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Let modules that are built now have parameters without memory; buffers, which no file may hold, have values."""
    register = nn.Module.register_parameter

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        meta = None if parameter is None else nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, meta)

    nn.Module.register_parameter = without_memory  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _beside(source: str, options: dict[str, Any], file: str) -> Path | None:
    """Return the path of a file beside the weights of a model, if there is one."""
    from transformers.utils.hub import cached_file

    if "gguf_file" in options:
        return None
    found = cached_file(source, file, _raise_exceptions_for_missing_entries=False, **options)
    return None if found is None else Path(str(found))


def _configuration(source: str, options: dict[str, Any], name: str, family: str) -> Any:
    """Read the configuration of a model; its config.json is checked first, a GGUF file has it inside."""
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.utils.hub import cached_file

    if "gguf_file" in options:
        if family:
            raise UnsupportedModelError("a GGUF file says itself of which family it is; leave it out.", field="family")
        config = AutoConfig.from_pretrained(source, **options)
        config.architectures = config.architectures or ["ForCausalLM"]  # the file has a head unless it is tied
        return config
    folder = Path(source)
    found = folder / "config.json" if folder.is_dir() else cached_file(source, "config.json", **options)
    check_config_file(Path(str(found)), name, family=family, known=CONFIG_MAPPING)
    if not family:
        return AutoConfig.from_pretrained(source, **options)
    return CONFIG_MAPPING[family].from_pretrained(source, **options)


def _require_real_weights(folder: Path, name: str) -> None:
    """Refuse integer weights: the loader would take them as they are, without their scales."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                dtype = tensors.get_slice(key).get_dtype()
                if key.endswith("weight") and dtype[0] in "IUB" and dtype != "BF16":
                    raise UnsupportedModelError(
                        f"the weights of {name!r} are whole numbers ({dtype}, first in {key!r}) without a "
                        "quantization_config that says how to scale them; save them as floating-point numbers.",
                        field="model",
                    )


def _require_complete(module: Any, missing: Iterable[str], name: str) -> None:
    """Refuse parameters that the loader filled with random values, unless attention does not depend on them."""
    unread = ("pooler", HEAD, "decoder.") if module.config.is_encoder_decoder else ("pooler", HEAD)
    if needed := sorted(key for key in missing if not key.startswith(unread)):
        raise UnsupportedModelError(
            f"the weights of {name!r} lack {len(needed)} of the parameters that its config.json speaks of, first "
            f"{needed[0]!r}; are they of another model?",
            field="model",
        )


def _locate(path: Path, name: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the folder or hub id for the loader, its options, and notes."""
    if path.is_file():
        if missing := [part for part in ("gguf", "accelerate") if importlib.util.find_spec(part) is None]:
            raise UnsupportedModelError(
                f"a GGUF file needs {' and '.join(missing)}, not installed; run: pip install howsmooth[gguf]",
                field="model",
            )
        return str(path.parent), {"gguf_file": path.name}, ("the weights of the GGUF file are dequantised",)
    if path.exists():
        for file in sorted(path.iterdir()):
            if file.suffix in TEXT_FILES and file.name != "config.json" and not file.is_dir():
                require_size(file, "a file beside the weights of a model", field="model")
        return str(path), {}, ()
    cached = check_reachable(name)
    if cached is None:
        return name, {}, ()
    # By its folder: given the id, the loader would ask the hub for an adapter even if it may read local files only.
    source, options, _notes = _locate(cached, name)
    return source, options, (f"no hub was within reach: {name!r} is the copy in the local cache",)


def _tokenizer(source: str, options: dict[str, Any]) -> Tokenizer | None:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return None  # an error follows when a text is measured
    except Exception as error:  # the parser of tokenizer.json raises plain exceptions
        raise _damaged_tokenizer(source, error) from error
    # without a vocabulary, some families make up one without words: every text would be [UNK] [UNK] [UNK]
    special = set(found.all_special_ids)
    if not any(number not in special and word.strip("▁") for word, number in found.get_vocab().items()):  # T5's space
        return None
    try:
        HubTokenizer(found).encode("a")
    except Exception as error:  # settings of the wrong type are accepted until they are used
        raise _damaged_tokenizer(source, error) from error
    return HubTokenizer(found)


def _damaged_tokenizer(source: str, error: Exception) -> UnsupportedModelError:
    why = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return UnsupportedModelError(
        f"the tokenizer in {source!r} cannot be used ({why}); mend its files, or take them away.", field="tokenizer"
    )


@contextlib.contextmanager
def _parsing_once() -> Iterator[None]:
    """Let the loader parse a GGUF file, and build its table of names, once instead of many times.

    The file is mapped into memory; slices of such a map, of which a vocabulary takes a hundred thousand, are slow.
    """
    import gguf

    class PlainReader(gguf.GGUFReader):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

    before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    try:
        for name, found in (before | {"GGUFReader": PlainReader}).items():
            setattr(gguf, name, functools.cache(found))
        yield
    finally:
        for name, found in before.items():
            setattr(gguf, name, found)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bars and warnings of the loader."""
    from transformers.utils import logging as hub

    level, bars = hub.get_verbosity(), hub.is_progress_bar_enabled()
    network = logging.getLogger("huggingface_hub")
    network_level = network.level
    hub.set_verbosity(logging.ERROR)
    network.setLevel(logging.ERROR)
    hub.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # one bar cannot be switched off
            yield
    finally:
        hub.set_verbosity(level)
        network.setLevel(network_level)
        if bars:
            hub.enable_progress_bar()


def _why_not_loaded(path: Path, name: str, error: Exception) -> str:
    """Return in one sentence why the loader could not load a model."""
    if path.is_dir():
        return f"no model can be loaded from the folder {name!r}: {_problem(path, error)}"
    if path.is_file():
        return (
            f"{name!r} is a file that holds no model, or is damaged; we need a .gguf file, or a folder with a "
            "config.json."
        )
    if not isinstance(error, OSError):
        return f"no model can be loaded from the hub id {name!r}: {_problem(path, error)}"
    return not_found(name)


def _problem(folder: Path, error: Exception) -> str:
    from safetensors import SafetensorError

    if folder.is_dir() and not (folder / "config.json").is_file():
        return "it holds no config.json."
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a pickle that holds more than numbers, which is not run; save them as safetensors."
    if isinstance(error, SafetensorError):
        return f"its weights are damaged ({error})."
    if "custom code" in str(error):
        return "it needs code of its own, which is not run; load it yourself and give the module to hs.load."
    if "ignore_mismatched_sizes" in str(error):
        return "its weights are not of the shapes that its config.json speaks of."
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    # if the first line ends in a colon, the reason is in the next
    return f"{first} {rest[0].strip()}" if first.endswith(":") and rest else first
