"""Defaults of options from a file: howsmooth.toml, or [tool.howsmooth] of pyproject.toml, in the folder or above it."""

import tomllib
from pathlib import Path
from typing import Any

from howsmooth.errors import FileError, nearest

FILE, SECTION = "howsmooth.toml", ("tool", "howsmooth")


def found_defaults(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the nearest file that holds defaults, and what it holds; none if there is none."""
    for place in (folder, *folder.parents):
        for file, section in ((place / FILE, ()), (place / "pyproject.toml", SECTION)):
            if not file.is_file():
                continue
            try:
                found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                if section:
                    continue  # another tool's file, and another tool's trouble
                raise FileError(f"{str(file)!r} cannot be read: {error}.") from error
            for key in section:
                found = found.get(key) if isinstance(found, dict) else None
            if isinstance(found, dict):
                return file, found
    return None


def defaults_for(name: str, parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the defaults of one command: those at the top for every command that has the option, then its own.

    Args:
        name: The command.
        parameters: Its parameters by name.
        folder: Where it runs.
    """
    read = found_defaults(folder)
    if read is None:
        return {}
    file, found = read
    own = found.get(name, {})
    keys = {key.replace("-", "_"): value for key, value in own.items()} if isinstance(own, dict) else {}
    if unknown := [key for key in keys if key not in parameters]:
        raise FileError(
            f"{str(file)!r}: howsmooth {name} has no option {unknown[0]!r}{nearest(unknown[0], parameters)}"
        )
    common = {key.replace("-", "_"): value for key, value in found.items() if not isinstance(value, dict)}
    chosen = {key: value for key, value in (common | keys).items() if key in parameters}
    return {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in chosen.items()}
