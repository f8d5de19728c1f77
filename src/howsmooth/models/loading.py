"""From a name to a module and its tokenizer: built-in packages, folders, GGUF files, hub ids, random weights."""

import contextlib
import difflib
import importlib.util
import io
import logging
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from howsmooth.errors import UnsupportedModelError
from howsmooth.models.builtin import BUILT_IN, built_in_path
from howsmooth.models.registry import FAMILIES
from howsmooth.models.text import HubTokenizer, Tokenizer, WordNumbers

RANDOM = "random:"
# Special tokens below this number stand at the beginning of a vocabulary, others at its end.
FEW = 1000


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A module, what turns text into its inputs (if anything does), and what to know about its numbers."""

    module: nn.Module
    tokenizer: Tokenizer | None
    notes: tuple[str, ...] = ()


def load_by_name(name: str) -> Loaded:
    """Load what a name stands for.

    Raises:
        UnsupportedModelError: If it stands for nothing that can be loaded.
    """
    if name.startswith(RANDOM):
        return _random(name.removeprefix(RANDOM))
    if name in BUILT_IN:
        note = BUILT_IN[name].note
        found = _pretrained(built_in_path(name), name)
        return Loaded(module=found.module, tokenizer=found.tokenizer, notes=(note,) if note else ())
    if not Path(name).exists() and difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.8):
        raise UnsupportedModelError(_not_found(name))  # a slip of the pen, not worth asking a hub about
    return _pretrained(Path(name), name)


def _random(family: str) -> Loaded:
    from transformers import CONFIG_MAPPING, AutoModel

    if family not in FAMILIES:
        raise UnsupportedModelError(f"there is no family {family!r}{nearest(family, FAMILIES)}")
    config = CONFIG_MAPPING[family]()
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same weights in every process
        module = AutoModel.from_config(config)
    if not hasattr(config, "vocab_size"):
        return Loaded(module=module, tokenizer=None)
    special = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls")]
    first = 1 + max((number for number in special if number is not None and number < FEW), default=-1)
    notes = ("the weights are random, and words are numbered in the order in which they first appear",)
    return Loaded(module=module, tokenizer=WordNumbers(config.vocab_size, first=first), notes=notes)


def _pretrained(path: Path, name: str) -> Loaded:
    """Load a folder, a GGUF file or a hub id; pickles are read with ``weights_only``, code beside them is not run."""
    from transformers import AutoModel

    where, options = _place(path, name)
    options["trust_remote_code"] = False  # or the loader would stop and ask
    with _quiet():
        try:
            module, report = AutoModel.from_pretrained(where, weights_only=True, output_loading_info=True, **options)
        except Exception as error:  # damaged folders make the loader raise anything
            raise UnsupportedModelError(_why_not(path, name, error)) from error
        _require_complete(module, report["missing_keys"], name)
        return Loaded(module=module, tokenizer=_tokenizer(where, options))


def _require_complete(module: Any, missing: Iterable[str], name: str) -> None:
    """Refuse weights that the loader filled up with random ones, unless attention does not depend on them."""
    unread = ("pooler", "decoder.") if module.config.is_encoder_decoder else ("pooler",)
    if needed := sorted(key for key in missing if not key.startswith(unread)):
        raise UnsupportedModelError(
            f"the weights of {name!r} lack {len(needed)} of the parameters that its config.json speaks of, first "
            f"{needed[0]!r}; are they of another model?"
        )


def _place(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    if path.suffix == ".gguf" and path.is_file():
        if missing := [part for part in ("gguf", "accelerate") if importlib.util.find_spec(part) is None]:
            raise UnsupportedModelError(
                f"a GGUF file needs {' and '.join(missing)}, not installed; run: pip install howsmooth[gguf]"
            )
        return str(path.parent), {"gguf_file": path.name}
    return str(path) if path.exists() else name, {}


def _tokenizer(where: str, options: dict[str, Any]) -> Tokenizer | None:
    from transformers import AutoTokenizer

    try:
        return HubTokenizer(AutoTokenizer.from_pretrained(where, **options))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return None  # measuring a text then says that there is none


def _why_not(path: Path, name: str, error: Exception) -> str:
    if path.is_dir():
        return f"no model can be loaded from the folder {name!r}: {_what_is_wrong(path, error)}"
    if path.is_file():
        return f"{name!r} is a file that holds no model; we need a folder with a config.json, or a .gguf file."
    if not isinstance(error, OSError):
        return f"no model can be loaded from the hub id {name!r}: {_what_is_wrong(path, error)}"
    return _not_found(name)


def _what_is_wrong(folder: Path, error: Exception) -> str:
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
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _not_found(name: str) -> str:
    names = (*BUILT_IN, *(RANDOM + family for family in FAMILIES))
    return f"no model {name!r}: neither a built-in, nor a folder here, nor a hub id within reach{nearest(name, names)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the names that are nearest to one that is not known."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else f"; known are {', '.join(known)}."


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
