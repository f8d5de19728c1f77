"""``howsmooth runs`` and ``howsmooth show``: what was measured, without any model."""

import json
from collections.abc import Sequence
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
        models = sorted({record.task.model for record in records if record.task.model})
        rows.append({"run": str(path.parent), "records": len(records), "failed": failed, "models": models})
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        failed_text = f", {row['failed']} failed" if row["failed"] else ""
        typer.echo(f"{row['run']}: {row['records']} records{failed_text}; {', '.join(row['models']) or 'no model'}")
    if not rows:
        typer.echo(f"No runs in {folder}.")


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
