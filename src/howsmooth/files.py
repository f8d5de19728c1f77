"""Files that are there whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Write to the path that this yields; it becomes ``target`` only when all went well."""
    partial = target.with_name(f".partial-{target.name}")  # the ending stays: writers look at it
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
