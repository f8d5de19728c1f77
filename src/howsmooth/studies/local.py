"""The local constant at windows of a text: the model runs once on them, and every layer takes one iteration."""

import functools
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.models.base import Activations, Transformer
from howsmooth.models.sites import Measurable
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.operators import LinearOperator
from howsmooth.spectral.solvers import spectral_norm
from howsmooth.spectral.vectors import lengths as vector_lengths
from howsmooth.studies.records import Record
from howsmooth.studies.resources import text_of, transformer_of
from howsmooth.studies.setting import here
from howsmooth.studies.tasks import Task, fingerprint
from howsmooth.theory.local import local_uppers


def run(batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Measure one layer at the windows of a cell."""
    started = time.perf_counter()
    first = cell[0]
    f, X = entering(batch, cell)
    J = linearise(f, X)
    estimate = spectral_norm(
        J, rtol=first.rtol, confidence=first.confidence, certify=first.certify, generator=seeded(cell)
    )
    released = _released(f, X, J) if first.released else [None] * len(X)
    certificates = [*local_uppers(f, X)] if isinstance(f, Attention) else [None] * len(X)
    share = (time.perf_counter() - started) / len(cell)
    return [
        record(task, estimate[i], X[i], local_upper=certificates[i], released=released[i], seconds=share)
        for i, task in enumerate(cell)
    ]


def entering(batch: Sequence[Task], cell: Sequence[Task]) -> tuple[Measurable, Float[Tensor, "windows n d"]]:
    """Return the map that a cell asks for, and what enters it at each of its windows."""
    windows = sorted({task.window for task in batch})
    shared = replace(cell[0], layer=0, map="", window=0)
    f, X = _activations(transformer_of(shared), shared, tuple(windows)).at(cell[0].layer, cell[0].map)
    rows = [windows.index(task.window) for task in cell]
    if rows != list(range(len(windows))) and not hasattr(f, "jacobian"):
        raise AssumptionError("a map without a closed form is measured at all windows of its batch.")
    return f, X[rows]


# the cells of a batch come one after the other: each finds what the first one computed
@functools.lru_cache(maxsize=1)
def _activations(transformer: Transformer, shared: Task, windows: tuple[int, ...]) -> Activations:
    cut = transformer.windows(
        text_of(shared),
        length=shared.length,
        count=windows[-1] + 1,
        special_tokens=shared.special_tokens,
        stride=shared.stride or None,
    )
    return transformer.activations(cut[list(windows)])


def seeded(tasks: Sequence[Task]) -> torch.Generator:
    """Seed randomness by what is measured, so that no order of work changes a result."""
    return torch.Generator().manual_seed(int(fingerprint([task.key for task in tasks]), 16) >> 1)


def record(task: Task, estimate: NormEstimate, X: Tensor, **others: object) -> Record:
    """Write down the constant at one input."""
    lengths = X.double().norm(dim=-1)
    (steps,), (status,) = estimate.step_counts, estimate.statuses
    fields: dict[str, object] = {
        "lower": float(estimate.lower),
        "upper": float(estimate.upper),
        "steps": steps,
        "status": status.name.lower(),
        "products": estimate.products,
        "radius": float(lengths.square().mean().sqrt()),
        "reach": float(lengths.max()),
        "sensitivity": tuple(estimate.token_sensitivity.tolist()),
        "response": tuple(estimate.token_response.tolist()),
    }
    return Record(task=task, setting=here(), **(fields | others))  # type: ignore[arg-type]


def _released(f: Measurable, X: Tensor, J: LinearOperator) -> list[float]:
    r"""Return :math:`\|J^\top f(X)\|^{1/2}`: what iterating on the value instead of the tangent converges to."""
    with torch.no_grad():
        return vector_lengths(J.vjp(f(X).to(J.dtype)), J.batch).sqrt().tolist()
