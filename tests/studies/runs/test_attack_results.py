"""Where linearity ends, from records that were never measured."""

import json

import pytest
from msgspec.structs import replace
from rich.console import Console

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
    assert '"linear_until":null' in found.to_json()
    assert found.sentence == f"{found.name}: nothing that was tried moves the output."
    (moved,) = summarise_attacks(records({0.1: 1.0}, predicted=0.0))
    assert '"linear_until":0' in moved.to_json()


def flipping(at):
    """Return attacks on a classifier; by ascent the class of so many windows changes, at these radii."""
    for r in records(dict.fromkeys(at, 2.0)):
        flipped = r.ask.method == "ascent" and r.ask.window.index < at[r.ask.eps]
        yield replace(r, ask=replace(r.ask, map="classes"), answer=replace(r.answer, flipped=flipped))


def test_on_a_classifier_it_is_said_how_many_classes_change_and_from_which_radius_on():
    (found,) = summarise_attacks(flipping({0.1: 0, 1.0: 1, 10.0: 2}))
    assert found.flips == ((0.1, 0), (1.0, 1), (10.0, 2))
    said = "Attacks change the predicted class in 1 of 2 windows at ε = 1, in 2 of 2 windows at ε = 10. "
    assert found.sentence.startswith(said)
    assert [line.cells["flips"] for line in found.best] == ["0 of 2", "1 of 2", "2 of 2"]
    assert json.loads(found.to_json())["flips"] == [[0.1, 0], [1, 1], [10, 2]]
    console = Console(width=100)
    with console.capture() as shown:
        console.print(found)
    assert "flips" in shown.get()
    (none,) = summarise_attacks(flipping({0.1: 0, 10.0: 0}))
    assert none.sentence.startswith("No attack changes the predicted class up to ε = 10. ")
    (no_classifier,) = summarise_attacks(records({0.1: 2.0}))
    with console.capture() as shown:
        console.print(no_classifier)
    assert "flips" not in shown.get()
    assert "class" not in no_classifier.sentence
