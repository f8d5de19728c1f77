"""Sentences in a file, each to be measured whole; without torch."""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from howsmooth.errors import FileError
from howsmooth.models.lines import json_lines, read_bytes

FIELD = "sentences"
# What an object on a line may call its sentence.
KEYS = ("text", "sentence")


@dataclass(frozen=True, kw_only=True, repr=False)
class Sentences:
    """Sentences and where they came from.

    Attributes:
        name: The file.
        lines: The sentences, in its order.
    """

    name: str
    lines: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash of the sentences."""
        return hashlib.sha256(json.dumps(self.lines).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        """Say how many there are, not what they say."""
        return f"Sentences({self.name!r}, {len(self.lines)} sentences)"


def read_sentences(path: str | os.PathLike[str]) -> Sentences:
    """Read ``.jsonl``: on each line a string, or an object with ``text`` or ``sentence``.

    Raises:
        FileError: If there is no such file, or a line holds no sentence.
    """
    name = os.fspath(path)
    content = read_bytes(name, "a file of sentences", field=FIELD)
    lines = tuple(_sentence(value, f"{name!r}, line {n}") for n, value in json_lines(content, name, field=FIELD))
    if not lines:
        raise FileError(f"{name!r} holds no sentence; we need one on each line, as JSON.", field=FIELD)
    return Sentences(name=name, lines=lines)


def _sentence(value: Any, place: str) -> str:
    found = next((value[key] for key in KEYS if key in value), None) if isinstance(value, dict) else value
    if not isinstance(found, str) or not found.strip():
        raise FileError(
            f"{place}: we need a string that is not empty, or an object with 'text' or 'sentence', got "
            f"{json.dumps(value)[:60]}.",
            field=FIELD,
        )
    return found
