"""Attacks at windows of a text say how far they are, piece by piece, in shares that add up to the whole."""

import pytest

from howsmooth.studies.kinds.attack import AttackAsk
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import Window
from howsmooth.studies.sweep.sweep import preparing, sweep, units
from howsmooth.studies.sweep.workers import executor

RADII, METHODS, WINDOWS = (0.1, 1.0), ("random", "singular"), 2


def attacks(model, digest, place, **settings):
    return [
        AttackAsk(model=model, layer=0, window=window, eps=eps, method=method, budget=8, **settings)
        for window in (Window(text=place, digest=digest, length=4, index=i) for i in range(WINDOWS))
        for eps in RADII
        for method in METHODS
    ]


@pytest.mark.parametrize("bounded", [True, False])
def test_attacks_report_every_ceiling_and_every_method_and_what_they_report_adds_up(
    bounded, tiny, resources, beginning, digest
):
    asks, seen = attacks(tiny.name, digest, beginning, bounded=bounded), []
    with executor(threads=1, resources=resources) as execute, Store(None) as store:
        sweep(asks, store, execute=execute, progress=seen.append, resources=resources)
        assert not store.failures(asks)
        assert all((r.answer.ceiling is not None) == bounded for r in store.records())
    shares = [tally.share for tally in seen]
    assert shares == sorted(shares)
    done = [tally.done for tally in seen]
    first = WINDOWS * len(RADII) * bounded + len(METHODS)  # the first radius computes what the theory allows at all
    assert done == [0] * first + [4] + [4] * len(METHODS) + [8]
    # a cell that has reported all it does has nothing left to tell when it is over
    for i, tally in enumerate(seen[1:]):
        if tally.done > seen[i].done:
            assert tally.share == pytest.approx(shares[i])
    assert shares[-1] == 1
    assert not resources.under_way


def test_what_the_theory_allows_counts_once_for_each_window_and_radius():
    asks = attacks("m", "d", "t")
    work = units(asks, frozenset())
    cost = asks[0].prepared[2]
    assert cost > 0
    assert preparing(work) == {work[0].cell[0].key: pytest.approx(cost * WINDOWS * len(RADII))}
    for settings in ({"bounded": False}, {"map": "mlp"}):
        assert preparing(units(attacks("m", "d", "t", **settings), frozenset())) == {}
