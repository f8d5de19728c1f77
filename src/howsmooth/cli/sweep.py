"""``howsmooth sweep``: a user's own grid of measurements, here or on a cluster."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.bounds import OptionJson
from howsmooth.cli.progress import progress_bar

if TYPE_CHECKING:
    from howsmooth.studies.measure import Plan

OptionWorkers = Annotated[
    int, typer.Option("--workers", help="How many processes share the work; 0 does it in this one.", min=0)
]
OptionScheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="tcp://…", help="The address of a Dask scheduler to use.")
]
OptionRetry = Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")]
INTERRUPTED = 130


def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY.toml", help="The grid: models, layers, lengths, maps, seeds.")],
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="Where records go; runs/NAME by default.")
    ] = None,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the tasks and estimate the time; do nothing.")
    ] = False,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
) -> None:
    """Run a study file: every measurement of its grid that is not in the run folder yet.

    Killed at any moment, it loses at most what it was working on, and the same command goes on from there.

    Example: howsmooth sweep study.toml --workers 2
    """
    from howsmooth.studies.study import plans, read_study

    grid, lines = read_study(study)
    folder = Path("runs") / _file_name(grid.name) if out is None else Path(out)
    _check(folder)
    made = plans(grid, lines)
    if dry_run:
        _estimate(made, folder, workers, as_json)
        return
    _run(study, made, folder, workers, scheduler, retry_failed, as_json)


def _run(
    study: str, made: "list[Plan]", folder: Path, workers: int, scheduler: str | None, retry_failed: bool, as_json: bool
) -> None:
    from howsmooth.cli.runs import say_failures
    from howsmooth.studies.provenance import keep_command
    from howsmooth.studies.store import Store
    from howsmooth.studies.sweep import sweep as run_sweep
    from howsmooth.studies.workers import executor

    tasks = [task for plan in made for task in plan.tasks]
    interrupted = False
    with executor(workers=workers, scheduler=scheduler) as execute, Store(folder) as store:
        for plan in made:
            plan.begin(store)
        try:
            with progress_bar() as progress:
                run_sweep(tasks, store, execute=execute, retry_failed=retry_failed, progress=progress)
        except KeyboardInterrupt:
            interrupted = True
        keep_command(store, ["howsmooth", "sweep", study])
        for plan in made:
            plan.result(store, bounded=not interrupted)
        done, keys = len(store.done(tasks)), store.failed(tasks)
        failures = [failure for failure in store.failures() if failure.task.key in keys]
    if as_json:
        typer.echo(json.dumps({"run": str(folder), "tasks": len(tasks), "done": done, "failed": len(failures)}))
    else:
        typer.echo(f"{done} of {len(tasks)} measured, {len(failures)} failed. Records are in {folder}.")
        typer.echo(f"See them: howsmooth show {folder}, or howsmooth report {folder} for a page.")
        typer.echo(f"Take them along: howsmooth export {folder} --to csv")
    say_failures(failures)
    if interrupted:
        typer.echo("Stopped: what is done is kept; the same command goes on from there.", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(1 if failures else 0)


def _estimate(made: "list[Plan]", folder: Path, workers: int, as_json: bool) -> None:
    """Time the smallest piece of work of each model, and extrapolate."""
    from howsmooth.studies.estimates import expected_seconds
    from howsmooth.studies.store import FILE, Store

    tasks = [task for plan in made for task in plan.tasks]
    done = frozenset[str]()
    if (folder / FILE).is_file():
        with Store(folder) as store:
            done = store.done(tasks)
    seconds = expected_seconds([task for task in tasks if task.key not in done]) / max(1, workers)
    counts = {"run": str(folder), "tasks": len(tasks), "done": len(done), "left": len(tasks) - len(done)}
    if as_json:
        typer.echo(json.dumps(counts | {"expected_seconds": seconds}))
        return
    typer.echo(f"{counts['tasks']} tasks, {counts['done']} done, {counts['left']} left: about {_duration(seconds)}.")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "study"


def _check(folder: Path) -> None:
    from howsmooth.studies.store import check_writable

    check_writable(folder)
