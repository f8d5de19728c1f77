"""Texts, and what turns them into numbers; without torch, so that a wrong file is told before it is imported."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol, runtime_checkable

from howsmooth.errors import AssumptionError, FileError, UnsupportedModelError
from howsmooth.files import read_bytes

ALICE = "alice"
# What to do about a tokenizer that is missing or wrong.
OTHER_WAYS = "Give another with --tokenizer, or the numbers of tokens themselves with --token-ids FILE.npy or .jsonl."


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
    try:
        content = read_bytes(name, "the text", field="text").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"the text must be UTF-8, but byte {error.start} of {name!r} is not; is it text? Convert it first.",
            field="text",
        ) from error
    if not content.strip():
        raise FileError(f"the text in {name!r} is empty; we need words to measure at.", field="text")
    if "\x00" in content:
        raise FileError(f"{name!r} is not text: it holds NUL characters.", field="text")
    return Text(name=name, content=content)


def check_text(path: str | os.PathLike[str] | None) -> None:
    """Refuse what :func:`read_text` would refuse.

    Raises:
        FileError: If there is no such file, it is empty, or it is not text.
    """
    read_text(path)


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

    @property
    def unknown(self) -> int | None:
        """The number that stands for every word that is not known; none if there is no such number."""
        ...


def tokens_of(tokenizer: Tokenizer, content: str, name: str) -> list[int]:
    """Return the tokens of a text, if the tokenizer knows its words.

    Raises:
        UnsupportedModelError: If it knows less than half of them: a table of [UNK] would look like any other.
    """
    tokens = tokenizer.encode(content)
    unknown = 0 if tokenizer.unknown is None else tokens.count(tokenizer.unknown)
    if tokens and 2 * unknown <= len(tokens):
        return tokens
    said = (
        f"{unknown:,} of the {len(tokens):,} tokens of {name!r} are unknown to" if tokens else f"{name!r} is nothing to"
    )
    raise UnsupportedModelError(f"{said} the tokenizer; is it of another model? {OTHER_WAYS}", field="tokenizer")


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
        raise AssumptionError(
            "the tokenizer changes a text when it adds special tokens; measure without them.", field="special_tokens"
        )

    @property
    def unknown(self) -> int | None:
        """The number that stands for every word that is not known; none if there is no such number."""
        return getattr(self._inner, "unk_token_id", None)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, which may be read as others."""
        return str(self._inner.decode(list(tokens), clean_up_tokenization_spaces=False))

    @property
    def special(self) -> frozenset[int]:
        """The tokens that stand for no word."""
        return frozenset(self._inner.all_special_ids)

    @property
    def size(self) -> int:
        """How many tokens it knows."""
        return len(self._inner)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # a command line that is no UTF-8, or half of a character from JSON
            raise AssumptionError(
                f"a text must be made of whole characters, but the one at {error.start} of {text[:40]!r} is none; is "
                "it UTF-8?",
                field="text",
            ) from error
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

    @property
    def unknown(self) -> None:
        """Nothing: every word has a number."""
        return None

    def _number(self, place: int) -> int:
        return self._first + place % self._room
