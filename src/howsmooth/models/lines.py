"""Files with one JSON value on each line; a mistake is told with its line. Without torch."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from howsmooth.errors import FileError


def read_bytes(path: str | os.PathLike[str], what: str, *, field: str) -> bytes:
    """Return what a file holds.

    Args:
        path: The file.
        what: What it should be, for the message.
        field: The setting that named it.

    Raises:
        FileError: If there is no such file, or it cannot be read.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileError(f"{what} must be a file, but {name!r} is {what_is(name)}.", field=field)
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise FileError(f"{name!r} cannot be read: {error.strerror or error}.", field=field) from error


def what_is(name: str) -> str:
    """Say what stands in place of a file."""
    if os.path.isdir(name):
        return "a folder"
    return "a device or a pipe" if os.path.exists(name) else "not there"


def json_lines(content: bytes, name: str, *, field: str) -> Iterator[tuple[int, Any]]:
    """Yield the value on each line that is not empty, with the number of the line.

    Raises:
        FileError: If a line is no JSON, or the file no UTF-8.
    """
    try:
        lines = content.decode("utf-8-sig").split(
            "\n"
        )  # and not splitlines: JSON may hold other separators as they are
    except UnicodeDecodeError as error:
        raise FileError(f"{name!r} must be UTF-8, but byte {error.start} is not.", field=field) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FileError(
                f"{name!r}, line {number}: a line must be JSON by itself, got {line.strip()[:40]!r}.", field=field
            ) from error
