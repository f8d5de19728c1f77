"""``howsmooth runs`` and ``howsmooth show``: what was measured, without any model."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from howsmooth.cli.bounds import OptionJson

if TYPE_CHECKING:
    from howsmooth.studies.records import Failure

MANY = 5


def runs(
    folder: Annotated[str, typer.Argument(help="Where to look for runs.")] = "runs", as_json: OptionJson = False
) -> None:
    """List the runs in a folder: how many records each holds, of which models.

    Example: howsmooth runs
    """
    from howsmooth.errors import FileError
    from howsmooth.studies.store import FILE, Store

    if not Path(folder).is_dir():
        raise FileError(f"there is no folder {folder!r} with runs; howsmooth measure makes one.")
    rows: list[dict[str, Any]] = []
    for path in sorted(Path(folder).rglob(FILE)):
        with Store(path.parent) as store:
            records, failed = store.records(), len(store.failures())
        tasks = [record.task for record in records]
        models, texts, maps = (_named(getattr(task, part) for task in tasks) for part in ("model", "text", "map"))
        lengths = sorted({task.length for task in tasks})
        counts = {"run": str(path.parent), "records": len(records), "failed": failed}
        rows.append(counts | {"models": models, "texts": texts, "maps": maps, "lengths": lengths})
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        failed_text = f", {row['failed']} failed" if row["failed"] else ""
        told = ", ".join(row["models"]) or "no model"
        told += f" on {', '.join(row['texts'])}" if row["texts"] else ""
        parts = row["maps"] if len(row["maps"]) < MANY else [f"{len(row['maps'])} maps"]
        sizes = row["lengths"]
        told += f"; {', '.join(parts)}; n = {_span(sizes)}" if sizes else ""
        typer.echo(f"{row['run']}: {row['records']} records{failed_text}; {told}")
    if not rows:
        typer.echo(f"No runs in {folder}.")


def _span(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}"


def _named(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name})


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")], as_json: OptionJson = False
) -> None:
    """Show the answer of a run again: constants, growth and bounds of each layer, for every model and map in it.

    Example: howsmooth show runs/minilm-attention-1a2b3c
    """
    from howsmooth.cli.layers import print_answer
    from howsmooth.studies.reading import measurements, open_run

    with open_run(run) as store:
        found, failures = measurements(store), store.failures()
    if as_json:
        typer.echo(json.dumps([json.loads(measurement.to_json()) for measurement in found]))
        return
    for measurement in found:
        print_answer(measurement)
    if not found:
        typer.echo(f"Nothing in {run} was measured at a text; all there is: howsmooth export {run} --to csv")
    say_failures(failures)


def say_failures(failures: "Sequence[Failure]") -> None:
    """Say what failed and why, the first few in full."""
    for failure in failures[:MANY]:
        task = failure.task
        typer.echo(f"Failed: {task.model} layer {task.layer}, {task.length} tokens: {failure.error}", err=True)
    if len(failures) > MANY:
        typer.echo(f"… and {len(failures) - MANY} more; --retry-failed tries them again.", err=True)
