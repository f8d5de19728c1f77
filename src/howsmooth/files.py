"""Memory and files: how much memory there is; files refused if they cannot fit, and written whole or not at all."""

import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from howsmooth.errors import AssumptionError, FileError
from howsmooth.wording import number

MEMINFO, LIMITS = (
    Path("/proc/meminfo"),
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")),
)
GIGA = 1024**3


def available_memory() -> int | None:
    """Return how many bytes can still be had, as the system estimates it; ``None`` if it does not say."""
    found = [size for size in (_free(), *map(_limit, LIMITS)) if size is not None]
    return min(found, default=None)


def require_memory(needed: int, what: str, *, field: str | None = None) -> None:
    """Refuse what cannot fit into memory, before the attempt makes the machine swap or the system kill."""
    there = available_memory()
    if there is not None and needed > there:
        raise AssumptionError(
            f"{what} takes at least {gigabytes(needed)} of memory, and {gigabytes(there)} are free; ask for less.",
            field=field,
        )


def gigabytes(size: int) -> str:
    """Write a number of bytes.

    >>> gigabytes(1536 * 1024**2), gigabytes(10**16), gigabytes(10**400)
    ('1.5 GiB', '9,313,225 GiB', '9.31·10³⁹⁰ GiB')
    """
    # whole numbers: what was asked for may be far beyond a float
    return f"{number(size / GIGA if size < 1000 * GIGA else size // GIGA)} GiB"


def _free() -> int | None:
    try:
        for line in MEMINFO.read_text(encoding="ascii").splitlines():
            name, _colon, rest = line.partition(":")
            if name == "MemAvailable":
                return 1024 * int(rest.split()[0])
    except (OSError, ValueError, IndexError):
        pass
    try:  # not every system has that file
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


# Bytes of memory for one byte of text: the bytes, the characters, and a number of 36 bytes for every few letters.
COPIES = 12


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Write to the path that this yields; it becomes ``target`` only when all went well.

    A link stays, and what it leads to is written. A pipe or a device is written into, never replaced, and so is what is
    standard output or standard error, which ``-`` means, too.
    """
    there = _status(target)
    descriptor = next((fd for fd in (1, 2) if there is not None and _same(there, _status(fd))), None)
    stream = descriptor is not None or (there is not None and not stat.S_ISREG(there.st_mode))
    final = target.resolve() if target.is_symlink() and not stream else target
    folder = Path(tempfile.gettempdir()) if stream else final.parent
    # a name of its own for every writer; the ending stays: writers look at it
    partial = folder / f".partial-{secrets.token_hex(8)}{target.suffix}"
    try:
        yield partial
        if stream:
            sys.stdout.flush()  # what was printed before comes first
            # Why not by its name: that would begin anew where a shell has sent the stream to a file.
            to: Path | int = target if descriptor is None else descriptor
            with partial.open("rb") as done, open(to, "wb", closefd=descriptor is None) as out:
                shutil.copyfileobj(done, out)
            return
        if there is not None:
            shutil.copymode(final, partial)
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)


def is_printed(target: str | os.PathLike[str]) -> bool:
    """Tell whether what is written there is printed: ``-``, ``/dev/stdout`` and other names of standard output."""
    there = _status(Path(target))
    return there is not None and _same(there, _status(1))


def _status(file: Path | int) -> os.stat_result | None:
    try:
        return os.stat(1 if file == Path("-") else file)
    except (OSError, ValueError):
        return None


def _same(one: os.stat_result, other: os.stat_result | None) -> bool:
    return other is not None and os.path.samestat(one, other)


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
