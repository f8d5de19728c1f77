"""Commands about runs that are there: ``runs``, ``show``, ``compare``, ``report``, ``figure`` and ``export``."""

import enum
import json
from pathlib import Path
from typing import Annotated, Any

import typer

import howsmooth as hs
from howsmooth.cli.options import OptionFigure, OptionJson, checked, require_page
from howsmooth.cli.printing import print_json, say, visible_console
from howsmooth.errors import AssumptionError, FileError
from howsmooth.files import is_printed
from howsmooth.report.saving import checked_target, save_chart
from howsmooth.studies.json_values import columns
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.store import Store, flat, require_run, write_table
from howsmooth.studies.settings import command
from howsmooth.wording import count

MANY = 5
ArgumentRun = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]


def runs(
    folder: Annotated[str, typer.Argument(help="Where to look for runs.")] = "runs", as_json: OptionJson = False
) -> None:
    """List the runs in a folder: how many records each holds, of which models.

    Example: howsmooth runs
    """
    if not Path(folder).is_dir():
        raise FileError(f"there is no folder {folder!r} with runs; howsmooth measure makes one.")
    rows = [_runs_row(path.parent) for path in sorted(Path(folder).rglob(FILE))]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(_run_line(row))
    if not rows:
        say(f"No runs in {folder}.")


def _runs_row(folder: Path) -> dict[str, Any]:
    try:
        with Store(folder, writable=False) as store:
            asks, failed, plans = [record.ask for record in store.records()], len(store.failures()), store.plans()
    except FileError as error:  # one damaged run does not hide the others
        return {"run": str(folder), "error": str(error)}
    told = [columns(ask) | {"kind": ask.kind} for ask in asks]
    planned = {key for plan in plans for key in (*plan.keys, *plan.beside)} | {ask.key for ask in asks}
    counts = {"run": str(folder), "records": len(asks), "planned": len(planned), "failed": failed}
    names = {
        f"{part}s": sorted({row.get(part, "") for row in told} - {""})
        for part in ("kind", "model", "text", "map", "scheme")
    }
    return counts | names | {"lengths": sorted({row["length"] for row in told if "length" in row})}


def _run_line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['run']}: {row['error']}"
    left = row["planned"] - row["records"]
    state = (f" of {row['planned']} planned" if left else "") + (f", {row['failed']} failed" if row["failed"] else "")
    told = ", ".join(row["models"]) or "no model"
    told += f" on {', '.join(row['texts'])}" if row["texts"] else ""
    maps, sizes = row["maps"], row["lengths"]
    told += f"; {', '.join(maps) if len(maps) < MANY else f'{len(maps)} maps'}" if maps else ""
    told += f"; {', '.join(row['schemes'])}" if row["schemes"] else ""
    told += f"; n = {'–'.join(dict.fromkeys(map(str, (sizes[0], sizes[-1]))))}" if sizes else ""
    return f"{row['run']}: {count(row['records'], 'record')}{state}; {told}"


def show(
    run: ArgumentRun,
    records: Annotated[
        bool, typer.Option("--records", help="Print every record in tables, in place of the answer.")
    ] = False,
    as_json: OptionJson = False,
) -> None:
    """Print the answer of a run again, as the command that made it did.

    Example: howsmooth show runs/minilm-attention-1a2b3c
    """
    from howsmooth.cli.answers import print_run, say_failures

    found = hs.read_run(run)
    if as_json:
        told = {record.ask.key for m in found.measurements for record in (*m.records, *m.heads)}
        others = [flat(record) for record in found.records if record.ask.key not in told]
        print_json({"measurements": [json.loads(each.to_json()) for each in found.measurements], "records": others})
        return
    print_run(found, records=records)
    if not found.records:
        say(f"Nothing in {run} is answered yet; of {found.planned} planned.")
    say_failures(found.failures)


def _require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise AssumptionError(f"--confidence must lie between 0 and 1, got {confidence}.", field="confidence")


def compare(
    first: Annotated[
        str, typer.Argument(metavar="RUN1", help="The folder of a run: what ratios are relative to; or a card.")
    ],
    second: Annotated[str, typer.Argument(metavar="RUN2", help="The folder of the run to compare with it; or a card.")],
    others: Annotated[list[str] | None, typer.Argument(metavar="CARD", help="More cards.")] = None,
    part: Annotated[
        str | None, typer.Option("--map", help="Which part of the layers, where runs hold several; all by default.")
    ] = None,
    per_head: Annotated[bool, typer.Option("--per-head", help="Compare every head by itself too.")] = False,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence",
            help="The probability that all intervals hold together.",
            callback=checked(_require_confidence),
        ),
    ] = 0.95,
    figure: OptionFigure = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.html",
            help="The file of the report; compared-with-RUN1.html in RUN2 by default.",
            callback=checked(require_page),
        ),
    ] = None,
    as_json: OptionJson = False,
) -> None:
    """Compare two runs: how many times larger the constants of each layer are in the second, and what of it is real.

    Windows of the same tokens are compared each with itself; other texts as two independent samples. Cards of models
    (`howsmooth card`) stand side by side, as many as are given.

    Example: howsmooth compare runs/original runs/quantised --figure ratios.svg
    """
    paths = [first, second, *(others or [])]
    if all(_is_card(Path(path)) for path in paths):
        _compare_cards(paths, out, as_json)
        return
    if others:
        raise AssumptionError(f"runs are compared in twos, got {len(paths)}; cards can be more.", field="others")
    for path in (first, second):  # before torch is imported
        require_run(path)
    found = hs.compare(first, second, map=part, per_head=per_head, confidence=confidence)
    if figure is not None:
        save_chart(found.chart(), figure)
    if as_json:
        typer.echo(found.to_json())
    else:
        visible_console().print(found)
    if figure is not None:
        say(f"Drawn in {figure}.", err=as_json)
    if as_json and out is None:
        return
    from howsmooth.report.result_page import write_comparison

    words = ["--map", part] if part else []
    words += ["--per-head"] if per_head else []
    words += ["--confidence", str(confidence)] if confidence != 0.95 else []
    target = Path(second) / f"compared-with-{Path(first).resolve().name}.html" if out is None else Path(out)
    say(f"The report is {write_comparison(found, command('compare', first, second, *words), target)}.", err=as_json)


def _is_card(path: Path) -> bool:
    return (path / "howsmooth.json").is_file() or (path.is_file() and path.suffix == ".json")


def _compare_cards(paths: list[str], out: str | None, as_json: bool) -> None:
    from howsmooth.report.card_page import write_cards_page
    from howsmooth.studies.cards import compare_cards

    found = compare_cards(paths)
    if as_json:
        typer.echo(found.to_json())
    else:
        visible_console().print(found)
    if out is not None:
        say(f"The report is {write_cards_page(found, paths, Path(out))}.", err=as_json)


def report(
    run: ArgumentRun,
    output: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where it goes, - to print it; RUN/report.html by default."),
    ] = None,
) -> None:
    """Write one HTML file with the answer, the pictures and how to read them; it needs no network.

    Example: howsmooth report runs/minilm-attention-1a2b3c
    """
    target = hs.write_report(run, output)
    if not is_printed(target):
        say(f"The report is {target}.")


def figure(
    run: ArgumentRun,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As the report names it, or a part of that: length.")],
    output: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Where it goes: .svg, .pdf, .png or .html.")
    ],
    layer: Annotated[
        int | None,
        typer.Option("--layer", "--layers", help="Which layer, for figures of one layer; the least smooth by default."),
    ] = None,
    linear: Annotated[bool, typer.Option("--linear", help="Linear axes in place of logarithmic ones.")] = False,
) -> None:
    """Draw one figure of a run.

    Example: howsmooth figure runs/minilm-attention-1a2b3c constant_against_length -o growth.pdf
    """
    target = checked_target(output)

    from howsmooth.report.figures import draw, straightened

    chart = draw(hs.read_run(run), name, layer=layer)
    save_chart(straightened(chart) if linear else chart, target)
    say(f"{name} is in {target}.")


class Format(enum.StrEnum):
    """What other tools read."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


def export(
    run: ArgumentRun,
    to: Annotated[Format, typer.Option("--to", help="The format.")] = Format.CSV,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file, - to print it; records.FORMAT in the run by default."
        ),
    ] = None,
) -> None:
    """Write the records of a run as one table; the SQLite file itself has a view with the same rows for each kind.

    Example: howsmooth export runs/minilm-attention-1a2b3c --to parquet
    """
    target = Path(run) / f"records.{to}" if out is None else Path(out)
    printed = is_printed(target)
    if printed and to is Format.PARQUET:
        raise FileError("a table as parquet cannot be printed; name a file, or take --to csv.", field="out")
    records = write_table(run, target, to)
    if not printed:
        say(f"{count(records, 'record')} in {target}.")
