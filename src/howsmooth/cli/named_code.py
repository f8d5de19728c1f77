"""Code of the user's own, ``FILE.py:NAME``: looked at before it is run, and run only because it was named."""

import ast
import importlib.util
import os
from pathlib import Path
from typing import Any

from howsmooth.errors import AssumptionError, FileError, nearest
from howsmooth.files import read_bytes


def check_code(source: str) -> tuple[Path, str]:
    """Return the file and the name in it, without running anything.

    Raises:
        AssumptionError: If it is not written as ``FILE.py:NAME``, or the file does not define the name.
        FileError: If there is no such file, or it is no Python.
    """
    file, colon, name = source.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise AssumptionError(f"name code as FILE.py:NAME, got {source!r}.", field="code")
    path = Path(file)
    if path.suffix != ".py":
        raise FileError(f"code is a .py file, got {file!r}.", field="code")
    if not path.is_file():
        raise FileError(f"there is no file {file!r}.", field="code")
    if not os.access(path, os.R_OK):
        raise FileError(f"{file!r} may not be read; see its permissions.", field="code")
    try:
        tree = ast.parse(read_bytes(path, "code", field="code"), file)
    except (SyntaxError, ValueError) as error:
        raise FileError(f"{file!r} is no Python: {error}.", field="code") from error
    known = sorted(_defined(tree))
    if name not in known and not _imports_everything(tree):
        raise AssumptionError(f"{file!r} defines no {name!r}{nearest(name, known)}", field="code")
    return path, name


def run_code(path: Path, name: str) -> Any:
    """Import the file and return what it calls ``name``; a function or class is called without arguments.

    A map or a module is taken as it is.
    """
    from torch import nn

    from howsmooth.spectral.protocols import Differentiable

    spec = importlib.util.spec_from_file_location(f"howsmooth_audited_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise FileError(f"{str(path)!r} cannot be imported.", field="code")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = getattr(module, name)
        ready = isinstance(found, nn.Module) or (isinstance(found, Differentiable) and not isinstance(found, type))
        made = found if ready or not callable(found) else found()
    except Exception as error:  # whatever the code of others raises
        raise AssumptionError(f"{path.name}:{name} failed: {type(error).__name__}: {error}", field="code") from error
    if not callable(made) and not isinstance(made, Differentiable):
        raise AssumptionError(
            f"{path.name}:{name} must give a map, a module or a callable on tensors, got {type(made).__name__}.",
            field="code",
        )
    return made


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that a file defines at its top level."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def _imports_everything(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree))
