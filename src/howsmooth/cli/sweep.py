"""``howsmooth sweep``: a user's own grid of questions, here or on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.option_groups import option_groups
from howsmooth.cli.printing import print_json, say
from howsmooth.cli.run_commands import RunOptions, exit_with_failures
from howsmooth.studies.settings import command
from howsmooth.wording import duration

if TYPE_CHECKING:
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources


@option_groups
def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY.toml", help="The grid: models, layers, lengths, maps, seeds.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the asks and estimate the time; do nothing.")
    ] = False,
    options: RunOptions,
) -> None:
    """Run a study file: every question of its grid that is not answered in the run folder yet.

    Killed at any moment, it loses at most what it was working on, and the same command goes on from there.

    Example: howsmooth sweep study.toml --workers 2
    """
    from howsmooth.studies.plans.study import keep_bounds, parts, read_study

    grid = read_study(study)
    folder = options.folder(lambda: Path("runs") / _file_name(grid.name))

    from howsmooth.studies.resources import Resources

    resources = Resources()
    made = parts(grid, resources, command("sweep", study))
    if dry_run:
        _estimate(made, folder, options, resources)
        return

    from howsmooth.studies.runs.store import Store

    asks = [ask for part in made for ask in part.asks]
    with options.executor(resources, 1) as execute, Store(folder) as store:
        for part in made:
            part.begin(store)
        interrupted = options.answer(asks, store, execute)
        if not interrupted:
            keep_bounds(store, made)
        done, failures = len(store.done(asks)), store.failures(asks)
    if options.as_json:
        print_json({"run": str(folder), "asks": len(asks), "done": done, "failed": len(failures)})
    else:
        say(f"{done} of {len(asks)} answered, {len(failures)} failed. Records are in {folder}.")
        say(f"See them: howsmooth show {folder}, or howsmooth report {folder} for a page.")
        say(f"Take them along: howsmooth export {folder} --to csv")
    exit_with_failures(failures, interrupted=interrupted)


def _estimate(made: "list[PlannedAsks]", folder: Path, options: RunOptions, resources: "Resources") -> None:
    """Time the smallest piece of work of each model, and extrapolate."""
    from howsmooth.studies.runs.database import FILE
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.workers import expected_seconds

    asks = [ask for part in made for ask in part.asks]
    done = frozenset[str]()
    if (folder / FILE).is_file():
        with Store(folder) as store:
            done = store.done(asks)
    seconds = expected_seconds([ask for ask in asks if ask.key not in done], resources) / max(1, options.workers)
    resources.release()
    counts = {"run": str(folder), "asks": len(asks), "done": len(done), "left": len(asks) - len(done)}
    if options.as_json:
        print_json(counts | {"expected_seconds": seconds})
        return
    say(f"{counts['asks']} asks, {counts['done']} done, {counts['left']} left: about {duration(seconds)}.")


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "study"
