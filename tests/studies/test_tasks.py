"""Tasks and records as data: keys that never change, JSON that loses nothing, and runs that repeat."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howsmooth.studies.kinds import KINDS, run
from howsmooth.studies.records import Record
from howsmooth.studies.setting import Setting, here
from howsmooth.studies.tasks import Task, fingerprint

LITERAL = Task(kind="regime", A=((-1.0,),), V=((1.0,),), length=5, radius=1.5, seed=3)
# Worked out by hand from the definition: the first 16 digits of SHA-256 of the sorted JSON of what is not a default.
LITERAL_JSON = '{"A":[[-1.0]],"V":[[1.0]],"kind":"regime","length":5,"radius":1.5,"seed":3}'
LITERAL_KEY = "da274492fb2bf928"

CHANGES = {
    "kind": "bounds",
    "model": "minilm",
    "A": ((-2.0,),),
    "V": ((2.0,),),
    "layer": 1,
    "map": "heads",
    "biases": False,
    "text": "alice",
    "digest": "abc",
    "length": 6,
    "window": 1,
    "stride": 1,
    "special_tokens": True,
    "points": "two_point",
    "head": 1,
    "radius": 2.0,
    "climb": 5,
    "seed": 4,
    "rtol": 1e-4,
    "confidence": 0.9,
    "certify": False,
    "released": True,
    "dtype": "float64",
    "device": "cpu",
}

floats = st.floats(allow_nan=False, allow_infinity=False)
matrices = st.integers(1, 3).flatmap(
    lambda d: st.lists(st.lists(floats, min_size=d, max_size=d).map(tuple), min_size=d, max_size=d).map(tuple)
)
counts = st.integers(0, 2**40)
tasks = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(KINDS)),
        "model": st.text(max_size=8),
        "A": st.just(()) | matrices,
        "V": st.just(()) | matrices,
        "layer": counts,
        "map": st.text(max_size=8),
        "biases": st.booleans(),
        "text": st.text(max_size=8),
        "digest": st.text(max_size=8),
        "length": counts,
        "window": counts,
        "stride": counts,
        "special_tokens": st.booleans(),
        "points": st.text(max_size=8),
        "head": counts,
        "radius": floats,
        "climb": counts,
        "seed": st.integers(-(2**63), 2**63),
        "rtol": floats,
        "confidence": floats,
        "certify": st.booleans(),
        "released": st.booleans(),
        "dtype": st.text(max_size=8),
        "device": st.text(max_size=8),
    }
)
numbers = st.floats(allow_nan=False)
settings_of_machines = st.fixed_dictionaries(
    {
        "howsmooth": st.text(max_size=5),
        "torch": st.text(max_size=5),
        "transformers": st.text(max_size=5),
        "python": st.text(max_size=5),
        "machine": st.text(max_size=20),
        "threads": st.integers(1, 64),
    }
)
records = st.fixed_dictionaries(
    {
        "lower": numbers,
        "upper": st.none() | numbers,
        "steps": counts,
        "status": st.text(max_size=8),
        "products": counts,
        "radius": st.none() | numbers,
        "reach": st.none() | numbers,
        "local_upper": st.none() | numbers,
        "released": st.none() | numbers,
        "sensitivity": st.lists(numbers, max_size=4).map(tuple),
        "response": st.lists(numbers, max_size=4).map(tuple),
        "numbers": st.dictionaries(st.text(max_size=8), numbers, max_size=4).map(lambda found: tuple(found.items())),
        "seconds": numbers,
    }
)


def test_the_key_of_a_task_is_known_for_ever():
    assert json.dumps(LITERAL.as_dict(), sort_keys=True, separators=(",", ":")) == LITERAL_JSON
    assert LITERAL.key == LITERAL_KEY


def test_another_process_with_other_hashes_finds_the_same_key():
    program = (
        "from howsmooth.studies.tasks import Task\n"
        "print(Task(seed=3, radius=1.5, length=5, V=((1.0,),), A=((-1.0,),), kind='regime').key)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.strip() == LITERAL_KEY


def test_the_order_of_fields_does_not_matter():
    values = vars(LITERAL)
    assert Task(**dict(reversed(values.items()))).key == LITERAL.key
    assert fingerprint(dict(reversed(LITERAL.as_dict().items()))) == LITERAL.key


def test_every_field_changes_the_key_but_where_a_text_lies():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Task)}
    keys = {name: dataclasses.replace(LITERAL, **{name: value}).key for name, value in CHANGES.items()}
    assert keys.pop("text") == LITERAL.key
    assert len(set(keys.values()) | {LITERAL.key}) == len(keys) + 1


DEFAULTS = {f.name: f.default for f in dataclasses.fields(Task) if f.default is not dataclasses.MISSING}


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_field_at_its_default_is_not_in_the_key(name):
    assert Task(**{"length": 7, name: DEFAULTS[name]}).key == fingerprint({"kind": "local", "length": 7})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"radius": 2}, {"radius": 2.0}),
        ({"A": ((1,),)}, {"A": ((1.0,),)}),
        ({"A": ((0.0,),)}, {"A": ((-0.0,),)}),
        ({"certify": 0}, {"certify": False}),
    ],
    ids=str,
)
def test_equal_tasks_have_equal_keys(one, other, untyped):
    first, second = Task(length=3, **one), Task(length=3, **other)
    assert first == second
    assert first.key == second.key


# fields are drawn and tasks made in the test: the type checker looks at random entries, which a strategy must not
@given(fields=tasks)
def test_a_task_comes_back_from_json(fields):
    task = Task(**fields)
    back = Task.from_json(task.to_json())
    assert back == task
    assert back.key == task.key
    assert back.to_json() == task.to_json()


@given(fields=records, setting=settings_of_machines)
def test_a_record_comes_back_from_json_that_every_reader_understands(fields, setting):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    record = Record(task=LITERAL, setting=Setting(**setting), **fields)
    text = record.to_json()
    json.loads(text, parse_constant=refuse)
    assert Record.from_json(record.task, text) == record


def test_an_infinite_bound_stays_infinite():
    record = Record(task=LITERAL, lower=1.0, upper=math.inf, numbers=(("low", -math.inf),), setting=here())
    back = Record.from_json(LITERAL, record.to_json())
    assert back.upper == math.inf
    assert back.number("low") == -math.inf


ONE = {"A": ((-1.0,),), "V": ((1.0,),)}
TWO = {"A": ((1.0, 0.5), (0.0, -1.0)), "V": ((1.0, 0.0), (2.0, 1.0))}


@pytest.mark.parametrize(
    "task",
    [
        Task(kind="regime", length=5, radius=1.5, **ONE),
        Task(kind="measure", length=2, radius=1.5, climb=5, **ONE),
        Task(kind="ascent", length=3, radius=1.5, climb=5, seed=1, **TWO),
        Task(kind="bounds", length=5, radius=1.5, **TWO),
        Task(kind="extremal", points="two_point", length=5, radius=1.5, **TWO),
        Task(kind="extremal", points="tied_pair", length=5, radius=1.5, **TWO),
    ],
    ids=lambda task: f"{task.kind} {task.points}".strip(),
)
def test_a_task_run_twice_gives_the_same_result_bit_for_bit(task):
    assert dataclasses.replace(run(task), seconds=0.0) == dataclasses.replace(run(task), seconds=0.0)


def test_windows_of_a_text_are_measured_alike_twice(alice_tasks):
    (task, *_) = alice_tasks(windows=1)
    assert dataclasses.replace(run(task), seconds=0.0) == dataclasses.replace(run(task), seconds=0.0)


def test_a_single_number_has_bounds_too():
    found = run(Task(kind="bounds", length=5, radius=1.5, **ONE))
    assert 0 < found.lower <= found.upper
    assert "tied_pair" not in dict(found.numbers)


def test_a_record_says_with_what_it_was_made():
    setting = run(LITERAL).setting
    assert setting == here()
    assert setting.threads >= 1
    assert all(vars(setting).values())
