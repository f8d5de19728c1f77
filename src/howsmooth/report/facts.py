"""What a report says about its making: what was run, and what to know before trusting it."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from howsmooth.studies.measurement import Measurement
from howsmooth.studies.provenance import grids
from howsmooth.studies.reading import Run
from howsmooth.theory.results import Side

FAILURES = 5


def warnings(run: Run) -> list[str]:
    """Return what a reader has to know before trusting the numbers."""
    said: list[str] = []
    for m in run.measurements:
        # of windows that grow in place the answer does not speak
        remarks = m.notes if m.records[0].task.stride else m.remarks
        said += [f"{m.model}: {remark}." for remark in remarks]
        if not m.complete:
            said.append(f"{m.model}: not everything that was asked for is measured yet.")
    for failure in run.failures[:FAILURES]:
        task = failure.task
        said.append(
            f"Failed: {task.model or 'explicit head'}, layer {task.layer}, {task.length} tokens: {failure.error}"
        )
    if len(run.failures) > FAILURES:
        said.append(f"Failed: {len(run.failures) - FAILURES} more.")
    return list(dict.fromkeys(said))


def facts(run: Run) -> list[tuple[str, str]]:
    """Return what was run, name by name."""
    told = []
    for m in run.measurements:
        told.append((f"{m.model} on {m.text}, {m.map}", _setup(m)))
    settings = [record.setting for record in run.records]
    versions = {
        f"howsmooth {s.howsmooth}, torch {s.torch}, transformers {s.transformers}, Python {s.python}" for s in settings
    }
    machines = {f"{s.machine}, {s.threads} {'thread' if s.threads == 1 else 'threads'}" for s in settings}
    seconds = sum(record.seconds for record in run.records)
    told += [
        ("Versions", "; ".join(sorted(versions)) or "—"),
        ("Machine", "; ".join(sorted(machines)) or "—"),
        ("Seeds", _listed(record.task.seed for record in run.records)),
        ("Records", f"{len(run.records)} in {_duration(seconds)} of work, {len(run.failures)} failed"),
    ]
    return told


@dataclass(frozen=True, kw_only=True)
class WorstInput:
    """The command that builds a worst input for one layer."""

    layer: int
    command: str


def worst_inputs(m: Measurement) -> list[WorstInput]:
    """Return, for each layer that has an input of its own on the ladder, the command that builds one and keeps it."""
    found = []
    for layer in m.layers:
        if any(bound.side is Side.LOWER for bound in layer.ladder.rungs):
            words = ["howsmooth", "worst-case", "--model", m.model, "--layer", str(layer.layer), "--map", m.map]
            words += ["--n", str(layer.length), "--radius", f"{layer.radius:.6g}", "--save", "worst.safetensors"]
            found.append(WorstInput(layer=layer.layer, command=shlex.join(words)))
    return found


def _setup(m: Measurement) -> str:
    task = m.records[0].task
    parts = [
        *(f"layers {_listed(g.layers)}: {g.windows} windows of {_listed(g.lengths)} tokens" for g in grids(m)),
        "every head by itself too" if m.heads else "",
        f"fingerprint of the text {task.digest}" if task.digest else "",
        f"one beginning every {task.stride} tokens" if task.stride else "",
        "with special tokens" if task.special_tokens else "",
        f"in {task.dtype}" if task.dtype else "",
        f"on {task.device}" if task.device else "",
        f"brackets to {task.rtol:g} at {100 * task.confidence:g} %" if task.certify else "without upper ends",
    ]
    return "; ".join(part for part in parts if part)


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values)))) or "—"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
