"""A sweep does what is missing, writes down what fails, and never depends on what was there before."""

import dataclasses
import itertools

import pytest
import torch

import howsmooth as hs
from howsmooth.models.text import read_text
from howsmooth.studies.records import Failure
from howsmooth.studies.resources import transformer_of
from howsmooth.studies.setting import here
from howsmooth.studies.store import Store
from howsmooth.studies.sweep import Unit, attempt, in_process, sweep, units
from howsmooth.studies.tasks import Task

ONE = {"A": ((-1.0,),), "V": ((1.0,),)}


def lengths(count):
    return [Task(kind="regime", length=3 + i, radius=1.0, **ONE) for i in range(count)]


class Counting:
    """Does the work here and remembers which."""

    def __init__(self):
        self.units: list[Unit] = []

    def __call__(self, work):
        self.units += work
        return in_process(work)

    @property
    def tasks(self):
        return [task for unit in self.units for task in unit.cell]


def test_every_task_has_its_record(tmp_path):
    tasks = lengths(4)
    with Store(tmp_path) as store:
        tally = sweep(tasks, store)
        assert store.done(tasks) == {task.key for task in tasks}
        assert [store.find([task])[task.key].task for task in tasks] == tasks
    assert (tally.done, tally.failed, tally.left, tally.share) == (4, 0, 0, 1.0)


def test_a_second_sweep_does_nothing(tmp_path):
    tasks, seen, again = lengths(3), [], Counting()
    with Store(tmp_path) as store:
        sweep(tasks, store)
        before = store.records()
        tally = sweep(tasks, store, execute=again, progress=seen.append)
        assert again.units == []
        assert seen == []
        assert store.records() == before
    assert (tally.done, tally.left, tally.share) == (3, 0, 1.0)


def test_only_what_is_new_is_done(tmp_path):
    counting = Counting()
    with Store(tmp_path) as store:
        sweep(lengths(3), store)
        sweep(lengths(5), store, execute=counting)
        assert counting.tasks == lengths(5)[3:]
        assert len(store.records()) == 5


def test_a_task_that_is_named_twice_is_done_once(tmp_path):
    counting = Counting()
    with Store(tmp_path) as store:
        tally = sweep([*lengths(2), *lengths(2)], store, execute=counting)
    assert counting.tasks == lengths(2)
    assert (tally.done, tally.left) == (2, 0)


def test_the_same_text_at_two_places_is_one_task(alice_tasks, tmp_path):
    (task,) = alice_tasks(windows=1)
    copy = dataclasses.replace(task, text="elsewhere/alice.txt")
    counting = Counting()
    with Store(tmp_path) as store:
        tally = sweep([copy, task], store, execute=counting)
        assert len(store.records()) == 1
    assert (tally.done, tally.failed, tally.left) == (1, 0, 0)
    assert counting.tasks == [task]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"layer": 99}, "layer must name one of 6"),
        ({"map": "normed"}, "normalises behind attention"),
        ({"map": "head:77"}, "head"),
        ({"model": "no/such/folder"}, "no/such/folder"),
        ({"digest": "other"}, "not what it was"),
        ({"text": "nowhere.txt"}, "nowhere.txt"),
        ({"kind": "guess"}, "'guess'"),
        ({"dtype": "float8"}, "float8"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_task_that_fails_is_written_down_and_the_others_are_done(wrong, words, alice_tasks, tmp_path):
    good = alice_tasks(windows=2) + lengths(2)
    bad = dataclasses.replace(good[0], **{"window": 5} | wrong)
    seen = []
    with Store(tmp_path) as store:
        tally = sweep([good[0], bad, *good[1:]], store, progress=seen.append)
        (failure,) = store.failures()
        assert failure.task == bad
        assert words in failure.error
        assert "\n" not in failure.error
        assert store.done([*good, bad]) == {task.key for task in good}
    assert (tally.done, tally.failed, tally.left) == (4, 1, 0)
    assert seen[-1] == tally


def test_what_failed_is_tried_again_only_when_asked(alice_tasks, tmp_path):
    book = tmp_path / "book.txt"
    tasks = [dataclasses.replace(task, text=str(book)) for task in alice_tasks(windows=2)]
    with Store(tmp_path / "run") as store:
        assert sweep(tasks, store).failed == 2
        assert all(str(book) in failure.error for failure in store.failures())

        book.write_text(read_text().content, encoding="utf-8")
        patient = Counting()
        tally = sweep(tasks, store, execute=patient)
        assert patient.units == []
        assert (tally.done, tally.failed, tally.left, tally.share) == (0, 2, 0, 1.0)

        tally = sweep(tasks, store, retry_failed=True)
        assert (tally.done, tally.failed, tally.left) == (2, 0, 0)
        assert store.failures() == []
        assert len(store.records()) == 2


def test_what_fails_again_keeps_the_newer_error(tmp_path):
    (task,) = lengths(1)
    with Store(tmp_path) as store:
        store.add([Failure(task=task, error="old")])
        store.add([Failure(task=task, error="new")])
        assert [failure.error for failure in store.failures()] == ["new"]


def test_a_record_that_another_process_made_is_not_called_a_failure(tmp_path):
    (task,) = lengths(1)
    with Store(tmp_path) as store:
        (record,) = attempt(Unit(batch=(task,), cell=(task,)))
        store.add([record])
        store.add([Failure(task=task, error="out of memory")])
        assert store.failures() == []
        assert store.records() == [record]


def test_the_tally_always_adds_up(alice_tasks, tmp_path):
    tasks = [*lengths(3), *alice_tasks(layers=(0, 99, 1), windows=2)]
    seen = []
    with Store(tmp_path) as store:
        sweep(tasks[:2], store)
        tally = sweep(tasks, store, progress=seen.append)
    assert all(now.done + now.failed + now.left == len(tasks) for now in seen)
    assert all(before.left > after.left and before.share < after.share for before, after in itertools.pairwise(seen))
    assert all(0 < now.share <= 1 for now in seen)
    assert (tally.done, tally.failed, tally.left) == (7, 2, 0)
    assert tally.share == pytest.approx(1.0)
    assert "tokens" in tally.last


def test_a_batch_of_one_model_and_text_shares_its_run_and_a_cell_is_one_layer_and_map(alice_tasks):
    tasks = alice_tasks(layers=(1, 0), lengths=(8, 16), maps=("head:0", "attention"), windows=3)
    found = units(tasks, frozenset())
    assert len(found) == 8
    assert all(len(unit.batch) == 12 and len(unit.cell) == 3 for unit in found)
    assert all(len({(t.layer, t.map, t.length) for t in unit.cell}) == 1 for unit in found)
    assert sorted(task.key for unit in found for task in unit.cell) == sorted(task.key for task in tasks)
    assert units(tasks, frozenset(task.key for task in tasks)) == []


@pytest.mark.parametrize("part", ["head:0", "attention", "block"])
def test_a_cell_that_was_stored_in_part_ends_bit_for_bit_as_one_that_was_not(part, alice_tasks, tmp_path, untimed):
    tasks = alice_tasks(layers=(0, 1), maps=(part,), windows=4)
    with Store(tmp_path / "whole") as store:
        sweep(tasks, store)
        whole = store.records()
    with Store(tmp_path / "part") as store:
        kept = [record for record in whole if (record.task.layer, record.task.window) in {(0, 1), (0, 2), (1, 3)}]
        store.add(kept)
        tally = sweep(tasks, store)
        assert tally.done == 8
        assert untimed(store.records()) == untimed(whole)
        assert [record for record in store.records() if record in kept] == kept


def test_the_order_of_tasks_changes_nothing(alice_tasks, tmp_path, untimed):
    tasks = alice_tasks(layers=(0, 1), lengths=(8, 12), windows=3)
    found = []
    for name, order in (("one", tasks), ("other", tasks[::-1])):
        with Store(tmp_path / name) as store:
            sweep(order, store)
            found.append(untimed(store.records()))
    assert found[0] == found[1]


def test_an_error_in_the_middle_keeps_what_was_done(tmp_path):
    def broken(work):
        for i, outcomes in enumerate(in_process(work)):
            if i == 2:
                raise KeyboardInterrupt
            yield outcomes

    with Store(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            sweep(lengths(5), store, execute=broken)
        assert [record.task.length for record in sorted(store.records(), key=lambda r: r.task.length)] == [3, 4]
        assert sweep(lengths(5), store).done == 5


def test_a_model_that_changed_in_its_folder_is_measured_anew(save_model, tmp_path):
    found = []
    for seed in (0, 1):
        model = save_model(tmp_path / "model", seed)
        found.append(hs.measure(model, layers=[0], lengths=[8], sequences=1).records[0].lower)
        fresh = save_model(tmp_path / f"model {seed}", seed)
        assert found[-1] == pytest.approx(
            hs.measure(fresh, layers=[0], lengths=[8], sequences=1).records[0].lower, rel=1e-4
        )
        hs.measure(model, layers=[0], lengths=[8], sequences=1)
    assert found[0] != pytest.approx(found[1], rel=1e-2)


def test_a_text_that_changed_in_its_file_is_measured_anew(tmp_path):
    book, found = tmp_path / "book.txt", []
    for line in ("the rabbit hole went straight on like a tunnel", "and what is the use of a book without pictures"):
        book.write_text(line, encoding="utf-8")
        measured = hs.measure("minilm", text=book, layers=[0], lengths=[8], sequences=1)
        assert measured.complete
        found.append(measured.records[0].lower)
    assert found[0] != found[1]


def test_a_model_in_memory_does_not_stand_in_for_other_numbers(alice_tasks, tmp_path):
    hs.measure("minilm", layers=[0], lengths=[8], sequences=1)
    (single,), (double,) = alice_tasks(windows=1, dtype="float32"), alice_tasks(windows=1, dtype="float64")
    assert transformer_of(single).module.dtype == torch.float32
    assert transformer_of(double).module.dtype == torch.float64


def test_records_hold_versions_and_hardware(tmp_path):
    with Store(tmp_path) as store:
        sweep(lengths(1), store)
        (record,) = store.records()
    assert record.setting == here()
    assert record.seconds > 0
