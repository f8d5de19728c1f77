"""``howsmooth paper``: the paper's figures from the definition, and the checks that its readers ask for."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.bounds import OptionJson
from howsmooth.cli.progress import progress_bar
from howsmooth.cli.sweep import INTERRUPTED, OptionRetry, OptionScheduler, OptionWorkers

if TYPE_CHECKING:
    from howsmooth.studies.records import Record
    from howsmooth.studies.tasks import Task


def paper(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIGURE]…",
            help="real, adversarial, worst, regimes, splitting, measures, robustness, "
            "bounds, transition; all by default.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: ten minutes on two cores.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model in place of the defaults, as often as needed; a folder or a hub id."),
    ] = None,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="Where it goes; runs/paper or runs/paper-quick by default."),
    ] = None,
) -> None:
    """Repeat the experiments of the paper, with the constant itself, error bars and sharper bounds.

    Example: howsmooth paper regimes splitting --quick
    """
    from howsmooth.studies.paper import FULL, MODELS, QUICK, chosen_figures
    from howsmooth.studies.store import check_writable

    names = chosen_figures(figures or ())
    folder = Path(out) if out is not None else Path("runs") / ("paper-quick" if quick else "paper")
    check_writable(folder)
    sizes = QUICK if quick else FULL
    tasks = {name: figure.list(sizes, model or tuple(MODELS)) for name, figure in names.items()}
    _check_models(tasks)
    interrupted = _run([task for found in tasks.values() for task in found], folder, workers, scheduler, retry_failed)
    _keep(tasks, folder, ["howsmooth", "paper", *(figures or ()), *_options(quick, model)], bounded=not interrupted)
    _tell(tasks, folder, as_json)
    if interrupted:
        typer.echo("Stopped: what is done is kept; the same command goes on from there.", err=True)
        sys.exit(INTERRUPTED)


def _check_models(tasks: "dict[str, list[Task]]") -> None:
    """Load every model once before any long work, so that a name that leads nowhere is refused now."""
    from howsmooth.studies.resources import check_layer

    for model, layer, length in sorted(
        {
            (task.model, task.layer, task.length if task.text else 0)
            for found in tasks.values()
            for task in found
            if task.model
        }
    ):
        check_layer(model, layer, length)


def _run(tasks: "Sequence[Task]", folder: Path, workers: int, scheduler: str | None, retry_failed: bool) -> bool:
    from howsmooth.studies.store import Store
    from howsmooth.studies.sweep import sweep
    from howsmooth.studies.workers import executor

    alone = not workers and scheduler is None
    with (
        executor(workers=workers, scheduler=scheduler, threads=None if alone else 1) as execute,
        Store(folder) as store,
        progress_bar() as progress,
    ):
        try:
            sweep(tasks, store, execute=execute, retry_failed=retry_failed, progress=progress)
        except KeyboardInterrupt:
            return True
    return False


def _options(quick: bool, models: list[str] | None) -> list[str]:
    return ["--quick"] * quick + [word for model in models or () for word in ("--model", model)]


def _keep(tasks: "dict[str, list[Task]]", folder: Path, command: list[str], bounded: bool) -> None:
    """Keep what a report needs beside the records: the command, the figures, and what is known about the models."""
    from howsmooth.studies.context import keep_ladder, keep_notes
    from howsmooth.studies.provenance import keep_command, keep_figures
    from howsmooth.studies.reading import measurements
    from howsmooth.studies.resources import transformer_of
    from howsmooth.studies.store import Store

    with Store(folder) as store:
        keep_command(store, command)
        keep_figures(store, tasks)
        for measurement in measurements(store) if bounded else ():
            task = measurement.records[0].task
            transformer = transformer_of(task)
            keep_notes(store, transformer)
            for layer in measurement.layers if task.stride == 0 else ():
                keep_ladder(store, transformer, task.map, layer.layer, layer.length, layer.radius)


def _tell(tasks: "dict[str, list[Task]]", folder: Path, as_json: bool) -> None:
    """Draw every figure and say in a line what it shows."""
    from howsmooth.cli.runs import say_failures
    from howsmooth.report.page import write_report
    from howsmooth.report.paper_charts import CHARTS
    from howsmooth.report.saving import save_chart
    from howsmooth.studies.paper import title_and_protocol
    from howsmooth.studies.store import Store

    drawn: dict[str, list[str]] = {}
    with Store(folder) as store:
        records: dict[str, list[Record]] = {name: list(store.find(found).values()) for name, found in tasks.items()}
        failures = store.failures()
    for name, found in records.items():
        drawn[name] = []
        for chart_name, chart in CHARTS[name](found).items():
            save_chart(chart, folder / f"{name}-{chart_name}.svg")
            drawn[name].append(str(folder / f"{name}-{chart_name}.svg"))
    report = write_report(folder)
    if as_json:
        counts = {name: {"records": len(found), "figures": drawn[name]} for name, found in records.items()}
        typer.echo(json.dumps({"run": str(folder), "failed": len(failures), "figures": counts, "report": str(report)}))
    else:
        for name, found in records.items():
            typer.echo(f"{name}: {len(found)} records, {len(drawn[name])} figures. {title_and_protocol(name)[1]}")
        typer.echo(f"Records and figures are in {folder}.")
        typer.echo(f"The report is {report}.")
    say_failures(failures)
