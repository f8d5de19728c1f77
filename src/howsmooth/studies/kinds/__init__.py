"""What can be asked: a file declares one kind of question in ``KINDS``, or a few that belong together.

A kind is a typed ask, a typed answer, and ``run(batch, cell, resources)``, which answers the asks of one cell.
Everything else follows from these: keys, costs, batches and cells are properties of the ask; tables, exports and views
of the store come from the fields of both; study files from those of the ask. A kind with a command of its own declares
that command too, and how its records are summed up; its charts are declared in ``report/charts``.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from howsmooth.errors import AssumptionError, FieldError, nearest
from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.json_values import from_json

# Answers the asks of one cell; the batch says with which others they go through the model.
Run = Callable[[Sequence[Any], Sequence[Any], Any], list[Answer]]


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """A command of the command line that asks questions of one kind and keeps the answers in a run."""

    # the type of what it can be asked for, a :class:`~howsmooth.studies.settings.CommandSettings`: the command has an
    # option for each of its fields
    settings: type[Any]
    plan: Callable[[Any, Any], Any]  # checks the settings against the model and lists the asks, before any long work
    help: str  # what ``--help`` says
    results: str  # what its results are called in JSON
    done: str  # what was done with an ask, in a word
    # texts that are written beside the records, by the names of their files
    files: Callable[[Sequence[Any]], dict[str, str]] = lambda _records: {}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of question."""

    ask: type[Ask]  # the type of its asks
    answer: type[Answer]  # the type of its answers
    run: Run  # what answers them
    # sums records up: results have a ``sentence`` and ``to_json``, and show themselves in a console
    summarise: Callable[[Iterable[Any]], Sequence[Any]] | None = None
    command: RunCommand | None = None  # its command, if it has one

    @property
    def name(self) -> str:
        """What study files and stores call it."""
        return str(self.ask.__struct_config__.tag)

    @property
    def about(self) -> str:
        """What it asks, in a sentence."""
        return (self.ask.__doc__ or "").strip().splitlines()[0]


def kind_names() -> list[str]:
    """Return the names of all kinds."""
    return sorted(_declared(tuple(__path__)))


@functools.cache
def _declared(folders: tuple[str, ...]) -> dict[str, Kind]:
    # a kind is looked up for every record: the folders are not
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(folders))
    return {kind.name: kind for module in modules for kind in module.KINDS}


def kind_named(name: str) -> Kind:
    """Return a kind by its name."""
    found = _declared(tuple(__path__)).get(name)
    if found is None:
        raise AssumptionError(f"there is no kind {name!r}{nearest(name, kind_names())}", field="kind")
    return found


class _Tagged(msgspec.Struct):
    kind: str


def read_ask(text: str) -> Ask:
    """Read an ask that was written as JSON, whatever its kind."""
    kind = from_json(text, _Tagged).kind
    if kind not in kind_names():
        raise FieldError(f"there is no kind {kind!r} of question.", field="kind")
    return from_json(text, kind_named(kind).ask)
