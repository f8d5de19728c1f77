"""``howsmooth runs``: what runs there are."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from howsmooth.cli.options import OptionJson
from howsmooth.cli.printing import print_json, say
from howsmooth.errors import FileError
from howsmooth.studies.runs.folders import FILE
from howsmooth.wording import count

MANY = 5


def runs(
    folder: Annotated[str, typer.Argument(help="Where to look for runs.")] = "runs", as_json: OptionJson = False
) -> None:
    """List the runs in a folder: how many records each holds, of which models.

    Example: howsmooth runs
    """
    if not Path(folder).is_dir():
        raise FileError(f"there is no folder {folder!r} with runs; howsmooth measure makes one.")
    rows = [_row(path.parent) for path in sorted(Path(folder).rglob(FILE))]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(_line(row))
    if not rows:
        say(f"No runs in {folder}.")


def _row(folder: Path) -> dict[str, Any]:
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.values import columns

    try:
        with Store(folder, writable=False) as store:
            asks, failed, plans = [record.ask for record in store.records()], len(store.failures()), store.plans()
    except FileError as error:  # one damaged run does not hide the others
        return {"run": str(folder), "error": str(error)}
    told = [columns(ask) | {"kind": ask.kind} for ask in asks]
    planned = {key for plan in plans for key in (*plan.keys, *plan.beside)} | {ask.key for ask in asks}
    counts = {"run": str(folder), "records": len(asks), "planned": len(planned), "failed": failed}
    names = {f"{part}s": _named(row.get(part, "") for row in told) for part in ("kind", "model", "text", "map")}
    return counts | names | {"lengths": sorted({row["length"] for row in told if "length" in row})}


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['run']}: {row['error']}"
    left = row["planned"] - row["records"]
    state = (f" of {row['planned']} planned" if left else "") + (f", {row['failed']} failed" if row["failed"] else "")
    told = ", ".join(row["models"]) or "no model"
    told += f" on {', '.join(row['texts'])}" if row["texts"] else ""
    maps, sizes = row["maps"], row["lengths"]
    told += f"; {', '.join(maps) if len(maps) < MANY else f'{len(maps)} maps'}" if maps else ""
    told += f"; n = {_span(sizes)}" if sizes else ""
    return f"{row['run']}: {count(row['records'], 'record')}{state}; {told}"


def _span(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}"


def _named(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name})
