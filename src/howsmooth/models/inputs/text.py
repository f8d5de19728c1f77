"""Texts, tokenizers and windows of tokens; without torch, so that a wrong file is refused before torch is imported."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol, runtime_checkable

from howsmooth.errors import AssumptionError, FileError, UnsupportedModelError
from howsmooth.files import read_bytes

ALICE = "alice"
# Advice for a tokenizer that is missing or wrong.
OTHER_WAYS = "Give another with tokenizer=, or the numbers of tokens themselves with token_ids=, a .npy or .jsonl file."
SpecialTokens = tuple[list[int], list[int]]


@dataclass(frozen=True, kw_only=True, repr=False)
class Text:
    """A text and the file that it comes from."""

    name: str  # the file, or alice for *Alice's Adventures in Wonderland*, which is shipped
    content: str  # the text itself

    @property
    def digest(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Text({self.name!r}, {len(self.content)} characters)"


def read_text(path: str | os.PathLike[str] | None = None) -> Text:
    """Read a text file in UTF-8; without one, *Alice's Adventures in Wonderland*."""
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


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the tokens as strings."""

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the special tokens in front of an input and behind it."""

    @property
    def unknown(self) -> int | None:
        """The id of unknown words; none if there is no such id."""


def tokens_of(tokenizer: Tokenizer, content: str, name: str) -> list[int]:
    """Return the tokens of a text, if most of its words are in the vocabulary."""
    tokens = tokenizer.encode(content)
    unknown = 0 if tokenizer.unknown is None else tokens.count(tokenizer.unknown)
    if tokens and 2 * unknown <= len(tokens):
        return tokens
    share = f"{unknown:,} of the {len(tokens):,} tokens of {name!r} are unknown" if tokens else f"{name!r} is nothing"
    raise UnsupportedModelError(f"{share} to the tokenizer; is it of another model? {OTHER_WAYS}", field="tokenizer")


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
        """Return the tokens as strings."""
        return [str(piece) for piece in self._inner.convert_ids_to_tokens(list(tokens))]

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the special tokens in front of an input and behind it."""
        bare, framed = self._encode("a", special=False), self._encode("a", special=True)
        for start in range(len(framed) - len(bare) + 1):
            if framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
        raise AssumptionError(
            "the tokenizer changes a text when it adds special tokens; measure without them.", field="special_tokens"
        )

    @property
    def unknown(self) -> int | None:
        """The id of unknown words; none if there is no such id."""
        return getattr(self._inner, "unk_token_id", None)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; encoding it may give other tokens."""
        return str(self._inner.decode(list(tokens), clean_up_tokenization_spaces=False))

    @property
    def special(self) -> frozenset[int]:
        """The ids of special tokens."""
        return frozenset(self._inner.all_special_ids)

    @property
    def size(self) -> int:
        """The size of the vocabulary."""
        return len(self._inner)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # a command line that is not UTF-8, or half of a surrogate pair from JSON
            raise AssumptionError(
                f"a text must be made of whole characters, but the one at {error.start} of {text[:40]!r} is none; is "
                "it UTF-8?",
                field="text",
            ) from error
        # not verbose: a text may be longer than the model allows
        found = self._inner(text, add_special_tokens=special, truncation=False, padding=False, verbose=False)
        return list(found["input_ids"])


class WordNumbers:
    """Words numbered in the order in which they first appear, for models with random weights."""

    def __init__(self, vocabulary: int, *, first: int = 0) -> None:
        """Number words from ``first`` on: smaller ids are special tokens, which a model may treat differently."""
        self._first, self._room = first, vocabulary - first
        self._words: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words, modulo the vocabulary."""
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
        """None: every word has an id."""
        return None

    def _number(self, place: int) -> int:
        return self._first + place % self._room


def cut(
    tokens: list[int],
    name: str,
    indices: Sequence[int],
    *,
    length: int,
    frame: SpecialTokens = ([], []),
    stride: int | None = None,
) -> list[list[int]]:
    """Cut windows of exactly ``length`` tokens out of a text.

    Window i holds the tokens from ``i * stride`` on; by default the stride is the length. Special tokens, which count
    towards the length, make every window begin and end as an input of the model does.
    """
    if not indices:
        raise AssumptionError("count must be at least 1 window, got 0.", field="sequences")
    inner, step = _layout(frame, length, stride)
    count, enough = max(indices) + 1, window_count(tokens, length=length, frame=frame, stride=stride)
    if enough < count:
        raise AssumptionError(
            f"the text {name!r} has {len(tokens):,} tokens, enough for {enough} windows of "
            f"{length}; {count} were asked for. Give a longer text, fewer windows, or shorter ones.",
            field="sequences",
        )
    before, behind = frame
    return [before + tokens[i * step : i * step + inner] + behind for i in indices]


def window_count(
    tokens: Sequence[int], *, length: int, frame: SpecialTokens = ([], []), stride: int | None = None
) -> int:
    """Count the windows that :func:`cut` finds room for."""
    inner, step = _layout(frame, length, stride)
    return max(0, (len(tokens) - inner) // step + 1)


def _layout(frame: SpecialTokens, length: int, stride: int | None) -> tuple[int, int]:
    """Return how many tokens of the text a window holds, and how far apart windows begin."""
    special = sum(map(len, frame))
    if length <= special:
        raise AssumptionError(
            f"a window of {length} tokens has no room beside {special} special tokens.", field="length"
        )
    if stride is not None and stride < 1:
        raise AssumptionError(f"stride must be at least 1 token, got {stride}.", field="stride")
    return length - special, length - special if stride is None else stride
