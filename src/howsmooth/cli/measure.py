"""``howsmooth measure``: how smooth is each attention layer of a model on a text?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from howsmooth.cli.declared import takes
from howsmooth.cli.options import (
    ArgumentModel,
    OptionJson,
    OptionOut,
    OptionRetry,
    OptionScheduler,
    OptionTls,
    OptionWorkers,
)
from howsmooth.cli.printing import say
from howsmooth.cli.runs_here import hands, leave, page, run_folder, stopped
from howsmooth.studies.plans.measuring import Measuring

if TYPE_CHECKING:
    from howsmooth.studies.runs.composition import Composition
    from howsmooth.studies.runs.measurement import Measurement


@takes(Measuring, argument=("model", ArgumentModel))
def measure(
    measuring: Measuring,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    tls: OptionTls = None,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
    out: OptionOut = None,
) -> None:
    """Measure the local Lipschitz constant of every attention layer of a model on real text.

    Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

    Example: howsmooth measure minilm --layers 0,5 --lengths 16,32,64 --sequences 5
    """
    folder = run_folder(measuring, out)
    measuring.check()
    _run(measuring, folder, hands(measuring, workers, scheduler, tls), retry_failed, as_json)


def _run(measuring: Measuring, folder: Path, who: dict, retry_failed: bool, as_json: bool) -> None:
    import warnings

    from howsmooth.errors import ConvergenceWarning
    from howsmooth.studies.plans.measure import planned
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.workers import executor

    resources = Resources()
    made = planned(measuring, resources)
    with executor(resources=resources, **who) as execute, Store(folder) as store, warnings.catch_warnings():
        warnings.simplefilter("once", ConvergenceWarning)
        before = len(store.done(made.every))
        interrupted = stopped(
            lambda progress: made.run(store, execute=execute, retry_failed=retry_failed, progress=progress)
        )
        kept, failures = store.keys(), store.failures(made.every)
        done = kept & {ask.key for ask in made.every}
        found = made.result(store, bounded=not interrupted) if done & set(made.plan.keys) else None
        composed = made.compositions(store)
    if found is not None:
        _tell(found, composed, folder, (len(done), len(done) - before, len(kept) - len(done)), as_json)
    leave(failures, interrupted=interrupted, kept=f"{len(done)} of {len(made.every)} measured and kept")


def _tell(
    found: "Measurement",
    composed: "Sequence[Composition]",
    folder: Path,
    counts: tuple[int, int, int],
    as_json: bool,
) -> None:
    """Print the answer, write the report, say where it is, and what else it tells."""
    from howsmooth.cli.answers import print_answer, print_compositions
    from howsmooth.wording import count

    if as_json:
        typer.echo(found.to_json())
    else:
        print_answer(found)
        print_compositions(composed)
    done, new, others = counts
    report = page(folder, new=bool(new))
    say(f"The report is {report}. {count(done, 'record')} ({new} of them new) are in {folder}.", err=as_json)
    if others:
        say(f"The folder holds {count(others, 'record')} of other commands too, which its report tells.", err=True)
