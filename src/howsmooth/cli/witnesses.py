"""Keep the worst input that was found: where to, checked before the work, and how, after it."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.cli.printing import say
from howsmooth.errors import FileError

if TYPE_CHECKING:
    from howsmooth.theory.results import Witness


def require_writable(target: Path, sources: Iterable[Path]) -> None:
    """Refuse a target that cannot be written, or that would write over a file that is read."""
    if target.suffix != ".safetensors":
        raise FileError(f"--save writes a .safetensors file, got {target.name!r}; change the ending.", field="save")
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {str(target.parent)!r} to save to; make it first.", field="save")
    if target.exists():
        if not target.is_file() or not os.access(target, os.W_OK):
            raise FileError(f"{str(target)!r} cannot be written over; save under another name.", field="save")
        if any(source.samefile(target) for source in sources):
            raise FileError(
                f"--save {str(target)!r} would write over the weights; save under another name.", field="save"
            )
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise FileError(f"nothing can be saved to {str(target.parent)!r}: {error.strerror}.", field="save") from error


def save_witness(witness: "Witness", target: Path, about: dict[str, str], *, quiet: bool) -> None:
    """Keep the input and say where; the talk goes to standard error where standard output is for JSON."""
    from safetensors import SafetensorError

    try:
        witness.save(target, about=about)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{str(target)!r} could not be written: {error}", field="save") from error
    say(f"Saved tokens, direction and response to {target}.", err=quiet)
