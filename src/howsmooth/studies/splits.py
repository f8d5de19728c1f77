"""Whether the tokens of a text split: cutting one in two moves the output more than moving whole tokens does."""

import time
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError
from howsmooth.maps.attention import Attention
from howsmooth.search.splitting import split_attack
from howsmooth.studies.local import entering, seeded
from howsmooth.studies.records import Record
from howsmooth.studies.setting import here
from howsmooth.studies.tasks import Task
from howsmooth.transport.measures import Measure

EPS = 1e-3


def run(batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Look at the windows of a cell in float64: ratios of small distances need the digits."""
    f, X = entering(batch, cell)
    if not isinstance(f, Attention):
        raise DtypeError(f"splitting is about attention, got the map {cell[0].map!r}.")
    return [_look(task, f.to(torch.float64), x.double()) for task, x in zip(cell, X, strict=True)]


def _look(task: Task, f: Attention, x: Float[Tensor, "n d"]) -> Record:
    started = time.perf_counter()
    measure = Measure.from_sequence(x, causal=f.positions.causal)
    attack = split_attack(f, measure, eps=EPS, generator=seeded([task]))
    found = attack.splitting
    numbers = {
        "move": found.move,
        "split": found.split,
        "splits": float(found.splits),
        "decided": float(found.decided),
        "atom": float(found.atom),
        "move_ratio": attack.move_ratio,
        "split_ratio": attack.split_ratio,
    }
    return Record(
        task=task,
        lower=found.value,
        status="decided" if found.decided else "within the error bars",
        radius=float(x.square().sum(-1).mean().sqrt()),
        reach=float(x.norm(dim=-1).max()),
        numbers=tuple(numbers.items()),
        seconds=time.perf_counter() - started,
        setting=here(),
    )
