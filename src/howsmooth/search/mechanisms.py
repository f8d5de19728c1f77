"""Attention mechanisms by name: the same projections, with another rule from scores to weights."""

import ast
import dataclasses
import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import howsmooth.maps
from howsmooth.errors import AssumptionError, nearest

if TYPE_CHECKING:
    from howsmooth.maps.attention import Attention
    from howsmooth.maps.heads import MultiHead


def _declared(field: str) -> list[tuple[str, str, Any]]:
    """Return the values that classes of ``maps`` give a field, with their modules and names.

    They are read from the sources, since the command line lists the kinds before it imports torch.
    """
    folder, found = Path(howsmooth.maps.__path__[0]), []
    for path in (folder / "attention.py", *sorted((folder / "mechanisms").glob("*.py"))):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for part in (part for part in node.body if isinstance(part, ast.AnnAssign)):
                if ast.unparse(part.target) == field and part.value is not None:
                    found.append((module, node.name, ast.literal_eval(part.value)))
    return sorted(found, key=lambda row: (row[0] != "attention", row[1]))


# The module and class of each mechanism, and the fields that select it.
MECHANISMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    kind: (module, name, fields) for module, name, kinds in _declared("kinds") for kind, fields in kinds.items()
}

# These count tokens: on measures they need `count`, the number of tokens that unit mass represents.
COUNTING = tuple(kind for _module, _name, kinds in _declared("counting_kinds") for kind in kinds)


def check_kind(kind: str) -> str:
    """Refuse a name of no mechanism; without torch."""
    if kind not in MECHANISMS:
        raise AssumptionError(f"there is no kind of attention called {kind!r}{nearest(kind, MECHANISMS)}", field="kind")
    return kind


def require_count(kind: str, count: float | None) -> None:
    """Refuse a kind that counts tokens without their number, and a number for one that does not; without torch."""
    if kind in COUNTING and count is None:
        raise AssumptionError(
            f"attention of the kind {kind!r} counts tokens; give count=, how many unit mass represents.",
            field="count",
        )
    if kind not in COUNTING and count is not None:
        raise AssumptionError(f"attention of the kind {kind!r} does not count tokens; leave count= out.", field="count")
    if count is not None and not 0 < count < math.inf:
        raise AssumptionError(f"count must be positive and finite, got {count}.", field="count")


def is_plain_softmax(attention: object) -> "TypeGuard[Attention]":
    """Tell whether attention is a softmax without sinks, for which theory knows explicit worst inputs."""
    from howsmooth.maps.attention import Attention

    return isinstance(attention, Attention) and attention.sink is None


def of_kind(attention: "Attention", kind: str) -> "MultiHead":
    """Return attention of another kind with the weights of a softmax layer; with tied keys, keys are the queries."""
    file, name, more = MECHANISMS[check_kind(kind)]
    if kind == "softmax":
        return attention
    if kind == "off-by-one":
        return dataclasses.replace(attention, sink=attention.query.new_zeros(attention.layout.heads))
    cls = getattr(importlib.import_module(f"howsmooth.maps.{file}"), name)
    taken = {field.name for field in dataclasses.fields(cls)}
    given = {field.name: getattr(attention, field.name) for field in dataclasses.fields(attention)}
    missing = [field for field in ("softcap", "sink") if field not in taken and given[field] is not None]
    if missing:
        raise AssumptionError(f"attention of the kind {kind!r} has no {missing[0]}.", field="kind")
    fields = {field: value for field, value in given.items() if field in taken}
    if more.get("tied"):
        heads, groups = attention.layout[:2]
        if heads != groups:
            raise AssumptionError(
                f"tied keys are the queries of their own heads, but here {heads} heads share the keys of {groups}.",
                field="kind",
            )
        fields |= {"key": attention.query, "key_bias": attention.query_bias}
    made: MultiHead = cls(**fields | more)
    return made
