"""Files: refused before they are read if they cannot fit into memory, and written whole or not at all."""

import io
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from howsmooth.errors import AssumptionError, FileError
from howsmooth.memory import require_memory

# Bytes of memory for one byte of text: the bytes, the characters, and a number of 36 bytes for every few letters.
COPIES = 12
# Where the header of an array ends at the latest: numpy itself refuses longer ones.
HEADER = 2**16


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Write to the path that this yields; it becomes ``target`` only when all went well."""
    # a name of its own for every writer; the ending stays: writers look at it
    partial = target.with_name(f".partial-{secrets.token_hex(8)}{target.suffix}")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_bytes(path: str | os.PathLike[str], what: str, *, field: str | None = None) -> bytes:
    """Return what a file holds."""
    name = os.fspath(path)
    require_size(name, what, field=field, missing=False)
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise FileError(f"{name!r} cannot be read: {error.strerror or error}.", field=field) from error


def require_size(
    path: str | os.PathLike[str],
    what: str,
    *,
    field: str | None = None,
    copies: int = COPIES,
    most: int | None = None,
    missing: bool = True,
) -> None:
    """Refuse a file that is too large to be read, or none at all; nothing of it is read.

    One byte of it takes ``copies`` bytes of memory.
    """
    name = os.fspath(path)
    try:
        found = os.stat(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        if missing:
            return
        raise FileError(f"{what} must be a file, but {name!r} is not there.", field=field) from error
    except (OSError, ValueError) as error:  # too long a name, or one with a NUL
        raise FileError(f"{what} cannot be {name!r}: {getattr(error, 'strerror', error)}.", field=field) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
        raise FileError(f"{what} must be a file, but {name!r} is {kind}.", field=field)
    if most is not None and found.st_size > most:
        raise FileError(
            f"{what} has at most {most:,} bytes, but {name!r} has {found.st_size:,}; is it the right file?", field=field
        )
    require_room(copies * found.st_size, f"{what}, {name!r} of {found.st_size:,} bytes,", field=field)


def require_room(needed: int, what: str, *, field: str | None = None) -> None:
    """Refuse what a file asks for if it does not fit into memory."""
    try:
        require_memory(needed, what, field=field)
    except AssumptionError as error:
        raise FileError(str(error), field=field) from error


def require_array(start: bytes, stored: int, name: str, *, each: int, field: str | None = None) -> None:
    """Refuse an array of numpy whose header promises more than is stored, or than fits into memory.

    One entry takes ``each`` bytes of memory; ``start`` are the first :data:`HEADER` bytes of the file. What is no array
    raises whatever numpy says.
    """
    from numpy.lib import format as npy

    file = io.BytesIO(start)
    known = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in known:  # later ones are for names of fields beyond Latin-1: no array of numbers has any
        raise ValueError(f"its version is {version}, which no array of numbers needs")
    shape, _order, dtype = known[version](file)
    if math.prod(shape) * dtype.itemsize > stored:
        raise FileError(
            f"{name!r} cannot be read: its header speaks of the shape {shape}, and there is less.", field=field
        )
    require_room(each * math.prod(shape), f"the array in {name!r}, of shape {shape},", field=field)
