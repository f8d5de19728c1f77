"""Many questions at once: ``howsmooth sweep``, a grid of the user's own, and ``howsmooth paper``, that of the paper."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import howsmooth as hs
from howsmooth.cli.app import stoppable
from howsmooth.cli.options import OptionThreads, model_names, option_groups
from howsmooth.cli.printing import print_json, say
from howsmooth.cli.run_commands import RunOptions, exit_with_failures
from howsmooth.errors import AssumptionError, nearest
from howsmooth.models.loading.names import check_model_name
from howsmooth.report.saving import save_chart
from howsmooth.studies.asks import AboutHead, AtText
from howsmooth.studies.plans.study import keep_bounds, parts, read_study
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import command

if TYPE_CHECKING:
    from howsmooth.studies.asks import Ask
    from howsmooth.studies.records import Failure
    from howsmooth.studies.resources import Resources


@option_groups
def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY.toml", help="The grid: models, layers, lengths, maps, seeds.")],
    *,
    threads: OptionThreads = 1,
    options: RunOptions,
) -> None:
    """Run a study file: every question of its grid that is not answered in the run folder yet.

    Killed at any moment, it loses at most what it was working on, and the same command goes on from there.

    Example: howsmooth sweep study.toml --workers 2
    """
    grid = read_study(study)
    file = "".join(c if c.isalnum() or c in "-_." else "-" for c in grid.name).strip(".") or "study"
    folder = options.folder(lambda: Path("runs") / file)

    from howsmooth.studies.resources import Resources

    resources = Resources()
    made = parts(grid, resources, command("sweep", study))
    asks = [ask for part in made for ask in part.asks]
    if options.dry_run:
        options.estimate(asks, folder, resources)
        return

    with stoppable(), options.executor(resources, threads) as execute, Store(folder) as store:
        for part in made:
            part.begin(store)
        interrupted = options.answer(asks, store, execute, resources)
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


def _figures_and_models(incomplete: str) -> list[str]:
    from howsmooth.studies.plans.paper import known_figures

    return [name for name in known_figures() if name.startswith(incomplete)] + model_names(incomplete)


@option_groups
def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]… [FIGURE]…",
            help="Models in place of the defaults, and figures: real, adversarial, whole, worst, regimes, transition, "
            "splitting, measures, robustness, bounds; all by default.",
            autocompletion=_figures_and_models,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: ten minutes on two cores.")] = False,
    *,
    threads: OptionThreads = None,
    options: RunOptions,
) -> None:
    """Repeat the experiments of the paper, with the constant itself, error bars and sharper bounds.

    Example: howsmooth paper regimes splitting --quick
    """
    from howsmooth.studies.plans.paper import FULL, MODELS, QUICK, chosen_figures, known_figures

    model = [name for name in names or () if name not in known_figures()]
    figures = [name for name in names or () if name not in model]
    chosen = chosen_figures(figures)
    folder = options.folder(lambda: Path("runs") / ("paper-quick" if quick else "paper"))
    for name in model:
        # a hub may have models of any name
        if difflib.get_close_matches(name, known_figures(), cutoff=0.75) and not Path(name).exists():
            raise AssumptionError(f"there is no figure {name!r}{nearest(name, known_figures())}", field="names")
        check_model_name(name)
    sizes = QUICK if quick else FULL
    asks = {name: [*figure.asks(sizes, tuple(model) or tuple(MODELS))] for name, figure in chosen.items()}
    used = {getattr(ask, "model", "") for found in asks.values() for ask in found}
    if strays := [name for name in model if name not in used]:
        raise AssumptionError(
            f"{strays[0]!r} is no figure, and as a model it has no part in {', '.join(chosen)}; figures are "
            f"{', '.join(known_figures())}.",
            field="names",
        )

    from howsmooth.studies.plans.paper import keep_figures, keep_models
    from howsmooth.studies.resources import Resources

    resources = Resources()
    _check_models(asks, resources)
    if options.dry_run:
        options.estimate([ask for found in asks.values() for ask in found], folder, resources)
        return
    words = ["paper", *model, *figures, *["--quick"] * quick]
    with stoppable(), options.executor(resources, threads) as execute, Store(folder) as store:
        keep_figures(store, asks, words)
        interrupted = options.answer([ask for found in asks.values() for ask in found], store, execute, resources)
        if not interrupted:
            keep_models(store, resources)
    exit_with_failures(_print_figures(folder, options.as_json), interrupted=interrupted)


def _check_models(asks: "dict[str, list[Ask]]", resources: "Resources") -> None:
    """Load every model once before any long work, so that a name or a layer that leads nowhere is refused now."""
    every = [ask for found in asks.values() for ask in found if isinstance(ask, AtText | AboutHead) and ask.model]
    for model, layer in sorted({(ask.model, ask.layer) for ask in every}):
        resources.transformer(model).layer(layer)
    for model, length in sorted({(ask.model, ask.length) for ask in every if isinstance(ask, AtText)}):
        limit = resources.transformer(model).max_length
        if limit is not None and length > limit:
            raise AssumptionError(
                f"{model!r} has positions for {limit} tokens, got a length of {length}.", field="length"
            )


def _print_figures(folder: Path, as_json: bool) -> "Sequence[Failure]":
    """Draw every figure once, for the page and as a file, and say in a line what it shows; return what failed."""
    from howsmooth.cli.answers import print_figures
    from howsmooth.report.figures import drawings, sections
    from howsmooth.report.page import write_page

    run = hs.read_run(folder)
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
        print_figures(run)
        say(f"Records and figures are in {folder}.")
        say(f"The report is {report}.")
    return run.failures
