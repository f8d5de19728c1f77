"""Measurements that were never taken: records and summaries with known numbers."""

import math

from howsmooth.studies.growth import growth
from howsmooth.studies.measurement import LayerSummary, Measurement, mean_constant
from howsmooth.studies.records import Record
from howsmooth.studies.setting import here
from howsmooth.studies.tasks import Task
from howsmooth.theory.results import Ladder, upper_bound

LENGTHS = (4, 8, 16)


def record(layer, length, window, *, part="attention", lower=None, local_upper=None, released=None):
    value = (layer + 1) * length**0.3 * (1 + 0.05 * window) if lower is None else lower
    shares = tuple((i + 1) / (length * (length + 1) / 2) for i in range(length))
    task = Task(model="m", text="t", digest="d", layer=layer, map=part, length=length, window=window)
    return Record(
        task=task,
        lower=value,
        upper=1.001 * value,
        steps=5,
        status="converged",
        products=10,
        radius=5.0 + layer + 0.1 * window,
        reach=9.0,
        local_upper=local_upper,
        released=released,
        sensitivity=shares,
        response=shares,
        seconds=0.1,
        setting=here(),
    )


def measurement(records, *, heads=(), tokens=None):
    lengths = sorted({r.task.length for r in records})
    layers = [summary([r for r in records if r.task.layer == layer]) for layer in {r.task.layer for r in records}]
    return Measurement(
        model="m",
        text="t",
        map="attention",
        records=tuple(records),
        heads=tuple(heads),
        layers=tuple(layers),
        notes=(),
        tokens=tuple(f"word{i}" for i in range(lengths[-1])) if tokens is None else tokens,
        run=None,
        complete=True,
    )


def summary(records):
    values = {n: [r.lower for r in records if r.task.length == n] for n in {r.task.length for r in records}}
    longest = max(values)
    fitted = len(values) > 1 and all(r.lower > 0 for r in records)
    return LayerSummary(
        layer=records[0].task.layer,
        length=longest,
        constant=mean_constant([r for r in records if r.task.length == longest]),
        least=min(values[longest]),
        most=max(values[longest]),
        growth=growth(values) if fitted else None,
        radius=5.0,
        local_upper=None,
        ladder=Ladder(rungs=(upper_bound(math.log(1234.0), "sharp_upper", "tokens in a ball", "a theorem"),)),
    )


def grid(layers=2, lengths=LENGTHS, windows=3, **fields):
    return [record(layer, n, w, **fields) for layer in range(layers) for n in lengths for w in range(windows)]


def heads(layers=2, count=3, length=16):
    return [
        record(layer, length, w, part=f"head:{h}", lower=1.0 + h + layer * w)
        for layer in range(layers)
        for h in range(count)
        for w in range(2)
    ]
