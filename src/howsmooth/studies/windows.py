"""Windows of one length are measured together: the model runs once on them, and every layer takes one iteration."""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.models.base import Activations, Transformer
from howsmooth.models.sites import Measurable
from howsmooth.models.text import Text
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.solvers import spectral_norm
from howsmooth.spectral.vectors import lengths as vector_lengths
from howsmooth.studies.tasks import Record, Task, fingerprint
from howsmooth.theory.local import local_uppers

# So many tokens are measured together: enough to be fast, few enough for the memory of a laptop.
TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Windows of one length, and every layer and map that is measured at them.

    Attributes:
        tasks: All of them; they differ in layer, map and window only.
    """

    tasks: tuple[Task, ...]

    @property
    def length(self) -> int:
        """How many tokens each window has."""
        return self.tasks[0].length

    @property
    def windows(self) -> tuple[int, ...]:
        """Which windows they are."""
        return tuple(sorted({task.window for task in self.tasks}))

    @property
    def cells(self) -> tuple[tuple[Task, ...], ...]:
        """The tasks of each layer and map, which one iteration measures."""
        ordered = sorted(self.tasks, key=lambda task: (task.layer, task.map, task.window))
        return tuple(tuple(cell) for _, cell in itertools.groupby(ordered, key=lambda task: (task.layer, task.map)))


def batches(tasks: Iterable[Task]) -> list[Batch]:
    """Sort tasks into batches; which batch a task is in does not depend on how many windows there are."""
    found: dict[Task, list[Task]] = {}
    for task in tasks:
        together = max(1, TOKENS // task.length)
        group = replace(task, layer=0, map="", window=task.window // together)
        found.setdefault(group, []).append(task)
    return [Batch(tasks=tuple(group)) for group in found.values()]


def run_batch(
    transformer: Transformer, text: Text, batch: Batch, done: frozenset[str] = frozenset()
) -> Iterator[list[Record]]:
    """Measure a batch, one layer and map after the other; cells whose tasks are all done are left out."""
    cells = [cell for cell in batch.cells if not all(task.key in done for task in cell)]
    if not cells:
        return
    activations = transformer.activations(_tokens(transformer, text, batch))
    for cell in cells:
        yield _run_cell(activations, cell)


def _tokens(transformer: Transformer, text: Text, batch: Batch) -> Tensor:
    windows = batch.windows
    cut = transformer.windows(
        text, length=batch.length, count=windows[-1] + 1, special_tokens=batch.tasks[0].special_tokens
    )
    return cut[list(windows)]


def _run_cell(activations: Activations, cell: Sequence[Task]) -> list[Record]:
    started = time.perf_counter()
    first = cell[0]
    f, X = activations.at(first.layer, first.map)
    J = linearise(f, X)
    estimate = spectral_norm(
        J, rtol=first.rtol, confidence=first.confidence, certify=first.certify, generator=_generator(cell)
    )
    released = _released(f, X) if first.released else None
    certificates = _certificates(f, X)
    share = (time.perf_counter() - started) / len(cell)
    return [
        _record(task, estimate[i], X[i], certificates[i], None if released is None else released[i], share)
        for i, task in enumerate(cell)
    ]


def _generator(cell: Sequence[Task]) -> torch.Generator:
    """Seed the random start by what is measured, so that no order of work changes a result."""
    return torch.Generator().manual_seed(int(fingerprint([task.key for task in cell]), 16) >> 1)


def _released(f: Measurable, X: Tensor) -> list[float]:
    r"""Return :math:`\|J^\top f(X)\|^{1/2}`: what iterating on the value instead of the tangent converges to."""
    J = linearise(f, X)
    with torch.no_grad():
        return vector_lengths(J.vjp(f(X).to(J.dtype)), J.batch).sqrt().tolist()


def _certificates(f: Measurable, X: Tensor) -> list[float | None]:
    """Return the certificate at every window; the theory has one for attention only."""
    return [*local_uppers(f, X)] if isinstance(f, Attention) else [None] * len(X)


def _record(
    task: Task, estimate: NormEstimate, x: Tensor, certificate: float | None, released: float | None, seconds: float
) -> Record:
    lengths = x.double().norm(dim=-1)
    (steps,), (status,) = estimate.step_counts, estimate.statuses
    return Record(
        task=task,
        lower=float(estimate.lower),
        upper=float(estimate.upper),
        steps=steps,
        status=status.name.lower(),
        products=estimate.products,
        radius=float(lengths.square().mean().sqrt()),
        reach=float(lengths.max()),
        local_upper=certificate,
        released=released,
        sensitivity=tuple(estimate.token_sensitivity.tolist()),
        response=tuple(estimate.token_response.tolist()),
        seconds=seconds,
    )
