"""Real text as windows of tokens: consecutive, non-overlapping, of exactly the length asked for."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from howsmooth.errors import AssumptionError, FileError

ALICE = "alice"


@dataclass(frozen=True, kw_only=True, repr=False)
class Text:
    """A text and where it came from.

    Attributes:
        name: The file, or ``alice`` for *Alice's Adventures in Wonderland*, which is shipped.
        content: The text itself.
    """

    name: str
    content: str

    @property
    def digest(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        """Say what it is, not what it says."""
        return f"Text({self.name!r}, {len(self.content)} characters)"


def read_text(path: str | os.PathLike[str] | None = None) -> Text:
    """Read a text file in UTF-8; without one, *Alice's Adventures in Wonderland*.

    Raises:
        FileError: If there is no such file, it is empty, or it is not text.
    """
    if path is None or os.fspath(path) == ALICE:
        shipped = resources.files("howsmooth.models") / "data" / "alice.txt"
        return Text(name=ALICE, content=shipped.read_text(encoding="utf-8"))
    name = os.fspath(path)
    if not Path(name).is_file():
        what = "a folder" if Path(name).is_dir() else "not there"
        raise FileError(f"the text must be a file, but {name!r} is {what}.")
    try:
        content = Path(name).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"the text must be UTF-8, but byte {error.start} of {name!r} is not; is it text? Convert it first."
        ) from error
    except OSError as error:
        raise FileError(f"{name!r} cannot be read: {error.strerror or error}.") from error
    if not content.strip():
        raise FileError(f"the text in {name!r} is empty; we need words to measure at.")
    if "\x00" in content:
        raise FileError(f"{name!r} is not text: it holds NUL characters.")
    return Text(name=name, content=content)


@runtime_checkable
class Tokenizer(Protocol):
    """What turns text into numbers."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return what the tokens look like."""
        ...

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that stand in front of an input and behind it."""
        ...


class HubTokenizer:
    """A tokenizer of the transformers library, without its truncation and padding."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._last: tuple[str, list[int]] = ("", [])

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        known, tokens = self._last
        if text != known:  # a book is cut into windows many times
            tokens = self._encode(text, special=False)
            self._last = text, tokens
        return tokens

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return what the tokens look like."""
        return [str(piece) for piece in self._inner.convert_ids_to_tokens(list(tokens))]

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that stand in front of an input and behind it."""
        bare, framed = self._encode("a", special=False), self._encode("a", special=True)
        for start in range(len(framed) - len(bare) + 1):
            if framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
        raise AssumptionError("the tokenizer changes a text when it adds special tokens; measure without them.")

    def _encode(self, text: str, *, special: bool) -> list[int]:
        # verbose: a book is longer than any model, which is no reason to warn
        found = self._inner(text, add_special_tokens=special, truncation=False, padding=False, verbose=False)
        return list(found["input_ids"])


class WordNumbers:
    """Words numbered in the order in which they first appear: for random weights any tokens are as good as others."""

    def __init__(self, vocabulary: int, *, first: int = 0) -> None:
        """Number words from ``first`` on: before it come special tokens, which a model may treat apart."""
        self._first, self._room = first, vocabulary - first
        self._words: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Return the numbers of the words; beyond the vocabulary they start again."""
        return [self._number(self._words.setdefault(word, len(self._words))) for word in text.split()]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the words."""
        names = {self._number(place): word for word, place in reversed(self._words.items())}
        return [names.get(token, str(token)) for token in tokens]

    def frame(self) -> tuple[list[int], list[int]]:
        """Return nothing: there are no special tokens."""
        return [], []

    def _number(self, place: int) -> int:
        return self._first + place % self._room


def windows(
    tokenizer: Tokenizer,
    text: Text,
    *,
    length: int,
    count: int,
    special_tokens: bool = False,
    stride: int | None = None,
) -> Int[Tensor, "count length"]:
    """Cut the first ``count`` windows of exactly ``length`` tokens from a text.

    Window i holds the tokens from ``i * stride`` on; the stride is the length unless it is given. With special tokens,
    which count towards the length, every window begins and ends as an input of the model does.

    Raises:
        AssumptionError: If the text is too short, or no window is asked for.
    """
    if count < 1:
        raise AssumptionError(f"count must be at least 1 window, got {count}.")
    tokens = tokenizer.encode(text.content)
    before, behind = tokenizer.frame() if special_tokens else ([], [])
    inner = length - len(before) - len(behind)
    if inner < 1:
        raise AssumptionError(f"a window of {length} tokens has no room beside {length - inner} special tokens.")
    step = inner if stride is None else stride
    if (count - 1) * step + inner > len(tokens):
        room = max(0, (len(tokens) - inner) // step + 1)
        raise AssumptionError(
            f"the text {text.name!r} has {len(tokens):,} tokens, enough for {room} windows of "
            f"{length}; {count} were asked for. Give a longer text, fewer windows, or shorter ones."
        )
    cut = [before + tokens[i * step : i * step + inner] + behind for i in range(count)]
    return torch.tensor(cut)
