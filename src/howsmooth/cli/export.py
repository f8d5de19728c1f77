"""``howsmooth export``: records for other tools."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from howsmooth.cli.printing import say


class Format(enum.StrEnum):
    """What other tools read."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")],
    to: Annotated[Format, typer.Option("--to", help="The format.")] = Format.CSV,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="The file; records.FORMAT in the run by default.")
    ] = None,
) -> None:
    """Write the records of a run as one table; the SQLite file itself has a view with the same rows for each kind.

    Example: howsmooth export runs/minilm-attention-1a2b3c --to parquet
    """
    from howsmooth.studies.runs.export import write_table
    from howsmooth.wording import count

    target = Path(run) / f"records.{to}" if out is None else Path(out)
    records = write_table(run, target, to)
    say(f"{count(records, 'record')} in {target}.")
