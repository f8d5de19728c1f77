"""Records in one SQLite file per run: every record is there whole or not at all, whatever happens to the process."""

import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from howsmooth.errors import FileError
from howsmooth.studies.tasks import Record, Task

FILE = "records.sqlite"
VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, task TEXT NOT NULL, result TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS windows (key TEXT PRIMARY KEY, pieces TEXT NOT NULL) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS measurements AS SELECT
    json_extract(task, '$.model') AS model, json_extract(task, '$.text') AS text,
    json_extract(task, '$.layer') AS layer, json_extract(task, '$.map') AS map,
    json_extract(task, '$.length') AS length, json_extract(task, '$.window') AS window,
    json_extract(result, '$.lower') AS lower, json_extract(result, '$.upper') AS upper,
    json_extract(task, '$.confidence') AS confidence, json_extract(result, '$.steps') AS steps,
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

    def add(self, records: Iterable[Record]) -> None:
        """Keep records, each in a transaction of its own; what is there already stays."""
        with self._refusing():
            for record in records:
                task = json.dumps(dataclasses.asdict(record.task))
                self._database.execute(
                    "INSERT OR IGNORE INTO records VALUES (?, ?, ?)", (record.task.key, task, record.to_json())
                )

    def find(self, tasks: Iterable[Task]) -> dict[str, Record]:
        """Return the records of those tasks that are done, by key."""
        found: dict[str, Record] = {}
        with self._refusing():
            for task in tasks:
                row = self._database.execute("SELECT result FROM records WHERE key = ?", (task.key,)).fetchone()
                if row is not None:
                    found[task.key] = Record.from_json(task, row[0])
        return found

    def note_window(self, key: str, pieces: Sequence[str]) -> None:
        """Keep what the tokens of a window look like."""
        with self._refusing():
            self._database.execute("INSERT OR IGNORE INTO windows VALUES (?, ?)", (key, json.dumps(list(pieces))))

    def window(self, key: str) -> tuple[str, ...]:
        """Return what :meth:`note_window` kept, or nothing."""
        with self._refusing():
            row = self._database.execute("SELECT pieces FROM windows WHERE key = ?", (key,)).fetchone()
        return () if row is None else tuple(json.loads(row[0]))

    def agree(self, name: str, value: str) -> bool:
        """Keep a fact about the run; tell whether it agrees with what was kept before."""
        with self._refusing():
            self._database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            (kept,) = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return kept == value

    def _begin(self) -> None:
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

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise FileError(f"the records in {self._where!r} cannot be read or written: {error}.") from error


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
