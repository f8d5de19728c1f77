"""Records as one flat table, for other tools."""

import csv
import sqlite3
from pathlib import Path
from typing import Any

from howsmooth.errors import FileError
from howsmooth.files import whole
from howsmooth.studies.json_values import columns, to_json
from howsmooth.studies.records import Record
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.run import open_run


def write_table(folder: str, target: Path, to: str) -> int:
    """Write every record of a run as one row: what was asked, what was found, and with what; return how many.

    Runs of howsmooth 0.1 are written as the table that they hold themselves.

    Raises:
        FileError: If there is no run, the file cannot be written, or a package for the format is missing.
    """
    rows = _old_rows(Path(folder))
    if rows is None:
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


def _old_rows(folder: Path) -> list[dict[str, Any]] | None:
    """Return the rows of a run of howsmooth 0.1, or nothing if it is none."""
    if not (folder / FILE).is_file():
        return None
    try:
        database = sqlite3.connect(f"{(folder / FILE).absolute().as_uri()}?mode=ro", uri=True)
        try:
            try:
                (version,) = database.execute("PRAGMA user_version").fetchone()
            except sqlite3.OperationalError:  # on a read-only medium, which a store of ours knows how to read
                return None
            if version != 1:
                return None
            found = database.execute("SELECT * FROM measurements")
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]
        finally:
            database.close()
    except sqlite3.Error as error:
        raise FileError(f"the records in {str(folder)!r} cannot be read: {error}.") from error


def _csv(target: Path, rows: list[dict[str, Any]], names: list[str]) -> None:
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _jsonl(target: Path, rows: list[dict[str, Any]], _names: list[str]) -> None:
    target.write_text("".join(to_json(row) + "\n" for row in rows), encoding="utf-8")


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


WRITERS = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
