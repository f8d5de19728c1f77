"""Commands that fill a run: ``measure``, ``attack``, ``certify``, ``budget``; what ``sweep`` and ``paper`` share."""

import importlib
import inspect
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import howsmooth as hs
from howsmooth.cli import torchrun
from howsmooth.cli.app import leave, stoppable
from howsmooth.cli.options import OptionJson, checked, option_groups, require_folder
from howsmooth.cli.printing import begin, go_on, in_options, print_json, say, visible_console
from howsmooth.errors import AssumptionError, ConvergenceWarning, FileError
from howsmooth.files import whole
from howsmooth.models.loading.names import RANDOM
from howsmooth.report.drawing.token_text import running_text
from howsmooth.studies.json_values import default_of
from howsmooth.studies.kinds import Kind, RunCommand, kind_named, kind_names
from howsmooth.studies.kinds.certified_radii import Certifying, by_their_labels
from howsmooth.studies.plans.measurement_plan import Measuring, planned
from howsmooth.studies.runs.database import FILE, check_writable
from howsmooth.studies.runs.finished import finished, keep_finished
from howsmooth.studies.runs.store import Store
from howsmooth.tokens.swap_settings import read_candidates
from howsmooth.wording import at_least, count, duration, number

if TYPE_CHECKING:
    from howsmooth.certificates.synonyms import Synonyms
    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.asks import Ask
    from howsmooth.studies.kinds.certified_radii import CertificateAnswer
    from howsmooth.studies.records import Failure, Record
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.composition import Composition
    from howsmooth.studies.runs.measurement import Measurement
    from howsmooth.studies.sweep.sweep import Executor

FAILED = 1
FOUND = 1
# What does not go with words that are replaced.
OTHERS = ("word", "together", "metric", "at", "layer")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Who does the work of a run, and where its records go: options of every command that fills one."""

    workers: Annotated[
        int, typer.Option("--workers", help="How many processes share the work; 0 does it in this one.", min=0)
    ] = 0
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="tcp://…", help="The address of a Dask scheduler to use.")
    ] = None
    tls: Annotated[
        str | None,
        typer.Option("--tls", metavar="DIR", help="Speak TLS to it: a folder with ca.pem, cert.pem and key.pem."),
    ] = None
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the questions and estimate the time; do nothing.")
    ] = False
    as_json: OptionJson = False
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where records and figures go; runs/… by default.",
            callback=checked(require_folder),
        ),
    ] = None

    def folder(self, default: Callable[[], Path]) -> Path:
        """Return where the run lies, after a look whether it can be written there."""
        check_writable(Path("runs") if self.out is None else Path(self.out))
        return default() if self.out is None else Path(self.out)

    def executor(self, resources: "Resources", threads: int | None) -> Any:
        """Provide who does the work; other processes have one thread each unless told."""
        from howsmooth.studies.sweep.workers import executor

        if resources.group is not None:
            from howsmooth.studies.sweep.process_group import in_group

            return nullcontext(lambda work: in_group(work, resources, threads))
        alone = self.scheduler is None and not self.workers
        return executor(
            workers=self.workers,
            scheduler=self.scheduler,
            tls=self.tls,
            threads=threads or (None if alone else 1),
            resources=resources,
        )

    def estimate(self, asks: "Sequence[Ask]", folder: Path, resources: "Resources") -> None:
        """Say how much is left and how long that may take: two pieces of each model are timed, nothing kept."""
        from howsmooth.studies.sweep.workers import expected_seconds

        begin("Timing two pieces of the work")
        done = frozenset[str]()
        if (folder / FILE).is_file():
            with Store(folder) as store:
                done = store.done(asks)
        seconds = expected_seconds([ask for ask in asks if ask.key not in done], resources) / max(1, self.workers)
        resources.release()
        go_on()
        counts = {"run": str(folder), "asks": len(asks), "done": len(done), "left": len(asks) - len(done)}
        if self.as_json:
            print_json(counts | {"expected_seconds": seconds})
        else:
            say(f"{counts['asks']} asks, {counts['done']} done, {counts['left']} left: about {duration(seconds)}.")

    def answer(self, asks: "Sequence[Ask]", store: "Store", execute: "Executor", resources: "Resources") -> bool:
        """Answer what has no record yet, and show how far it is; return whether Ctrl-C ended it before its time."""
        from howsmooth.studies.asks import AtText
        from howsmooth.studies.sweep.progress import watching
        from howsmooth.studies.sweep.sweep import sweep

        streamed = any(isinstance(ask, AtText) and ask.where.streamed for ask in asks)
        if streamed and (self.workers or self.scheduler is not None):
            raise AssumptionError(
                "a model that is streamed goes through one process, which reads each block once; leave out --workers "
                "and --scheduler.",
                field="streamed",
            )
        go_on()  # the bar, or its lines, say more
        try:
            with watching() as progress:
                again = self.retry_failed
                sweep(asks, store, execute=execute, retry_failed=again, progress=progress, resources=resources)
        except KeyboardInterrupt:
            return True
        return False


@dataclass
class Bounding:
    """How far the bounds of layers are, and how long the rest takes at this rate."""

    layers: int
    done: int = -1
    began: float = field(default_factory=time.monotonic)

    def next(self, layer: int) -> None:
        """Say which layer is next."""
        self.done += 1
        each = (time.monotonic() - self.began) / max(self.done, 1)
        left = f", about {duration(each * (self.layers - self.done))} left" if self.done else ""
        what = f"Bounds of layer {layer}, {self.done} of at most {self.layers} layers done{left}"
        (go_on if self.done else begin)(what)


@option_groups
def measure(measuring: Measuring, options: RunOptions) -> None:
    """Measure the local Lipschitz constant of every attention layer of a model on real text.

    Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there. `torchrun --nproc-per-node 2 -m
    howsmooth measure …` shares out the tokens of each sequence over two processes.

    Example: howsmooth measure minilm --layers 0,5 --lengths 16,32,64 --sequences 5
    """
    if not torchrun.started():
        _measure(measuring, options, None)
        return
    torchrun.refuse_options(options)
    measuring.check()

    from howsmooth.studies.resources import Resources
    from howsmooth.studies.sweep.process_group import check_settings, serve

    check_settings(measuring)
    with torchrun.group(measuring.where.device) as group:
        if torchrun.first():
            _measure(measuring, options, group)
        else:
            serve(Resources(group=group), measuring.where.threads)


def _measure(measuring: Measuring, options: RunOptions, group: Any) -> None:
    """Measure in this process, or as the first one of a group."""
    folder = options.folder(lambda: measuring.folder)
    measuring.check()
    begin(f"Reading {measuring.model}")
    if not options.dry_run and (before := finished(folder, measuring)) is not None:
        for remark in before.remarks:
            say(in_options(f"{remark}."), err=True)
        go_on()
        _print_measurement(before.measurement, before.compositions, as_json=options.as_json)
        _say_where(folder, before.records, 0, before.others, as_json=options.as_json)
        return

    from howsmooth.studies.resources import Resources

    resources = Resources(group=group)
    made = planned(measuring, resources)
    if group is not None:
        from howsmooth.studies.sweep.process_group import check_plan

        made = check_plan(made, group)
    for remark in made.subject.remarks:
        say(in_options(f"{remark}."), err=True)
    if options.dry_run:
        options.estimate(made.every, folder, resources)
        return
    execution = options.executor(resources, measuring.where.threads)
    with stoppable(), execution as execute, Store(folder) as store, warnings.catch_warnings():
        warnings.simplefilter("once", ConvergenceWarning)
        known = len(store.done(made.every))
        made.begin(store)
        interrupted = options.answer(made.every, store, execute, resources)
        kept, failures = store.keys(), store.failures(made.every)
        done = kept & {ask.key for ask in made.every}
        bounding = Bounding(layers=len({ask.layer for ask in made.asks}))
        progress = None if interrupted else bounding.next
        summed_up = bool(done & set(made.plan.keys))
        found = made.result(store, bounded=not interrupted, progress=progress) if summed_up else None
        composed = made.compositions(store)
        if found is not None and not interrupted and len(done) == len(made.every):
            keep_finished(store, measuring, made)
    if found is not None:
        _print_measurement(found, composed, as_json=options.as_json)
        _say_where(folder, len(done), len(done) - known, len(kept) - len(done), as_json=options.as_json)
    exit_with_failures(failures, interrupted=interrupted, kept=f"{len(done)} of {len(made.every)} measured and kept")


def _print_measurement(found: "Measurement", composed: "list[Composition]", *, as_json: bool) -> None:
    from howsmooth.cli.answers import print_answer, print_compositions

    if as_json:
        typer.echo(found.to_json())
    else:
        print_answer(found)
        print_compositions(composed)


def _say_where(folder: Path, records: int, new: int, others: int, *, as_json: bool) -> None:
    """Say where the report and the records are."""
    report = report_page(folder, new=bool(new))
    say(f"The report is {report}. {folder} holds {count(records, 'record')} ({new} of them new).", err=as_json)
    if others:
        say(f"The folder holds {count(others, 'record')} of other commands too, which its report tells.", err=True)


def declared_command(name: str) -> Callable[..., None]:
    """Return the command that a kind of question declares: its settings as options, and those of every run."""
    kind = next(kind for kind in map(kind_named, kind_names()) if kind.command and name == kind.command.settings.NAME)
    declared = cast(RunCommand, kind.command)

    def command(settings: Any, options: RunOptions) -> None:
        settings.check()
        fill_run(kind, settings, options)

    groups = {"settings": declared.settings, "options": RunOptions}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in groups.items()]
    )
    command.__doc__ = inspect.cleandoc(declared.help)
    return option_groups(command)


@option_groups
def certify(
    certifying: Certifying,
    *,
    synonyms: Annotated[
        str | None,
        typer.Option(
            "--synonyms",
            metavar="FILE",
            help='Certify every combination of replacements instead, JSON: {"film": ["movie"]}.',
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write the proof of one sentence, as .json, and check it."),
    ] = None,
    options: RunOptions,
) -> None:
    """Certify a classifier at sentences: how far each word may move before the prediction could change, proven.

    Of a test set, the clean, certified and attacked accuracy. Stopped with Ctrl-C, it keeps what is done, and the same
    command goes on from there.

    Example: howsmooth certify reviews --sentence "a gripping film"
    """
    certifying.check()
    if save is not None:
        _require_saveable(save, certifying, {"synonyms": synonyms, "dry_run": options.dry_run})
    if synonyms is not None:
        if options.dry_run:
            raise AssumptionError("--synonyms fills no run, so that nothing is estimated.", field="dry_run")
        sys.exit(_certify_synonyms(certifying, synonyms, options.as_json))
    found = fill_run(kind_named("certificate"), certifying, options)
    if save is not None:
        _save(save, certifying, [record.answer for record in found], say_to_err=options.as_json)


def _require_saveable(path: Path, certifying: Certifying, others: dict[str, Any]) -> None:
    """Refuse what no proof file holds, before any work."""
    if path.suffix != ".json" or not path.parent.is_dir():
        where = "" if path.parent.is_dir() else f" in a folder that is there, not {str(path.parent)!r}"
        raise FileError(f"a proof is saved as .json{where}, got {str(path)!r}.", field="save")
    if name := next((name for name, given in others.items() if given), None):
        raise AssumptionError(f"a proof is saved of words that move; leave out {name}=.", field="save")
    if certifying.metric != "total":
        raise AssumptionError(f"proof files know the metric total, got {certifying.metric!r}.", field="metric")
    if len(certifying.each) != 1:
        raise AssumptionError("a proof file is about one sentence: give sentence=.", field="save")
    importlib.import_module("howsmooth.check")  # which says so if the package that it needs is missing


def _save(path: Path, certifying: Certifying, answers: "list[CertificateAnswer]", *, say_to_err: bool) -> None:
    """Write what was certified as a proof file, and check it; one that does not check is not left."""
    import torch

    from howsmooth.certificates.certify import Certificate
    from howsmooth.certificates.sentence_certifier import Radius, SentenceCertifier
    from howsmooth.certificates.sentences import classifier_at
    from howsmooth.check import check_proof
    from howsmooth.models.inputs.model_inputs import read_sentence
    from howsmooth.studies.resources import Resources

    model = Resources().transformer(certifying.model, reading=certifying.reading)
    ids = torch.tensor(read_sentence(model, *certifying.each))
    certifier = SentenceCertifier(*classifier_at(model, ids, at=certifying.at, layer=certifying.layer))
    certificate = Certificate(
        radii=tuple(
            Radius(tokens=x.places, certified=x.certified, attacked=math.inf, linear=math.nan, slack=None, seconds=0.0)
            for x in answers
        ),
        predicted=certifier.predicted,
        rivals=certifier.rivals,
        metric=certifying.metric,
        seconds=0.0,
        classifier=certifier.classifier,
        embeddings=certifier.embeddings,
    )
    with whole(path) as partial:
        certificate.save(partial)
        if wrong := [outcome for outcome in check_proof(partial, model) if outcome.status != "checked"]:
            say(f"Not saved, {wrong[0].status}: {wrong[0].why}.", err=True)
            raise typer.Exit(FAILED)
    say(f"Saved and checked: {path}.", err=say_to_err)


def _certify_synonyms(certifying: Certifying, file: str, as_json: bool) -> int:
    """Certify all combinations of replacements in every sentence; return the exit code: 1 if one changes a prediction.

    Raises:
        AssumptionError: If options are given that say how embeddings move.
    """
    for name in OTHERS:
        if getattr(certifying, name) != default_of(Certifying, name):
            raise AssumptionError(f"--synonyms says how words move; leave out --{name}.", field=name)
    if certifying.model.startswith(RANDOM):
        raise AssumptionError(f"{certifying.model!r} knows no words; give a model that reads.", field="model")
    candidates, labelled = read_candidates(file), certifying.labelled

    from howsmooth.studies.resources import Resources

    model = Resources().transformer(certifying.model, reading=certifying.reading)
    sentences, wrong = by_their_labels(model, labelled)
    for said in wrong:
        say(said, err=True)
    rows, changed = [], False
    for sentence in dict.fromkeys(each.text for each in sentences):
        found = hs.certify_synonyms(model, sentence, candidates)
        changed |= found.changed is not None
        rows.append(_synonyms_row(model, sentence, found))
        if not as_json:
            _print_synonyms(rows[-1])
    if as_json:
        print_json({"model": model.name, "sentences": rows})
    return FOUND if changed else 0


def _synonyms_row(model: "Transformer", sentence: str, found: "Synonyms") -> dict[str, Any]:
    from howsmooth.certificates.sentences import ordinary_positions

    tokenizer = model.require_tokenizer()
    words = tokenizer.pieces(found.tokens)
    changed = None if found.changed is None else tokenizer.pieces(found.changed)
    ordinary = set(ordinary_positions(model, found.tokens))
    return {
        "text": sentence,
        "predicted": found.labels[found.predicted],
        "certified": found.certified,
        "combinations": found.combinations,
        "covered": found.covered,
        "proven": found.proven,
        "tried": found.tried,
        "share": found.share,
        "choices": [
            {"token": i, "word": words[i], "others": tokenizer.pieces(others)}
            for i, others in zip(found.places, found.choices, strict=True)
        ],
        "changed": changed and [word for i, word in enumerate(changed) if i in ordinary],
        "seconds": found.seconds,
    }


def _print_synonyms(row: dict[str, Any]) -> None:
    text, predicted, every = row["text"], row["predicted"], count(row["combinations"], "combination")
    if row["certified"]:
        how = "proven at once" if row["proven"] == row["combinations"] else f"{row['tried']:,} of them run one by one"
        say(f"{text!r} is classified as {predicted!r} with every one of {every}: {how}.")
    else:
        say(
            f"{text!r} is classified as {predicted!r}; {row['covered']:,} of {every} cannot change that "
            f"({row['proven']:,} proven, {row['tried']:,} others run)."
        )
    if row["changed"] is not None:
        say(f"  changed by: {running_text(row['changed'])}")
    share = "all the way" if row["share"] == 1 else f"{at_least(100 * row['share'], 3)} % of the way"
    say(f"  proven {share} to all replacements at once; {number(row['seconds'], 2)} s.")


def fill_run(kind: Kind, settings: Any, options: RunOptions) -> "list[Record[Any, Any]]":
    """Plan, answer what is not stored yet, print the results, write the page, and return the records.

    If anything failed or was stopped, exit with a code that tells.
    """
    begin(f"Reading {settings.model}")
    from howsmooth.studies.resources import Resources

    declared = cast(RunCommand, kind.command)
    folder, resources = options.folder(lambda: settings.folder), Resources()
    made = declared.plan(settings, resources)
    for remark in made.remarks:
        say(in_options(remark), err=True)
    if options.dry_run:
        options.estimate(made.asks, folder, resources)
        return []
    with stoppable(), options.executor(resources, settings.where.threads) as execute, Store(folder) as store:
        made.begin(store)
        before = len(store.done(made.asks))
        interrupted = options.answer(made.asks, store, execute, resources)
        found, failures = store.find(ask.key for ask in made.asks), store.failures(made.asks)
    if found:
        results = () if kind.summarise is None else kind.summarise(list(found.values()))
        if options.as_json:
            print_json({"run": str(folder), declared.results: [json.loads(each.to_json()) for each in results]})
        else:
            console = visible_console()
            for each in results:
                console.print(each)
        written = declared.files(list(found.values()))
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
        report = report_page(folder, new=len(found) > before)
        if written and not options.as_json:
            say(f"Recipes as other tools read them: {', '.join(written)}.")
        if not options.as_json:
            say(f"The report is {report}. {folder} holds {count(len(found), 'record')}.")
    kept = f"{len(found)} of {len(made.asks)} {declared.done} and kept"
    exit_with_failures(failures, interrupted=interrupted, kept=kept)
    return list(found.values())


def exit_with_failures(failures: "Sequence[Failure]", *, interrupted: bool, kept: str = "what is done is kept") -> None:
    """Say what failed, and what is kept if Ctrl-C ended it; exit with a code that tells."""
    from howsmooth.cli.answers import say_failures

    say_failures(failures)
    if interrupted:
        leave(f"Stopped: {kept}; the same command goes on from there.\n".encode())
    if failures:
        sys.exit(FAILED)


def report_page(folder: Path, *, new: bool) -> Path:
    """Return where the page of a run is; one of the same records would be the same, byte by byte."""
    from howsmooth.report.page import FILE, write_report

    if new or not (folder / FILE).is_file():
        write_report(folder)
    return folder / FILE
