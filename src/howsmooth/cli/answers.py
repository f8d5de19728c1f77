"""The answer of a run in the terminal: a sentence, one line for each layer, every length, every head, what failed."""

from collections.abc import Callable, Sequence

from rich.text import Text

from howsmooth.cli.printing import in_options, say, visible_console
from howsmooth.report.drawing.token_text import running_text
from howsmooth.report.sentences import finding, sentence
from howsmooth.studies.json_values import columns, settings_of
from howsmooth.studies.kinds import kind_named
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.plans.paper import title_and_protocol
from howsmooth.studies.records import Failure, Record, grouped
from howsmooth.studies.runs.composition import Composition, compositions
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.result_table import fitted
from howsmooth.studies.runs.run import Run
from howsmooth.studies.runs.summary import mean_constant
from howsmooth.wording import at_least, at_most, count, number

# How many failures are said in full, and how many records of a kind are shown.
MANY, ROWS = 5, 40


def print_answer(found: Measurement) -> None:
    """Print what the report says first, the answer for each layer, every length, and every head if they were asked."""
    console = visible_console()
    console.print(sentence(found))
    console.print(found)
    whole = found.records[0].ask.window.whole
    if whole:
        _print_each(found)
    elif len(found.lengths) > 1:
        _print_grid("Worst by number of tokens", found.records, lambda r: r.ask.length, "n = {}")
    if found.heads:
        longest = max(record.ask.length for record in found.heads)
        last = [record for record in found.heads if whole or record.ask.length == longest]
        _print_grid(
            f"Worst by head{'' if whole else f' at {longest} tokens'}", last, lambda r: r.ask.map_name.head or 0, "{}"
        )


def print_compositions(found: Sequence[Composition]) -> None:
    """Print what the blocks of a model do alone and together, at the longest windows."""
    if found:
        console = visible_console()
        longest = max(found, key=lambda composition: composition.length)
        console.print(longest.sentence)
        console.print(longest)


def _print_each(found: Measurement) -> None:
    """Print one line for each sentence or picture: how long it is, its constant in each layer, how it begins."""
    rows: dict[tuple[int, int], dict[str, str]] = {}
    for record in found.records:
        place = record.ask.window.index, record.ask.length
        row = rows.setdefault(place, {found.thing: str(place[0]), "n": number(place[1])})
        row[f"layer {record.ask.layer}"] = number(record.answer.lower, 4)
    for (index, length), row in rows.items():
        row["begins"] = running_text(found.openings.get((length, index), ()))
    layers = [f"layer {layer.layer}" for layer in found.layers]
    names = [found.thing, "n", *layers, "begins"]
    _print_table(
        f"Worst by {found.thing}", "italic", [rows[place] for place in sorted(rows)], names, ["begins", *layers[1:-1]]
    )


def _print_grid(title: str, records: Sequence[TextRecord], column: Callable[[TextRecord], int], head: str) -> None:
    groups = grouped(records, lambda record: (record.ask.layer, column(record)))
    columns = sorted({place for _layer, place in groups})
    sizes = {len(some) for some in groups.values()}
    alike = len(sizes) == 1
    said = f"mean of {min(sizes)}" if alike else "mean, and in brackets of how many"
    names = {place: head.format(place) for place in columns}
    rows = []
    for layer in sorted({layer for layer, _place in groups}):
        here = {place: groups.get((layer, place), []) for place in columns}
        means = {place: number(mean_constant(some), 4) if some else "" for place, some in here.items()}
        cells = {
            names[place]: mean if alike or not mean else f"{mean} ({len(here[place])})" for place, mean in means.items()
        }
        rows.append({"layer": str(layer)} | cells)
    # the middle leaves first: the ends say how it grows
    inner = [names[place] for place in columns[1:-1]]
    _print_table(f"{title} ({said})", "italic", rows, ["layer", *names.values()], inner, most=len(rows))


def print_run(run: Run, *, records: bool) -> None:
    """Print the answer of a run as the command that made it did, or its records as tables."""
    told = {r.ask.key for m in run.measurements for r in (*m.records, *m.heads)} if not records else set[str]()
    drawn = {r.ask.key for some in run.figures.values() for r in some} if not records else set[str]()
    for measurement in run.measurements if not records else ():
        if any(r.ask.key not in drawn for r in measurement.records):
            print_answer(measurement)
    if drawn:
        print_figures(run)
    told |= drawn
    others = (record for key, record in run.in_order.items() if key not in told)
    kinds = grouped(others, lambda record: record.ask.kind)
    for kind, some in kinds.items():
        if kind == "whole" and not records:
            print_compositions(compositions(some))
        elif (summarise := kind_named(kind).summarise) is not None and not records:
            console = visible_console()
            for each in summarise(some):
                console.print(each)
        else:
            print_records(kind, some)


def print_figures(run: Run) -> None:
    """Print what each figure of the paper shows, and what differs from the paper."""
    console = visible_console()
    for name, found in run.figures.items():
        _title, protocol = title_and_protocol(name)
        console.print(Text(f"{name}: {finding(name, found)} {count(len(found), 'record')}. {protocol}"))


def print_records(kind: str, records: Sequence[Record]) -> None:
    """Print the records of a kind as a table: what tells the asks apart, then the answers."""
    asked, found = [columns(r.ask) for r in records], [columns(r.answer) for r in records]
    fields = settings_of(type(records[0].answer))
    rules = {name: field.declared.get("rounded", "") for name, field in fields.items()}
    apart = [name for name in asked[0] if len({row.get(name) for row in asked}) > 1]
    rows = [
        {name: _cell(row[name]) for name in apart} | {name: _cell(value, rules[name]) for name, value in answer.items()}
        for row, answer in zip(asked, found, strict=True)
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    _print_table(f"{kind}: {kind_named(kind).about}", "bold", rows, names, names[:0:-1])


def _print_table(
    title: str,
    style: str,
    rows: Sequence[dict[str, str]],
    names: Sequence[str],
    leaving: Sequence[str],
    most: int = ROWS,
) -> None:
    """Print a title, as many rows as a reader wants, and how many more there are; columns leave a narrow terminal."""
    console = visible_console()
    console.print(Text(title, style=style))
    shown = [{name: row.get(name, "") for name in names} for row in rows[:most]]
    console.print(fitted(shown, names, leaving, console, console.options))
    if len(rows) > most:
        console.print(f"… and {len(rows) - most} more; howsmooth export has them all.")


def _cell(value: object, rounded: str = "") -> str:
    """Write a value; a number that is proven to the side on which it stays true."""
    if value is None:
        return "—"
    written = {"": number, "down": at_least, "up": at_most}[rounded]
    return written(value, 3) if isinstance(value, float) else str(value)


def say_failures(failures: Sequence[Failure]) -> None:
    """Say what failed and why, the first few in full."""
    for failure in failures[:MANY]:
        say(f"Failed: {failure.ask.label}: {in_options(failure.error)}", err=True)
    if len(failures) > MANY:
        say(f"… and {len(failures) - MANY} more; --retry-failed tries them again.", err=True)
