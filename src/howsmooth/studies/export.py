"""Records as one flat table, for other tools."""

import csv
import json
from pathlib import Path
from typing import Any

from howsmooth.errors import FileError
from howsmooth.files import whole
from howsmooth.studies.records import Record, strict_json
from howsmooth.studies.store import Store


def write_table(store: Store, target: Path, to: str) -> int:
    """Write every record as one row: what was asked, what was found, and with what; return how many there are.

    Raises:
        FileError: If the file cannot be written, or a package for the format is missing.
    """
    rows = [flat(record) for record in store.records()]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {str(target.parent)!r} to write the table to.")
    try:
        with whole(target) as partial:
            WRITERS[to](partial, rows, columns)
    except OSError as error:
        raise FileError(f"the table cannot be written to {str(target)!r}: {error.strerror or error}.") from error
    return len(rows)


def flat(record: Record) -> dict[str, Any]:
    """Return a record as one row; the shares of tokens stay in the store."""
    result = json.loads(record.to_json())
    numbers, setting = result.pop("numbers"), result.pop("setting")
    del result["sensitivity"], result["response"]
    task = {name: value for name, value in vars(record.task).items() if name not in ("A", "V", "released", "radius")}
    task["ball_radius"] = record.task.radius
    return {"key": record.task.key} | task | result | numbers | {f"with_{k}": v for k, v in setting.items()}


def _csv(target: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _jsonl(target: Path, rows: list[dict[str, Any]], _columns: list[str]) -> None:
    target.write_text("".join(strict_json(row) + "\n" for row in rows), encoding="utf-8")


def _parquet(target: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise FileError(
            "Parquet needs pyarrow, which is not installed; run: pip install 'howsmooth[parquet]'"
        ) from error
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    parquet.write_table(table, target)


WRITERS = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
