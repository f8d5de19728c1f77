"""Files of inputs: token ids, sentences, pictures, and one reader for each kind of source; without torch."""

import csv
import hashlib
import importlib.util
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import AssumptionError, FileError
from howsmooth.files import read_bytes, require_room, require_size
from howsmooth.models.inputs.text import Text, read_text

if TYPE_CHECKING:
    from torch import Tensor

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Pillow may try these formats only, whatever the ending: for others, such as PostScript, it calls other programs.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
# The largest file, in bytes.
LARGEST_PICTURE = 2**30
# Bytes of memory for each pixel: its colours as they are stored, and as numbers.
BYTES_PER_PIXEL = 16
# Without an image processor, pixels are normalised as for most ViTs: from 0 … 1 to −1 … 1.
MEAN, DEVIATION = 0.5, 0.5
NOTE = "the model comes without an image processor: pictures were resized to its size, and brought to −1 … 1"
# Fields of errors.
TEXT, TOKEN_IDS, SENTENCES, IMAGES = "text", "token_ids", "sentences", "images"
# The keys of a sentence in a JSON object, and that of its class.
TEXT_KEYS, LABEL = ("text", "sentence"), "label"


@dataclass(frozen=True, kw_only=True, repr=False)
class Pictures:
    """Pictures and the folder that they come from."""

    name: str  # the folder
    files: tuple[str, ...]  # the names of the pictures in it, in alphabetical order
    digest: str  # a hash of their contents

    def __repr__(self) -> str:
        return f"Pictures({self.name!r}, {len(self.files)} pictures)"

    def open(self, index: int) -> Any:
        """Return one picture in red, green and blue."""
        from PIL import Image, UnidentifiedImageError

        file = os.path.join(self.name, self.files[index])
        try:
            with Image.open(file, formats=FORMATS) as picture:
                size = f"{picture.width} × {picture.height}"
                require_room(
                    BYTES_PER_PIXEL * picture.width * picture.height,
                    f"the picture {file!r} of {size} pixels",
                    field=IMAGES,
                )
                return picture.convert("RGB")
        except FileError:
            raise
        except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise FileError(f"the picture {file!r} cannot be read: {error}.", field=IMAGES) from error


def read_pictures(path: str | os.PathLike[str]) -> Pictures:
    """List the pictures in a folder; none of them is opened yet."""
    folder = Path(path)
    if not folder.is_dir():
        missing = "a file" if folder.exists() else "not there"
        raise FileError(f"images must be a folder of pictures, but {str(path)!r} is {missing}.", field=IMAGES)
    if importlib.util.find_spec("PIL") is None:
        raise FileError("pictures are read by Pillow, which is not installed; run: pip install pillow", field=IMAGES)
    files = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
    if not files:
        raise FileError(f"there is no picture ({', '.join(ENDINGS)}) in {str(path)!r}.", field=IMAGES)
    found = hashlib.sha256()
    for file in files:
        require_size(folder / file, "a picture", field=IMAGES, copies=1, most=LARGEST_PICTURE)
        found.update(hashlib.sha256((folder / file).read_bytes()).digest())
    return Pictures(name=os.fspath(path), files=tuple(files), digest=found.hexdigest()[:16])


def pixels(picture: Any, processor: Any | None, *, size: tuple[int, int]) -> "Tensor":
    """Return a picture as input of a model, (channels, height, width).

    Without an image processor it is resized and brought to −1 … 1.
    """
    import numpy as np
    import torch

    height, width = size
    if processor is not None:
        found = processor(images=picture, return_tensors="pt")["pixel_values"][0]
        if tuple(found.shape[-2:]) != size:
            raise AssumptionError(
                f"the model is made for pictures of {height} × {width} pixels, but the image processor beside it makes "
                f"{found.shape[-2]} × {found.shape[-1]}; is it of another model?",
                field=IMAGES,
            )
        return found
    values = torch.from_numpy(np.array(picture.resize((width, height)), dtype=np.float32) / 255)
    return ((values - MEAN) / DEVIATION).movedim(-1, 0)


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenIds:
    """Token ids and the file that they come from."""

    name: str  # the file
    rows: tuple[tuple[int, ...], ...]  # the ids; one long row is cut into windows, unless whole
    whole: bool  # whether each row is a sequence of its own

    @property
    def digest(self) -> str:
        """A hash of the ids."""
        return hashlib.sha256(json.dumps([self.whole, self.rows]).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"TokenIds({self.name!r}, {len(self.rows)} rows of {sum(map(len, self.rows))} tokens)"


def read_token_ids(path: str | os.PathLike[str]) -> TokenIds:
    """Read an ``.npy`` array of integers (one row to be cut, or rows), or ``.jsonl`` with a list on each line."""
    name = os.fspath(path)
    content = read_bytes(name, "a file of token ids", field=TOKEN_IDS)
    if name.endswith(".npy"):
        found = _array(content, name)
    elif name.endswith(".jsonl"):
        rows = tuple(
            _row(value, f"{name!r}, line {number}") for number, value in _json_lines(content, name, field=TOKEN_IDS)
        )
        found = TokenIds(name=name, rows=rows, whole=True)
    else:
        raise FileError(f"token ids are read from .npy and .jsonl files, got {name!r}.", field=TOKEN_IDS)
    if not any(found.rows):
        raise FileError(f"{name!r} holds no token ids; we need some to measure at.", field=TOKEN_IDS)
    return found


def _array(content: bytes, name: str) -> TokenIds:
    import numpy as np

    try:
        array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy parses headers as Python, which may raise anything
        raise FileError(f"{name!r} is no array of numpy without pickles: {error}.", field=TOKEN_IDS) from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise FileError(
            f"{name!r} must hold whole numbers, one row or a table of rows, got {array.dtype} of shape {array.shape}.",
            field=TOKEN_IDS,
        )
    rows = tuple(tuple(row) for row in np.atleast_2d(array).tolist())
    return TokenIds(name=name, rows=rows, whole=array.ndim == 2)


def _row(value: Any, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(number) is int for number in value):
        raise FileError(f"{place}: we need a list of whole numbers, got {str(value)[:40]!r}.", field=TOKEN_IDS)
    return tuple(value)


@dataclass(frozen=True, kw_only=True, repr=False)
class Sentences:
    """Sentences and the file that they come from."""

    name: str  # the file
    lines: tuple[str, ...]  # the sentences, in its order
    labels: tuple[str | int | None, ...]  # the expected class of each, by name or number; none if it is not given
    places: tuple[str, ...]  # where each stands: the file and the line

    @property
    def digest(self) -> str:
        """A hash of the sentences."""
        return hashlib.sha256(json.dumps(self.lines).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Sentences({self.name!r}, {len(self.lines)} sentences)"


def read_sentences(path: str | os.PathLike[str]) -> Sentences:
    """Read sentences, one on each line; in ``.jsonl`` a string, or an object with ``text`` or ``sentence``.

    Such an object may have a ``label``. In ``.csv`` and ``.tsv`` the first line names the columns, of which others than
    these are left out.
    """
    name = os.fspath(path)
    if not name.endswith((".jsonl", ".csv", ".tsv")):
        every = enumerate(read_text(name).content.splitlines(), start=1)
        return _listed(name, [(f"{name!r}, line {n}", line.strip(), None) for n, line in every if line.strip()])
    content = read_bytes(name, "a file of sentences", field=SENTENCES)
    values = _json_lines(content, name, field=SENTENCES) if name.endswith(".jsonl") else _table_lines(content, name)
    places = ((f"{name!r}, line {n}", value) for n, value in values)
    found = [(place, *_sentence(value, place)) for place, value in places]
    if not found:
        raise FileError(f"{name!r} holds no sentence; we need one on each line.", field=SENTENCES)
    return _listed(name, found)


def _listed(name: str, found: list[tuple[str, str, str | int | None]]) -> Sentences:
    places, lines, labels = zip(*found, strict=True) if found else ((), (), ())
    return Sentences(name=name, lines=lines, labels=labels, places=places)


def _table_lines(content: bytes, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the sentence and the label of each row of a table, with the number of its line."""
    rows = csv.reader(
        io.StringIO(_decoded(content, name, SENTENCES)), strict=True, delimiter="\t" if name.endswith(".tsv") else ","
    )
    try:
        head = [column.strip() for column in next(rows, [])]
        wanted = [column for column in (*TEXT_KEYS, LABEL) if column in head]
        if len([column for column in wanted if column in TEXT_KEYS]) != 1 or len(set(head)) < len(head):
            raise FileError(
                f"{name!r}, line 1: a table of sentences names its columns, 'text' or 'sentence' once, and 'label' if "
                f"at all, got {', '.join(map(repr, head))[:80] or 'nothing'}.",
                field=SENTENCES,
            )
        for row in rows:
            if not row:
                continue
            if len(row) != len(head):
                raise FileError(
                    f"{name!r}, line {rows.line_num}: there are {len(head)} columns, got {len(row)} cells; a cell with "
                    "a separator in it stands between quotes.",
                    field=SENTENCES,
                )
            yield rows.line_num, {column: row[head.index(column)] for column in wanted}
    except csv.Error as error:
        raise FileError(f"{name!r}, line {rows.line_num}: {error}.", field=SENTENCES) from error


def one_sentence(text: str) -> Sentences:
    """Return a sentence as a source of its own, which has no file."""
    return Sentences(name=text, lines=(text,), labels=(None,), places=("",))


def _sentence(value: Any, place: str) -> tuple[str, str | int | None]:
    given = value if isinstance(value, dict) else {TEXT_KEYS[0]: value}
    named = [key for key in TEXT_KEYS if key in given]
    if unknown := [key for key in given if key not in (*TEXT_KEYS, LABEL)] or named[1:]:
        raise FileError(
            f"{place}: an object holds a sentence as 'text' or 'sentence', and its class as 'label' if at all, got "
            f"{', '.join(map(repr, unknown))} besides; remove what is not used.",
            field=SENTENCES,
        )
    found, label = given.get(named[0]) if named else None, given.get(LABEL)
    if not isinstance(label, str | int | None) or isinstance(label, bool):
        raise FileError(
            f"{place}: 'label' must be the name or the number of a class, got {json.dumps(label)[:40]}.",
            field=SENTENCES,
        )
    if not isinstance(found, str) or not found.strip():
        raise FileError(
            f"{place}: we need a string that is not empty, or an object with 'text' or 'sentence', got "
            f"{json.dumps(value)[:60]}.",
            field=SENTENCES,
        )
    if any("\ud800" <= letter <= "\udfff" for letter in found):  # JSON can write these, UTF-8 cannot
        raise FileError(f"{place}: the sentence holds half of a character, {json.dumps(found)[:60]}.", field=SENTENCES)
    return found, label


Source = Text | TokenIds | Sentences | Pictures
READERS: dict[str, Callable[[str], Source]] = {
    "text": read_text,
    "token_ids": read_token_ids,
    "sentence": one_sentence,
    "sentences": read_sentences,
    "images": read_pictures,
}


# What Python users hold in memory, by the name that stands for it in place of a file.
_HELD: dict[str, Source] = {}


def read_source(kind: str, place: str) -> Source:
    """Read a source: ``text``, ``token_ids``, ``sentence``, ``sentences`` or ``images``."""
    return _HELD[place] if place in _HELD else READERS[kind](place)


@contextmanager
def held(kind: str, given: Any) -> Iterator[str]:
    """Keep a source that is no file, and yield the name under which :func:`read_source` finds it meanwhile.

    Of token ids, a single row is cut as a text is.
    """
    if kind == TEXT:
        source: Source = Text(name="", content=given)
    elif kind == SENTENCES:
        found = [(f"sentence {i}", *_sentence(value, f"sentence {i}")) for i, value in enumerate(given)]
        if not found:
            raise FileError("sentences must hold one at least, got none.", field=SENTENCES)
        source = _listed("", found)
    else:
        from howsmooth.validation import token_ids  # torch, for those who have tensors

        rows = token_ids(given).tolist() if hasattr(given, "tolist") else list(given)
        whole = bool(rows) and not isinstance(rows[0], int)
        ids = tuple(_row(list(row), f"row {i} of token_ids") for i, row in enumerate(rows if whole else [rows]))
        source = TokenIds(name="", rows=ids, whole=whole)
    words = {TEXT: "a text", SENTENCES: "sentences", TOKEN_IDS: "token ids"}
    name = f"{words[kind]} in memory, {source.digest[:6]}"
    _HELD[name] = replace(source, name=name)
    try:
        yield name
    finally:
        _HELD.pop(name, None)


def _json_lines(content: bytes, name: str, *, field: str) -> Iterator[tuple[int, Any]]:
    """Yield the value on each line that is not empty, with the number of the line."""
    # not splitlines: JSON strings may hold other separators
    for number, line in enumerate(_decoded(content, name, field).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FileError(
                f"{name!r}, line {number}: a line must be JSON by itself, got {line.strip()[:40]!r}.", field=field
            ) from error


def _decoded(content: bytes, name: str, field: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{name!r} must be UTF-8, but byte {error.start} is not.", field=field) from error
