"""What a loader's errors mean, in one sentence."""

import pickle
from pathlib import Path

from howsmooth.models.names import not_found


def why_not(path: Path, name: str, error: Exception) -> str:
    """Say in one sentence why the loader could not load a model."""
    if path.is_dir():
        return f"no model can be loaded from the folder {name!r}: {_what_is_wrong(path, error)}"
    if path.is_file():
        return f"{name!r} is a file that holds no model; we need a folder with a config.json, or a .gguf file."
    if not isinstance(error, OSError):
        return f"no model can be loaded from the hub id {name!r}: {_what_is_wrong(path, error)}"
    return not_found(name)


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
    return _in_one_line(error)


def _in_one_line(error: Exception) -> str:
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    # where a first line ends in a colon, the reason stands in the next
    return f"{first} {rest[0].strip()}" if first.endswith(":") and rest else first
