"""A view of the store for each kind of question, so that any tool that reads SQLite finds every field by its name."""

from typing import Annotated, Any, get_args, get_origin

import msgspec

from howsmooth.studies.kinds import Kind
from howsmooth.studies.values import Value


def view_of(kind: Kind) -> list[str]:
    """Return the statements that make the view of a kind: one column for each field that holds one value."""
    ask = _columns(kind.ask, "ask", "$")
    answer = _columns(kind.answer, "result", "$.answer")
    seconds = ["json_extract(result, '$.seconds') AS seconds"]
    body = ", ".join(["key", *ask, *answer, *seconds])
    chosen = f"json_extract(ask, '$.kind') = '{kind.name}'"
    return [
        f'DROP VIEW IF EXISTS "{kind.name}"',
        f'CREATE VIEW "{kind.name}" AS SELECT {body} FROM records WHERE {chosen}',
    ]


def _columns(kind: type[Value], column: str, path: str) -> list[str]:
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        place = f"{path}.{field.name}"
        if isinstance(field.type, type) and issubclass(field.type, Value):
            found += _columns(field.type, column, place)
        elif not _is_list(field.type):
            found.append(f"coalesce(json_extract({column}, '{place}'), {_literal(field.default)}) AS \"{field.name}\"")
    return found


def _is_list(hint: Any) -> bool:
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_origin(bare) in (tuple, list, dict) or bare in (tuple, list, dict)


def _literal(default: Any) -> str:
    """Write a default as SQLite does: fields that hold it are not in the JSON."""
    if isinstance(default, bool):
        return str(int(default))
    if isinstance(default, int | float):
        return repr(default)
    if isinstance(default, str):
        return "'" + default.replace("'", "''") + "'"
    return "NULL"
