"""What a run remembers of how it was asked for: the commands, and which records each figure of the paper takes."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from howsmooth.models.text import ALICE
from howsmooth.studies.measurement import Measurement
from howsmooth.studies.store import Store
from howsmooth.studies.tasks import Task

COMMANDS, FIGURES = "commands", "figures"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Some layers at some lengths, with as many windows everywhere.

    Attributes:
        layers: Which layers.
        lengths: Which lengths.
        windows: How many windows of each.
    """

    layers: tuple[int, ...]
    lengths: tuple[int, ...]
    windows: int


def keep_command(store: Store, words: Iterable[str]) -> None:
    """Remember what was typed, each command once."""
    told, command = kept_commands(store), shlex.join(words)
    if command not in told:
        store.keep(COMMANDS, json.dumps([*told, command]))


def kept_commands(store: Store) -> list[str]:
    """Return what :func:`keep_command` kept."""
    return json.loads(store.fact(COMMANDS) or "[]")


def keep_figures(store: Store, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Remember which tasks each figure takes, beside what was kept before."""
    keys = {name: [task.key for task in found] for name, found in tasks.items()}
    store.keep(FIGURES, json.dumps(kept_figures(store) | keys))


def kept_figures(store: Store) -> dict[str, list[str]]:
    """Return the keys of the tasks of each figure."""
    return json.loads(store.fact(FIGURES) or "{}")


def grids(measurement: Measurement) -> list[Grid]:
    """Return what was measured as full grids of layers and lengths; one, unless a run was added to."""
    windows: dict[tuple[int, int], set[int]] = {}
    for task in (record.task for record in measurement.records):
        windows.setdefault((task.length, task.layer), set()).add(task.window)
    rows: dict[tuple[int, int], list[int]] = {}
    for (length, layer), found in sorted(windows.items()):
        rows.setdefault((length, max(found) + 1), []).append(layer)
    blocks: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for (length, count), layers in rows.items():
        blocks.setdefault((tuple(layers), count), []).append(length)
    return [Grid(layers=layers, lengths=tuple(lengths), windows=count) for (layers, count), lengths in blocks.items()]


def commands_for(measurement: Measurement) -> list[str]:
    """Return the commands that measure the same again, from the records alone."""
    return [_command(measurement, grid) for grid in grids(measurement)]


def _command(measurement: Measurement, grid: Grid) -> str:
    first = measurement.records[0].task
    options = {
        "--text": None if first.text == ALICE else first.text,
        "--layers": ",".join(map(str, grid.layers)),
        "--lengths": ",".join(map(str, grid.lengths)),
        "--sequences": str(grid.windows),
        "--map": measurement.map,
        "--rtol": f"{first.rtol:g}",
        "--confidence": f"{first.confidence:g}",
        "--seed": str(first.seed),
        "--device": first.device or None,
    }
    flags = {
        "--per-head": bool(measurement.heads),
        "--special-tokens": first.special_tokens,
        "--released-estimator": first.released,
        "--no-certify": not first.certify,
    }
    words = ["howsmooth", "measure", measurement.model]
    words += [word for name, value in options.items() if value is not None for word in (name, value)]
    return shlex.join(words + [flag for flag, wanted in flags.items() if wanted])
