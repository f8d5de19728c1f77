"""The index of public names: one line for each, its first sentence, room by room."""

import inspect
import operator
from typing import Any

from sphinx.application import Sphinx

import howsmooth as hs

PLACE = "<!-- names -->"
# In the order of the pages below the index.
ROOMS = {
    "maps": "Maps",
    "domains": "Where tokens may lie",
    "metrics": "How large a perturbation is",
    "spectral": "Measuring",
    "linear_operators": "Linear operators",
    "theory": "Bounds and witnesses",
    "transport": "Measures",
    "models": "Models",
    "search": "Worst inputs",
    "attacks": "Attacks",
    "tokens": "Tokens",
    "certificates": "Certificates",
    "verification": "Verification",
    "check": "Proof files",
    "budgets": "Error budgets",
    "scaled_dot_product": "Attention with derivatives of every order",
    "attention_calls": "Attention inside modules",
    "training": "Training",
    "studies": "Studies",
    "report": "Reports",
    "errors": "Errors",
}


def public() -> list[str]:
    """Return every public name by its shortest address: ``local_lipschitz``, ``maps.Chain``."""
    return [*(name for name in hs.__all__ if not inspect.ismodule(getattr(hs, name))), *_in_namespaces(hs, "")]


def _in_namespaces(module: Any, address: str) -> list[str]:
    """Return what the namespaces of a module hold, but for what is at the top level as well."""
    names: list[str] = []
    for name in inside(module):
        if inspect.ismodule(inner := getattr(module, name)):
            names += _in_namespaces(inner, f"{address}{name}.")
        elif address and name not in hs.__all__:
            names.append(address + name)
    return names


def inside(module: Any) -> list[str]:
    """Return what a module offers: its ``__all__``, or without one the classes that it defines itself."""
    own = (name for name, x in vars(module).items() if inspect.isclass(x) and x.__module__ == module.__name__)
    return sorted(getattr(module, "__all__", own))


def index() -> str:
    """Write a table for each room; the first sentence of a docstring says what a name is."""
    rooms: dict[str, list[str]] = {room: [] for room in ROOMS}
    for name in public():
        home = operator.attrgetter(name)(hs).__module__
        rooms.setdefault(home.split(".")[1], []).append(name)
    return "\n".join(_table(ROOMS.get(room, room), names) for room, names in rooms.items() if names)


def _table(title: str, names: list[str]) -> str:
    lines = "\n".join(f"   {name}" for name in names)
    directive = f".. currentmodule:: howsmooth\n\n.. autosummary::\n   :nosignatures:\n\n{lines}"
    return f"## {title}\n\n```{{eval-rst}}\n{directive}\n```\n"


def write(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the index in its place, as the page is read."""
    if PLACE in source[0]:
        source[0] = source[0].replace(PLACE, index())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
