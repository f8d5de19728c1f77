"""The lab as one HTML file that holds everything it needs; neither torch nor a network is asked for."""

import json
import os
from functools import cache
from pathlib import Path

from howsmooth.errors import FileError
from howsmooth.files import whole

ASSETS = Path(__file__).parent / "assets"
SHARED = Path(__file__).parents[1] / "report" / "assets"  # colours, and how they are remembered
# One program in several files, in the order in which they build on each other.
SCRIPTS = (
    *("numbers", "linear", "attention", "constants", "bounds", "transport", "search"),
    *("state", "scenes", "drawing", "stage", "readout", "controls", "main"),
)
# What ends a script element, or begins a comment in one.
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def write_lab(target: str | os.PathLike[str] = "lab.html") -> Path:
    """Write the lab; return where it is."""
    path = Path(target)
    if not path.parent.is_dir():
        raise FileError(f"there is no folder {os.fspath(path.parent)!r} for the lab.", field="target")
    if path.is_dir():
        raise FileError(
            f"the lab cannot be written to {os.fspath(path)!r}: that is a folder; name a file.", field="target"
        )
    try:
        with whole(path) as partial:
            partial.write_text(page(), encoding="utf-8")
    except OSError as error:
        raise FileError(f"the lab cannot be written to {os.fspath(path)!r}: {error.strerror or error}.") from error
    return path


@cache
def page() -> str:
    """Return the page.

    Example:
        >>> page().startswith("<!doctype html>"), len(page()) < 1_000_000
        (True, True)
    """
    parts = {
        "STYLE": _text(SHARED / "palette.css") + _text(ASSETS / "lab.css"),
        "THEME": _text(SHARED / "theme.js"),
        "DATA": _data(),
        "SCRIPT": _script(),
    }
    filled = _text(ASSETS / "lab.html")
    for name, part in parts.items():
        filled = filled.replace(f"@{name}@", part.rstrip("\n"))
    return filled


def _script() -> str:
    body = "".join(_text(ASSETS / f"{name}.js") for name in SCRIPTS)
    data = 'const DATA = JSON.parse(document.getElementById("lab-data").textContent);\n'
    return f'"use strict";\n(() => {{\n{data}{body}}})();\n'


def _data() -> str:
    text = json.dumps({"minilm": json.loads(_text(ASSETS / "minilm.json"))}, ensure_ascii=False, separators=(",", ":"))
    for character, escaped in UNSAFE.items():
        text = text.replace(character, escaped)
    return text


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
