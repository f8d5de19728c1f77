"""Film reviews with ratings, from a file that the user has; read without torch."""

import functools
import hashlib
import io
import os
import re
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from howsmooth.errors import FileError
from howsmooth.files import read_bytes, require_room

# The source distribution that holds them, under the MIT licence; what is in it, and in what is in that.
PACKAGE = "vaderSentiment-3.3.2.tar.gz"
COMMAND = "pip download --no-deps --no-binary :all: vaderSentiment==3.3.2"
INNER, SNIPPETS = "hutto_ICWSM_2014.tar.gz", "movieReviewSnippets_GroundTruth.txt"
# Marks that every vocabulary begins with, and the longest sentence with them.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LONGEST = 32


@dataclass(frozen=True, kw_only=True)
class Reviews:
    """Sentences, one for a good film, zero for a bad one.

    Attributes:
        rows: Sentences with their labels.
        digest: A hash of the file's contents.
    """

    rows: tuple[tuple[str, int], ...]
    digest: str


def find_reviews(given: str = "") -> Path:
    """Return where reviews are: the file that was given, or the package in this folder.

    Raises:
        FileError: If there is none.
    """
    path = Path(given or PACKAGE)
    if not path.is_file():
        missing = f"{given!r} is no file" if given else f"there is no {PACKAGE} here"
        raise FileError(
            f"training needs rated reviews, but {missing}; get them with {COMMAND}, or name their file with --reviews.",
            field="reviews",
        )
    return path


@functools.lru_cache(maxsize=2)
def read_reviews(path: str | os.PathLike[str]) -> Reviews:
    """Read reviews: the package, or a text of lines with a number, a rating and a sentence between tabs.

    Raises:
        FileError: If it holds none.
    """
    path = Path(path)
    raw = read_bytes(path, "a file of reviews", field="reviews")
    try:
        text = (_unpacked(raw) if path.name.endswith(".tar.gz") else raw).decode("latin-1")
        rows = [line.split("\t", 2) for line in text.splitlines() if line.strip()]
        found = tuple((text, int(float(rating) > 0)) for _number, rating, text in rows if float(rating) != 0)
    except FileError:
        raise
    except (OSError, ValueError, tarfile.TarError, StopIteration) as error:
        raise FileError(
            f"{os.fspath(path)!r} holds no reviews: lines of a number, a rating and a sentence, tabs between, or "
            f"{PACKAGE} as pip downloads it.",
            field="reviews",
        ) from error
    if len(found) < 200 or len({label for _text, label in found}) < 2:
        raise FileError(
            f"{os.fspath(path)!r} holds {len(found)} rated sentences; training needs 200, good and bad ones.",
            field="reviews",
        )
    return Reviews(rows=found, digest=hashlib.sha256(text.encode()).hexdigest()[:16])


def _unpacked(raw: bytes) -> bytes:
    with (
        tarfile.open(fileobj=io.BytesIO(raw)) as outer,
        tarfile.open(fileobj=io.BytesIO(_member(outer, INNER))) as archive,
    ):
        return _member(archive, SNIPPETS)


def _member(archive: tarfile.TarFile, ending: str) -> bytes:
    member = next(member for member in archive.getmembers() if member.name.endswith(ending))
    require_room(member.size, f"{member.name!r} in the package, unpacked,", field="reviews")
    found = archive.extractfile(member)
    if found is None:
        raise tarfile.TarError(ending)
    return found.read()


def words(text: str) -> list[str]:
    """Cut a sentence into lower-case words and signs."""
    return re.findall(r"[a-z0-9']+|[^\sa-z0-9']", text.lower())


def vocabulary(texts: "list[str]", size: int) -> dict[str, int]:
    """Number the most frequent words, special ones first."""
    counts = Counter(word for text in texts for word in words(text))
    return {word: i for i, word in enumerate((*SPECIAL, *(word for word, _count in counts.most_common(size))))}


def encode(text: str, numbers: dict[str, int]) -> list[int]:
    """Return the numbers of the words of a sentence between its two marks."""
    found = [numbers.get(word, numbers["[UNK]"]) for word in words(text)][: LONGEST - 2]
    return [numbers["[CLS]"], *found, numbers["[SEP]"]]
