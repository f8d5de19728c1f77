"""What a run remembers of how it was asked for: the commands, and which records each figure of the paper takes."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence

from howsmooth.models.text import ALICE
from howsmooth.studies.measurement import Measurement
from howsmooth.studies.store import Store
from howsmooth.studies.tasks import Task

COMMANDS, FIGURES = "commands", "figures"


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


def command_for(measurement: Measurement) -> str:
    """Return the command that measures the same again, from the records alone."""
    tasks = [record.task for record in measurement.records]
    first = tasks[0]
    options = {
        "--text": None if first.text == ALICE else first.text,
        "--layers": _numbers(task.layer for task in tasks),
        "--lengths": _numbers(task.length for task in tasks),
        "--sequences": str(len({task.window for task in tasks})),
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


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(values))))
