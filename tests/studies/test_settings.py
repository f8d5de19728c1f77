"""Settings are one value each, from the command line to the key of a record: what they refuse, how they are typed."""

import functools
import shlex

import pytest

from howsmooth.errors import FieldError, HowsmoothError
from howsmooth.studies.json_values import fingerprint, from_settings, settings_of
from howsmooth.studies.kinds.text import TextAsk
from howsmooth.studies.plans.measurement_plan import Measuring
from howsmooth.studies.settings import (
    LENGTHS,
    SOURCES,
    Compute,
    ModelReading,
    Solver,
    Window,
    Windows,
    command,
    options_of,
)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Solver(rtol=0.0), "rtol"),
        (lambda: Solver(rtol=1e-300), "rtol"),
        (lambda: Solver(confidence=1.0), "confidence"),
        (lambda: Solver(max_steps=0), "max_steps"),
        (lambda: Solver(seed=-1), "seed"),
        (lambda: Solver(seed=2**63), "seed"),
        (lambda: Compute(dtype="float8"), "dtype"),
        (lambda: Compute(threads=0), "threads"),
        (lambda: Windows(lengths=()), "lengths"),
        (lambda: Windows(lengths=(8, 0)), "lengths"),
        (lambda: Windows(sequences=0), "sequences"),
        (lambda: Windows(stride=-1), "stride"),
        (lambda: Windows(text="a.txt", sentences="b.jsonl"), "sentences"),
        (lambda: Windows(token_ids="a.npy", images="b"), "images"),
        (lambda: Windows(token_ids="a.npy", special_tokens=True), "special_tokens"),
        (lambda: Compute(dtype="bfloat16").check(), "dtype"),
        (lambda: Compute(dtype="float16").check(), "dtype"),
        (lambda: list(Windows(sentences="a.jsonl", lengths=(8,)).whole("d", [3])), "lengths"),
        (lambda: list(Windows(sentences="a.jsonl", sequences=2).whole("d", [3])), "sequences"),
    ],
)
def test_what_cannot_be_is_refused_by_the_setting_itself_with_its_field(make, field):
    with pytest.raises(HowsmoothError, match=field) as refusal:
        make()
    assert refusal.value.field == field


def test_windows_are_each_length_once_the_shortest_first():
    found = list(Windows(lengths=(16, 8, 16), sequences=2, stride=4).each("d"))
    assert [(w.length, w.index) for w in found] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert {(w.digest, w.stride, w.special_tokens) for w in found} == {("d", 4, False)}


def test_every_setting_has_its_own_name_and_a_description():
    known = settings_of(Measuring)
    names = [name for kind in (Solver, Compute, Windows, ModelReading) for name in settings_of(kind)]
    assert len(names) == len(set(names))
    assert set(names) < known.keys()
    bare = [name for name, field in known.items() if name != "model" and not field.declared.get("description")]
    assert bare == []


CHANGED = {
    "layers": (0, 2),
    "map": "head:3",
    "metric": "token",
    "per_head": True,
    "whole": True,
    "text": "my book.txt",
    "token_ids": "ids.npy",
    "sentence": "a gripping film",
    "sentences": "said.jsonl",
    "images": "my pictures",
    "family": "bert",
    "tokenizer": "some/words",
    "lengths": (8, 16),
    "sequences": 3,
    "special_tokens": True,
    "stride": 7,
    "rtol": 0.1 + 0.2,
    "confidence": 1 - 1e-9,
    "certify": False,
    "max_steps": 50,
    "seed": 2**62 + 1,
    "device": "cuda:1",
    "dtype": "float64",
    "threads": 2,
    "streamed": True,
    "certificate": True,
    "released": True,
}


def test_defaults_need_no_words():
    assert options_of(Measuring()) == []
    assert Measuring().command == "howsmooth measure minilm"
    assert settings_of(Measuring)["lengths"].default == LENGTHS


@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_is_typed_as_it_is_called(name):
    assert CHANGED.keys() == settings_of(Measuring).keys() - {"model"}
    measuring = from_settings(Measuring, {name: CHANGED[name]})
    flag, *rest = options_of(measuring)
    option = settings_of(Measuring)[name].option
    assert flag == f"--no-{option}" if CHANGED[name] is False else flag == f"--{option}"
    assert option.replace("-", "_") == {"certify": "bracket"}.get(name, name)
    assert len(rest) == (0 if isinstance(CHANGED[name], bool) else 1)
    if isinstance(CHANGED[name], tuple):
        assert rest == [",".join(map(str, CHANGED[name]))]
    elif rest:
        assert type(CHANGED[name])(rest[0]) == CHANGED[name], "every digit"


def test_a_command_can_be_given_to_a_shell():
    line = from_settings(Measuring, {"model": "a folder/model", "text": "my book.txt", "lengths": (8,)}).command
    assert shlex.split(line) == ["howsmooth", "measure", "a folder/model", "--text", "my book.txt", "--lengths", "8"]
    assert command("show", "it's") == "howsmooth show 'it'\"'\"'s'"


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - {*SOURCES, "threads", "streamed"}))
def test_another_question_has_another_folder(name):
    assert from_settings(Measuring, {name: CHANGED[name]}).folder != Measuring().folder


def test_another_text_under_the_same_name_has_another_folder(tmp_path):
    file = tmp_path / "note.txt"
    folders = []
    for content in ("the cat", "the dog", "the cat"):
        file.write_text(content, encoding="utf-8")
        folders.append(from_settings(Measuring, {"text": str(file)}).folder)
    assert folders[0] == folders[2] != folders[1]


def test_the_same_question_in_other_words_has_the_same_folder():
    one = {"layers": (0, 1), "lengths": (8, 16)}
    other = {"layers": (1, 0, 1), "lengths": (16, 8), "threads": 2, "device": "cpu"}
    assert from_settings(Measuring, one).folder == from_settings(Measuring, other).folder


@pytest.mark.parametrize("name", CHANGED)
def test_leaves_find_their_values_wherever_they_lie(name):
    measuring = from_settings(Measuring, {name: CHANGED[name]})
    assert functools.reduce(getattr, settings_of(Measuring)[name].path, measuring) == CHANGED[name]


def test_sequences_that_are_measured_whole_are_windows_of_their_own_length():
    found = list(Windows(sentences="said.jsonl").whole("d", [3, 7, 3]))
    assert [(w.source, w.text, w.length, w.index, w.whole) for w in found] == [
        ("sentences", "said.jsonl", n, i, True) for i, n in enumerate((3, 7, 3))
    ]


def test_what_was_asked_before_there_were_other_inputs_has_the_key_that_it_had():
    ask = TextAsk(model="m", layer=1, window=Window(digest="d", length=8), where=Compute(dtype="float64"))
    assert ask.key == fingerprint(
        {
            "kind": "text",
            "model": "m",
            "layer": 1,
            "window": {"digest": "d", "length": 8},
            "where": {"dtype": "float64"},
        }
    )


@pytest.mark.parametrize(
    ("given", "words", "field"),
    [
        ({"lenghts": (8,)}, "there is no 'lenghts'; did you mean lengths", "lenghts"),
        ({"rtol": "small"}, "rtol must be a number, got a text", "rtol"),
        ({"lengths": [8, "x"]}, "must be a whole number, got a text", "lengths[1]"),
        ({"seed": 1.5}, "seed must be a whole number, got a number", "seed"),
        ({"rtol": 2.0}, "rtol must be less than 1", "rtol"),
        ({"per_head": 1}, "per_head must be true or false, got a whole number", "per_head"),
    ],
    ids=str,
)
def test_a_leaf_that_does_not_fit_is_refused_by_its_own_name(given, words, field):
    with pytest.raises(FieldError, match=words) as refusal:
        from_settings(Measuring, given)
    assert refusal.value.field == field
    assert "solver" not in str(refusal.value)
