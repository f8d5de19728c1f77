"""Words that may replace others, read from a file; without torch."""

import json
import os
from collections.abc import Mapping

from howsmooth.errors import FileError
from howsmooth.files import read_bytes

FIELD = "candidates"
Listed = Mapping[str, list[str]] | list[str]


def read_candidates(path: str | os.PathLike[str]) -> Listed:
    """Read JSON: an object with a list of words for each word, or one list of words for every place.

    Raises:
        FileError: If there is no such file, it holds something else, or no word.
    """
    name = os.fspath(path)
    content = read_bytes(name, "a file of candidates", field=FIELD)
    try:
        found = json.loads(content.decode("utf-8-sig"))
        json.dumps(found, ensure_ascii=False).encode()  # JSON can write half of a character, and UTF-8 cannot
    except (ValueError, RecursionError) as error:
        raise FileError(f"{name!r} must be JSON in UTF-8: {error}.", field=FIELD) from error
    lists = list(found.values()) if isinstance(found, dict) else [found]
    for words in lists:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise FileError(
                f'{name!r} must hold lists of words, as in {{"king": ["queen"]}} or ["queen"], got '
                f"{str(words)[:40]!r}.",
                field=FIELD,
            )
    if not any(lists):
        raise FileError(f"{name!r} holds no candidate; we need words that may come in.", field=FIELD)
    return found
