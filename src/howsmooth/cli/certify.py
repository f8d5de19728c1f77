"""``howsmooth certify``: how far words may move before a classifier could change its mind, proven."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from howsmooth.cli.declared import takes
from howsmooth.cli.interrupts import INTERRUPTED, heard
from howsmooth.cli.options import ArgumentModel, OptionJson, OptionOut, OptionRetry, OptionScheduler, OptionWorkers
from howsmooth.cli.runs_here import hands, page, run_folder
from howsmooth.studies.plans.certifying import Certifying

FAILED = 1

OptionSynonyms = Annotated[
    str | None,
    typer.Option(
        "--synonyms",
        metavar="FILE",
        help='Certify every combination of replacements instead, JSON: {"film": ["movie"]}.',
    ),
]


@takes(Certifying, argument=("model", ArgumentModel))
def certify(
    certifying: Certifying,
    synonyms: OptionSynonyms = None,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
    out: OptionOut = None,
) -> None:
    """Certify a classifier at a sentence: how far each word may move before it could change its mind, proven.

    Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

    Example: howsmooth certify reviews --text "a gripping film"
    """
    certifying.check()
    if synonyms is not None:
        from howsmooth.cli.synonyms import certify_synonyms

        sys.exit(certify_synonyms(certifying, synonyms, as_json))
    folder = run_folder(certifying, out)
    _run(certifying, folder, hands(certifying, workers, scheduler), retry_failed, as_json)


def _run(certifying: Certifying, folder: Path, who: dict, retry_failed: bool, as_json: bool) -> None:
    from howsmooth.cli.answers import say_failures
    from howsmooth.studies.plans.certify import planned_certificates
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.sweep import sweep
    from howsmooth.studies.sweep.watching import watching
    from howsmooth.studies.sweep.workers import executor

    interrupted = False
    resources = Resources()
    made = planned_certificates(certifying, resources)
    for said in made.wrong:
        typer.echo(said, err=True)
    with executor(resources=resources, **who) as execute, Store(folder) as store:
        made.begin(store)
        before = len(store.done(made.asks))
        try:
            with watching() as progress:
                sweep(made.asks, store, execute=execute, retry_failed=retry_failed, progress=progress)
        except KeyboardInterrupt:
            interrupted = True
            heard()
        found = store.find(ask.key for ask in made.asks)
        mine = store.failed(made.asks)
        failures = [failure for failure in store.failures() if failure.ask.key in mine]
    if found:
        _tell(list(found.values()), folder, as_json)
        page(folder, new=len(found) > before)
    say_failures(failures)
    if interrupted:
        said = f"{len(found)} of {len(made.asks)} certified and kept; the same command goes on from there."
        typer.echo(f"Stopped: {said}", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(FAILED if failures else 0)


def _tell(records: list, folder: Path, as_json: bool) -> None:
    from rich.console import Console

    from howsmooth.cli.printing import print_json
    from howsmooth.report.page import FILE
    from howsmooth.studies.runs.certificates import certified

    results = certified(records)
    if as_json:
        print_json({"run": str(folder), "certificates": [json.loads(each.to_json()) for each in results]})
        return
    console = Console(highlight=False, markup=False)
    for each in results:
        console.print(each)
    typer.echo(f"The report is {folder / FILE}. {len(records)} records are in {folder}.")
