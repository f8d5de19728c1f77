"""The SQLite file of a run: every row has a checksum, every change is a transaction, and missing rows are noticed."""

import hashlib
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from howsmooth.errors import FieldError, FileError
from howsmooth.files import require_size

T = TypeVar("T")
FILE = "records.sqlite"
VERSION = 2
TABLES = ("facts", "plans", "windows", "records", "failures")
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS plans (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS windows (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records
    (key TEXT PRIMARY KEY, ask TEXT NOT NULL, result TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures
    (key TEXT PRIMARY KEY, ask TEXT NOT NULL, error TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
"""
# The fact that says how many records there are.
NUMBER = "number of records"
# Bytes of memory for one byte of a store: rows, and the values that are made of them.
COPIES = 4


def check_writable(folder: Path) -> None:
    """Refuse a folder that is not there and cannot be made, or cannot be written to; nothing is made yet."""
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass  # it may be made
    except (OSError, ValueError) as error:  # too long a name, or one with a NUL; from Python 3.14 on, exists is silent
        raise FileError(
            f"the folder {str(folder)!r} cannot be made: {getattr(error, 'strerror', error)}; give another with out=.",
            field="out",
        ) from error
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise FileError(
            f"{str(folder)!r} cannot be a folder: {str(nearest)!r} is a file; give another with out=.", field="out"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FileError(f"the folder {str(nearest)!r} cannot be written to; give another one with out=.", field="out")


def checksum(*parts: str) -> str:
    """Return the checksum of a row."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        found.update(len(encoded).to_bytes(8, "little") + encoded)
    return found.hexdigest()


class Database:
    """The tables of a run, in a file or in memory; rows without their checksum."""

    def __init__(self, folder: Path | None, *, writable: bool) -> None:
        """Open a run, or begin one; see :class:`~howsmooth.studies.runs.store.Store`."""
        self.folder = folder
        self._where = ":memory:" if folder is None else str(folder / FILE)
        self._mended = False  # whether what is damaged was taken out
        if folder is not None and writable:
            check_writable(folder)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"the folder {str(folder)!r} cannot be made: {error.strerror or error}.") from error
        if folder is not None:
            require_size(self._where, "the file of records", copies=COPIES)
        with self._one_error():
            self._open(writable)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(query, values)

    def read(
        self, table: str, parse: Callable[..., T], *, key: str | None = None, wanted: Collection[str] | None = None
    ) -> list[T]:
        """Return what the rows of a table say, in the order of their keys; all of them, or those with some keys."""
        which, values = (" ORDER BY key", ()) if key is None else (" WHERE key = ?", (key,))
        with self._one_error():
            rows = self.execute(f"SELECT * FROM {table}{which}", values).fetchall()
        return [self._parsed(row, parse) for row in rows if wanted is None or row[0] in wanted]

    def _parsed(self, row: tuple[str, ...], parse: Callable[..., T]) -> T:
        *values, _sum = row
        try:
            if not _is_intact(row):
                raise FieldError("its checksum does not match.")
            return parse(*values)
        except FieldError as error:
            raise FileError(
                f"what is kept under {row[0]!r} in {self._where!r} is damaged: {str(error).rstrip('.')}. Run the "
                "command that made the run again, into the same folder: it measures anew what is damaged and nothing "
                "else."
            ) from error

    def intact_keys(self, table: str) -> frozenset[str]:
        """Return the keys of all rows of a table that are intact, without reading what they say."""
        with self._one_error():
            return frozenset(row[0] for row in self.execute(f"SELECT * FROM {table}") if _is_intact(row))

    def insert(self, table: str, *rows: tuple[str, ...], verb: str = "IGNORE") -> None:
        """Add rows with their checksums; within a transaction. A row that is there stays, or is replaced."""
        for row in rows:
            marks = ", ".join("?" for _value in (*row, ""))
            added = self.execute(f"INSERT OR {verb} INTO {table} VALUES ({marks})", (*row, checksum(*row)))
            if table == "records" and added.rowcount:
                self.insert("facts", (NUMBER, str(self._counted() + 1)), verb="REPLACE")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do all or nothing; before the first one what is damaged is taken out."""
        with self._one_error():
            self.execute("BEGIN IMMEDIATE")
            try:
                if not self._mended:
                    self._drop_damaged()
                yield
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise
            self._mended = True

    def _drop_damaged(self) -> None:
        """Take out what is damaged, so that whoever writes makes it anew, and count the records.

        Tables are filled again with what is intact: a row whose key is damaged is not found by it.
        """
        for table in TABLES:
            rows = self.execute(f"SELECT * FROM {table}").fetchall()
            intact = [row for row in rows if _is_intact(row)]
            if len(intact) < len(rows):
                marks = ", ".join("?" for _column in rows[0])
                self.execute(f"DELETE FROM {table}")
                self._connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", intact)
        (number,) = self.execute("SELECT count(*) FROM records").fetchone()
        self.insert("facts", (NUMBER, str(number)), verb="REPLACE")

    def _counted(self) -> int:
        """Return how many records the run holds, by the fact that says so; within a transaction."""
        return next(iter(self.read("facts", _number_of, key=NUMBER)), 0)

    def _open(self, writable: bool) -> None:
        self._connection = sqlite3.connect(self._where, timeout=60, isolation_level=None)
        # bytes that are no text are damage like any other: the checksum finds it, and the key is still told
        self._connection.text_factory = lambda found: found.decode("utf-8", "surrogateescape")
        try:
            version = self._check_file(writable)
            if writable:
                # Why no write-ahead log: SQLite drops what of it is damaged, or was not copied, without a word.
                self.execute("PRAGMA journal_mode = DELETE")
            if writable and version < VERSION:
                self._connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
            elif not writable:
                self._check_number()
        except BaseException:
            self._connection.close()
            raise

    def _check_file(self, writable: bool) -> int:
        """Refuse what is damaged, of another program or of another version; return the version, 0 for a new file."""
        where = self._where
        (state,) = self.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise FileError(f"the records in {where!r} are damaged: {' '.join(state.split())}; give another folder.")
        # in this order: a run that another process begins meanwhile has its tables and its version at once
        (tables,) = self.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = self.execute("PRAGMA user_version").fetchone()
        if tables and version == 0:
            raise FileError(f"{where!r} is a database, but holds no run of ours; give another folder.")
        if version == 1:
            raise FileError(f"the run in {where!r} was written by an older howsmooth; give another folder.")
        if version > VERSION:
            raise FileError(
                f"the run in {where!r} was written by a newer howsmooth (version {version} of the file, we know "
                f"{VERSION}); upgrade, or give another folder."
            )
        if version == VERSION and not self._has_our_tables():
            raise FileError(f"{where!r} is a database, but its tables are not those of a run; give another folder.")
        if version == 0 and not writable:
            raise FileError(f"{where!r} is empty: there is no run in it; howsmooth runs lists those there are.")
        return version

    def _has_our_tables(self) -> bool:
        """Tell views and other tables under our names, and triggers, apart: what they compute may have no end."""
        found = self.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        ours = {" ".join(made.split()) for made in SCHEMA.replace("IF NOT EXISTS ", "").split(";")} - {""}
        kept = {" ".join(sql.split()) for _kind, name, sql in found if name in TABLES}
        return kept == ours and not any(kind == "trigger" for kind, _name, _sql in found)

    def _check_number(self) -> None:
        """Refuse a run of which records are missing; one that an older version began does not say how many."""
        for expected in self.read("facts", _number_of, key=NUMBER):
            (there,) = self.execute("SELECT count(*) FROM records").fetchone()
            if there < expected:
                raise FileError(
                    f"{expected - there} of {expected} records in {self._where!r} are missing: it is damaged. Run "
                    "the command that made the run again, into the same folder: it measures anew what is missing and "
                    "nothing else."
                )

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        """Turn whatever SQLite or the disk refuses into one error."""
        try:
            yield
        except FileError:
            raise
        except (sqlite3.Error, UnicodeError, OSError) as error:
            raise FileError(f"the records in {self._where!r} cannot be read or written: {error}.") from error


def _is_intact(row: Sequence[object]) -> bool:
    *parts, kept = row
    return all(isinstance(part, str) for part in parts) and checksum(*map(str, parts)) == kept


def _number_of(_key: str, kept: str) -> int:
    if not re.fullmatch(r"\d{1,18}", kept):
        raise FieldError(f"it is no number of records, {kept[:20]!r}.")
    return int(kept)
