"""Where runs lie: folders that can be written to, and the file that makes a folder a run."""

import os
from pathlib import Path

from howsmooth.errors import FileError

FILE = "records.sqlite"


def check_writable(folder: Path) -> None:
    """Refuse a folder that is not there and cannot be made, or cannot be written to; nothing is made yet."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise FileError(
            f"{str(folder)!r} cannot be a folder: {str(nearest)!r} is a file; give another with --out.", field="out"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FileError(f"the folder {str(nearest)!r} cannot be written to; give another one with --out.", field="out")


def make(folder: Path) -> None:
    """Make a folder for a run."""
    check_writable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder {str(folder)!r} cannot be made: {error.strerror or error}.") from error
