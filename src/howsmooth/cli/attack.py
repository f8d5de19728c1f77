"""``howsmooth attack``: what an adversary attains, beside what the constant predicts and what the theory allows."""

import json
from pathlib import Path

import typer

from howsmooth.cli.declared import takes
from howsmooth.cli.options import ArgumentModel, OptionJson, OptionOut, OptionRetry, OptionScheduler, OptionWorkers
from howsmooth.cli.runs_here import hands, leave, page, run_folder, stopped
from howsmooth.studies.plans.attacking import Attacking


@takes(Attacking, argument=("model", ArgumentModel))
def attack(
    attacking: Attacking,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
    out: OptionOut = None,
) -> None:
    """Attack a map of a model at real text: what is attained, predicted and allowed, for each unit of eps.

    Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

    Example: howsmooth attack minilm --layer 4 --eps 0.1,1,10 --norm token --lengths 16 --sequences 5
    """
    attacking.check()
    folder = run_folder(attacking, out)
    _run(attacking, folder, hands(attacking, workers, scheduler), retry_failed, as_json)


def _run(attacking: Attacking, folder: Path, who: dict, retry_failed: bool, as_json: bool) -> None:
    from howsmooth.studies.plans.attack import planned_attacks
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.sweep import sweep
    from howsmooth.studies.sweep.workers import executor

    resources = Resources()
    made = planned_attacks(attacking, resources)
    with executor(resources=resources, **who) as execute, Store(folder) as store:
        made.begin(store)
        before = len(store.done(made.asks))
        interrupted = stopped(
            lambda progress: sweep(made.asks, store, execute=execute, retry_failed=retry_failed, progress=progress)
        )
        found, failures = store.find(ask.key for ask in made.asks), store.failures(made.asks)
    if found:
        _tell(list(found.values()), folder, as_json)
        page(folder, new=len(found) > before)
    leave(failures, interrupted=interrupted, kept=f"{len(found)} of {len(made.asks)} attacked and kept")


def _tell(records: list, folder: Path, as_json: bool) -> None:
    from rich.console import Console

    from howsmooth.cli.printing import print_json
    from howsmooth.report.page import FILE
    from howsmooth.studies.runs.attacks import attacked

    results = attacked(records)
    if as_json:
        print_json({"run": str(folder), "attacks": [json.loads(each.to_json()) for each in results]})
        return
    console = Console(highlight=False, markup=False)
    for each in results:
        console.print(each)
    typer.echo(f"The report is {folder / FILE}. {len(records)} records are in {folder}.")
