"""Schemes of the user's own: a function in a file of Python."""

import runpy
from pathlib import Path

from howsmooth.budgets.schemes.scheme import UNROUNDED_BITS, Scheme, SchemeWords
from howsmooth.errors import AssumptionError, FileError

NAMES: list[str] = []


def read(words: SchemeWords) -> Scheme | None:
    """Read ``mine.py:function``, a function from a tensor to a rounded one; its attribute ``bits`` says its size."""
    if not words.first.endswith(".py"):
        return None
    if len(words.options) != 1:
        raise words.unknown("name one function of the file, as in mine.py:function")
    if not Path(words.first).is_file():
        raise FileError(f"there is no file {words.first!r} with the scheme {words.name!r}.", field="schemes")
    found = runpy.run_path(words.first).get(words.options[0])
    if not callable(found):
        raise AssumptionError(f"{words.first!r} has no function {words.options[0]!r}.", field="schemes")
    bits = float(getattr(found, "bits", UNROUNDED_BITS))
    return Scheme(name=words.name, rounded=lambda W, _name: found(W), number_bits=bits)
