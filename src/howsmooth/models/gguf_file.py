"""The header of a GGUF file, checked before its reader makes an object of every entry it speaks of."""

import struct
from pathlib import Path
from typing import BinaryIO

from howsmooth.errors import UnsupportedModelError
from howsmooth.files import require_room
from howsmooth.models.config_file import MOST_LAYERS

# Bytes of each kind of number, by the code of the format; 8 is a string, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
# Bytes of memory that the reader takes for each entry of an array: two views of the file.
EACH = 1024
# An entry of the header, and a tensor, have at least so many bytes.
ENTRY, TENSOR = 13, 24
LONGEST_NAME = 2**16 - 1


def check_gguf(path: Path) -> None:
    """Refuse a header that is damaged, or speaks of more than the file or the memory can hold.

    Raises:
        UnsupportedModelError: If it is damaged.
        FileError: If its arrays do not fit into memory.
    """
    with path.open("rb") as file:
        header = _Header(file, path)
        if file.read(4) != b"GGUF" or header.whole("I") not in (2, 3):
            raise header.damaged("it does not begin as GGUF of version 2 or 3")
        tensors, entries = header.whole("Q"), header.whole("Q")
        if TENSOR * tensors + ENTRY * entries > header.size:
            raise header.damaged(f"it speaks of {tensors:,} tensors and {entries:,} settings, and is shorter")
        for _entry in range(entries):
            header.entry()


class _Header:
    """A file that is read from its beginning; whatever does not fit into it is damage."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self._entries = file, path, 0
        self.size = path.stat().st_size

    def damaged(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{str(self._path)!r} is a file that holds no model, or is damaged: {why}; we need a .gguf file, or a "
            "folder with a config.json.",
            field="model",
        )

    def whole(self, code: str) -> int:
        size = struct.calcsize(code)
        found = self._file.read(size)
        if len(found) < size:
            raise self.damaged("its header is cut short")
        (number,) = struct.unpack(f"<{code}", found)
        return number

    def skip(self, size: int) -> None:
        if self._file.tell() + size > self.size:
            raise self.damaged(f"it speaks of {size:,} bytes at byte {self._file.tell():,}, and is shorter")
        self._file.seek(size, 1)

    def entry(self) -> None:
        length = self.whole("Q")
        if length > LONGEST_NAME:
            raise self.damaged(f"the name of a setting has {length:,} bytes")
        name, kind = self._file.read(length), self.whole("I")
        if name.endswith(b".block_count") and SIZES.get(kind) == 4:
            layers = self.whole("I")
            if layers > MOST_LAYERS:
                raise self.damaged(f"it speaks of {layers:,} layers")
        else:
            self.value(kind)

    def value(self, kind: int, depth: int = 0) -> None:
        if kind in SIZES:
            self.skip(SIZES[kind])
        elif kind == STRING:
            self.skip(self.whole("Q"))
        elif kind == ARRAY and depth < 4:
            self.array(depth)
        else:
            raise self.damaged(f"it speaks of a value of the kind {kind}")

    def array(self, depth: int) -> None:
        kind, count = self.whole("I"), self.whole("Q")
        self._entries += count
        require_room(EACH * self._entries, f"the header of {str(self._path)!r}", field="model")
        if kind in SIZES:
            self.skip(count * SIZES[kind])
            return
        for _entry in range(count):
            self.value(kind, depth + 1)
