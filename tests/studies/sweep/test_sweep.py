"""A sweep does what is missing, writes down what fails, and never depends on what was there before."""

import itertools

import pytest
import torch
from asked import ONE, answered, radii, untimed
from msgspec.structs import replace

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.studies.kinds.text import TextAsk
from howsmooth.studies.kinds.tokens_in_ball import RegimesAsk
from howsmooth.studies.records import this_machine
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import Compute, Window
from howsmooth.studies.sweep.sweep import WALK, attempt, preparing, sentence, sweep, units
from howsmooth.studies.sweep.workers import expected_seconds


class Counting:
    """Does the work here and remembers which."""

    def __init__(self, resources=None):
        self.units = []
        self.resources = resources or Resources()

    def __call__(self, work):
        self.units += work
        return (attempt(unit, self.resources) for unit in work)

    @property
    def asks(self):
        return [ask for unit in self.units for ask in unit.cell]


def test_blocks_that_windows_go_through_count_as_work():
    def asks(streamed):
        where = Compute(streamed=streamed)
        return [
            TextAsk(model="m", layer=layer, window=Window(digest="0", length=length), where=where)
            for layer in (0, 13, 27)
            for length in (64, 256)
        ]

    work = units(asks(True), frozenset())
    assert [unit.cell[0].layer for unit in work] == [0, 0, 13, 13, 27, 27]
    one = sum(unit.cost for unit in work) / 3
    assert list(preparing(work).values()) == pytest.approx([WALK * blocks * one for blocks in (1, 13, 14)])
    assert set(preparing(work)) == {work[i].cell[0].key for i in (0, 2, 4)}
    assert preparing(units(asks(None), frozenset())) == {}


def test_every_ask_has_its_record(tmp_path):
    asks = radii(4)
    with Store(tmp_path) as store:
        tally = answered(asks, store)
        assert store.done(asks) == {ask.key for ask in asks}
        assert [store.find([ask.key])[ask.key].ask for ask in asks] == asks
    assert (tally.done, tally.failed, tally.left, tally.share) == (4, 0, 0, 1.0)


def test_a_second_sweep_does_nothing(tmp_path):
    asks, seen, again = radii(3), [], Counting()
    with Store(tmp_path) as store:
        answered(asks, store)
        before = store.records()
        tally = sweep(asks, store, execute=again, progress=seen.append)
        assert again.units == []
        assert seen == []
        assert store.records() == before
    assert (tally.done, tally.left, tally.share) == (3, 0, 1.0)


def test_only_what_is_new_is_done(tmp_path):
    counting = Counting()
    with Store(tmp_path) as store:
        answered(radii(3), store)
        sweep(radii(5), store, execute=counting)
        assert counting.asks == radii(5)[3:]
        assert len(store.records()) == 5


def test_an_ask_that_is_named_twice_is_done_once(tmp_path):
    counting = Counting()
    with Store(tmp_path) as store:
        tally = sweep([*radii(2), *radii(2)], store, execute=counting)
    assert counting.asks == radii(2)
    assert (tally.done, tally.left) == (2, 0)


def test_the_same_text_at_two_places_is_one_ask(asks, resources, tmp_path):
    (ask,) = asks(count=1)
    copy = replace(ask, window=replace(ask.window, text="elsewhere/alice.txt"))
    counting = Counting(resources)
    with Store(tmp_path) as store:
        tally = sweep([copy, ask], store, execute=counting)
        assert len(store.records()) == 1
    assert (tally.done, tally.failed, tally.left) == (1, 0, 0)
    assert counting.asks == [ask]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"layer": 99}, "layer must name one of 2"),
        ({"map": "normed"}, "normalises behind attention"),
        ({"map": "head:77", "layer": 1}, "head"),
        ({"model": "no/such/folder"}, "no/such/folder"),
        ({"window": {"digest": "other"}}, "not what it was"),
        ({"window": {"text": "nowhere.txt", "digest": "none"}}, "nowhere.txt"),
        ({"window": {"length": 41}}, "41"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_an_ask_that_fails_is_written_down_and_the_others_are_done(wrong, words, asks, resources, tmp_path):
    good = asks(count=2) + radii(2)
    window = replace(good[0].window, **{"index": 5} | wrong.get("window", {}))
    bad = replace(good[0], **wrong | {"window": window})
    seen = []
    with Store(tmp_path) as store:
        tally = answered([good[0], bad, *good[1:]], store, resources=resources, progress=seen.append)
        (failure,) = store.failures()
        assert failure.ask == bad
        assert words in failure.error
        assert "\n" not in failure.error
        assert store.done([*good, bad]) == {ask.key for ask in good}
    assert (tally.done, tally.failed, tally.left) == (4, 1, 0)
    assert seen[-1] == tally


def test_what_failed_is_tried_again_only_when_asked(asks, tiny, tmp_path):
    book = tmp_path / "book.txt"
    both = asks(count=2, place=str(book), digest=read_text().digest)
    with Store(tmp_path / "run") as store:
        assert answered(both, store, resources=Resources([tiny])).failed == 2
        assert all(str(book) in failure.error for failure in store.failures())

        book.write_text(read_text().content, encoding="utf-8")
        patient = Counting()
        tally = sweep(both, store, execute=patient)
        assert patient.units == []
        assert (tally.done, tally.failed, tally.left, tally.share) == (0, 2, 0, 1.0)

        tally = answered(both, store, resources=Resources([tiny]), retry_failed=True)
        assert (tally.done, tally.failed, tally.left) == (2, 0, 0)
        assert store.failures() == []
        assert len(store.records()) == 2


def test_an_answer_without_end_is_kept_as_none_and_read_back_as_it_was_told(tmp_path):
    # exp(40²) has no end in float64
    with Store(tmp_path) as store:
        assert answered([RegimesAsk(length=5, radius=40.0, **ONE)], store).done == 1
        (record,) = store.records()
    assert record.answer.plateau is record.answer.measures_upper is None
    assert record.answer.lower > 1000


def test_an_error_is_one_line_that_can_be_kept(tmp_path):
    said = sentence(ValueError("one\n  two \udc80 three"))
    assert said == "ValueError: one two ? three"


def test_the_tally_always_adds_up(asks, resources, tmp_path):
    mixed = [*radii(3), *asks(layers=(0, 99, 1))]
    seen = []
    with Store(tmp_path) as store:
        answered(mixed[:2], store)
        tally = answered(mixed, store, resources=resources, progress=seen.append)
    assert all(now.done + now.failed + now.left == len(mixed) for now in seen)
    assert all(before.left > after.left and before.share < after.share for before, after in itertools.pairwise(seen))
    assert all(0 < now.share <= 1 for now in seen)
    assert (tally.done, tally.failed, tally.left) == (7, 2, 0)
    assert tally.share == pytest.approx(1.0)
    assert "tokens" in tally.last


def test_units_are_the_cells_that_are_not_finished(asks):
    work = asks(layers=(1, 0), lengths=(8, 16), maps=("attention", "block"), count=3)
    found = units(work, frozenset())
    assert len(found) == 8
    assert all(len(unit.batch) == 12 and len(unit.cell) == 3 for unit in found)
    assert sorted(ask.key for unit in found for ask in unit.cell) == sorted(ask.key for ask in work)
    assert sum(unit.cost for unit in found) == pytest.approx(sum(ask.cost for ask in work))
    assert units(work, frozenset(ask.key for ask in work)) == []
    one = units(work, frozenset(ask.key for ask in work) - {found[2].cell[1].key})
    assert one == [found[2]], "a cell is done whole"


@pytest.mark.slow
@pytest.mark.parametrize("maps", [("head:0",), ("head:0", "head:1", "head:2"), ("attention",), ("block",)], ids=str)
def test_a_cell_that_was_stored_in_part_ends_bit_for_bit_as_one_that_was_not(maps, asks, tiny, tmp_path):
    work = asks(layers=(0, 1), lengths=(4,), maps=maps, count=3)
    with Store(tmp_path / "whole") as store:
        answered(work, store, resources=Resources([tiny]))
        whole = store.records()
    with Store(tmp_path / "part") as store:
        kept = [r for r in whole if (r.ask.layer, r.ask.window.index) in {(0, 1), (0, 2), (1, 0)}]
        store.add(kept)
        tally = answered(work, store, resources=Resources([tiny]))
        assert tally.done == 6 * len(maps)
        assert untimed(store.records()) == untimed(whole)
        assert [record for record in store.records() if record in kept] == kept


def test_the_order_of_asks_changes_nothing(asks, tiny, tmp_path):
    work = asks(layers=(0, 1), lengths=(8, 12), count=3)
    found = []
    for name, order in (("one", work), ("other", work[::-1])):
        with Store(tmp_path / name) as store:
            answered(order, store, resources=Resources([tiny]))
            found.append(untimed(store.records()))
    assert found[0] == found[1]


def test_an_error_in_the_middle_keeps_what_was_done(tmp_path):
    def broken(work):
        for i, outcomes in enumerate(Counting()(work)):
            if i == 2:
                raise KeyboardInterrupt
            yield outcomes

    with Store(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            sweep(radii(5), store, execute=broken)
        assert sorted(record.ask.radius for record in store.records()) == [1.0, 1.125]
        assert answered(radii(5), store).done == 5


@pytest.mark.slow
def test_a_model_that_changed_in_its_folder_is_measured_anew(save_model, loaded, small, tmp_path):
    found, options = [], small | {"layers": [0], "lengths": [8], "sequences": 1}
    for seed in (0, 1):
        model = save_model(tmp_path / "model", seed)
        found.append(hs.measure(model, **options).records[0].answer.lower)
        in_memory = hs.measure(loaded("bert", seed), **options).records[0].answer.lower
        assert found[-1] == pytest.approx(in_memory, rel=2e-3)
    assert found[0] != pytest.approx(found[1], rel=1e-2)


@pytest.mark.slow
def test_a_text_that_changed_in_its_file_is_measured_anew(tiny, tmp_path):
    book, found = tmp_path / "book.txt", []
    for line in ("the rabbit hole went straight on like a tunnel", "and what is the use of a book without pictures"):
        book.write_text(line, encoding="utf-8")
        measured = hs.measure(tiny, text=book, layers=[0], lengths=[8], sequences=1)
        assert measured.complete
        found.append(measured.records[0].answer.lower)
    assert found[0] != found[1]


def test_a_text_that_changes_between_two_asks_of_one_executor_is_read_again(asks, tiny, tmp_path):
    book = tmp_path / "book.txt"
    counting = Counting(Resources([tiny]))
    with Store(None) as store:
        for line in ("the rabbit hole went straight on like a tunnel", "and what is the use of a book without it"):
            book.write_text(line, encoding="utf-8")
            tally = sweep(asks(count=1, place=str(book), digest=read_text(str(book)).digest), store, execute=counting)
            assert (tally.done, tally.failed) == (1, 0)


def test_a_model_of_other_numbers_is_another_model(folder_model):
    held = Resources()
    assert held.transformer(folder_model, Compute(dtype="float32")).module.dtype == torch.float32
    assert held.transformer(folder_model, Compute(dtype="float64")).module.dtype == torch.float64


def test_records_hold_versions_and_hardware(tmp_path):
    with Store(tmp_path) as store:
        answered(radii(1), store, threads=None)
        (record,) = store.records()
    assert record.machine == this_machine()
    assert record.seconds > 0
    assert all(getattr(record.machine, name) for name in record.machine.__struct_fields__)


@pytest.mark.slow
@pytest.mark.clock("pieces are timed")
def test_the_time_of_a_sweep_is_foreseen_from_two_of_its_pieces(asks, resources, tmp_path):
    work = asks(layers=(0, 1), lengths=(8, 16, 32), maps=("attention",), count=4)
    expected = expected_seconds([*work, *radii(3)], resources)
    with Store(None) as store:
        answered([*work, *radii(3)], store, resources=resources)
        took = sum(record.seconds for record in store.records())
    assert took / 8 < expected < 8 * took
    assert expected_seconds([], resources) == 0
