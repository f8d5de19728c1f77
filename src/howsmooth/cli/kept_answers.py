"""Answers of commands in the user's cache folder: worth the time that they took, and nothing else.

A file for each, whole or not believed; all of them may be deleted at any time. Nothing is asked of the folder: where it
cannot be written to, nothing is kept.
"""

import contextlib
import hashlib
import os
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import howsmooth as hs
from howsmooth.files import whole
from howsmooth.models.loading.names import files_stamp
from howsmooth.studies.json_values import JsonValue, fingerprint, from_json
from howsmooth.studies.runs.database import checksum

A = TypeVar("A", bound=JsonValue)
# Names the folder; empty, nothing is kept.
VARIABLE = "HOWSMOOTH_CACHE"


def answers_folder() -> Path | None:
    """Return the folder of all answers; none if nothing is to be kept, or nobody has a home here."""
    if (given := os.environ.get(VARIABLE)) is not None:
        return Path(given) if given else None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return folder / "howsmooth" if folder.is_absolute() else None


def answer_file(model: str, question: Any) -> Path | None:
    """Return where the answer to a question about a model is kept; none if it cannot be known again.

    Its name is a hash of the question, of what tells that nobody wrote to files of the model, and of every line of this
    library: answers last for minutes of work, so that one computed anew for a changed comment costs little, and a
    correction is never missed.
    """
    folder, stamp = answers_folder(), files_stamp(model)
    if folder is None or stamp is None:
        return None
    code = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(hs.__path__[0]).rglob("*.py")):
        code.update(path.read_bytes())
    libraries = [metadata.version(name) for name in ("torch", "transformers")]
    return folder / f"{fingerprint([question, stamp, code.hexdigest(), libraries])}.json"


def kept_answer(file: Path | None, kind: type[A]) -> A | None:
    """Return the answer in a file; none if there is none, or it is damaged."""
    if file is None:
        return None
    try:
        found, _newline, text = file.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeError):
        return None
    return from_json(text, kind) if found == checksum(text) else None


def keep_answer(file: Path, answer: JsonValue) -> None:
    """Keep an answer, if that is possible; of two processes that do so at once each writes it whole."""
    text = answer.to_json()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as partial:
            partial.write_text(f"{checksum(text)}\n{text}", encoding="utf-8")
