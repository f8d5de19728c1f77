"""What a report says about its making: what was run, and what to know before trusting it."""

from collections.abc import Iterable, Sequence

from howsmooth.studies.json_values import columns
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.run import Run
from howsmooth.studies.settings import command
from howsmooth.theory.results import Side
from howsmooth.wording import count, number, percent

FAILURES = 5


def gaps(run: Run) -> list[str]:
    """Return what is not there yet: a reader has to know it before the first number."""
    told = [(m, gap) for m in run.measurements for gap in m.gaps]
    said = [
        f"{m.model}, {m.map}: {gap}." if len(run.measurements) > 1 else f"{gap[0].upper()}{gap[1:]}." for m, gap in told
    ]
    missing = run.planned - len(run.records)
    if missing > sum(m.missing for m in run.measurements):
        said.insert(
            0, f"Unfinished: {missing} of {count(run.planned, 'record')} are missing; the same command goes on."
        )
    return said


def warnings(run: Run, answered: Sequence[Measurement]) -> list[str]:
    """Return what a reader has to know before trusting the numbers that are there.

    Args:
        run: The run.
        answered: The measurements that the answer speaks of; of the others their notes are enough.
    """
    said = []
    for m in run.measurements:
        doubts = m.doubts if any(m is other for other in answered) else m.notes
        said += [f"{m.model}: {doubt}." for doubt in doubts]
    said += [f"Failed: {failure.ask.label}: {failure.error}" for failure in run.failures[:FAILURES]]
    if len(run.failures) > FAILURES:
        said.append(f"Failed: {len(run.failures) - FAILURES} more.")
    return list(dict.fromkeys(said))


def facts(run: Run) -> list[tuple[str, str]]:
    """Return what was run, name by name."""
    told = [(f"{m.model} on {m.text}, {m.map}", _setup(m)) for m in run.measurements]
    machines = [record.machine for record in run.records]
    versions = {
        f"howsmooth {m.howsmooth}, torch {m.torch}, transformers {m.transformers}, Python {m.python}" for m in machines
    }
    processors = {f"{m.processor}, {count(m.threads, 'thread')}" for m in machines}
    seconds = sum(record.seconds for record in run.records)
    seeds = {str(row["seed"]) for row in (columns(record.ask) for record in run.records) if "seed" in row}
    return [
        *told,
        ("Versions", "; ".join(sorted(versions)) or "—"),
        ("Machine", "; ".join(sorted(processors)) or "—"),
        ("Seeds", _listed(map(int, seeds))),
        ("Records", f"{count(len(run.records), 'record')} in {_duration(seconds)} of work, {len(run.failures)} failed"),
    ]


def worst_inputs(m: Measurement) -> dict[int, str]:
    """Return, for each layer that the theory has an input for, the command that builds it and keeps it."""
    found = {}
    for layer in m.layers:
        if any(bound.side is Side.LOWER for bound in layer.ladder.bounds):
            words = [m.model, "--layer", str(layer.layer), "--map", m.map]
            words += ["--n", str(layer.length), "--radius", f"{layer.ball:g}", "--save", "worst.safetensors"]
            found[layer.layer] = command("worst-case", *words)
    return found


def _setup(m: Measurement) -> str:
    ask = m.records[0].ask
    window, where, solver = ask.window, ask.where, ask.solver
    worth = f"brackets to {number(solver.rtol)} at {percent(solver.confidence)}"
    parts = [
        *_grids(m),
        "every head by itself too" if m.heads else "",
        f"fingerprint of the text {window.digest}",
        f"one beginning every {window.stride} tokens" if window.stride else "",
        "with special tokens" if window.special_tokens else "",
        f"in {where.dtype}" if where.dtype else "",
        f"on {where.device}" if where.device else "",
        worth if solver.certify else "without upper ends",
    ]
    return "; ".join(part for part in parts if part)


def _grids(m: Measurement) -> list[str]:
    """Say which windows were measured, once for all layers that share them."""
    shared: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for layer in sorted({record.ask.layer for record in m.records}):
        sizes = ((n, len(m.at(layer=layer, length=n))) for n in m.lengths)
        shared.setdefault(tuple((n, size) for n, size in sizes if size), []).append(layer)
    return [f"{_named(layers)}: {_windows(grid)}" for grid, layers in shared.items()]


def _named(layers: Sequence[int]) -> str:
    return f"{'layers' if len(layers) > 1 else 'layer'} {_listed(layers)}"


def _windows(grid: Iterable[tuple[int, int]]) -> str:
    alike: dict[int, list[int]] = {}
    for length, size in grid:
        alike.setdefault(size, []).append(length)
    return ", ".join(f"{count(size, 'window')} of {_listed(lengths)} tokens" for size, lengths in alike.items())


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values)))) or "—"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
