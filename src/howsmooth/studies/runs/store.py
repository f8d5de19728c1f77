"""The records of a run, typed again when they are read: every one is there whole, or is not believed.

Other tools read them as views of the database, or as one flat table.
"""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec.structs import replace

from howsmooth.errors import FieldError, FileError
from howsmooth.files import whole
from howsmooth.studies.asks import Ask
from howsmooth.studies.json_values import JsonValue, columns, from_json, to_json
from howsmooth.studies.kinds import Kind, kind_named, read_ask
from howsmooth.studies.records import Failure, Machine, Outcome, Record, RunPlan
from howsmooth.studies.runs.database import FILE, Database


class Result(JsonValue, frozen=True, kw_only=True):
    """What is written of a record beside its ask; the answer stays JSON until its kind is known."""

    answer: msgspec.Raw
    machine: Machine
    seconds: float = 0.0


class Store:
    """The records of one run, in a folder of its own or in memory."""

    def __init__(self, folder: str | os.PathLike[str] | None, *, writable: bool = True) -> None:
        """Open a run, or begin one.

        Args:
            folder: Where the records are kept; ``None`` keeps them in memory.
            writable: Whether records are to be added. A run that is only read may lie on a read-only medium, and is
                refused if records of it are missing; one that is written to measures them anew.
        """
        self.folder = None if folder is None else Path(folder)
        self._database = Database(self.folder, writable=writable)
        self._viewed: set[str] = set()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; it can be copied alone then."""
        self._database.close()

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Keep what came of asks, all of it in one transaction; a record that is there intact stays."""
        with self._database.transaction():
            for outcome in outcomes:
                key, ask = outcome.ask.key, outcome.ask.to_json()
                if isinstance(outcome, Failure):
                    # another process may have done meanwhile what failed here
                    if self._database.execute("SELECT 1 FROM records WHERE key = ?", (key,)).fetchone() is None:
                        self._database.insert("failures", (key, ask, outcome.error), verb="REPLACE")
                    continue
                if outcome.ask.kind not in self._viewed:  # readable by other tools: a column for every field
                    self._viewed.add(outcome.ask.kind)
                    for statement in view_of(kind_named(outcome.ask.kind)):
                        self._database.execute(statement)
                result = {"answer": outcome.answer, "machine": outcome.machine, "seconds": outcome.seconds}
                self._database.insert("records", (key, ask, to_json(result)))
                self._database.execute("DELETE FROM failures WHERE key = ?", (key,))

    def keys(self) -> frozenset[str]:
        """Return the keys of all records that are intact, without reading what they say."""
        return self._database.intact_keys("records")

    def done(self, asks: Iterable[Ask]) -> frozenset[str]:
        """Return the keys of those asks that have a record; a damaged one does not count, so it is done again."""
        return self.keys() & {ask.key for ask in asks}

    def failed(self, asks: Iterable[Ask]) -> frozenset[str]:
        """Return the keys of those asks that have an error instead."""
        return self._database.intact_keys("failures") & {ask.key for ask in asks}

    def find(self, keys: Iterable[str]) -> dict[str, Record]:
        """Return the records with these keys, as far as they are there."""
        return {key: record for key in keys for record in self._database.read("records", _record, key=key)}

    def records(self) -> list[Record]:
        """Return every record, in the order of their keys."""
        return self._database.read("records", _record)

    def failures(self, asks: Iterable[Ask] | None = None) -> list[Failure]:
        """Return every ask that failed, or those of ``asks`` that did, with its error."""
        wanted = None if asks is None else {ask.key for ask in asks}
        return self._database.read(
            "failures", lambda key, text, error: Failure(ask=_ask(key, text), error=error), wanted=wanted
        )

    def keep(self, name: str, value: str) -> None:
        """Keep a fact about the run, in place of what was kept under this name."""
        with self._database.transaction():
            self._database.insert("facts", (name, value), verb="REPLACE")

    def fact(self, name: str) -> str | None:
        """Return a fact about the run."""
        return next(iter(self._database.read("facts", lambda _name, value: value, key=name)), None)

    def agree(self, name: str, value: str) -> bool:
        """Keep a fact about the run; tell whether it agrees with what was kept before."""
        with self._database.transaction():
            self._database.insert("facts", (name, value))
        return self.fact(name) == value

    def note_windows(self, windows: Mapping[str, Sequence[str]]) -> None:
        """Keep what the tokens of windows look like, all in one transaction."""
        with self._database.transaction():
            self._database.insert("windows", *((key, to_json(pieces)) for key, pieces in windows.items()))

    def window(self, key: str) -> tuple[str, ...]:
        """Return what :meth:`note_windows` kept, or nothing."""
        return next(iter(self._database.read("windows", lambda _key, kept: from_json(kept, Words), key=key)), ())

    def keep_plan(self, plan: RunPlan) -> None:
        """Remember what was asked for; plans are numbered as they come, and one that comes again stays where it is."""
        with self._database.transaction():
            known = self.plans()
            if plan.key not in {other.key for other in known}:
                numbered = replace(plan, number=1 + max((other.number for other in known), default=-1))
                self._database.insert("plans", (plan.key, numbered.to_json()))

    def plans(self) -> list[RunPlan]:
        """Return everything that was asked for."""
        found: list[RunPlan] = self._database.read("plans", lambda _key, value: from_json(value, RunPlan))
        return sorted(found, key=lambda plan: plan.number)


Words = tuple[str, ...]


def _record(key: str, text: str, result: str) -> Record:
    ask, found = _ask(key, text), from_json(result, Result)
    answer = from_json(bytes(found.answer).decode(), kind_named(ask.kind).answer)
    return Record(ask=ask, answer=answer, machine=found.machine, seconds=found.seconds)


def _ask(key: str, text: str) -> Ask:
    ask = read_ask(text)
    if ask.key != key:
        raise FieldError(f"it is the answer to another question, {ask.key!r}.")
    return ask


def view_of(kind: Kind) -> list[str]:
    """Return the statements that make the view of a kind: one column for each field that holds one value."""
    found = ["key", *_columns(kind.ask, "ask", "$"), *_columns(kind.answer, "result", "$.answer")]
    found.append("json_extract(result, '$.seconds') AS seconds")
    chosen = f"json_extract(ask, '$.kind') = '{kind.name}'"
    return [
        f'DROP VIEW IF EXISTS "{kind.name}"',
        f'CREATE VIEW "{kind.name}" AS SELECT {", ".join(found)} FROM records WHERE {chosen}',
    ]


def _columns(kind: type[JsonValue], column: str, path: str) -> list[str]:
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        place = f"{path}.{field.name}"
        bare = get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
        if isinstance(bare, type) and issubclass(bare, JsonValue):
            found += _columns(bare, column, place)
        elif get_origin(bare) not in (tuple, list, dict) and bare not in (tuple, list, dict):
            found.append(f"coalesce(json_extract({column}, '{place}'), {_literal(field.default)}) AS \"{field.name}\"")
    return found


def _literal(default: Any) -> str:
    """Write a default as SQLite does: fields that hold it are not in the JSON."""
    if isinstance(default, bool):
        return str(int(default))
    if isinstance(default, int | float):
        return repr(default)
    if isinstance(default, str):
        return "'" + default.replace("'", "''") + "'"
    return "NULL"


def open_run(folder: str | os.PathLike[str]) -> Store:
    """Open a run that is there."""
    require_run(folder)
    return Store(folder, writable=False)


def require_run(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that holds no run."""
    path = Path(folder)
    if path.is_file():
        raise FileError(f"{os.fspath(folder)!r} holds no run: it is a file; give its folder, {str(path.parent)!r}?")
    if not (path / FILE).is_file():
        missing = f"there is no {FILE} in it" if path.is_dir() else "there is no such folder"
        if (path / "config.json").is_file():
            missing = f"it is a model; howsmooth measure {folder} makes a run of it"
        raise FileError(f"{os.fspath(folder)!r} holds no run: {missing}; howsmooth runs lists those there are.")


def write_table(folder: str, target: Path, to: str) -> int:
    """Write every record of a run as one row: what was asked, what was found, and with what; return how many."""
    with open_run(folder) as store:
        rows = [flat(record) for record in store.records()]
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {str(target.parent)!r} to write the table to.", field="out")
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        with whole(target) as partial:
            WRITERS[to](partial, rows, names)
    except OSError as error:
        raise FileError(f"the table cannot be written to {str(target)!r}: {error.strerror or error}.") from error
    return len(rows)


def flat(record: Record) -> dict[str, Any]:
    """Return a record as one row; lists, such as the shares of tokens, stay in the store."""
    asked = {"key": record.ask.key, "kind": record.ask.kind} | columns(record.ask)
    machine = {f"with_{name}": value for name, value in columns(record.machine).items()}
    return asked | columns(record.answer) | {"seconds": record.seconds} | machine


def _csv(target: Path, rows: list[dict[str, Any]], names: list[str]) -> None:
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _parquet(target: Path, rows: list[dict[str, Any]], names: list[str]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise FileError(
            "Parquet needs pyarrow, which is not installed; run: pip install 'howsmooth[parquet]'"
        ) from error
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    parquet.write_table(table, target)


def _jsonl(target: Path, rows: list[dict[str, Any]], _names: list[str]) -> None:
    target.write_text("".join(to_json(row) + "\n" for row in rows), encoding="utf-8")


WRITERS = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
