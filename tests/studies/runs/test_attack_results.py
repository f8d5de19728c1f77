"""Where linearity ends, from records that were never measured."""

import pytest

from howsmooth.studies.kinds.attack import AttackAnswer, AttackAsk, summarise_attacks
from howsmooth.studies.records import Record, this_machine
from howsmooth.studies.settings import Window


def records(gains, predicted=2.0):
    for eps, attained in gains.items():
        for index, share in enumerate((0.9, 1.1)):
            for method, less in (("ascent", 1.0), ("random", 0.1)):
                ask = AttackAsk(
                    model="m", layer=0, window=Window(digest="d", length=8, index=index), eps=eps, method=method
                )
                answer = AttackAnswer(attained=attained * share * less, predicted=predicted, ceiling=9.0)
                yield Record(ask=ask, answer=answer, machine=this_machine())


def test_linearity_ends_between_two_radii_on_the_logarithm():
    (found,) = summarise_attacks(records({0.01: 2.0, 1.0: 2.0, 100.0: 2.4}))
    assert found.linear_until == pytest.approx(10.0)
    assert "linearity ends at ε ≈ 10" in found.sentence
    assert [line.method for line in found.best] == ["ascent"] * 3
    assert [(line.eps, line.method) for line in found.lines][:2] == [(0.01, "random"), (0.01, "ascent")]


def test_falling_short_ends_linearity_too():
    (found,) = summarise_attacks(records({0.1: 2.0, 10.0: 1.6}))
    assert found.linear_until == pytest.approx(1.0)


def test_linearity_may_last_or_be_over_before_the_first_radius():
    (lasts,) = summarise_attacks(records({0.1: 2.0, 10.0: 2.1}))
    assert lasts.linear_until is None
    assert "up to ε = 10" in lasts.sentence
    (over,) = summarise_attacks(records({0.1: 3.0}))
    assert over.linear_until == 0.0
    assert "more than 10 %" in over.sentence


def test_a_map_that_predicts_nothing_is_summed_up_too():
    (found,) = summarise_attacks(records({0.1: 0.0}, predicted=0.0))
    assert found.lines[0].ratio is None
    assert '"linear_until":0' in found.to_json()
