"""Numbers of tokens in a file, for models whose tokenizer is elsewhere; without torch."""

import hashlib
import io
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from howsmooth.errors import FileError
from howsmooth.files import HEADER, read_bytes, require_array
from howsmooth.models.lines import json_lines

FIELD = "token_ids"
# Bytes of memory for each number: an object, and the place that points at it.
EACH = 40


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenIds:
    """Numbers of tokens and where they came from.

    Attributes:
        name: The file.
        rows: The numbers; one long row is cut into windows, unless ``whole``.
        whole: Whether each row is a sequence of its own.
    """

    name: str
    rows: tuple[tuple[int, ...], ...]
    whole: bool

    @property
    def digest(self) -> str:
        """A hash of the numbers."""
        return hashlib.sha256(json.dumps([self.whole, self.rows]).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        """Say how many there are."""
        return f"TokenIds({self.name!r}, {len(self.rows)} rows of {sum(map(len, self.rows))} tokens)"


def read_token_ids(path: str | os.PathLike[str]) -> TokenIds:
    """Read an ``.npy`` array of whole numbers (one row to be cut, or rows), or ``.jsonl`` with a list on each line.

    Raises:
        FileError: If there is no such file, or it holds something else.
    """
    name = os.fspath(path)
    content = read_bytes(name, "a file of token ids", field=FIELD)
    if name.endswith(".npy"):
        found = _array(content, name)
    elif name.endswith(".jsonl"):
        rows = tuple(
            _row(value, f"{name!r}, line {number}") for number, value in json_lines(content, name, field=FIELD)
        )
        found = TokenIds(name=name, rows=rows, whole=True)
    else:
        raise FileError(f"token ids are read from .npy and .jsonl files, got {name!r}.", field=FIELD)
    if not any(found.rows):
        raise FileError(f"{name!r} holds no token ids; we need some to measure at.", field=FIELD)
    return found


def _array(content: bytes, name: str) -> TokenIds:
    try:
        require_array(content[:HEADER], len(content), name, each=EACH, field=FIELD)
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except FileError:
        raise
    except Exception as error:  # numpy parses headers as Python, which may go wrong in any way
        raise FileError(f"{name!r} is no array of numpy without pickles: {error}.", field=FIELD) from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise FileError(
            f"{name!r} must hold whole numbers, one row or a table of rows, got {array.dtype} of shape {array.shape}.",
            field=FIELD,
        )
    rows = tuple(tuple(row) for row in np.atleast_2d(array).tolist())
    return TokenIds(name=name, rows=rows, whole=array.ndim == 2)


def _row(value: Any, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(number) is int for number in value):
        raise FileError(f"{place}: we need a list of whole numbers, got {str(value)[:40]!r}.", field=FIELD)
    return tuple(value)
