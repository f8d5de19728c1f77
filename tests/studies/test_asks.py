"""Asks as data: keys that never change, JSON that loses nothing, and which of them are answered together."""

import hashlib
import os
import subprocess
import sys

import pytest
from asked import ONE, windows
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from howsmooth.errors import FieldError
from howsmooth.studies.json_values import JsonValue, fingerprint, from_json, settings_of, to_json
from howsmooth.studies.kinds import kind_named, kind_names, read_ask
from howsmooth.studies.kinds.text import TextAsk
from howsmooth.studies.kinds.tokens_in_ball import (
    AscentAsk,
    BoundsAnswer,
    BoundsAsk,
    ExtremalAsk,
    MeasuresAsk,
    RegimesAsk,
)
from howsmooth.studies.settings import Compute, Solver, Window
from howsmooth.studies.sweep.sweep import batches, cells

LITERAL = RegimesAsk(length=5, radius=1.5, solver=Solver(seed=3), **ONE)
AT_TEXT = TextAsk(model="m", layer=2, window=Window(digest="d", length=8, index=1), where=Compute(dtype="float64"))
# Worked out by hand from the definition: the first 16 digits of SHA-256 of the sorted JSON of what is not a default.
KEYS = {
    '{"A":[[-1]],"V":[[1]],"kind":"regimes","length":5,"radius":1.5,"solver":{"seed":3}}': (
        LITERAL,
        "7f394011ffa6b45d",
    ),
    '{"kind":"text","layer":2,"model":"m","where":{"dtype":"float64"},"window":{"digest":"d","index":1,"length":8}}': (
        AT_TEXT,
        "df67429382036f3a",
    ),
}


@pytest.mark.parametrize(("ask", "key"), KEYS.values(), ids=["regimes", "text"])
def test_the_key_of_an_ask_is_known_for_ever(ask, key):
    # an old run must be found again by a new version
    assert ask.key == key


@pytest.mark.parametrize("written", KEYS)
def test_a_key_is_the_hash_of_what_tells_an_ask_apart(written):
    ask, _key = KEYS[written]
    assert hashlib.sha256(written.encode()).hexdigest()[:16] == ask.key


def test_another_process_with_other_hashes_finds_the_same_key():
    program = (
        "from howsmooth.studies.kinds.tokens_in_ball import RegimesAsk\n"
        "from howsmooth.studies.settings import Solver\n"
        "print(RegimesAsk(solver=Solver(seed=3), radius=1.5, length=5, V=((1.0,),), A=((-1.0,),)).key)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert found.stdout.strip() == LITERAL.key


WINDOW = AT_TEXT.window
CHANGES = {
    "model": {"model": "n"},
    "layer": {"layer": 1},
    "map": {"map": "heads"},
    "digest": {"window": replace(WINDOW, digest="e")},
    "length": {"window": replace(WINDOW, length=9)},
    "index": {"window": replace(WINDOW, index=0)},
    "special tokens": {"window": replace(WINDOW, special_tokens=True)},
    "stride": {"window": replace(WINDOW, stride=4)},
    "dtype": {"where": Compute()},
    "device": {"where": Compute(dtype="float64", device="cuda")},
    "rtol": {"solver": Solver(rtol=1e-4)},
    "confidence": {"solver": Solver(confidence=0.9)},
    "certify": {"solver": Solver(certify=False)},
    "max_steps": {"solver": Solver(max_steps=7)},
    "seed": {"solver": Solver(seed=1)},
    "certificate": {"certificate": True},
    "released": {"released": True},
}


def test_every_setting_makes_another_ask():
    keys = {name: replace(AT_TEXT, **change).key for name, change in CHANGES.items()}
    assert len({*keys.values(), AT_TEXT.key}) == len(CHANGES) + 1


@pytest.mark.parametrize(
    "change",
    [{"window": replace(WINDOW, text="elsewhere.txt")}, {"where": Compute(dtype="float64", threads=3)}],
    ids=["where a text lies", "how many threads"],
)
def test_what_is_only_told_does_not_count(change):
    told = replace(AT_TEXT, **change)
    assert told.key == AT_TEXT.key
    assert told != AT_TEXT


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"radius": 2}, {"radius": 2.0}),
        ({"A": ((1,),)}, {"A": ((1.0,),)}),
        ({"A": ((0.0,),)}, {"A": ((-0.0,),)}),
        ({"solver": Solver()}, {}),
        ({"model": ""}, {}),
    ],
    ids=str,
)
def test_equal_asks_have_equal_keys(one, other):
    first, second = (BoundsAsk(**{"length": 3, "radius": 1.0} | given) for given in (one, other))
    assert first == second
    assert first.key == second.key


def test_a_field_that_is_added_with_a_default_changes_no_key():
    class Before(JsonValue, frozen=True, kw_only=True, tag_field="kind", tag="toy"):
        length: int
        solver: Solver = Solver()

    class Harder(Solver, frozen=True, kw_only=True):
        restarts: int = 3

    class After(JsonValue, frozen=True, kw_only=True, tag_field="kind", tag="toy"):
        shape: tuple[int, ...] = ()
        length: int
        radius: float = 1.5
        solver: Harder = Harder()

    assert fingerprint(After(length=3)) == fingerprint(Before(length=3))
    assert fingerprint(After(length=3, solver=Harder(seed=1))) == fingerprint(Before(length=3, solver=Solver(seed=1)))
    assert fingerprint(After(length=3, radius=2.0)) != fingerprint(Before(length=3))
    assert from_json(Before(length=3).to_json(), After) == After(length=3)


floats = st.floats(allow_nan=False, allow_infinity=False)
matrices = st.integers(1, 3).flatmap(
    lambda d: st.lists(st.lists(floats, min_size=d, max_size=d).map(tuple), min_size=d, max_size=d).map(tuple)
)
counts = st.integers(0, 2**40)
solvers = st.builds(
    Solver,
    rtol=st.floats(1e-12, 0.9),
    confidence=st.floats(0.01, 0.99),
    certify=st.booleans(),
    max_steps=st.integers(1, 2**40),
    seed=st.integers(0, 2**63 - 1),
)
about_heads = {
    "model": st.text(max_size=8),
    "layer": counts,
    "map": st.text(max_size=8),
    "biases": st.booleans(),
    "A": st.just(()) | matrices,
    "V": st.just(()) | matrices,
    "length": counts,
    "radius": floats,
    "solver": solvers,
}
at_texts = {
    "model": st.text(max_size=8),
    "layer": counts,
    "map": st.text(max_size=8),
    "window": st.builds(
        Window,
        text=st.text(max_size=8),
        digest=st.text(max_size=8),
        length=counts,
        index=counts,
        special_tokens=st.booleans(),
        stride=counts,
    ),
    "where": st.builds(
        Compute,
        device=st.text(max_size=8),
        dtype=st.sampled_from(["", "float32", "float64"]),
        threads=st.none() | st.integers(1, 64),
    ),
    "solver": solvers,
}
any_ask = st.one_of(
    st.builds(TextAsk, **at_texts, certificate=st.booleans(), released=st.booleans()),
    st.builds(BoundsAsk, **about_heads),
    st.builds(RegimesAsk, **about_heads),
    st.builds(AscentAsk, **about_heads, climb=counts),
    st.builds(MeasuresAsk, **about_heads, climb=counts),
    st.builds(ExtremalAsk, **about_heads, points=st.sampled_from(["two_point", "tied_pair"]), head=counts),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(ask=any_ask)
def test_an_ask_comes_back_from_json_whatever_its_kind(ask):
    back = read_ask(ask.to_json())
    assert back == ask
    assert type(back) is type(ask)
    assert back.key == ask.key
    assert back.to_json() == ask.to_json()


def test_a_kind_is_called_by_the_tag_of_its_asks():
    assert kind_names() == [
        *("ascent", "attack", "bounds", "budget", "certificate", "extremal", "measures", "monitor", "probe"),
        *("recipe", "regimes", "splitting", "text", "verified", "whole"),
    ]
    for name in kind_names():
        kind = kind_named(name)
        assert kind.name == name == kind.ask.__struct_config__.tag
        assert kind.about.endswith(".")


@pytest.mark.parametrize("name", kind_names())
def test_no_name_of_an_ask_is_one_of_its_answer(name):
    # tables have one column for each
    kind = kind_named(name)
    assert settings_of(kind.ask).keys() & settings_of(kind.answer).keys() == set()
    assert not {"key", "kind", "seconds"} & (settings_of(kind.ask).keys() | settings_of(kind.answer).keys())


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{", "does not fit"),
        ("[]", "must be a table, got a list"),
        ("{}", "'kind' is missing"),
        ('{"kind": "guess"}', "no kind 'guess'"),
        ('{"kind": "regimes", "radius": 1.0}', "'length' is missing"),
        ('{"kind": "regimes", "radius": 1.0, "length": "5"}', "length must be a whole number, got a text"),
        ('{"kind": "regimes", "radius": 1.0, "length": 5, "depth": 1}', "there is no 'depth'"),
        ('{"kind": "regimes", "radius": 1.0, "length": 5, "solver": {"rtol": 7}}', "rtol must be less than 1"),
        ('{"kind": "extremal", "radius": 1.0, "length": 5, "points": "three"}', "points does not fit"),
        ('{"kind": "regimes", "A": ' + "[" * 100_000, "nested too deeply"),
        ('{"kind": "regimes", "radius": 1.0, "length": 1' + "0" * 5000 + "}", "length"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_no_ask_is_refused_in_one_sentence(written, words):
    with pytest.raises(FieldError, match=words) as refusal:
        read_ask(written)
    assert len(str(refusal.value).splitlines()) == 1
    assert len(str(refusal.value)) < 300


def test_a_number_without_end_is_null():
    answer = BoundsAnswer(sharp_upper=float("inf"), tied_pair=1.0)
    assert to_json(answer) == '{"sharp_upper":null,"tied_pair":1.0}'
    assert from_json(to_json(answer), BoundsAnswer) == BoundsAnswer(tied_pair=1.0)


def test_fewer_windows_of_a_map_of_many_layers_go_together():
    window = Window(digest="d", length=1024, index=0)
    parts, whole = (
        [replace(AT_TEXT, layer=0, map=name, window=replace(window, index=i)) for i in range(4)]
        for name in ("attention", "model")
    )
    assert [[ask.map for ask in batch] for batch in batches(parts)] == [["attention"] * 4]
    assert [len(batch) for batch in batches(whole)] == [1] * 4
    assert len(batches(parts + whole)) == 5  # and never with parts of a layer
    assert whole[0].cost > parts[0].cost


def test_a_batch_of_one_model_and_length_shares_its_run_and_a_cell_is_one_layer_and_map():
    asks = windows("m", "d", layers=(1, 0), lengths=(8, 16), maps=("attention", "block"), count=3)
    found = batches(asks)
    assert [len(batch) for batch in found] == [12, 12]
    for batch in found:
        assert len({ask.length for ask in batch}) == 1
        assert [len(cell) for cell in cells(batch)] == [3] * 4
        assert all(len({(ask.layer, ask.map) for ask in cell}) == 1 for cell in cells(batch))


def test_all_heads_of_a_layer_are_one_cell():
    asks = windows("m", "d", layers=(0, 1), maps=("head:10", "head:2", "attention"), count=2)
    (batch,) = batches(asks)
    places = [[(ask.map, ask.window.index) for ask in cell] for cell in cells(batch)]
    heads = [("head:2", 0), ("head:2", 1), ("head:10", 0), ("head:10", 1)]
    assert places == [[("attention", 0), ("attention", 1)], heads] * 2


def test_long_windows_are_measured_few_at_a_time():
    assert together(length=1024, count=10) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # which windows are measured together does not depend on how many there are
    assert together(length=1024, count=7) == [[0, 1, 2, 3], [4, 5, 6]]
    assert together(length=9999, count=2) == [[0], [1]]


def together(*, length, count):
    asks = windows("m", "d", layers=(0, 1), lengths=(length,), count=count)
    return [sorted({ask.window.index for ask in batch}) for batch in batches(asks)]
