"""Who does the work: processes of ``torch.distributed`` that share out the tokens of every sequence."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from howsmooth.errors import AssumptionError, ClusterError
from howsmooth.models.map_names import MapName
from howsmooth.models.shared_sequence import check_shared
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.sweep import WorkUnit, answered, sentence
from howsmooth.studies.sweep.workers import using_threads
from howsmooth.token_ring import TokenRing, answering

if TYPE_CHECKING:
    from howsmooth.studies.plans.measurement_plan import Measuring, PlannedMeasurement
    from howsmooth.studies.records import Outcome


@contextmanager
def joined(device: str, local_rank: int) -> Iterator["dist.ProcessGroup"]:
    """Join the processes that were started together; the first one says when the work is over, however it ends."""
    if device.startswith("cuda"):
        torch.cuda.set_device(local_rank)
    with answering():
        dist.init_process_group()
    group = dist.group.WORLD
    assert group is not None  # it was made above
    try:
        yield group
    except ClusterError:
        raise
    except BaseException:
        _dismiss(group)
        raise
    _dismiss(group)


def _dismiss(group: "dist.ProcessGroup") -> None:
    """Tell the others that no work comes; one that is lost by then is not needed any more."""
    if dist.get_rank(group) == 0:
        with suppress(ClusterError):
            _said(group, None)
    dist.destroy_process_group()


def _said(group: "dist.ProcessGroup", unit: WorkUnit | None) -> WorkUnit | None:
    """Return the unit that the first process names."""
    said = [unit]
    with answering():
        dist.broadcast_object_list(said, src=0, group=group)
    return said[0]


def in_group(work: Sequence[WorkUnit], resources: Resources, threads: int | None) -> Iterator[list["Outcome"]]:
    """Do units, one after the other, together with processes that serve, and yield what comes of each.

    Why errors end the work in place of being recorded: who raises one is no longer in step with the others.
    """
    with using_threads(threads):
        for unit in work:
            _said(resources.group, unit)
            yield _done(unit, resources)


def serve(resources: Resources, threads: int | None) -> None:
    """Do units as the first process names them, until it says that no more come."""
    with using_threads(threads):
        while (unit := _said(resources.group, None)) is not None:
            _done(unit, resources)


def _done(unit: WorkUnit, resources: Resources) -> list["Outcome"]:
    try:
        return [*answered(unit.batch, unit.cell, resources)]
    except ClusterError:
        raise
    except Exception as error:
        raise ClusterError(f"the work of the processes ends: {sentence(error)}") from error


def check_settings(measuring: "Measuring") -> None:
    """Refuse what a measurement over processes has not, before anything is loaded."""
    refused: dict[str, Any] = {
        "certificate": measuring.certificate,
        "whole": measuring.whole,
        "images": measuring.windows.images,
    }
    if measuring.metric != "total":
        raise AssumptionError(
            f"over processes, perturbations are measured in the metric total, got {measuring.metric!r}; leave torchrun "
            "out for others.",
            field="metric",
        )
    for name, asked in refused.items():
        if asked:
            raise AssumptionError(f"{name}= is not shared out over processes; leave torchrun out.", field=name)
    if MapName.parse(measuring.map).kind in ("sentence", "logits", "classes"):
        raise AssumptionError(
            f"the map {measuring.map!r} puts out one vector, and is not shared out over processes; leave torchrun out.",
            field="map",
        )


def check_plan(made: "PlannedMeasurement", group: "dist.ProcessGroup") -> "PlannedMeasurement":
    """Return a plan with what a reader of its numbers has to know; refuse maps and lengths that are not shared out."""
    transformer = made.subject.transformer
    for ask in made.every:
        ring = TokenRing.even(group, ask.window.length, causal=True)
        check_shared(transformer, ask.layer, ask.map, ring)
    remark = (
        f"the tokens of each sequence are shared out over {dist.get_world_size(group)} processes, and both ends are "
        "those of the map as it computes, not widened by a bound on rounding"
    )
    subject = dataclasses.replace(made.subject, remarks=(*made.subject.remarks, remark))
    return dataclasses.replace(made, subject=subject)
