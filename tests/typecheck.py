"""The type checker of the tests: beartype, for which a whole number is a float, as for every other checker.

A solver calls the same functions over and over, with shapes that repeat, and a check takes longer than most calls.
So each function is checked in its first calls of a test file and, as later tests may have other shapes, anew in every
eighth test; a test that searches through drawn examples has many more calls checked.
"""

import functools
import inspect
import sys
from collections import Counter
from zlib import crc32

from beartype import BeartypeConf, beartype

CALLS, SEARCHED = 6, 60
EVERY = 8
_strict = beartype(conf=BeartypeConf(is_pep484_tower=True))
_limit, _file = CALLS, ""
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
    # made at the first call: to make the checks of all functions takes longer than to import the library
    check = functools.cache(lambda: _strict(signature))

    @functools.wraps(signature)
    def counted(*args, **named):
        _seen[name] += 1
        if _seen[name] == _limit:
            _trust(name)
        return (check() if _seen[name] <= _limit else signature)(*args, **named)

    return counted


def begin_test(node: str, *, searches: bool) -> None:
    """Count calls anew where a file begins, in every eighth test, and in a search through drawn examples."""
    global _file
    file = node.partition("::")[0]
    if searches or file != _file or crc32(node.encode()) % EVERY == 0:
        begin(calls=SEARCHED if searches else CALLS)
    # after a search, functions are checked anew in the next test
    _file = "" if searches else file


def begin(*, calls: int = CALLS) -> None:
    """Begin to count: no function was called yet."""
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
