"""Records in one SQLite file per run: every one is there whole and unharmed, or is not believed."""

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec.structs import replace

from howsmooth.errors import FieldError, FileError
from howsmooth.files import require_size
from howsmooth.studies.asks import Ask
from howsmooth.studies.kinds import kind_named, read_ask
from howsmooth.studies.machines import Machine
from howsmooth.studies.records import Failure, Outcome, Record
from howsmooth.studies.runs.folders import FILE, make
from howsmooth.studies.runs.plans import Plan
from howsmooth.studies.runs.views import view_of
from howsmooth.studies.values import Value, from_json, to_json

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
# The fact that says how many records there are, with a mark as long as some are being added. Until a run is closed its
# last records stand in a log beside the file, of which SQLite drops what is damaged, or not there, without a word: so
# their number is written to a small file too.
NUMBER, UNFINISHED = "number of records", " so far"
# Bytes of memory for one byte of a store: rows, and the values that are made of them.
COPIES = 4


class Result(Value, frozen=True, kw_only=True):
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

        Raises:
            FileError: If the folder cannot be written to, or what is there is no run of this version.
        """
        self.folder = None if folder is None else Path(folder)
        self._where = ":memory:" if self.folder is None else str(self.folder / FILE)
        self._viewed: set[str] = set()
        # how many records there are, as the last transaction of this process left them; none before the first
        self._number: int | None = None
        if self.folder is not None and writable:
            make(self.folder)
        if self.folder is not None:
            require_size(self._where, "the file of records", copies=COPIES)
        with self._refusing():
            try:
                self._open(self._where, writable)
            except sqlite3.OperationalError:
                if writable or os.path.exists(f"{self._where}-wal"):
                    raise
                # on a read-only medium SQLite cannot make the log that some runs of older versions ask for
                self._open(f"{Path(self._where).absolute().as_uri()}?immutable=1", writable)

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what this process added goes from the log into the file, which can be copied alone then."""
        try:
            if self._number is not None and self.folder is not None:
                with suppress(sqlite3.Error, OSError):  # another process is writing, and closes it; or the disk is full
                    self._settle()
        finally:
            self._database.close()

    def _settle(self) -> None:
        self._database.execute("PRAGMA busy_timeout = 0")
        self._database.execute("BEGIN IMMEDIATE")
        self._insert("facts", {NUMBER: str(self._counted())}, verb="REPLACE")
        Path(f"{self._where}-number").unlink(missing_ok=True)
        self._database.execute("COMMIT")
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._database.execute("PRAGMA journal_mode = DELETE")

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Keep what came of asks, each in a transaction of its own; a record that is there unharmed stays."""
        with self._refusing():
            for outcome in outcomes:
                key, ask = outcome.ask.key, outcome.ask.to_json()
                with self._transaction():
                    if isinstance(outcome, Failure):
                        self._add_failure(key, ask, outcome.error)
                    else:
                        self._add_record(key, ask, outcome)

    def _add_failure(self, key: str, ask: str, error: str) -> None:
        # another process may have done meanwhile what failed here
        self._database.execute(
            "INSERT OR REPLACE INTO failures SELECT ?1, ?2, ?3, ?4 "
            "WHERE NOT EXISTS (SELECT 1 FROM records WHERE key = ?1)",
            (key, ask, error, checksum(key, ask, error)),
        )

    def _add_record(self, key: str, ask: str, record: Record) -> None:
        self._view(record.ask.kind)
        result = to_json({"answer": record.answer, "machine": record.machine, "seconds": record.seconds})
        # what is damaged was taken out: what is there already is unharmed, and stays
        added = self._database.execute(
            "INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?)", (key, ask, result, checksum(key, ask, result))
        )
        self._number = self._counted() + added.rowcount
        self._insert("facts", {NUMBER: f"{self._number}{UNFINISHED}"}, verb="REPLACE")
        self._database.execute("DELETE FROM failures WHERE key = ?", (key,))

    def keys(self) -> frozenset[str]:
        """Return the keys of all records that are unharmed, without reading what they say."""
        return self._keys("SELECT key, ask, result, checksum FROM records")

    def done(self, asks: Iterable[Ask]) -> frozenset[str]:
        """Return the keys of those asks that have a record; a damaged one does not count, so it is done again."""
        return self.keys() & {ask.key for ask in asks}

    def failed(self, asks: Iterable[Ask]) -> frozenset[str]:
        """Return the keys of those asks that have an error instead."""
        return self._keys("SELECT key, ask, error, checksum FROM failures") & {ask.key for ask in asks}

    def find(self, keys: Iterable[str]) -> dict[str, Record]:
        """Return the records with these keys, as far as they are there."""
        found: dict[str, Record] = {}
        for key in keys:
            with self._refusing():
                rows = self._database.execute("SELECT key, ask, result, checksum FROM records WHERE key = ?", (key,))
                row = rows.fetchone()
            if row is not None:
                found[key] = self._record(row)
        return found

    def records(self) -> list[Record]:
        """Return every record, in the order of their keys.

        Raises:
            FileError: If one of them is damaged.
        """
        with self._refusing():
            rows = self._database.execute("SELECT key, ask, result, checksum FROM records ORDER BY key").fetchall()
        return [self._record(row) for row in rows]

    def failures(self, asks: Iterable[Ask] | None = None) -> list[Failure]:
        """Return every ask that failed, or those of ``asks`` that did, with its error."""
        wanted = None if asks is None else {ask.key for ask in asks}
        with self._refusing():
            rows = self._database.execute("SELECT key, ask, error, checksum FROM failures ORDER BY key").fetchall()
        found = []
        for row in rows:
            key, ask, error, _sum = row
            if wanted is not None and key not in wanted:
                continue
            with self._believing(row):
                found.append(Failure(ask=_asked(key, ask), error=error))
        return found

    def keep(self, name: str, value: str) -> None:
        """Keep a fact about the run, in place of what was kept under this name."""
        self._put("facts", {name: value}, anew=True)

    def fact(self, name: str) -> str | None:
        """Return a fact about the run."""
        return self._get("facts", name)

    def agree(self, name: str, value: str) -> bool:
        """Keep a fact about the run; tell whether it agrees with what was kept before."""
        self._put("facts", {name: value})
        return self._get("facts", name) == value

    def note_windows(self, windows: Mapping[str, Sequence[str]]) -> None:
        """Keep what the tokens of windows look like, all in one transaction."""
        self._put("windows", {key: to_json(pieces) for key, pieces in windows.items()})

    def window(self, key: str) -> tuple[str, ...]:
        """Return what :meth:`note_windows` kept, or nothing."""
        kept = self._get("windows", key)
        if kept is None:
            return ()
        with self._believing((key, kept, checksum(key, kept))):
            return from_json(kept, tuple[str, ...])

    def keep_plan(self, plan: Plan) -> None:
        """Remember what was asked for; plans are numbered as they come, and one that comes again stays where it is."""
        with self._refusing(), self._transaction():
            known = self.plans()
            if plan.key not in {other.key for other in known}:
                numbered = replace(plan, number=1 + max((other.number for other in known), default=-1))
                self._insert("plans", {plan.key: numbered.to_json()})

    def plans(self) -> list[Plan]:
        """Return everything that was asked for."""
        with self._refusing():
            rows = self._database.execute("SELECT key, value, checksum FROM plans ORDER BY key").fetchall()
        found = []
        for row in rows:
            with self._believing(row):
                found.append(from_json(row[1], Plan))
        return sorted(found, key=lambda plan: plan.number)

    def _put(self, table: str, values: Mapping[str, str], *, anew: bool = False) -> None:
        with self._refusing(), self._transaction():
            self._insert(table, values, verb="REPLACE" if anew else "IGNORE")

    def _insert(self, table: str, values: Mapping[str, str], *, verb: str = "IGNORE") -> None:
        rows = [(key, value, checksum(key, value)) for key, value in values.items()]
        self._database.executemany(f"INSERT OR {verb} INTO {table} VALUES (?, ?, ?)", rows)

    def _get(self, table: str, key: str) -> str | None:
        with self._refusing():
            row = self._database.execute(f"SELECT key, value, checksum FROM {table} WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        with self._believing(row):
            return row[1]

    def _record(self, row: tuple[str, ...]) -> Record:
        key, text, result, _sum = row
        with self._believing(row):
            ask, found = _asked(key, text), from_json(result, Result)
            answer = from_json(bytes(found.answer).decode(), kind_named(ask.kind).answer)
            return Record(ask=ask, answer=answer, machine=found.machine, seconds=found.seconds)

    def _view(self, kind: str) -> None:
        """Make the records of a kind readable by other tools: a view with a column for every field."""
        if kind not in self._viewed:
            self._viewed.add(kind)
            for statement in view_of(kind_named(kind)):
                self._database.execute(statement)

    def _open(self, where: str, writable: bool) -> None:
        self._database = sqlite3.connect(where, timeout=60, isolation_level=None, uri=where.startswith("file:"))
        # bytes that are no text are damage like any other: the checksum finds it, and the key is still told
        self._database.text_factory = lambda found: found.decode("utf-8", "surrogateescape")
        try:
            self._begin(writable)
        except BaseException:
            self._database.close()
            raise

    def _begin(self, writable: bool) -> None:
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
        if version == 1:
            raise FileError(
                f"the run in {self._where!r} was written by howsmooth 0.1, whose records this version does not read; "
                f"howsmooth export {str(self.folder)!r} --to csv writes them as a table. For new work give another "
                "folder."
            )
        if version > VERSION:
            raise FileError(
                f"the run in {self._where!r} was written by a newer howsmooth (version {version} of the file, we know "
                f"{VERSION}); upgrade, or give another folder."
            )
        if version == VERSION:
            self._check_tables()
        if not writable:
            if version == 0:
                raise FileError(
                    f"{self._where!r} is empty: there is no run in it; howsmooth runs lists those there are."
                )
            self._check_number()
            return
        # write-ahead: readers and a second writer do not block each other for longer than one record
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        if version < VERSION:
            self._database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")

    def _check_tables(self) -> None:
        """Refuse views and other tables under our names, and triggers: what they compute may have no end."""
        found = self._database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        ours = {" ".join(made.split()) for made in SCHEMA.replace("IF NOT EXISTS ", "").split(";")} - {""}
        kept = {" ".join(sql.split()) for kind, name, sql in found if name in TABLES}
        if kept != ours or any(kind == "trigger" for kind, _name, _sql in found):
            raise FileError(
                f"{self._where!r} is a database, but its tables are not those of a run; give another folder."
            )

    def _check_number(self) -> None:
        """Refuse a run of which records are missing."""
        kept = self.fact(NUMBER)
        if kept is None:
            return  # an older version began it
        number, unfinished, _rest = kept.partition(UNFINISHED)
        with self._believing((NUMBER, kept, checksum(NUMBER, kept))):
            expected = _whole(number)
        if unfinished:
            try:
                expected = max(expected, _whole(Path(f"{self._where}-number").read_text(encoding="ascii")))
            except (OSError, ValueError) as error:
                raise FileError(
                    f"the run in {self._where!r} was not closed, and the files of its last records, {FILE}-*, are not "
                    "beside it; copy the whole folder, or run its command again, with the same --out."
                ) from error
        (there,) = self._database.execute("SELECT count(*) FROM records").fetchone()
        if there < expected:
            raise FileError(
                f"{expected - there} of {expected} records in {self._where!r} are missing: the file or its log, "
                f"{FILE}-wal, is damaged, or the log was not copied with it. Copy the whole folder again, or run the "
                "command that made the run again, with the same --out: it measures anew what is missing and nothing "
                "else."
            )

    def _counted(self) -> int:
        """Return how many records the run holds, by the fact that says so; within a transaction."""
        kept = self._get("facts", NUMBER) or "0"
        return int(kept.removesuffix(UNFINISHED))

    def _keys(self, query: str) -> frozenset[str]:
        with self._refusing():
            return frozenset(row[0] for row in self._database.execute(query) if _unharmed(row))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            first = self._mend()
            yield
            self._database.execute("COMMIT")
        except BaseException:
            self._number = None
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        if self.folder is not None:
            self._write_number()
            if first:  # from here on the file itself says that it has a log
                self._database.execute("PRAGMA wal_checkpoint")

    def _write_number(self) -> None:
        descriptor = os.open(f"{self._where}-number", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, b"%20d" % (self._number or 0))  # of one length: a reader never finds half of it
        finally:
            os.close(descriptor)

    def _mend(self) -> bool:
        """Take out what is damaged and count, before the first thing is written; return whether it was the first.

        Whoever writes makes it anew. Tables are filled again with what is unharmed: a row whose key is damaged is not
        found by it.
        """
        if self._number is not None:
            return False
        for table in TABLES:
            rows = self._database.execute(f"SELECT * FROM {table}").fetchall()
            unharmed = [row for row in rows if _unharmed(row)]
            if len(unharmed) < len(rows):
                marks = ", ".join("?" for _column in rows[0])
                self._database.execute(f"DELETE FROM {table}")
                self._database.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", unharmed)
        (self._number,) = self._database.execute("SELECT count(*) FROM records").fetchone()
        self._insert("facts", {NUMBER: f"{self._number}{UNFINISHED}"}, verb="REPLACE")
        if self.folder is not None:
            self._write_number()
        return True

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except FileError:
            raise
        except (sqlite3.Error, UnicodeError, OSError) as error:
            raise FileError(f"the records in {self._where!r} cannot be read or written: {error}.") from error

    @contextmanager
    def _believing(self, row: Sequence[str]) -> Iterator[None]:
        """Refuse a row that is not what was written."""
        said = "its checksum does not match"
        try:
            if _unharmed(row):
                yield
                return
        except FieldError as error:
            said = str(error).rstrip(".")
        raise FileError(
            f"what is kept under {row[0]!r} in {self._where!r} is damaged: {said}. Run the command that made the run "
            "again, with the same --out: it measures anew what is damaged and nothing else."
        )


def checksum(*parts: str) -> str:
    """Return the checksum of a row."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        found.update(len(encoded).to_bytes(8, "little") + encoded)
    return found.hexdigest()


def _unharmed(row: Sequence[object]) -> bool:
    *parts, kept = row
    return all(isinstance(part, str) for part in parts) and checksum(*map(str, parts)) == kept


def _whole(number: str) -> int:
    if not re.fullmatch(r" *\d{1,18}", number):
        raise FieldError(f"it is no number of records, {number[:20]!r}.")
    return int(number)


def _asked(key: str, text: str) -> Ask:
    ask = read_ask(text)
    if ask.key != key:
        raise FieldError(f"it is the answer to another question, {ask.key!r}.")
    return ask
