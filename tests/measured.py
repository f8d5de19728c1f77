"""Measurements that were never taken: records and summaries with known numbers."""

import math

from msgspec.structs import replace

from howsmooth.studies.kinds.text import TextAnswer, TextAsk
from howsmooth.studies.records import Record, this_machine
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.run import Run
from howsmooth.studies.runs.summary import summarise
from howsmooth.studies.settings import Window
from howsmooth.theory.results import BoundsTable, upper_bound

LENGTHS = (4, 8, 16)
# The root mean square gain of random perturbations, as a share of the constant.
TYPICAL = 0.05
LADDER = BoundsTable(bounds=(upper_bound(math.log(1234.0), "sharp_upper", "tokens in a ball", "a theorem"),))


def record(
    layer, length, window, *, part="attention", lower=None, model="m", stride=0, source="text", whole=False, **answered
):
    """Return a record at a window; what the answer holds besides is given by its names."""
    value = (layer + 1) * length**0.3 * (1 + 0.05 * window) if lower is None else lower
    shares = tuple((i + 1) / (length * (length + 1) / 2) for i in range(length))
    cut = Window(text="t", digest="d", length=length, index=window, stride=stride, source=source, whole=whole)
    ask = TextAsk(
        model=model,
        layer=layer,
        map=part,
        window=cut,
        certificate=answered.get("local_upper") is not None,
        released=answered.get("released_quantity") is not None,
    )
    fields = {
        "upper": 1.001 * value,
        "steps": 5,
        "status": "converged",
        "products": 10,
        "mean_radius": 5.0 + layer + 0.1 * window,
        "reach": 9.0,
        "typical": TYPICAL * value,
        "typical_low": 0.9 * TYPICAL * value,
        "typical_high": 1.1 * TYPICAL * value,
        "probes": 8,
        "dimensions": 1000 * length,
        "sensitivity": shares,
        "response": shares,
    }
    return Record(ask=ask, answer=TextAnswer(lower=value, **fields | answered), machine=this_machine(), seconds=0.1)


def changed(found, **answered):
    """Return a record whose answer differs in some numbers."""
    return replace(found, answer=replace(found.answer, **answered))


def measurement(records, *, heads=(), tokens=None, **fields):
    """Return the measurement that holds some records."""
    longest = max(r.ask.length for r in records)
    words = tuple(f"word{i}" for i in range(longest)) if tokens is None else tokens
    found = {
        "model": records[0].ask.model,
        "text": "t",
        "map": "attention",
        "records": tuple(records),
        "heads": tuple(heads),
        "layers": summarise(records, lambda _layer, _length, _radius: LADDER),
        "tokens": words,
        "planned": len(records) + len(heads),
    }
    return Measurement(**found | fields)


def summary(records):
    """Return the answer for the one layer that some records are about."""
    (found,) = summarise(records, lambda _layer, _length, _radius: LADDER)
    return found


def grid(layers=2, lengths=LENGTHS, windows=3, **fields):
    """Return a record for each layer, length and window."""
    return [record(layer, n, w, **fields) for layer in range(layers) for n in lengths for w in range(windows)]


def heads(layers=2, count=3, length=16):
    """Return records of single heads."""
    return [
        record(layer, length, w, part=f"head:{h}", lower=1.0 + h + layer * w)
        for layer in range(layers)
        for h in range(count)
        for w in range(2)
    ]


def run_of(*measurements, records=(), failures=(), plans=(), commands=("howsmooth measure m",)):
    """Return the run that holds some measurements, and records besides."""
    measured = (r for m in measurements for r in (*m.records, *m.heads))
    return Run(
        records=(*measured, *records),
        failures=tuple(failures),
        plans=tuple(plans),
        measurements=measurements,
        commands=tuple(commands),
    )
