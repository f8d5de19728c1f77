"""Records in one SQLite file per run: every record is there whole or not at all, whatever happens to the process."""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from howsmooth.errors import FileError
from howsmooth.studies.records import Failure, Record
from howsmooth.studies.tasks import Task

FILE = "records.sqlite"
VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, task TEXT NOT NULL, result TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures (key TEXT PRIMARY KEY, task TEXT NOT NULL, error TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS windows (key TEXT PRIMARY KEY, pieces TEXT NOT NULL) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS measurements AS SELECT
    json_extract(task, '$.kind') AS kind, coalesce(json_extract(task, '$.model'), '') AS model,
    coalesce(json_extract(task, '$.text'), '') AS text,
    coalesce(json_extract(task, '$.layer'), 0) AS layer, coalesce(json_extract(task, '$.map'), 'attention') AS map,
    json_extract(task, '$.length') AS length, coalesce(json_extract(task, '$.window'), 0) AS window,
    coalesce(json_extract(task, '$.points'), '') AS points, coalesce(json_extract(task, '$.seed'), 0) AS seed,
    json_extract(result, '$.lower') AS lower, json_extract(result, '$.upper') AS upper,
    coalesce(json_extract(task, '$.confidence'), 0.999) AS confidence, json_extract(result, '$.steps') AS steps,
    json_extract(result, '$.radius') AS radius, json_extract(result, '$.reach') AS reach,
    json_extract(result, '$.local_upper') AS local_upper, json_extract(result, '$.released') AS released,
    json_extract(result, '$.status') AS status, json_extract(result, '$.seconds') AS seconds
    FROM records;
"""


class Store:
    """The records of one run, in a folder of its own or in memory."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        """Open a run, or begin one.

        Args:
            folder: Where the records are kept; ``None`` keeps them in memory.

        Raises:
            FileError: If the folder cannot be written to, or what is there is no run of this version.
        """
        self.folder = None if folder is None else Path(folder)
        self._where = ":memory:" if self.folder is None else str(self.folder / FILE)
        if self.folder is not None:
            _make(self.folder)
        with self._refusing():
            self._database = sqlite3.connect(self._where, timeout=60, isolation_level=None)
            try:
                self._begin()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, outcomes: Iterable[Record | Failure]) -> None:
        """Keep what came of tasks, each in a transaction of its own; a record that is there already stays."""
        with self._refusing():
            for outcome in outcomes:
                key, task = outcome.task.key, outcome.task.to_json()
                with self._transaction():
                    if isinstance(outcome, Failure):
                        # another process may have done meanwhile what failed here
                        self._database.execute(
                            "INSERT OR REPLACE INTO failures SELECT ?1, ?2, ?3 "
                            "WHERE NOT EXISTS (SELECT 1 FROM records WHERE key = ?1)",
                            (key, task, outcome.error),
                        )
                    else:
                        self._database.execute(
                            "INSERT OR IGNORE INTO records VALUES (?, ?, ?)", (key, task, outcome.to_json())
                        )
                        self._database.execute("DELETE FROM failures WHERE key = ?", (key,))

    def done(self, tasks: Iterable[Task]) -> frozenset[str]:
        """Return the keys of those tasks that have a record."""
        return self._keys("records") & {task.key for task in tasks}

    def failed(self, tasks: Iterable[Task]) -> frozenset[str]:
        """Return the keys of those tasks that have an error instead."""
        return self._keys("failures") & {task.key for task in tasks}

    def find(self, tasks: Iterable[Task]) -> dict[str, Record]:
        """Return the records of those tasks that are done, by key."""
        found: dict[str, Record] = {}
        with self._reading():
            for task in tasks:
                row = self._database.execute("SELECT result FROM records WHERE key = ?", (task.key,)).fetchone()
                if row is not None:
                    found[task.key] = Record.from_json(task, row[0])
        return found

    def records(self) -> list[Record]:
        """Return every record, in the order of their keys."""
        with self._reading():
            rows = self._database.execute("SELECT task, result FROM records ORDER BY key").fetchall()
            return [Record.from_json(Task.from_json(task), result) for task, result in rows]

    def failures(self) -> list[Failure]:
        """Return every task that failed, with its error."""
        with self._reading():
            rows = self._database.execute("SELECT task, error FROM failures ORDER BY key").fetchall()
            return [Failure(task=Task.from_json(task), error=error) for task, error in rows]

    def keep(self, name: str, value: str) -> None:
        """Keep a fact about the run, in place of what was kept under this name."""
        with self._refusing():
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def fact(self, name: str) -> str | None:
        """Return a fact about the run."""
        with self._refusing():
            row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def note_windows(self, windows: Mapping[str, Sequence[str]]) -> None:
        """Keep what the tokens of windows look like, all in one transaction."""
        rows = [(key, json.dumps(list(pieces))) for key, pieces in windows.items()]
        with self._refusing(), self._transaction():
            self._database.executemany("INSERT OR IGNORE INTO windows VALUES (?, ?)", rows)

    def window(self, key: str) -> tuple[str, ...]:
        """Return what :meth:`note_windows` kept, or nothing."""
        with self._reading():
            row = self._database.execute("SELECT pieces FROM windows WHERE key = ?", (key,)).fetchone()
            return () if row is None else tuple(json.loads(row[0]))

    def agree(self, name: str, value: str) -> bool:
        """Keep a fact about the run; tell whether it agrees with what was kept before."""
        with self._refusing():
            self._database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            (kept,) = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return kept == value

    def _begin(self) -> None:
        (state,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise FileError(
                f"the records in {self._where!r} are damaged: {' '.join(state.split())}; give another folder."
            )
        # in this order: a run that another process begins meanwhile has its tables and its version at once
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if tables and version == 0:
            raise FileError(f"{self._where!r} is a database, but holds no run of ours; give another folder.")
        if version > VERSION:
            raise FileError(
                f"the run in {self._where!r} was written by a newer howsmooth (version {version} of the file, we know "
                f"{VERSION}); upgrade, or give another folder."
            )
        # write-ahead: readers and a second writer do not block each other for longer than one record
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        if version < VERSION:
            self._database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")

    def _keys(self, table: str) -> frozenset[str]:
        with self._refusing():
            return frozenset(key for (key,) in self._database.execute(f"SELECT key FROM {table}"))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise FileError(f"the records in {self._where!r} cannot be read or written: {error}.") from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._refusing():
            try:
                yield
            except (ValueError, LookupError, TypeError, AttributeError) as error:  # JSON that is not what we wrote
                raise FileError(
                    f"the records in {self._where!r} are damaged: {type(error).__name__}: {error}; give another folder."
                ) from error


def check_writable(folder: Path) -> None:
    """Refuse a folder that is not there and cannot be made, or cannot be written to; nothing is made yet."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise FileError(f"{str(folder)!r} cannot be a folder: {str(nearest)!r} is a file; give another with --out.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FileError(f"the folder {str(nearest)!r} cannot be written to; give another one with --out.")


def _make(folder: Path) -> None:
    check_writable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder {str(folder)!r} cannot be made: {error.strerror or error}.") from error
