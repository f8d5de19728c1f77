"""Small questions, and answers that were never found."""

from msgspec.structs import replace

from howsmooth.studies.kinds.text import TextAnswer, TextAsk
from howsmooth.studies.kinds.tokens_in_ball import BoundsAnswer, BoundsAsk
from howsmooth.studies.records import Record, this_machine
from howsmooth.studies.settings import Window
from howsmooth.studies.sweep.sweep import sweep
from howsmooth.studies.sweep.workers import executor

ONE = {"A": ((-1.0,),), "V": ((1.0,),)}
TWO = {"A": ((1.0, 0.5), (0.0, -1.0)), "V": ((1.0, 0.0), (2.0, 1.0))}


def radii(count):
    """Return asks that need no model, each by itself: a millisecond of work."""
    return [BoundsAsk(length=2, radius=1.0 + i / 8, **ONE) for i in range(count)]


def windows(
    model, digest="d", *, layers=(0,), lengths=(8,), maps=("head:0",), count=2, place="beginning.txt", **others
):
    """Return asks at windows of a text."""
    return [
        TextAsk(
            model=model,
            layer=layer,
            map=part,
            window=Window(text=place, digest=digest, length=length, index=index),
            **others,
        )
        for layer in layers
        for length in lengths
        for part in maps
        for index in range(count)
    ]


def filler(i, sizes=40):
    """Return a record with numbers that are no short decimals, of a size that depends on its number."""
    shares = tuple(j / 7 for j in range(37 * i % sizes))
    ask = TextAsk(model="m", layer=i, window=Window(text="t", digest="d", length=8))
    answer = TextAnswer(lower=0.1 + i / 3, upper=0.2 + i / 3, steps=i, status="converged", sensitivity=shares)
    return Record(ask=ask, answer=answer, machine=this_machine(), seconds=0.1)


def bounded(i=0):
    """Return a record of another kind."""
    ask = BoundsAsk(length=3 + i, radius=1.5, **TWO)
    return Record(ask=ask, answer=BoundsAnswer(sharp_upper=1 / 3, tied_pair=0.1 + 0.2), machine=this_machine())


def answered(asks, store, *, resources=None, progress=None, retry_failed=False, **how):
    """Sweep in this process, or as told."""
    with executor(resources=resources, **how) as execute:
        return sweep(asks, store, execute=execute, progress=progress, retry_failed=retry_failed)


def untimed(records):
    """Return records by key, without what differs from run to run."""
    return {record.ask.key: replace(record, seconds=0.0) for record in records}
