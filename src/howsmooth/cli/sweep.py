"""``howsmooth sweep``: a user's own grid of questions, here or on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.options import OptionJson, OptionOut, OptionRetry, OptionScheduler, OptionTls, OptionWorkers
from howsmooth.cli.printing import print_json, say
from howsmooth.cli.runs_here import leave, stopped
from howsmooth.wording import duration

if TYPE_CHECKING:
    from howsmooth.studies.plans.study import Part
    from howsmooth.studies.resources import Resources


def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY.toml", help="The grid: models, layers, lengths, maps, seeds.")],
    out: OptionOut = None,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    tls: OptionTls = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the asks and estimate the time; do nothing.")
    ] = False,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
) -> None:
    """Run a study file: every question of its grid that is not answered in the run folder yet.

    Killed at any moment, it loses at most what it was working on, and the same command goes on from there.

    Example: howsmooth sweep study.toml --workers 2
    """
    from howsmooth.studies.plans.study_file import read_study
    from howsmooth.studies.runs.folders import check_writable

    grid = read_study(study)
    folder = Path("runs") / _file_name(grid.name) if out is None else Path(out)
    check_writable(folder)

    from howsmooth.studies.plans.study import parts
    from howsmooth.studies.resources import Resources

    resources = Resources()
    made = parts(grid, resources)
    if dry_run:
        _estimate(made, folder, workers, resources, as_json)
        return
    who = {"workers": workers, "scheduler": scheduler, "tls": tls, "resources": resources}
    _run(study, made, folder, who, retry_failed, as_json)


def _run(study: str, made: "list[Part]", folder: Path, who: dict, retry_failed: bool, as_json: bool) -> None:
    from howsmooth.studies.plans.study import keep_bounds
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.sweep import sweep as run_sweep
    from howsmooth.studies.sweep.workers import executor

    asks = [ask for part in made for ask in part.asks]
    with executor(**who) as execute, Store(folder) as store:
        for part in made:
            part.begin(store, ["sweep", study])
        interrupted = stopped(
            lambda progress: run_sweep(asks, store, execute=execute, retry_failed=retry_failed, progress=progress)
        )
        if not interrupted:
            keep_bounds(store, made)
        done, failures = len(store.done(asks)), store.failures(asks)
    if as_json:
        print_json({"run": str(folder), "asks": len(asks), "done": done, "failed": len(failures)})
    else:
        say(f"{done} of {len(asks)} answered, {len(failures)} failed. Records are in {folder}.")
        say(f"See them: howsmooth show {folder}, or howsmooth report {folder} for a page.")
        say(f"Take them along: howsmooth export {folder} --to csv")
    leave(failures, interrupted=interrupted)


def _estimate(made: "list[Part]", folder: Path, workers: int, resources: "Resources", as_json: bool) -> None:
    """Time the smallest piece of work of each model, and extrapolate."""
    from howsmooth.studies.runs.folders import FILE
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.costs import expected_seconds

    asks = [ask for part in made for ask in part.asks]
    done = frozenset[str]()
    if (folder / FILE).is_file():
        with Store(folder) as store:
            done = store.done(asks)
    seconds = expected_seconds([ask for ask in asks if ask.key not in done], resources) / max(1, workers)
    resources.release()
    counts = {"run": str(folder), "asks": len(asks), "done": len(done), "left": len(asks) - len(done)}
    if as_json:
        print_json(counts | {"expected_seconds": seconds})
        return
    say(f"{counts['asks']} asks, {counts['done']} done, {counts['left']} left: about {duration(seconds)}.")


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "study"
