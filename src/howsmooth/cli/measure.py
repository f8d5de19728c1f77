"""``howsmooth measure``: how smooth is each attention layer of a model on a text?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.bounds import OptionJson
from howsmooth.cli.progress import progress_bar
from howsmooth.cli.sweep import OptionRetry, OptionScheduler, OptionWorkers
from howsmooth.errors import AssumptionError

if TYPE_CHECKING:
    from howsmooth.studies.measurement import Measurement

INTERRUPTED = 130


def measure(
    model: Annotated[
        str, typer.Argument(help="A built-in name, a folder, a .gguf file, a hub id, or random:FAMILY.")
    ] = "minilm",
    text: Annotated[
        str | None, typer.Option("--text", metavar="FILE", help="A text in UTF-8; Alice in Wonderland by default.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", metavar="0,2,5", help="Which attention layers; all by default.")
    ] = None,
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="8,16,…", help="How many tokens a window has.")
    ] = "8,16,32,64,128,256",
    sequences: Annotated[int, typer.Option("--sequences", help="How many windows of each length.")] = 10,
    part: Annotated[
        str, typer.Option("--map", help="What is measured: attention, heads, head:3, normed, residual or block.")
    ] = "attention",
    per_head: Annotated[bool, typer.Option("--per-head", help="Measure every head by itself too.")] = False,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens", help="Begin and end windows as the model's own inputs do.")
    ] = False,
    released_estimator: Annotated[
        bool, typer.Option("--released-estimator", help="Record the quantity of the paper's released scripts too.")
    ] = False,
    rtol: Annotated[float, typer.Option("--rtol", help="The bracket to reach: upper / lower ≤ 1 + rtol.")] = 1e-3,
    confidence: Annotated[float, typer.Option("--confidence", help="The probability of upper ends.")] = 0.999,
    certify: Annotated[
        bool, typer.Option("--certify/--no-certify", help="Whether to go on until the bracket closes.")
    ] = True,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the solver's random starts.")] = 0,
    device: Annotated[str | None, typer.Option("--device", help="Where to compute, as torch names it.")] = None,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="Where records and figures go; runs/… by default.")
    ] = None,
) -> None:
    """Measure the local Lipschitz constant of every attention layer of a model on real text.

    Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

    Example: howsmooth measure minilm --layers 0,5 --lengths 16,32,64 --sequences 5
    """
    import warnings

    from howsmooth.errors import ConvergenceWarning
    from howsmooth.studies.measure import plan
    from howsmooth.studies.store import Store
    from howsmooth.studies.workers import executor

    chosen = None if layers is None else whole_numbers(layers, "--layers")
    sizes = whole_numbers(lengths, "--lengths")
    check_folder(out)
    made = plan(
        model,
        text=text,
        layers=chosen,
        lengths=sizes,
        sequences=sequences,
        map=part,
        per_head=per_head,
        special_tokens=special_tokens,
        rtol=rtol,
        confidence=confidence,
        certify=certify,
        released_estimator=released_estimator,
        seed=seed,
        device=device,
    )
    folder = made.default_folder if out is None else Path(out)
    interrupted = False
    threads = None if scheduler is None and not workers else 1
    with (
        executor(workers=workers, scheduler=scheduler, threads=threads) as execute,
        Store(folder) as store,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("once", ConvergenceWarning)
        before = len(store.done(made.tasks + made.heads))
        try:
            with progress_bar() as progress:
                made.run(store, execute=execute, retry_failed=retry_failed, progress=progress)
        except KeyboardInterrupt:
            interrupted = True
        found = made.result(store, bounded=not interrupted)
        failures = store.failures()
    _tell(found, folder, before, as_json)
    for failure in failures:
        typer.echo(f"Failed: layer {failure.task.layer}, {failure.task.length} tokens: {failure.error}", err=True)
    if interrupted:
        _say_what_is_left(found, len(made.tasks) + len(made.heads))
        sys.exit(INTERRUPTED)


def _tell(found: "Measurement", folder: Path, before: int, as_json: bool) -> None:
    """Print the answer, then draw it, and say where everything is."""
    from howsmooth.cli.figures import write_figures
    from howsmooth.cli.layers import print_answer
    from howsmooth.report.page import write_report

    if as_json:
        typer.echo(found.to_json())
    elif found.layers:
        print_answer(found)
    if found.layers:
        figures = write_figures(found, folder)
        report = write_report(folder)
        done = len(found.records) + len(found.heads)
        records = f"{done} records ({done - before} of them new)"
        typer.echo(f"The report is {report}. {records} and {len(figures)} figures are in {folder}.", err=as_json)


def whole_numbers(text: str, option: str) -> list[int]:
    """Read ``0,2,5``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise AssumptionError(
            f"{option} takes whole numbers with commas between them, as in 0,2,5, got {text!r}."
        ) from None


def check_folder(out: str | None) -> None:
    """Refuse a folder that cannot be written to, before anything is loaded."""
    from howsmooth.studies.store import check_writable

    check_writable(Path("runs" if out is None else out))


def _say_what_is_left(found: "Measurement", total: int) -> None:
    done = len(found.records) + len(found.heads)
    typer.echo(f"Stopped: {done} of {total} measured and kept; the same command goes on from there.", err=True)
