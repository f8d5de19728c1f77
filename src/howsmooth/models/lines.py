"""Files with one JSON value on each line; a mistake is told with its line. Without torch."""

import json
from collections.abc import Iterator
from typing import Any

from howsmooth.errors import FileError


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
