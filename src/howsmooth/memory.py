"""How much memory there is, and refusals of what cannot fit into it."""

import os
from pathlib import Path

from howsmooth.errors import AssumptionError
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
