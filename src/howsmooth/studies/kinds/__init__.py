"""What can be asked: one file for each kind of question.

A file holds a typed ``Ask``, a typed ``Answer``, and ``run(batch, cell, resources)``, which answers the asks of one
cell. Everything else works because of what these declare: keys, costs, batches and cells are properties of the ask;
tables, exports and views of the store come from the fields of both; study files from those of the ask.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from howsmooth.errors import AssumptionError, FieldError, nearest
from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.json_values import from_json

# Answers the asks of one cell; the batch says with which others they go through the model.
Run = Callable[[Sequence[Any], Sequence[Any], Any], list[Answer]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of question.

    Attributes:
        name: What study files and stores call it.
        about: What it asks, in a sentence.
        ask: The type of its asks.
        answer: The type of its answers.
        run: What answers them.
    """

    name: str
    about: str
    ask: type[Ask]
    answer: type[Answer]
    run: Run


def kind_names() -> list[str]:
    """Return the names of all kinds, without loading any."""
    return list(_walked(tuple(__path__)))


@functools.cache
def _walked(folders: tuple[str, ...]) -> tuple[str, ...]:
    # a kind is looked up for every record: the folder is not
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders)))


def kind_named(name: str) -> Kind:
    """Return a kind by its name.

    Raises:
        AssumptionError: If there is none.
    """
    if name not in kind_names():
        raise AssumptionError(f"there is no kind {name!r}{nearest(name, kind_names())}", field="kind")
    module = importlib.import_module(f"{__name__}.{name}")
    about = (module.__doc__ or "").strip().splitlines()[0]
    return Kind(name=name, about=about, ask=module.Ask, answer=module.Answer, run=module.run)


def read_ask(text: str) -> Ask:
    """Read an ask that was written as JSON, whatever its kind.

    Raises:
        FieldError: If it is none.
    """
    return from_json(text, kind_named(_tag(text)).ask)


class _Tagged(msgspec.Struct):
    kind: str


def _tag(text: str) -> str:
    kind = from_json(text, _Tagged).kind
    if kind not in kind_names():
        raise FieldError(f"there is no kind {kind!r} of question.", field="kind")
    return kind
