"""From a name to a module and its tokenizer: built-in packages, folders, GGUF files, hub ids, random weights."""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from howsmooth.errors import HowsmoothError, UnsupportedModelError
from howsmooth.files import require_size
from howsmooth.models.builtin import BUILT_IN, built_in_path
from howsmooth.models.class_head import has_classes
from howsmooth.models.config_file import check_config_file
from howsmooth.models.gguf_file import check_gguf
from howsmooth.models.hub import check_reachable, check_tokenizer
from howsmooth.models.language_head import has_a_head_of_its_own
from howsmooth.models.names import RANDOM, check_model_name
from howsmooth.models.refusals import why_not
from howsmooth.models.sentence_embedding import SentenceEmbedding, read_sentence_embedding
from howsmooth.models.sizes import require_room, weights_size
from howsmooth.models.text import HubTokenizer, Tokenizer, WordNumbers

# Special tokens below this number stand at the beginning of a vocabulary, others at its end.
FEW = 1000
# What is read into memory as text: configurations, vocabularies, merges, templates.
READ_WHOLE = (".json", ".jsonl", ".txt", ".model", ".jinja")
# Where the transformers library keeps the scores of words.
HEAD = "lm_head."


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A module, what turns text into its inputs (if anything does), and what to know about its numbers.

    Attributes:
        module: The module.
        tokenizer: What turns text into its inputs.
        notes: What a reader of its numbers has to know.
        sentence: How it embeds a sentence, or why that cannot be read; none if nothing beside its weights says.
    """

    module: nn.Module
    tokenizer: Tokenizer | None
    notes: tuple[str, ...] = ()
    sentence: SentenceEmbedding | str | None = None


def load_by_name(name: str, *, family: str = "") -> Loaded:
    """Load what a name stands for.

    Args:
        name: The name.
        family: Of which family it is, where its config.json does not say.

    Raises:
        UnsupportedModelError: If it stands for nothing that can be loaded, or is of another family.
    """
    check_model_name(name)
    if name.startswith(RANDOM):
        if family and family != name.removeprefix(RANDOM):
            raise UnsupportedModelError(f"{name!r} names its family itself, got {family!r} too.", field="family")
        return _random(name.removeprefix(RANDOM))
    if name in BUILT_IN:
        note = BUILT_IN[name].note
        found = _pretrained(built_in_path(name), name, family)
        return dataclasses.replace(found, notes=(note,) if note else ())
    return _pretrained(Path(name), name, family)


def tokenizer_named(name: str) -> Tokenizer:
    """Load the tokenizer of a folder, a GGUF file, a hub id or a built-in model.

    Raises:
        UnsupportedModelError: If there is none, or it knows no word.
    """
    check_tokenizer(name)
    where, options = _where_named(name)
    with _quiet():
        found = _tokenizer(where, options)
    if found is None:
        raise UnsupportedModelError(
            f"no tokenizer that knows a word can be loaded from {name!r}; we need a folder with a tokenizer.json, or a "
            "hub id.",
            field="tokenizer",
        )
    return found


def image_processor(name: str) -> Any | None:
    """Return the image processor of the transformers library that lies beside a model's weights, if one does."""
    from transformers import AutoImageProcessor

    if name.startswith(RANDOM) or "@" in name:  # no folder: random weights, and modules in memory
        return None
    where, options = _where_named(name)
    with _quiet():
        try:
            # the same numbers whether torchvision is installed or not
            return AutoImageProcessor.from_pretrained(where, backend="pil", **options)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
            return None  # the result then says how pictures were prepared


def _where_named(name: str) -> tuple[str, dict[str, Any]]:
    """Return where what lies beside the weights of a model is to be looked for, and with which options."""
    where, options, _notes = _place(built_in_path(name) if name in BUILT_IN else Path(name), name)
    return where, options | {"trust_remote_code": False}


def _random(family: str) -> Loaded:
    from transformers import CONFIG_MAPPING, AutoModel

    config = CONFIG_MAPPING[family]()
    require_room(config, RANDOM + family)  # the default shapes of some families are those of their largest models
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same weights in every process
        module = AutoModel.from_config(config)
    if not hasattr(config, "vocab_size"):
        return Loaded(module=module, tokenizer=None)
    special = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls")]
    first = 1 + max((number for number in special if number is not None and number < FEW), default=-1)
    notes = ("the weights are random, and words are numbered in the order in which they first appear",)
    return Loaded(module=module, tokenizer=WordNumbers(config.vocab_size, first=first), notes=notes)


def _pretrained(path: Path, name: str, family: str) -> Loaded:
    """Load a folder, a GGUF file or a hub id; pickles are read with ``weights_only``, code beside them is not run."""
    where, options, notes = _place(path, name)
    options["trust_remote_code"] = False  # or the loader would stop and ask
    # only now: what is out of reach is told before this takes seconds
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

    with _quiet(), _parsing_once() if "gguf_file" in options else contextlib.nullcontext():
        try:
            config = _configuration(where, options, name, family)
            require_room(config, name, weights=weights_size(path) if path.exists() else None)
            if getattr(config, "quantization_config", None) is None:
                _require_real_weights(path, name)
            kind: Any = AutoModelForCausalLM if has_a_head_of_its_own(config) else AutoModel
            kind = AutoModelForSequenceClassification if has_classes(config) else kind
            module, report = kind.from_pretrained(
                where, config=config, weights_only=True, output_loading_info=True, **options
            )
        except HowsmoothError:
            raise
        except Exception as error:  # damaged folders make the loader raise anything
            raise UnsupportedModelError(why_not(path, name, error), field="model") from error
        _require_complete(module, report["missing_keys"], name)
        if any(key.startswith(HEAD) for key in report["missing_keys"]):
            module = module.base_model  # a head that the loader made up is none
        sentence = read_sentence_embedding(lambda file: _beside(where, options, file))
        return Loaded(module=module, tokenizer=_tokenizer(where, options), notes=notes, sentence=sentence)


def _beside(where: str, options: dict[str, Any], file: str) -> Path | None:
    """Return where a file lies beside the weights of a model, if there is one."""
    from transformers.utils.hub import cached_file

    if "gguf_file" in options:
        return None
    found = cached_file(where, file, _raise_exceptions_for_missing_entries=False, **options)
    return None if found is None else Path(str(found))


def _configuration(where: str, options: dict[str, Any], name: str, family: str) -> Any:
    """Read the configuration of a model; its config.json is checked first, a GGUF file has it inside."""
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.utils.hub import cached_file

    if "gguf_file" in options:
        if family:
            raise UnsupportedModelError("a GGUF file says itself of which family it is; leave it out.", field="family")
        return AutoConfig.from_pretrained(where, **options)
    folder = Path(where)
    found = folder / "config.json" if folder.is_dir() else cached_file(where, "config.json", **options)
    check_config_file(Path(str(found)), name, family=family, known=CONFIG_MAPPING)
    if not family:
        return AutoConfig.from_pretrained(where, **options)
    return CONFIG_MAPPING[family].from_pretrained(where, **options)


def _require_real_weights(folder: Path, name: str) -> None:
    """Refuse weights that are whole numbers: the loader would take them as they are, without their scales."""
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
    """Refuse weights that the loader filled up with random ones, unless attention does not depend on them."""
    unread = ("pooler", HEAD, "decoder.") if module.config.is_encoder_decoder else ("pooler", HEAD)
    if needed := sorted(key for key in missing if not key.startswith(unread)):
        raise UnsupportedModelError(
            f"the weights of {name!r} lack {len(needed)} of the parameters that its config.json speaks of, first "
            f"{needed[0]!r}; are they of another model?",
            field="model",
        )


def _place(path: Path, name: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return where the loader has to look, with which options, and what to say about that."""
    if path.is_file():
        if missing := [part for part in ("gguf", "accelerate") if importlib.util.find_spec(part) is None]:
            raise UnsupportedModelError(
                f"a GGUF file needs {' and '.join(missing)}, not installed; run: pip install howsmooth[gguf]",
                field="model",
            )
        check_gguf(path)
        return str(path.parent), {"gguf_file": path.name}, ()
    if path.exists():
        for file in sorted(path.iterdir()):
            if file.suffix in READ_WHOLE and file.name != "config.json" and not file.is_dir():
                require_size(file, "a file beside the weights of a model", field="model")
        return str(path), {}, ()
    cached = check_reachable(name)
    if cached is None:
        return name, {}, ()
    # By its folder: given the id, the loader would ask the hub for an adapter even if it may read local files only.
    where, options, _notes = _place(cached, name)
    return where, options, (f"no hub was within reach: {name!r} is the copy in the local cache",)


def _tokenizer(where: str, options: dict[str, Any]) -> Tokenizer | None:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return None  # measuring a text then says that there is none
    except Exception as error:  # what reads tokenizer.json raises nothing more special
        raise _damaged_tokenizer(where, error) from error
    # where no vocabulary is found, some families make one up that knows no word: every text would be [UNK] [UNK] [UNK]
    words = {number for word, number in found.get_vocab().items() if word.strip("▁")}  # T5's has a mark for spaces
    if not words - set(found.all_special_ids):
        return None
    try:
        HubTokenizer(found).encode("a")
    except Exception as error:  # settings of the wrong type are taken until they are used
        raise _damaged_tokenizer(where, error) from error
    return HubTokenizer(found)


def _damaged_tokenizer(where: str, error: Exception) -> UnsupportedModelError:
    said = " ".join(str(error).split())
    return UnsupportedModelError(
        f"the tokenizer in {where!r} cannot be used ({type(error).__name__}: {said}); mend its "
        "files, or take them away.",
        field="tokenizer",
    )


@contextlib.contextmanager
def _parsing_once() -> Iterator[None]:
    """Let the loader parse a GGUF file once, and not for each of configuration, weights and tokenizer.

    The table of names is made once too, and not for every module of the model.
    """
    import gguf

    before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    try:
        for name, found in before.items():
            setattr(gguf, name, functools.cache(found))
        yield
    finally:
        for name, found in before.items():
            setattr(gguf, name, found)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the loader's own bars and advice off the screen."""
    from transformers.utils import logging as hub

    level, bars = hub.get_verbosity(), hub.is_progress_bar_enabled()
    network = logging.getLogger("huggingface_hub")
    network_level = network.level
    hub.set_verbosity(logging.ERROR)
    network.setLevel(logging.ERROR)
    hub.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # one bar that cannot be switched off
            yield
    finally:
        hub.set_verbosity(level)
        network.setLevel(network_level)
        if bars:
            hub.enable_progress_bar()
