"""Tokens as a reader wants them: whatever the vocabulary, running text."""

import unicodedata
from collections.abc import Iterator, Sequence

from howsmooth.wording import visible

# How vocabularies write a space before a word and a newline (bytes, SentencePiece), and a word that goes on (BERT).
BYTE_MARKS, WRITTEN, GOES_ON = ("Ġ", "Ċ"), {"▁": " ", "<0x0A>": "\n"}, "##"
# Byte vocabularies show a byte that is no printable Latin-1 character as the next one from 256 on.
PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
HIDDEN = tuple(byte for byte in range(256) if byte not in PRINTABLE)
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(HIDDEN)}
SIGNS = str.maketrans({"\n": "⏎", "\t": "⇥"})


def running_text(tokens: Sequence[str]) -> str:
    """Return tokens as a reader wants them."""
    return "".join(f" {word}" if space else word for space, word in words(tokens)).strip()


def words(tokens: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Yield whether a space comes before each token, and the token as a reader wants it."""
    in_bytes = any(mark in token for token in tokens for mark in BYTE_MARKS)
    pieces = [_decoded(token) if in_bytes else token for token in tokens]
    for mark, meaning in WRITTEN.items():
        pieces = [piece.replace(mark, meaning) for piece in pieces]
    marked = any(piece.startswith(" ") for piece in pieces)
    for piece in pieces:
        yield piece.startswith(" ") if marked else not piece.startswith(GOES_ON), _readable(piece)


def _decoded(token: str) -> str:
    if not all(c in BYTES for c in token):
        return token
    return bytes(BYTES[c] for c in token).decode(errors="replace")


def _readable(piece: str) -> str:
    text = visible((piece.removeprefix(GOES_ON) or piece).translate(SIGNS))
    return text.strip() or "␣"


def columns_of(text: str) -> int:
    """Count the columns of monospace text: two for a wide character, none for one that joins or combines."""
    widths = {"W": 2, "F": 2}
    plain = (c for c in text if unicodedata.category(c) not in ("Mn", "Me", "Cf"))
    return sum(widths.get(unicodedata.east_asian_width(c), 1) for c in plain) or 1
