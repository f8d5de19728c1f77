"""Arrays in files: weights and measures are read, damaged or too large ones refused in a sentence; inputs are saved."""

import difflib
import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.cli.printing import say
from howsmooth.errors import AssumptionError, DtypeError, FileError, NonFiniteError, ShapeError
from howsmooth.files import HEADER, read_bytes, require_array, require_room, require_size

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from howsmooth.theory.results import Witness
    from howsmooth.transport.measures import DiscreteMeasure


ENDINGS = (".npz", ".npy", ".safetensors")
# How an archive begins, with arrays in it and without.
ZIPPED = (b"PK\x03\x04", b"PK\x05\x06")
# Bytes of memory for each entry: as it is stored, as float64, and what a norm takes of such a matrix.
EACH = 4 * 8


def read_matrix(source: str, name: str) -> "Tensor":
    """Read one array as a tensor of float32 or float64, whichever loses nothing.

    Args:
        source: ``FILE`` or ``FILE:KEY``.
        name: The option it was given to, and the key that is tried if none is given.

    Raises:
        FileError: If there is no such file or key, or the file is damaged.
        DtypeError: If the entries are not real numbers.
        ShapeError: If the array is empty.
        NonFiniteError: If an entry is NaN or infinite.
    """
    import torch

    path, key = split_source(source)
    read = _read_safetensors if path.suffix == ".safetensors" else _read_numpy
    with _explained(path):
        x = read(path, key, name)
    if x.numel() == 0:
        raise ShapeError(f"{name} must not be empty, but has the shape {tuple(x.shape)} in {str(path)!r}.", field=name)
    bad = x.numel() - int(torch.isfinite(x).sum())
    if bad:
        raise NonFiniteError(
            f"{name} must be finite, but {bad} of its {x.numel()} entries in {str(path)!r} are NaN or infinite.",
            field=name,
        )
    return x


def holds_by_name(source: str, *names: str) -> bool:
    """Tell whether a file that was given without a key holds arrays of these very names.

    Raises:
        FileError: If there is no such file, or it is damaged.
    """
    path, key = split_source(source)
    if key is not None:
        return False
    with _explained(path):
        return set(names) <= set(_names(path))


def _names(path: Path) -> list[str]:
    """Return the names of the arrays in a file; one that holds a single array has none."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return [member.filename.removesuffix(".npy") for member in archive.infolist()]


def split_source(source: str) -> tuple[Path, str | None]:
    """Split ``FILE:KEY`` into an existing file and a key; a name that exists as a whole is a file, colons and all."""
    cuts = [i for i, letter in enumerate(source) if letter == ":"]
    for cut in [len(source), *reversed(cuts)]:
        if os.path.exists(source[:cut]):
            path = Path(source[:cut])
            _require_readable(path)
            return path, source[cut + 1 :] if cut < len(source) else None
    file, _colon, _key = source.rpartition(":")
    missing = file if file.endswith(ENDINGS) else source
    raise FileError(f"there is no file {missing!r}; write FILE or FILE:KEY.")


def _require_readable(path: Path) -> None:
    if path.is_dir():
        raise FileError(f"{str(path)!r} is a folder; name a file in it that ends in {', '.join(ENDINGS)}.")
    if not path.is_file():
        raise FileError(f"{str(path)!r} is not a regular file.")
    if path.suffix not in ENDINGS:
        raise FileError(f"{str(path)!r} must end in one of {', '.join(ENDINGS)}.")
    if not os.access(path, os.R_OK):
        raise FileError(f"{str(path)!r} may not be read; see its permissions.")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn whatever a reader stumbles over in a damaged file into one sentence."""
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


def _read_numpy(path: Path, key: str | None, name: str) -> "Tensor":
    import numpy as np

    with path.open("rb") as file:
        if file.read(4) in ZIPPED:
            return _read_archive(path, key, name)
        file.seek(0)
        require_array(file.read(HEADER), path.stat().st_size, str(path), each=EACH, field=name)
        file.seek(0)
        loaded = np.load(file, allow_pickle=False)
    if key is not None:
        raise FileError(f"{str(path)!r} holds one array without a name; leave :{key} out.", field=name)
    return _from_numpy(loaded, path, name)


def _read_archive(path: Path, key: str | None, name: str) -> "Tensor":
    """Read one array of an ``.npz``; what it unpacks to is known from the directory, before anything is unpacked."""
    import numpy as np

    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        member = members[_choose(list(members), path, key, name)]
        require_room(member.file_size, f"{member.filename!r} in {str(path)!r}, unpacked,", field=name)
        with archive.open(member) as file:
            require_array(file.read(HEADER), member.file_size, str(path), each=EACH, field=name)
        with archive.open(member) as file:
            return _from_numpy(np.lib.format.read_array(file, allow_pickle=False), path, name)


def _from_numpy(array: "np.ndarray", path: Path, name: str) -> "Tensor":
    import numpy as np
    import torch

    if array.dtype.kind not in "fiu":
        raise DtypeError(f"{name} must hold real numbers, but is {array.dtype} in {str(path)!r}.", field=name)
    if array.dtype.kind != "f":
        _say_whole_numbers(name, str(array.dtype), path)
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, and is refused as such
        native = np.ascontiguousarray(array, dtype=np.float32 if single else np.float64)
    return torch.from_numpy(native).reshape(array.shape)


def _read_safetensors(path: Path, key: str | None, name: str) -> "Tensor":
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        chosen = _choose(list(file.keys()), path, key, name)
        shape = file.get_slice(chosen).get_shape()
        require_room(EACH * math.prod(shape), f"{chosen!r} in {str(path)!r}, of shape {tuple(shape)},", field=name)
        x: Tensor = file.get_tensor(chosen)
    if x.is_complex() or x.dtype == torch.bool:
        raise DtypeError(f"{name} must hold real numbers, but is {x.dtype} in {str(path)!r}.", field=name)
    if not x.is_floating_point():
        _say_whole_numbers(name, str(x.dtype).removeprefix("torch."), path)
    single = x.is_floating_point() and x.dtype != torch.float64
    return x.to(torch.float32 if single else torch.float64, copy=True)


def _say_whole_numbers(name: str, dtype: str, path: Path) -> None:
    """Say that whole numbers are taken as they are: quantised weights would need the scale that belongs to them."""
    say(f"howsmooth: {name} in {str(path)!r} holds {dtype}, which is taken as real numbers, unscaled.", err=True)


def _choose(names: list[str], path: Path, key: str | None, name: str) -> str:
    """Pick the array that was named, or the only one, or the one called like the option."""
    if not names:
        raise FileError(f"{str(path)!r} holds no arrays.")
    if key is not None:
        if key in names:
            return key
        nearest = _nearest(key, names)
        hint = f"did you mean {nearest!r}?" if nearest else "choose one of them."
        raise FileError(f"{str(path)!r} has no array {key!r}; it holds {_listed(names)}: {hint}")
    if len(names) == 1:
        return names[0]
    if name in names:
        return name
    example = f"{path}:{_nearest(name, names) or names[0]}"
    option = name.replace("_", "-")
    raise FileError(
        f"{str(path)!r} holds {len(names)} arrays, {_listed(names)}: name the one for --{option}, as in {example!r}."
    )


def _nearest(key: str, names: list[str]) -> str | None:
    folded = {name.lower(): name for name in reversed(names)}
    return next((folded[match] for match in difflib.get_close_matches(key.lower(), folded, n=1, cutoff=0.4)), None)


def _listed(names: list[str], most: int = 12) -> str:
    rest = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([repr(name) for name in names[:most]] + rest)


MEASURE_ENDINGS = (".json", ".safetensors")


def check_measure(tokens: str | None, masses: str | None, measure: str | None) -> None:
    """Refuse files that are missing or too many, before any is opened.

    Raises:
        AssumptionError: If the options contradict each other.
        FileError: If a file is not there, or of another kind.
    """
    if (tokens is None) == (measure is None):
        raise AssumptionError(
            "give the atoms, either --tokens FILE[:KEY], a sequence (n, d), or --measure FILE; "
            "or draw --map-1d A=-1,V=1.",
            field="tokens",
        )
    if masses is not None and measure is not None:
        raise AssumptionError("a saved measure has masses of its own; leave --masses out.", field="masses")
    for source in (tokens, masses):
        if source is not None:
            split_source(source)
    if measure is not None:
        _check_saved(Path(measure))


def read_measure(tokens: str | None, masses: str | None, measure: str | None, *, causal: bool) -> "DiscreteMeasure":
    """Read a measure; a sequence that masked attention sees has positions too."""
    from howsmooth.transport.measures import DiscreteMeasure

    if measure is not None:
        return _load(Path(measure))
    points = read_matrix(tokens or "", "tokens")
    if points.ndim != 2:
        raise ShapeError(f"tokens must be a sequence, (n, d), got the shape {tuple(points.shape)}.", field="tokens")
    weights = None if masses is None else read_matrix(masses, "masses").to(points)
    if weights is not None and weights.shape != points.shape[:1]:
        raise ShapeError(
            f"masses must have one entry for each of {len(points)} tokens, got {tuple(weights.shape)}.", field="masses"
        )
    return DiscreteMeasure(points, weights, DiscreteMeasure.from_sequence(points, causal=causal).positions)


def _check_saved(path: Path) -> None:
    if path.suffix not in MEASURE_ENDINGS:
        raise FileError(f"a measure is a {' or '.join(MEASURE_ENDINGS)} file, got {str(path)!r}.", field="measure")
    if not path.is_file():
        raise FileError(f"there is no file {str(path)!r}.", field="measure")


def _load(path: Path) -> "DiscreteMeasure":
    from howsmooth.transport.measures import DiscreteMeasure

    if path.suffix == ".safetensors":
        require_size(path, "a measure", field="measure")
        return DiscreteMeasure.load(path)
    try:
        return DiscreteMeasure.from_json(read_bytes(path, "a measure", field="measure").decode())
    except UnicodeDecodeError as error:
        raise FileError(f"{str(path)!r} cannot be read: {error}.", field="measure") from error
    except RecursionError as error:
        raise FileError(f"{str(path)!r} is nested too deeply for a measure.", field="measure") from error
    except (OverflowError, RuntimeError) as error:  # torch says it in one way or the other
        raise FileError(f"{str(path)!r} holds a number that is too large for a float.", field="measure") from error


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


def save_witness(witness: "Witness", target: Path, about: dict[str, str], *, quiet: bool) -> None:
    """Keep the input and say where; the talk goes to standard error where standard output is for JSON."""
    from safetensors import SafetensorError

    try:
        witness.save(target, about=about)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{str(target)!r} could not be written: {error}", field="save") from error
    say(f"Saved tokens, direction and response to {target}.", err=quiet)
