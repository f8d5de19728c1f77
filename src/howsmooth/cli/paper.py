"""``howsmooth paper``: the paper's figures from the definition, and the checks that its readers ask for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.option_groups import option_groups
from howsmooth.cli.printing import print_json, say
from howsmooth.cli.run_commands import RunOptions, exit_with_failures

if TYPE_CHECKING:
    from howsmooth.studies.asks import Ask
    from howsmooth.studies.records import Failure
    from howsmooth.studies.resources import Resources


@option_groups
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
    *,
    options: RunOptions,
) -> None:
    """Repeat the experiments of the paper, with the constant itself, error bars and sharper bounds.

    Example: howsmooth paper regimes splitting --quick
    """
    from howsmooth.models.loading.names import check_model_name
    from howsmooth.studies.plans.paper import FULL, MODELS, QUICK, chosen_figures

    chosen = chosen_figures(figures or ())
    folder = options.folder(lambda: Path("runs") / ("paper-quick" if quick else "paper"))
    for name in model or ():
        check_model_name(name)
    sizes = QUICK if quick else FULL
    asks = {name: [*figure.asks(sizes, model or tuple(MODELS))] for name, figure in chosen.items()}

    from howsmooth.studies.resources import Resources

    resources = Resources()
    _check_models(asks, resources)
    words = ["paper", *(figures or ()), *["--quick"] * quick]
    words += [word for name in model or () for word in ("--model", name)]
    interrupted = _run(asks, folder, resources, words, options)
    exit_with_failures(_print_figures(folder, options.as_json), interrupted=interrupted)


def _check_models(asks: "dict[str, list[Ask]]", resources: "Resources") -> None:
    """Load every model once before any long work, so that a name or a layer that leads nowhere is refused now."""
    from howsmooth.errors import AssumptionError
    from howsmooth.studies.asks import AboutHead, AtText

    every = [ask for found in asks.values() for ask in found if isinstance(ask, AtText | AboutHead) and ask.model]
    for model, layer in sorted({(ask.model, ask.layer) for ask in every}):
        resources.transformer(model).layer(layer)
    for model, length in sorted({(ask.model, ask.length) for ask in every if isinstance(ask, AtText)}):
        limit = resources.transformer(model).max_length
        if limit is not None and length > limit:
            raise AssumptionError(
                f"{model!r} has positions for {limit} tokens, got a length of {length}.", field="length"
            )


def _run(
    asks: "dict[str, list[Ask]]", folder: Path, resources: "Resources", words: Sequence[str], options: RunOptions
) -> bool:
    from howsmooth.studies.plans.paper import keep_figures, keep_models
    from howsmooth.studies.runs.store import Store

    with options.executor(resources, None) as execute, Store(folder) as store:
        keep_figures(store, asks, words)
        interrupted = options.answer([ask for found in asks.values() for ask in found], store, execute)
        if not interrupted:
            keep_models(store, resources)
    return interrupted


def _print_figures(folder: Path, as_json: bool) -> "Sequence[Failure]":
    """Draw every figure once, for the page and as a file, and say in a line what it shows; return what failed."""
    from howsmooth.report.figures import drawings, sections
    from howsmooth.report.page import write_page
    from howsmooth.report.saving import save_chart
    from howsmooth.studies.runs.run import read_run
    from howsmooth.wording import count

    run = read_run(folder)
    drawn = {section: drawings(section) for section in sections(run)}
    files: dict[str, list[str]] = {}
    for section, found in drawn.items():
        files[section.name] = []
        for drawing in found:
            target = folder / f"{drawing.name}.svg"
            save_chart(drawing.chart, target)
            files[section.name].append(str(target))
    report = write_page(run, drawn, folder)
    if as_json:
        counts = {section.name: {"records": len(section.records), "figures": files[section.name]} for section in drawn}
        print_json({"run": str(folder), "failed": len(run.failures), "figures": counts, "report": str(report)})
    else:
        for section in drawn:
            told = count(len(section.records), "record")
            say(f"{section.name}: {told}, {count(len(files[section.name]), 'figure')}. {section.protocol}")
        say(f"Records and figures are in {folder}.")
        say(f"The report is {report}.")
    return run.failures
