"""What commands that fill a run share: where it lies, who does the work, how it ends, when its page is written anew."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from howsmooth.cli.interrupts import INTERRUPTED, heard
from howsmooth.cli.printing import say, visible_console

if TYPE_CHECKING:
    from howsmooth.studies.asks import Ask
    from howsmooth.studies.plans.attacking import Attacking
    from howsmooth.studies.plans.certifying import Certifying
    from howsmooth.studies.plans.measuring import Measuring
    from howsmooth.studies.records import Failure, Record
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.sweep import Progress

FAILED = 1


class Plan(Protocol):
    """What was checked and listed; what is left is work."""

    @property
    def asks(self) -> "Sequence[Ask]":
        """What to answer."""

    def begin(self, store: "Store") -> None:
        """Keep what is known before any work."""


def run_folder(asked: "Measuring | Attacking | Certifying", out: str | None) -> Path:
    """Return where the run lies, after a look whether it can be written there."""
    from howsmooth.studies.runs.folders import check_writable

    check_writable(Path("runs") if out is None else Path(out))
    return asked.folder if out is None else Path(out)


def hands(
    asked: "Measuring | Attacking | Certifying", workers: int, scheduler: str | None, tls: str | None
) -> dict[str, Any]:
    """Return who does the work, as an executor takes it; other processes have one thread each unless told."""
    alone = scheduler is None and not workers
    threads = asked.where.threads or (None if alone else 1)
    return {"workers": workers, "scheduler": scheduler, "tls": tls, "threads": threads}


def stopped(work: "Callable[[Progress], object]") -> bool:
    """Do work, and show how far it is; return whether Ctrl-C ended it before its time."""
    from howsmooth.studies.sweep.watching import watching

    try:
        with watching() as progress:
            work(progress)
    except KeyboardInterrupt:
        heard()
        return True
    return False


def leave(failures: "Sequence[Failure]", *, interrupted: bool, kept: str = "what is done is kept") -> None:
    """Say what failed, and what is kept if Ctrl-C ended it; exit with a code that tells."""
    from howsmooth.cli.answers import say_failures

    say_failures(failures)
    if interrupted:
        say(f"Stopped: {kept}; the same command goes on from there.", err=True)
        sys.exit(INTERRUPTED)
    if failures:
        sys.exit(FAILED)


def fill(
    plan: "Callable[[Resources], Plan]",
    folder: Path,
    who: dict[str, Any],
    *,
    retry_failed: bool,
    tell: "Callable[[list[Record]], None]",
    done: str,
) -> None:
    """Plan, answer what is not stored yet, tell what was found, write the page, and exit with a code that tells."""
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.sweep import sweep
    from howsmooth.studies.sweep.workers import executor

    resources = Resources()
    made = plan(resources)
    with executor(resources=resources, **who) as execute, Store(folder) as store:
        made.begin(store)
        before = len(store.done(made.asks))
        interrupted = stopped(
            lambda progress: sweep(made.asks, store, execute=execute, retry_failed=retry_failed, progress=progress)
        )
        found, failures = store.find(ask.key for ask in made.asks), store.failures(made.asks)
    if found:
        tell(list(found.values()))
        page(folder, new=len(found) > before)
    leave(failures, interrupted=interrupted, kept=f"{len(found)} of {len(made.asks)} {done} and kept")


def tell_results(results: Sequence[Any], folder: Path, *, records: int, name: str, as_json: bool) -> None:
    """Print results that show themselves, and where they are kept; or all of them as one JSON object."""
    from howsmooth.cli.printing import print_json
    from howsmooth.report.page import FILE

    if as_json:
        print_json({"run": str(folder), name: [json.loads(each.to_json()) for each in results]})
        return
    console = visible_console()
    for each in results:
        console.print(each)
    say(f"The report is {folder / FILE}. {records} records are in {folder}.")


def page(folder: Path, *, new: bool) -> Path:
    """Return where the page of a run is; one of the same records would be the same, byte by byte."""
    from howsmooth.report.page import FILE, write_report

    if new or not (folder / FILE).is_file():
        write_report(folder)
    return folder / FILE
