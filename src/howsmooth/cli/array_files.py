"""Arrays in files: weights and tokens are read, damaged or too large ones refused in a sentence; inputs are saved."""

import difflib
import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.cli.printing import say
from howsmooth.errors import DtypeError, FileError, HowsmoothError, NonFiniteError, ShapeError
from howsmooth.files import HEADER, require_array, require_room

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.theory.results import Witness


ENDINGS = (".npz", ".npy", ".safetensors")
# Bytes of memory for each entry: as it is stored, as float64, and what a norm takes of such a matrix.
EACH = 4 * 8


def is_array_file(source: str) -> bool:
    """Tell whether a source is written as a file of arrays, ``FILE`` or ``FILE:KEY``."""
    return source.endswith(ENDINGS) or any(f"{ending}:" in source for ending in ENDINGS)


def split_source(source: str) -> tuple[Path, str | None]:
    """Split ``FILE:KEY`` into an existing file and a key; a name that exists as a whole is a file, colons and all."""
    cuts = [i for i, letter in enumerate(source) if letter == ":"]
    for cut in [len(source), *reversed(cuts)]:
        if os.path.exists(source[:cut]):
            path = Path(source[:cut])
            if path.is_dir():
                raise FileError(f"{str(path)!r} is a folder; name a file in it that ends in {', '.join(ENDINGS)}.")
            if not path.is_file():
                raise FileError(f"{str(path)!r} is not a regular file.")
            if path.suffix not in ENDINGS:
                raise FileError(f"{str(path)!r} must end in one of {', '.join(ENDINGS)}.")
            if not os.access(path, os.R_OK):
                raise FileError(f"{str(path)!r} may not be read; see its permissions.")
            return path, source[cut + 1 :] if cut < len(source) else None
    file, _colon, _key = source.rpartition(":")
    missing = file if file.endswith(ENDINGS) else source
    raise FileError(f"there is no file {missing!r}; write FILE or FILE:KEY.")


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file; an ``.npy`` file holds one without a name."""
    with _explained(path):
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="np") as file:  # which needs no torch
                return list(file.keys())
        # by its content: an archive may be called .npy
        if not zipfile.is_zipfile(path) and path.suffix == ".npy":
            return []
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]


def read_array(source: str, name: str) -> "Tensor":
    """Read ``FILE`` or ``FILE:KEY`` as a tensor of float32 or float64, whichever loses nothing.

    ``name`` says what the array is for, and is the key that is tried if none is given.
    """
    import torch

    path, key = split_source(source)
    chosen = _choose(array_names(path), path, key, name)
    with _explained(path):
        x = (_from_safetensors if path.suffix == ".safetensors" else _from_numpy)(path, chosen, name)
    if x.numel() == 0:
        raise ShapeError(f"{name} must not be empty, but has the shape {tuple(x.shape)} in {str(path)!r}.", field=name)
    bad = x.numel() - int(torch.isfinite(x).sum())
    if bad:
        raise NonFiniteError(
            f"{name} must be finite, but {bad} of its {x.numel()} entries in {str(path)!r} are NaN or infinite.",
            field=name,
        )
    return x


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn whatever a reader raises at a damaged file into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks of the reader on the header of a file
            yield
    except (DtypeError, FileError):
        raise
    except MemoryError as error:
        raise FileError(f"{str(path)!r} does not fit into memory, or is damaged.") from error
    except Exception as error:
        raise FileError(
            f"{str(path)!r} cannot be read: not a {path.suffix} file, cut short, or damaged "
            "(pickled Python objects are never loaded)."
        ) from error


def _choose(names: list[str], path: Path, key: str | None, name: str) -> str:
    """Pick the array that was named, or the only one, or the one of the name that is needed; '' without names."""
    if not names and path.suffix != ".npy":
        raise FileError(f"{str(path)!r} holds no arrays.")
    if key is None and len(names) < 2:
        return "".join(names)
    if not names:
        raise FileError(f"{str(path)!r} holds one array without a name; leave :{key} out.", field=name)
    if key is None and name in names:
        return name
    folded = {known.lower(): known for known in reversed(names)}
    matches = difflib.get_close_matches((key or name).lower(), folded, n=1, cutoff=0.4)
    nearest = folded[matches[0]] if matches else ""
    if key is None:
        example = f"{path}:{nearest or names[0]}"
        raise FileError(
            f"{str(path)!r} holds {len(names)} arrays, {listed(names)}: name the one for {name}, as in {example!r}."
        )
    if key not in names:
        hint = f"did you mean {nearest!r}?" if nearest else "choose one of them."
        raise FileError(f"{str(path)!r} has no array {key!r}; it holds {listed(names)}: {hint}")
    return key


def listed(names: list[str], most: int = 12) -> str:
    """Return the names of arrays in a sentence, the first of many."""
    rest = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([repr(name) for name in names[:most]] + rest)


def _from_numpy(path: Path, chosen: str, name: str) -> "Tensor":
    """Read an ``.npy`` file, or one of an archive; how large it is, headers say before anything is unpacked."""
    import numpy as np
    import torch

    if chosen:
        with zipfile.ZipFile(path) as archive:
            found = next(found for found in archive.infolist() if found.filename.removesuffix(".npy") == chosen)
            require_room(found.file_size, f"{found.filename!r} in {str(path)!r}, unpacked,", field=name)
            with archive.open(found) as file:
                require_array(file.read(HEADER), found.file_size, str(path), each=EACH, field=name)
            with archive.open(found) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
    else:
        with path.open("rb") as file:
            require_array(file.read(HEADER), path.stat().st_size, str(path), each=EACH, field=name)
            file.seek(0)
            array = np.lib.format.read_array(file, allow_pickle=False)
    _check_numbers(array.dtype.kind, array.dtype, path, name)
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, and is refused as such
        native = np.ascontiguousarray(array, dtype=np.float32 if single else np.float64)
    return torch.from_numpy(native).reshape(array.shape)


def _from_safetensors(path: Path, chosen: str, name: str) -> "Tensor":
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        shape = file.get_slice(chosen).get_shape()
        require_room(EACH * math.prod(shape), f"{chosen!r} in {str(path)!r}, of shape {tuple(shape)},", field=name)
        x: Tensor = file.get_tensor(chosen)
    kind = "c" if x.is_complex() else "b" if x.dtype == torch.bool else "f" if x.is_floating_point() else "i"
    _check_numbers(kind, str(x.dtype).removeprefix("torch."), path, name)
    single = x.is_floating_point() and x.dtype != torch.float64
    return x.to(torch.float32 if single else torch.float64, copy=True)


def _check_numbers(kind: str, dtype: Any, path: Path, name: str) -> None:
    """Refuse what is no real number, and report integers: quantised weights need the scale that belongs to them."""
    if kind not in "fiu":
        raise DtypeError(f"{name} must hold real numbers, but is {dtype} in {str(path)!r}.", field=name)
    if kind != "f":
        say(f"howsmooth: {name} in {str(path)!r} holds {dtype}, which is taken as real numbers, unscaled.", err=True)


def require_writable(target: Path, sources: Iterable[Path]) -> None:
    """Refuse a target that cannot be written, or that would write over a file that is read."""
    if target.suffix != ".safetensors":
        raise FileError(f"--save writes a .safetensors file, got {target.name!r}; change the ending.", field="save")
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {str(target.parent)!r} to save to; make it first.", field="save")
    if target.exists():
        if not target.is_file() or not os.access(target, os.W_OK):
            raise FileError(f"{str(target)!r} cannot be written over; save under another name.", field="save")
        if any(source.samefile(target) for source in sources):
            raise FileError(
                f"--save {str(target)!r} would write over the weights; save under another name.", field="save"
            )
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise FileError(f"nothing can be saved to {str(target.parent)!r}: {error.strerror}.", field="save") from error


@contextmanager
def saving(target: Path) -> Iterator[None]:
    """Say in one sentence why a file could not be written."""
    from safetensors import SafetensorError

    try:
        yield
    except HowsmoothError:
        raise
    except (OSError, SafetensorError) as error:
        raise FileError(f"{str(target)!r} could not be written: {error}", field="save") from error


def save_witness(witness: "Witness", target: Path, about: dict[str, str], *, quiet: bool) -> None:
    """Keep the input and say where; the talk goes to standard error where standard output is for JSON."""
    with saving(target):
        witness.save(target, about=about)
    say(f"Saved tokens, direction and response to {target}.", err=quiet)
