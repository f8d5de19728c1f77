"""The type checker of the tests: beartype, for which a whole number is a float, as for every other checker.

A solver calls the same functions over and over, with shapes that repeat, and a check takes longer than most calls.
So a test has each function checked in its first calls, and in many more where it searches through drawn examples.
"""

import functools
import inspect
import sys
from collections import Counter

from beartype import BeartypeConf, beartype

CALLS, SEARCHED = 6, 240
_strict = beartype(conf=BeartypeConf(is_pep484_tower=True))
_limit = CALLS
_seen: Counter[str] = Counter()
_trusted: list = []
_inside: dict = {}


def checked(signature):
    """Check calls against a signature: jaxtyping hands over a function without a body, of the same name.

    A function inside another is made anew at each call of the other, and to make its check takes longer than most
    tests: such functions share the check of the first of them.
    """
    name = f"{signature.__module__}:{signature.__qualname__}"
    if "<locals>" not in name:
        return _checked(signature, name)
    key = f"{name} {signature.__annotations__}"
    if key not in _inside:
        _inside[key] = _checked(signature, name)
    return _inside[key]


def _checked(signature, name):
    check = _strict(signature)

    @functools.wraps(check)
    def counted(*args, **named):
        _seen[name] += 1
        if _seen[name] == _limit:
            _trust(name)
        return (check if _seen[name] <= _limit else signature)(*args, **named)

    return counted


def begin(*, calls: int = CALLS) -> None:
    """Begin a test: no function was called yet."""
    global _limit
    _limit = calls
    _seen.clear()
    while _trusted:
        del _trusted.pop().__no_type_check__


def _trust(name: str) -> None:
    """Mark the function behind a name as Python's typing has it, which jaxtyping obeys at every call."""
    module, path = name.split(":")
    found = sys.modules.get(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    found = getattr(found, "fget", None) or getattr(found, "func", None) or getattr(found, "__func__", found)
    if inspect.isfunction(found):  # those inside other functions are out of reach
        found = inspect.unwrap(found)
        found.__no_type_check__ = True
        _trusted.append(found)
