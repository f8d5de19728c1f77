"""``hs.measure``: what it asks, what it sums up, what it does not do again, and what it refuses."""

import contextlib
import dataclasses
import json
import sqlite3
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest
import torch
from msgspec.structs import replace

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs import run_metadata
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.run import read_run
from howsmooth.studies.runs.store import Store

LAYERS, LENGTHS, WINDOWS = (0, 1), (8, 12), 3
ONE = {"layers": [1], "lengths": [4]}  # the smallest question


@pytest.fixture(scope="module")
def found(tiny, beginning):
    return hs.measure(tiny, text=beginning, lengths=LENGTHS, sequences=WINDOWS, released=True)


def timeless(records):
    return [replace(record, seconds=0.0) for record in records]


def answers(measured):
    return [record.answer for record in measured.records]


@pytest.mark.slow
def test_there_is_one_record_for_each_layer_length_and_window_in_this_order(found, tiny, beginning):
    places = [(r.ask.layer, r.ask.length, r.ask.window.index) for r in found.records]
    assert places == [(i, n, w) for i in LAYERS for n in LENGTHS for w in range(WINDOWS)]
    assert (found.model, found.text, found.map, found.run) == (tiny.name, beginning, "attention", None)
    assert found.complete
    assert found.planned == len(places)
    assert found.heads == ()
    assert [layer.layer for layer in found.layers] == list(LAYERS)
    assert len(found.at(layer=1, length=8)) == WINDOWS
    assert found.lengths == LENGTHS


@pytest.mark.slow
def test_a_layer_is_summed_up_at_its_longest_length(found, tiny):
    for summary in found.layers:
        last = [record.answer for record in found.at(layer=summary.layer, length=12)]
        assert (summary.length, summary.windows) == (12, WINDOWS)
        assert summary.constant == pytest.approx(geometric_mean(a.lower for a in last))
        assert (summary.least, summary.most) == (min(a.lower for a in last), max(a.upper for a in last))
        assert summary.typical.value == pytest.approx((sum(a.typical**2 for a in last) / WINDOWS) ** 0.5)
        assert summary.radius == pytest.approx(sum(a.mean_radius for a in last) / WINDOWS)
        assert summary.reach == max(answer.reach for answer in last)
        assert summary.reach <= summary.ball <= 1.001 * summary.reach
        bound = hs.bounds.smallest_upper(tiny.layers[summary.layer].attention, n=12, radius=summary.ball)
        assert (summary.any_input.value, summary.any_input.name) == (bound.value, bound.name)
        assert summary.any_input.value > summary.most
        assert summary.local_upper is None


@pytest.mark.slow
def test_the_growth_of_a_layer_is_that_of_its_records(found):
    for summary in found.layers:
        for fitted, name in ((summary.growth, "lower"), (summary.released_growth, "released_quantity")):
            at = {n: [getattr(r.answer, name) for r in found.at(layer=summary.layer, length=n)] for n in LENGTHS}
            assert fitted == hs.growth(at)


@pytest.mark.slow
def test_the_tokens_are_the_beginning_of_the_book(found):
    assert found.tokens[:6] == ("alice", "'", "s", "adventures", "in", "wonderland")
    assert len(found.tokens) == 12
    assert found.openings.keys() == {(n, w) for n in LENGTHS for w in range(WINDOWS)}
    assert found.openings[12, 0] == found.tokens[:8]


@pytest.mark.slow
def test_single_heads_come_beside_the_whole(tiny, small, usual):
    both = hs.measure(tiny, per_head=True, **small)
    assert timeless(both.records) == timeless(usual.records)
    places = [(r.ask.layer, r.ask.length, r.ask.map, r.ask.window.index) for r in both.heads]
    heads = ("head:0", "head:1", "head:2")
    assert places == [(i, n, h, w) for i in (0, 1) for n in (4, 6) for h in heads for w in (0, 1)]
    assert both.planned == 8 + 24
    alone = hs.measure(tiny, map="head:1", **small)
    for one, beside in zip(alone.records, (r for r in both.heads if r.ask.map == "head:1"), strict=True):
        assert one.ask == beside.ask
        assert one.answer.lower <= beside.answer.upper
        assert beside.answer.lower <= one.answer.upper


@pytest.mark.slow
def test_a_layer_has_every_bound_at_its_length_and_radius(tiny, small, monkeypatch):
    monkeypatch.setattr(run_metadata, "table", hs.bounds.table)  # other tests go without lower bounds, to be quick
    (layer,) = hs.measure(tiny, **small | {"layers": [0], "lengths": [4], "sequences": 1}).layers
    f = tiny.layers[0].attention
    every = hs.bounds.table(f, n=4, radius=layer.ball, heads=run_metadata.PROMISING)
    assert [(b.name, b.value) for b in layer.ladder.bounds] == [(b.name, b.value) for b in every.bounds]
    assert layer.any_input.value == hs.bounds.smallest_upper(f, n=4, radius=layer.ball).value


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"per_head": True}, {"map": "head:2", "per_head": True}], ids=str)
def test_what_is_measured_is_what_the_run_is_read_back_as(more, tiny, small, tmp_path):
    measured = hs.measure(tiny, out=tmp_path, **small | more)
    (read,) = read_run(tmp_path).measurements
    assert read == measured
    assert repr(read) == repr(measured)
    assert read.to_json() == measured.to_json()
    assert read.complete
    assert len(read.layers[0].ladder.bounds) > 0


def test_a_text_of_ones_own_is_read(tiny, tmp_path):
    path = tmp_path / "cat.txt"
    path.write_text("the cat sat on the mat and the dog sat on the log", encoding="utf-8")
    measured = hs.measure(tiny, text=path, layers=[0], lengths=[4], sequences=3)
    assert measured.tokens == ("the", "cat", "sat", "on")
    assert measured.text == str(path)
    assert len(measured.records) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "same",
    [
        {"layers": range(2), "lengths": np.array([4, 6]), "device": torch.device("cpu"), "dtype": torch.float64},
        {"layers": (1, 0, 1), "lengths": {6, 4}, "rtol": None, "seed": None, "device": None, "threads": None},
        {"layers": None, "lengths": range(4, 7, 2), "dtype": "float64", "device": "cpu"},
    ],
    ids=str,
)
def test_ranges_arrays_paths_and_none_are_understood(same, tiny, small, usual):
    understood = hs.measure(tiny, **small | {"text": Path(small["text"])} | same)
    assert answers(understood) == answers(usual)


@pytest.mark.slow
def test_a_module_in_memory_can_be_measured(module, tokenizer, small):
    measured = hs.measure(hs.load(module(), tokenizer=tokenizer), **small | ONE)
    assert measured.model.startswith("BertModel@")
    assert len(measured.records) == 2
    with pytest.raises(hs.errors.UnsupportedModelError, match="without a tokenizer"):
        hs.measure(module(), **small)


@pytest.mark.slow
def test_a_family_that_is_not_known_goes_by_autograd(module, tokenizer, small):
    transformer = hs.load(module("roformer", embedding_size=12), dtype=torch.float64, tokenizer=tokenizer)
    measured = hs.measure(transformer, certificate=True, per_head=True, **small | ONE)
    assert any("autograd" in note for note in measured.notes)
    windows = transformer.windows(read_text(small["text"]), length=4, count=2)
    for record in measured.records:
        f, X = transformer.activations(windows[record.ask.window.index][None]).at(record.ask.layer)
        jacobian = torch.autograd.functional.jacobian(f, X).reshape(-1, X.numel())
        assert record.answer.lower == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-3)
        assert record.answer.local_upper is None
    heads = [(record.ask.map, record.ask.window.index) for record in measured.heads]
    assert heads == [(f"head:{h}", w) for h in range(3) for w in range(2)]


@pytest.mark.slow
def test_the_seed_changes_the_start_and_not_the_answer(tiny, small):
    few = small | ONE
    one, again, two = (hs.measure(tiny, seed=seed, rtol=1e-2, **few).records for seed in (1, 1, 2))
    assert timeless(one) == timeless(again)
    assert [r.answer.lower for r in one] != [r.answer.lower for r in two]
    assert [r.answer.lower for r in one] == pytest.approx([r.answer.lower for r in two], rel=1e-2)


@pytest.mark.slow
def test_what_is_done_is_not_done_again(tiny, tmp_path, small):
    steps = []
    first = hs.measure(tiny, out=tmp_path / "run", **small | ONE)
    again = hs.measure(tiny, out=tmp_path / "run", progress=steps.append, **small | ONE)
    assert steps == []
    assert again == first  # the seconds too
    assert first.run == str(tmp_path / "run")


@pytest.mark.slow
def test_a_new_length_is_the_only_work(tiny, tmp_path, small, usual):
    steps, more = [], small | {"lengths": [4, 5, 6]}
    first = hs.measure(tiny, out=tmp_path, **small)
    longer = hs.measure(tiny, out=tmp_path, progress=lambda tally: steps.append(tally.last), **more)
    assert [last.split(" ", 1)[1] for last in steps] == ["layer 0, 5 tokens", "layer 1, 5 tokens"]
    assert longer.at(length=4) + longer.at(length=6) == first.at(length=4) + first.at(length=6)
    assert timeless(longer.at(length=6)) == timeless(usual.at(length=6))
    # both plans are of one measurement
    (read,) = read_run(tmp_path).measurements
    assert read.records == longer.records
    assert read.planned == 12
    assert len(read.commands) == 2


@pytest.mark.slow
def test_progress_goes_from_nothing_to_one(tiny, small):
    steps = []
    hs.measure(tiny, progress=lambda tally: steps.append(tally.share), per_head=True, **small)
    assert len(steps) == 2 * 2 * 2  # layers, lengths, the whole and all heads
    assert steps == sorted(set(steps))
    assert 0 < steps[0] < 0.5
    assert steps[-1] == pytest.approx(1)


@pytest.mark.slow
def test_two_models_in_memory_are_not_mistaken_for_each_other(loaded, tmp_path, small):
    few = small | {"layers": [0], "lengths": [4]}
    first = hs.measure(loaded(), out=tmp_path, **few)
    other = hs.measure(loaded(seed=1), out=tmp_path, **few)
    assert timeless(other.records) == timeless(hs.measure(loaded(seed=1), **few).records)
    assert other.records[0].answer.lower != first.records[0].answer.lower
    assert hs.measure(loaded(), out=tmp_path, **few) == first
    assert len(read_run(tmp_path).measurements) == 2


@pytest.mark.slow
def test_other_weights_under_the_same_path_are_refused(save_model, tmp_path, small):
    options = small | {"layers": [0], "lengths": [4]}
    assert hs.measure(save_model(tmp_path / "model"), out=tmp_path / "run", **options).complete
    model = save_model(tmp_path / "model", seed=1)
    ladders = kept_bounds(tmp_path / "run")
    assert len(ladders) == 1
    with pytest.raises(hs.errors.FileError, match="begun with other weights") as refusal:
        hs.measure(model, out=tmp_path / "run", **options)
    assert refusal.value.field == "out"
    assert kept_bounds(tmp_path / "run") == ladders  # no bounds of other weights come in, and none are told as theirs


def kept_bounds(folder):
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        return database.execute("SELECT key, value FROM facts WHERE key LIKE 'bounds of %'").fetchall()


@pytest.mark.slow
def test_bounds_of_another_version_are_computed_anew_and_replaced(tiny, tmp_path, small, monkeypatch):
    options = small | {"out": tmp_path}
    first = hs.measure(tiny, **options)
    before = kept_bounds(tmp_path)
    assert len(before) == len(first.layers)
    monkeypatch.setattr(run_metadata, "VERSION", run_metadata.VERSION + 1)
    (read,) = read_run(tmp_path).measurements
    assert [layer.any_input for layer in read.layers] == [None] * len(first.layers)
    again = hs.measure(tiny, **options)
    assert timeless(again.records) == timeless(first.records)
    assert again.layers == first.layers
    after = kept_bounds(tmp_path)
    assert [key for key, _value in after] == [key for key, _value in before]
    for (_key, old), (_same, new) in zip(before, after, strict=True):
        assert json.loads(new) == json.loads(old) | {"version": run_metadata.VERSION}
        assert new != old
    assert hs.measure(tiny, **options) == again == read_run(tmp_path).measurements[0]


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_done_and_goes_on(tiny, tmp_path, small, usual):
    calls = []

    def stop_at_the_second(tally):
        calls.append(tally)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hs.measure(tiny, out=tmp_path, progress=stop_at_the_second, **small)
    database = sqlite3.connect(tmp_path / FILE)
    assert database.execute("SELECT count(*) FROM text").fetchall() == [(4,)]
    database.close()
    (half,) = read_run(tmp_path).measurements
    assert (half.planned, half.missing, half.complete) == (8, 4, False)
    assert any("unfinished: 4 of 8 records are missing" in remark for remark in half.remarks)
    rest = []
    resumed = hs.measure(tiny, out=tmp_path, progress=rest.append, **small)
    assert len(rest) == 2  # of four
    assert rest[0].share > 0.5  # the first half is counted as done
    assert timeless(resumed.records) == timeless(usual.records)
    assert read_run(tmp_path).measurements == (resumed,)


@pytest.mark.slow
def test_a_run_that_stopped_within_a_layer_goes_on_bit_for_bit(tiny, tmp_path, small, usual):
    with Store(tmp_path) as store:
        store.add(usual.records[:1])  # the first of two windows
    assert timeless(hs.measure(tiny, out=tmp_path, **small).records) == timeless(usual.records)


def test_where_everything_failed_there_is_nothing_to_sum_up(tiny, small, tmp_path, monkeypatch):
    def fail(*_arguments):
        raise MemoryError("no room for the states")

    monkeypatch.setattr(Resources, "_run_model", fail)
    with pytest.raises(hs.errors.StudyError, match=r"all 8 failed, first: MemoryError: no room") as refusal:
        hs.measure(tiny, out=tmp_path, **small)
    assert len(str(refusal.value).splitlines()) == 1
    assert len(read_run(tmp_path).failures) == 8


@pytest.mark.parametrize(
    ("options", "words", "field"),
    [
        ({"layers": [2]}, "has the layers 0 to 1, got 2", "layer"),
        ({"layers": [-1]}, "got -1", "layer"),
        ({"layers": []}, "at least one layer", "layer"),
        ({"layers": [0.5]}, "layers.* must be a whole number", "layers[0]"),
        ({"layers": "all"}, "layers must be a list", "layers"),
        ({"lengths": []}, "at least 1", "lengths"),
        ({"lengths": [0]}, "at least 1", "lengths"),
        ({"lengths": [41]}, "positions for 40 tokens, got a length of 41", "length"),
        ({"sequences": 0}, "sequences must be at least 1", "sequences"),
        ({"sequences": 100_000}, r"has 4\d\d tokens", "sequences"),
        ({"map": "atention"}, "must be one of", "map"),
        ({"map": "head:3"}, "0 to 2", "map"),
        ({"map": "normed"}, "behind attention", "map"),
        ({"rtol": 0.0}, "rtol", "rtol"),
        ({"rtol": float("nan")}, "rtol", "rtol"),
        ({"rtol": 1e-300}, "rtol must be at least", "rtol"),
        ({"confidence": 1.0}, "confidence", "confidence"),
        ({"confidence": "high"}, "confidence must be a number, got a text", "confidence"),
        ({"certify": 1}, "certify must be true or false", "certify"),
        ({"max_steps": 0}, "max_steps", "max_steps"),
        ({"seed": -1}, "seed must be between", "seed"),
        ({"stride": -1}, "stride", "stride"),
        ({"threads": 0}, "threads must be at least 1", "threads"),
        ({"dtype": "float8"}, "dtype must be one of", "dtype"),
        ({"lengths": [2], "special_tokens": True}, "no room", "length"),
        ({"device": "nope"}, "the device 'nope'", "device"),
        ({"device": "meta"}, "the device 'meta'", "device"),
        ({"text": "/no/such/file"}, "not there", "text"),
        ({"text": 3}, "text must be a text, got a whole number", "text"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_before_any_work(options, words, field, tiny, tmp_path, small):
    with pytest.raises(hs.errors.HowsmoothError, match=words) as refusal:
        hs.measure(tiny, out=tmp_path / "run", **small | options)
    assert len(str(refusal.value).splitlines()) == 1
    assert refusal.value.field == field
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "near"), [("lenghts", "lengths"), ("layer", "layers"), ("released_estimator", "released"), ("heads", "")]
)
def test_an_unknown_setting_is_answered_with_the_nearest(name, near, tiny, small):
    with pytest.raises(hs.errors.FieldError, match=f"there is no '{name}'.*{near}") as refusal:
        hs.measure(tiny, **small | {name: 1})
    assert refusal.value.field == name


@pytest.mark.slow
def test_a_measurement_shows_itself(usual):
    measured = usual
    shown = repr(measured).splitlines()
    assert "BertModel@" in shown[0]
    assert shown[1].split()[:5] == ["layer", "typical", "typical", "95", "%"]
    assert f" {measured.layers[0].cells['worst']} " in shown[2]
    assert str(measured.layers[0].typical) in " ".join(shown[2].split())
    html = dataclasses.replace(measured, model="<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert measured.layers[1].cells["worst"] in html
