"""Arrays in files: weights are read, damaged or too large ones refused in a sentence; inputs are saved."""

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
from howsmooth.files import require_room, require_size

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.theory.results import Witness


ENDINGS = (".npz", ".safetensors")
# Bytes of memory for each byte of a file: as it is stored, as float64, and what a norm takes of such a matrix.
COPIES = 4


def is_array_file(source: str) -> bool:
    """Tell whether a source is written as a file of arrays."""
    return source.endswith(ENDINGS)


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file that exists; none of them is read."""
    require_size(path, "a file of weights", copies=COPIES, missing=False)
    with _explained(path):
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="np") as file:  # which needs no torch
                return list(file.keys())
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(path: Path, names: Iterable[str]) -> "dict[str, Tensor]":
    """Read arrays by their names, each as float32 or float64, whichever loses nothing."""
    with _explained(path):
        found = (_from_safetensors if path.suffix == ".safetensors" else _from_numpy)(path, names)
    for name, x in found.items():
        if x.numel() == 0:
            raise ShapeError(f"{name} must not be empty, but has the shape {tuple(x.shape)} in {str(path)!r}.")
        if bad := x.numel() - int(x.isfinite().sum()):
            raise NonFiniteError(
                f"{name} must be finite, but {bad} of its {x.numel()} entries in {str(path)!r} are NaN or infinite."
            )
    return found


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


def _from_numpy(path: Path, names: Iterable[str]) -> "dict[str, Tensor]":
    import numpy as np
    import torch

    found = {}
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
    require_room(COPIES * unpacked, f"{str(path)!r}, unpacked,", field="model")
    with np.load(path, allow_pickle=False) as file, np.errstate(over="ignore"):  # beyond float64 is infinite: refused
        for name in names:
            array = file[name]
            _check_numbers(array.dtype.kind, array.dtype, path, name)
            single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
            found[name] = torch.from_numpy(np.array(array, dtype=np.float32 if single else np.float64, order="C"))
    return found


def _from_safetensors(path: Path, names: Iterable[str]) -> "dict[str, Tensor]":
    import torch
    from safetensors import safe_open

    found = {}
    with safe_open(path, framework="pt") as file:
        for name in names:
            x: Tensor = file.get_tensor(name)
            kind = "c" if x.is_complex() else "b" if x.dtype == torch.bool else "f" if x.is_floating_point() else "i"
            _check_numbers(kind, str(x.dtype).removeprefix("torch."), path, name)
            single = x.is_floating_point() and x.dtype != torch.float64
            found[name] = x.to(torch.float32 if single else torch.float64, copy=True)
    return found


def _check_numbers(kind: str, dtype: Any, path: Path, name: str) -> None:
    """Refuse what is no real number, and report integers: quantised weights need the scale that belongs to them."""
    if kind not in "fiu":
        raise DtypeError(f"{name} must hold real numbers, but is {dtype} in {str(path)!r}.")
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
