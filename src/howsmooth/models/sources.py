"""Where inputs come from: one reader for each kind of file; without torch."""

from collections.abc import Callable

from howsmooth.models.pictures import Pictures, read_pictures
from howsmooth.models.sentences import Sentences, read_sentences
from howsmooth.models.text import Text, read_text
from howsmooth.models.token_ids import TokenIds, read_token_ids

Source = Text | TokenIds | Sentences | Pictures
READERS: dict[str, Callable[[str], Source]] = {
    "text": read_text,
    "token_ids": read_token_ids,
    "sentences": read_sentences,
    "images": read_pictures,
}


def read_source(kind: str, place: str) -> Source:
    """Read a source: ``text``, ``token_ids``, ``sentences`` or ``images``.

    Raises:
        FileError: If there is no such file, or it holds something else.
    """
    return READERS[kind](place)
