"""Sentences in a file, each to be measured whole; without torch."""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from howsmooth.errors import FileError
from howsmooth.files import read_bytes
from howsmooth.models.lines import json_lines

FIELD = "sentences"
# What an object on a line may call its sentence, and what it may hold besides: the class that should win.
KEYS, LABEL = ("text", "sentence"), "label"


@dataclass(frozen=True, kw_only=True, repr=False)
class Sentences:
    """Sentences and where they came from.

    Attributes:
        name: The file.
        lines: The sentences, in its order.
        labels: The class that each should be of, by its name or its number; none where the file does not say.
    """

    name: str
    lines: tuple[str, ...]
    labels: tuple[str | int | None, ...]

    @property
    def digest(self) -> str:
        """A hash of the sentences."""
        return hashlib.sha256(json.dumps(self.lines).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        """Say how many there are, not what they say."""
        return f"Sentences({self.name!r}, {len(self.lines)} sentences)"


def read_sentences(path: str | os.PathLike[str]) -> Sentences:
    """Read ``.jsonl``: on each line a string, or an object with ``text`` or ``sentence``, and ``label`` if it has one.

    Raises:
        FileError: If there is no such file, or a line holds no sentence, or anything else.
    """
    name = os.fspath(path)
    content = read_bytes(name, "a file of sentences", field=FIELD)
    found = [_sentence(value, f"{name!r}, line {n}") for n, value in json_lines(content, name, field=FIELD)]
    if not found:
        raise FileError(f"{name!r} holds no sentence; we need one on each line, as JSON.", field=FIELD)
    lines, labels = zip(*found, strict=True)
    return Sentences(name=name, lines=lines, labels=labels)


def _sentence(value: Any, place: str) -> tuple[str, str | int | None]:
    given = value if isinstance(value, dict) else {KEYS[0]: value}
    named = [key for key in KEYS if key in given]
    if unknown := [key for key in given if key not in (*KEYS, LABEL)] or named[1:]:
        raise FileError(
            f"{place}: an object holds a sentence as 'text' or 'sentence', and its class as 'label' if at all, got "
            f"{', '.join(map(repr, unknown))} besides; remove what is not used.",
            field=FIELD,
        )
    found, label = given.get(named[0]) if named else None, given.get(LABEL)
    if not isinstance(label, str | int | None) or isinstance(label, bool):
        raise FileError(
            f"{place}: 'label' must be the name or the number of a class, got {json.dumps(label)[:40]}.", field=FIELD
        )
    if not isinstance(found, str) or not found.strip():
        raise FileError(
            f"{place}: we need a string that is not empty, or an object with 'text' or 'sentence', got "
            f"{json.dumps(value)[:60]}.",
            field=FIELD,
        )
    if any("\ud800" <= letter <= "\udfff" for letter in found):  # which JSON can write, and UTF-8 cannot
        raise FileError(f"{place}: the sentence holds half of a character, {json.dumps(found)[:60]}.", field=FIELD)
    return found, label
