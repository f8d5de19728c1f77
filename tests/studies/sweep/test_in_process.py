"""Units side by side: the same records as one after another, whatever fails and whoever wants the machine."""

import threading

import pytest
import torch
from asked import TWO, answered, radii, untimed, windows
from msgspec.structs import replace

import howsmooth as hs
from howsmooth.errors import HowsmoothError
from howsmooth.studies.kinds.tokens_in_ball import BoundsAsk, ExtremalAsk
from howsmooth.studies.records import this_machine
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.store import Store


def records_of(asks, **how):
    with Store(None) as store:
        tally = answered(asks, store, **how)
        return tally, untimed(store.records())


@pytest.fixture
def mixed(folder_model, beginning, digest):
    """Work of several kinds, one of which fails."""
    texts = windows(folder_model, digest, place=beginning, layers=(0, 1), maps=("head:0", "attention"), count=3)
    built = [ExtremalAsk(points="two_point", length=n, radius=1.5, **TWO) for n in (5, 6)]
    return [*radii(3), *texts, *built, *windows(folder_model, digest, place=beginning, layers=(99,), count=1)]


def assert_same(found, expected):
    """Compare records; a kernel may add up in another order on another thread."""
    assert found.keys() == expected.keys()
    for key, record in found.items():
        numbers, others = (
            [value for name in ("lower", "upper", "typical", "sharp_upper") if (value := getattr(answer, name, None))]
            for answer in (record.answer, expected[key].answer)
        )
        assert numbers
        assert numbers == pytest.approx(others, rel=1e-5)


@pytest.mark.slow
def test_the_records_are_those_of_one_unit_after_another(mixed):
    one_by_one, expected = records_of(mixed, threads=1)
    side_by_side, found = records_of(mixed, threads=3)
    assert_same(found, expected)
    assert (one_by_one.done, one_by_one.failed) == (side_by_side.done, side_by_side.failed) == (len(mixed) - 1, 1)


@pytest.mark.slow
def test_blocks_are_measured_side_by_side(folder_model, beginning, digest):
    asks = windows(folder_model, digest, place=beginning, layers=(0, 1), maps=("block",), lengths=(4, 8), count=2)
    tally, found = records_of(asks, threads=2)
    assert tally.failed == 0
    assert_same(found, records_of(asks, threads=1)[1])


def test_a_callable_is_differentiated_on_two_threads_at_once(rng):
    X = torch.randn(4, 3, dtype=torch.float64, generator=rng)
    module = torch.nn.MultiheadAttention(3, 1, batch_first=True, dtype=torch.float64)
    expected, found = hs.local_lipschitz(lambda X: module.eval()(X, X, X)[0], X, seed=rng).lower, []

    def measure():
        generator = torch.Generator().manual_seed(0)
        found.append(hs.local_lipschitz(lambda X: module(X, X, X)[0], X, seed=generator).lower)

    threads = [threading.Thread(target=measure) for _number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for value in found:
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=0)


@pytest.mark.slow
def test_products_of_side_by_side_units_have_one_thread_and_long_inputs_have_all():
    long = BoundsAsk(length=600, radius=1.0, **TWO)
    assert long.alone
    _tally, found = records_of([*radii(2), long], threads=2)
    threads = {record.ask.length: record.machine.threads for record in found.values()}
    assert threads == {2: 1, 600: 2}


def test_a_single_unit_has_all_threads():
    _tally, found = records_of(radii(1), threads=2)
    assert [record.machine.threads for record in found.values()] == [2]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_is_left_as_it_was(threads):
    before = torch.get_num_threads()
    records_of(radii(3), threads=threads)
    assert torch.get_num_threads() == before
    assert this_machine().threads == before


def test_a_model_that_was_planned_in_its_own_numbers_is_not_loaded_again(folder_model, beginning, digest):
    resources = Resources()
    first = resources.transformer(folder_model)
    ask = windows(folder_model, digest, place=beginning, count=1)[0]
    assert resources.transformer(folder_model, replace(ask.where, dtype="float32")) is first


def test_a_mistake_on_one_thread_is_told_and_the_others_go_on(folder_model, beginning, digest):
    asks = windows(folder_model, digest, place=beginning, layers=(0, 99, 1), count=1)
    with Store(None) as store:
        tally = answered(asks, store, threads=2)
        assert (tally.done, tally.failed) == (2, 1)
        (failure,) = store.failures()
        assert failure.ask.layer == 99
        assert HowsmoothError.__name__ not in failure.error
