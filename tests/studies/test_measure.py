"""``hs.measure`` against the same numbers by hand: activations from the module itself, dense Jacobians, autograd."""

import dataclasses
import sqlite3
from pathlib import Path
from statistics import geometric_mean

import pytest
import torch
import transformers
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.models.builtin import built_in_path
from howsmooth.models.text import read_text
from howsmooth.studies.kinds import batches
from howsmooth.studies.store import Store
from howsmooth.studies.tasks import Task

LAYERS, LENGTHS, WINDOWS = (0, 5), (8, 16), 3
SMALL = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "vocab_size": 30522,
    "max_position_embeddings": 40,
}


@pytest.fixture(scope="module", autouse=True)
def text(tmp_path_factory):
    """The beginning of the book: the whole of it takes longer to cut into tokens than a small model to measure.

    Its name is part of what seeds the solver, so it is the same in every run of the tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("text"))
        Path("beginning.txt").write_text(read_text().content[:2000], encoding="utf-8")
        yield "beginning.txt"


@pytest.fixture(scope="module")
def small(text):
    return {"text": text, "layers": [0, 1], "lengths": [4, 6], "sequences": 2}


@pytest.fixture(scope="module")
def minilm():
    return hs.load("minilm")


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(built_in_path("minilm"))


@pytest.fixture(scope="module")
def found(minilm):
    return hs.measure(minilm, layers=LAYERS, lengths=LENGTHS, sequences=WINDOWS, released_estimator=True)


def tiny(tokenizer, family="bert", seed=0):
    """A small model in float64 with every parameter random."""
    more = {"num_key_value_heads": 1, "attention_bias": True} if family == "llama" else {}
    config = transformers.CONFIG_MAPPING[family](**SMALL, **more)
    config._attn_implementation = "sdpa"
    module = transformers.AutoModel.from_config(config)
    rng = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=rng)
    return hs.load(module, dtype=torch.float64, tokenizer=tokenizer)


def dense_constant(f, X):
    """The largest singular value of the whole Jacobian, one row at a time: the modules' own kernels know no vmap."""
    return float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(f, X).reshape(-1, X.numel()), 2))


def by_hand(transformer, length, special_tokens=False):
    """What enters each layer, by the model's own account of its hidden states."""
    tokens = transformer.windows(read_text(), length=length, count=WINDOWS, special_tokens=special_tokens)
    with torch.no_grad():
        return transformer.module(tokens, output_hidden_states=True).hidden_states


def timeless(records):
    return [dataclasses.replace(record, seconds=0.0) for record in records]


def test_there_is_one_record_for_each_layer_length_and_window_in_this_order(found):
    places = [(r.task.layer, r.task.length, r.task.window) for r in found.records]
    assert places == [(i, n, w) for i in LAYERS for n in LENGTHS for w in range(WINDOWS)]
    assert (found.model, found.text, found.map, found.run) == ("minilm", "alice", "attention", None)
    assert found.complete
    assert found.heads == ()
    assert [layer.layer for layer in found.layers] == list(LAYERS)
    assert len(found.at(layer=5, length=8)) == WINDOWS
    assert found.lengths == LENGTHS


def test_constants_are_those_of_each_window_by_itself(found, minilm):
    for length in LENGTHS:
        states = by_hand(minilm, length)
        for layer in LAYERS:
            for record in found.at(layer=layer, length=length):
                X = states[layer][record.task.window]
                alone = hs.local_lipschitz(minilm.sites[layer].attention, X)
                assert record.lower == pytest.approx(float(alone.lower), rel=1e-3)
                # both brackets hold the same number
                assert record.lower <= float(alone.upper)
                assert float(alone.lower) <= record.upper


def test_brackets_close_and_stay_below_the_certificate(found):
    for record in found.records:
        assert 0 < record.lower <= record.upper <= record.lower * (1 + 1e-3)
        assert record.upper <= record.local_upper * (1 + 1e-3)
        assert record.status == "converged"
        assert record.steps > 1
        assert record.task.confidence == 0.999


def test_radius_and_reach_are_those_of_the_tokens(found, minilm):
    for length in LENGTHS:
        states = by_hand(minilm, length)
        for record in found.at(length=length):
            norms = [float(x.double().norm()) for x in states[record.task.layer][record.task.window]]
            assert record.radius == pytest.approx((sum(r**2 for r in norms) / length) ** 0.5, rel=1e-5)
            assert record.reach == pytest.approx(max(norms), rel=1e-5)
            assert record.radius < record.reach


@pytest.mark.parametrize(("layer", "length"), [(0, 16), (5, 8)])
def test_certificates_are_those_of_the_theory(layer, length, found, minilm):
    states = by_hand(minilm, length)
    for record in found.at(layer=layer, length=length):
        bound = hs.bounds.local_upper(minilm.sites[layer].attention, states[layer][record.task.window])
        assert record.local_upper == pytest.approx(bound.value, rel=1e-4)


def test_the_released_quantity_is_that_of_autograd_through_the_module(found, minilm):
    for length in LENGTHS:
        states = by_hand(minilm, length)
        for layer in LAYERS:
            module = minilm.module.encoder.layer[layer].attention
            X = states[layer].clone().requires_grad_()
            Y = module.output.dense(module.self(X)[0])
            (Y * Y.detach()).sum().backward()  # Jᵀ f(X)
            expected = X.grad.flatten(1).norm(dim=1).sqrt()
            got = torch.tensor([record.released for record in found.at(layer=layer, length=length)])
            assert_close(got, expected, rtol=1e-4, atol=0)  # float32, and two ways to sum


def test_a_layer_is_summed_up_at_its_longest_length(found, minilm):
    for summary in found.layers:
        last = found.at(layer=summary.layer, length=16)
        assert summary.length == 16
        assert summary.constant == pytest.approx(geometric_mean(r.lower for r in last))
        assert (summary.least, summary.most) == (min(r.lower for r in last), max(r.upper for r in last))
        assert summary.radius == pytest.approx(sum(r.radius for r in last) / WINDOWS)
        bound = hs.bounds.sharp_upper(minilm.sites[summary.layer].attention, n=16, radius=summary.radius)
        assert summary.sharp_upper == pytest.approx(bound.value, rel=1e-12)
        assert summary.sharp_upper > summary.most
        assert summary.local_upper == pytest.approx(geometric_mean(r.local_upper for r in last))


def test_the_growth_of_a_layer_is_that_of_its_records(found):
    for summary in found.layers:
        for fitted, name in ((summary.growth, "lower"), (summary.released_growth, "released")):
            values = {n: [getattr(r, name) for r in found.at(layer=summary.layer, length=n)] for n in LENGTHS}
            assert fitted == hs.growth(values)


def test_shares_of_tokens_add_up(found):
    for record in found.records:
        for shares in (record.sensitivity, record.response):
            assert len(shares) == record.task.length
            assert min(shares) >= 0
            assert sum(shares) == pytest.approx(1, rel=1e-5)


def test_the_tokens_are_the_beginning_of_the_book(found):
    assert found.tokens[:6] == ("alice", "'", "s", "adventures", "in", "wonderland")
    assert len(found.tokens) == 16


@pytest.mark.parametrize(
    ("family", "part"),
    [
        *(("llama", part) for part in ("attention", "heads", "head:2", "normed", "residual", "block")),
        *(("bert", part) for part in ("attention", "heads", "head:0", "residual", "block")),
    ],
)
def test_every_map_is_measured_as_its_dense_jacobian_says(family, part, tokenizer, text):
    transformer = tiny(tokenizer, family)
    measured = hs.measure(transformer, text=text, lengths=[5], sequences=2, map=part, rtol=1e-6, confidence=1 - 1e-9)
    windows = transformer.windows(read_text(text), length=5, count=2)
    assert len(measured.records) == 4
    for record in measured.records:
        f, X = transformer.activations(windows[record.task.window][None]).at(record.task.layer, part)
        truth = dense_constant(f, X)
        assert record.lower == pytest.approx(truth, rel=2e-6)
        # Hugging Face takes the norms and angles of Llama in float32, whatever the model's numbers are
        slack = 1e-6 if family == "llama" else 1e-9
        assert record.lower * (1 - slack) <= truth <= record.upper * (1 + slack)
        assert record.task.map == part
        certified = part in ("attention", "heads") or part.startswith("head:")
        assert (record.local_upper is not None) == certified
        assert not certified or record.local_upper >= truth
    bounded = [summary.sharp_upper is not None for summary in measured.layers]
    # rotary positions are outside the theorem of the sharp bound
    assert family == "llama" or bounded == [part not in ("residual", "block")] * 2


def test_single_heads_come_beside_the_whole(tokenizer, small):
    transformer = tiny(tokenizer)
    both = hs.measure(transformer, per_head=True, **small)
    assert timeless(both.records) == timeless(hs.measure(transformer, **small).records)
    places = [(r.task.layer, r.task.length, r.task.window, r.task.map) for r in both.heads]
    heads = ("head:0", "head:1", "head:2")
    assert places == [(i, n, w, h) for i in (0, 1) for n in (4, 6) for w in (0, 1) for h in heads]
    for head in heads:
        alone = hs.measure(transformer, map=head, **small)
        assert timeless(alone.records) == timeless(r for r in both.heads if r.task.map == head)


def test_special_tokens_frame_every_window(minilm):
    measured = hs.measure(minilm, layers=[0], lengths=[8], sequences=WINDOWS, special_tokens=True)
    assert measured.tokens == ("[CLS]", "alice", "'", "s", "adventures", "in", "wonderland", "[SEP]")
    states = by_hand(minilm, 8, special_tokens=True)
    for record in measured.records:
        assert record.task.special_tokens
        expected = states[0][record.task.window].square().sum(-1).mean().sqrt()
        assert record.radius == pytest.approx(float(expected), rel=1e-5)


def test_a_text_of_ones_own_is_read(minilm, tmp_path):
    path = tmp_path / "cat.txt"
    path.write_text("the cat sat on the mat and the dog sat on the log", encoding="utf-8")
    measured = hs.measure(minilm, text=path, layers=[0], lengths=[4], sequences=3)
    assert measured.tokens == ("the", "cat", "sat", "on")
    assert measured.text == str(path)
    assert len(measured.records) == 3


def test_without_certificates_of_the_solver_the_constants_are_the_same(minilm, found):
    quick = hs.measure(minilm, layers=[0], lengths=[8], sequences=WINDOWS, certify=False)
    slow = found.at(layer=0, length=8)
    for fast, sure in zip(quick.records, slow, strict=True):
        assert fast.lower == pytest.approx(sure.lower, rel=2e-3)
        assert fast.lower <= sure.upper
        assert fast.steps < sure.steps
        assert fast.released is None


def test_a_module_in_memory_can_be_measured(tokenizer, small):
    module = transformers.BertModel(transformers.BertConfig(**SMALL))
    measured = hs.measure(hs.load(module, tokenizer=tokenizer), **small)
    assert measured.model.startswith("BertModel@")
    assert len(measured.records) == 8
    with pytest.raises(hs.errors.UnsupportedModelError, match="without a tokenizer"):
        hs.measure(module, **small)


def test_random_weights_of_a_family_can_be_measured_and_are_said_to_be_random():
    measured = hs.measure("random:distilbert", layers=[2], lengths=[3], sequences=1)
    assert measured.tokens == ("ALICE'S", "ADVENTURES", "IN")
    (note,) = measured.notes
    assert "random" in note


def test_a_family_that_is_not_known_goes_by_autograd(tokenizer, small):
    config = transformers.RoFormerConfig(**SMALL, embedding_size=12)
    transformer = hs.load(transformers.RoFormerModel(config), dtype=torch.float64, tokenizer=tokenizer)
    measured = hs.measure(transformer, **small | {"lengths": [4]})
    assert any("autograd" in note for note in measured.notes)
    windows = transformer.windows(read_text(small["text"]), length=4, count=2)
    for record in measured.records:
        f, X = transformer.activations(windows[record.task.window][None]).at(record.task.layer)
        assert record.lower == pytest.approx(dense_constant(f, X), rel=1e-3)
        assert record.local_upper is None
    with pytest.raises(hs.errors.AssumptionError, match="no closed form"):
        hs.measure(transformer, per_head=True, **small)


def test_the_seed_changes_the_start_and_not_the_answer(tokenizer, small):
    transformer = tiny(tokenizer)
    one, again, two = (hs.measure(transformer, seed=seed, rtol=1e-2, **small).records for seed in (1, 1, 2))
    assert timeless(one) == timeless(again)
    assert [r.lower for r in one] != [r.lower for r in two]
    assert [r.lower for r in one] == pytest.approx([r.lower for r in two], rel=1e-2)


def test_a_record_does_not_depend_on_what_is_measured_beside_it(minilm, found):
    alone = hs.measure(minilm, layers=[5], lengths=[16], sequences=WINDOWS, released_estimator=True)
    assert timeless(alone.records) == timeless(found.at(layer=5, length=16))


def test_the_order_of_the_question_does_not_matter(tokenizer, small):
    transformer = tiny(tokenizer)
    turned = hs.measure(transformer, **small | {"layers": [1, 0, 1], "lengths": [6, 4]})
    assert timeless(turned.records) == timeless(hs.measure(transformer, **small).records)


def test_long_windows_are_measured_few_at_a_time():
    assert windows_together(length=1024, count=10) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # which windows are measured together does not depend on how many there are
    assert windows_together(length=1024, count=7) == [[0, 1, 2, 3], [4, 5, 6]]
    assert windows_together(length=9999, count=2) == [[0], [1]]


def windows_together(*, length, count):
    tasks = [
        Task(model="m", text="t", digest="d", layer=layer, length=length, window=window)
        for layer in (0, 1)
        for window in range(count)
    ]
    return [sorted({task.window for task in batch}) for batch in batches(tasks)]


def test_what_is_done_is_not_done_again(tokenizer, tmp_path, small):
    transformer, steps = tiny(tokenizer), []
    first = hs.measure(transformer, out=tmp_path / "run", **small)
    again = hs.measure(transformer, out=tmp_path / "run", progress=lambda *step: steps.append(step), **small)
    assert steps == []
    assert again == first  # the seconds too
    assert first.run == str(tmp_path / "run")


def test_a_new_length_is_the_only_work(tokenizer, tmp_path, small):
    transformer, steps = tiny(tokenizer), []
    first = hs.measure(transformer, out=tmp_path, **small)
    more = hs.measure(
        transformer, out=tmp_path, progress=lambda tally: steps.append(tally.last), **small | {"lengths": [4, 5, 6]}
    )
    assert [last.split(" ", 1)[1] for last in steps] == ["layer 0, 5 tokens", "layer 1, 5 tokens"]
    assert more.at(length=4) + more.at(length=6) == first.at(length=4) + first.at(length=6)
    assert timeless(more.records) == timeless(hs.measure(transformer, **small | {"lengths": [4, 5, 6]}).records)


def test_progress_goes_from_nothing_to_one(tokenizer, small):
    steps = []
    hs.measure(tiny(tokenizer), progress=lambda tally: steps.append(tally.share), per_head=True, **small)
    assert len(steps) == 2 * 2 * 4  # layers, lengths, the whole and three heads
    assert steps == sorted(set(steps))
    assert 0 < steps[0] < 0.5
    assert steps[-1] == pytest.approx(1)


def test_two_models_in_memory_are_not_mistaken_for_each_other(tokenizer, tmp_path, small):
    first = hs.measure(tiny(tokenizer), out=tmp_path, **small)
    other = hs.measure(tiny(tokenizer, seed=1), out=tmp_path, **small)
    assert timeless(other.records) == timeless(hs.measure(tiny(tokenizer, seed=1), **small).records)
    assert other.records[0].lower != first.records[0].lower
    assert hs.measure(tiny(tokenizer), out=tmp_path, **small) == first


def test_other_weights_under_the_same_path_are_refused(tokenizer, tmp_path, small):
    config = transformers.BertConfig(**SMALL)
    tokenizer.save_pretrained(tmp_path / "model")
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    model = str(tmp_path / "model")
    assert hs.measure(model, out=tmp_path / "run", **small).complete
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    with pytest.raises(hs.errors.FileError, match="begun with other weights"):
        hs.measure(model, out=tmp_path / "run", **small)


def test_an_interrupted_run_keeps_what_is_done_and_goes_on(tokenizer, tmp_path, small):
    transformer, calls = tiny(tokenizer), []

    def stop_at_the_second(tally):
        calls.append(tally)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hs.measure(transformer, out=tmp_path, progress=stop_at_the_second, **small)
    database = sqlite3.connect(tmp_path / "records.sqlite")
    assert database.execute("SELECT count(*) FROM measurements").fetchall() == [(4,)]
    database.close()
    rest = []
    resumed = hs.measure(transformer, out=tmp_path, progress=rest.append, **small)
    assert len(rest) == 2  # of four
    assert rest[0].share > 0.5  # the first half is counted as done
    assert timeless(resumed.records) == timeless(hs.measure(transformer, **small).records)


def test_a_run_that_stopped_within_a_layer_goes_on_bit_for_bit(tokenizer, tmp_path, small):
    transformer = tiny(tokenizer)
    whole = hs.measure(transformer, **small)
    with Store(tmp_path) as store:
        store.add(whole.records[:1])  # the first of two windows
    assert timeless(hs.measure(transformer, out=tmp_path, **small).records) == timeless(whole.records)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": [2]}, "has the layers 0 to 1, got 2"),
        ({"layers": [-1]}, "got -1"),
        ({"layers": []}, "at least one layer"),
        ({"lengths": []}, "at least 1"),
        ({"lengths": [0]}, "at least 1"),
        ({"lengths": [41]}, "positions for 40 tokens, got a length of 41"),
        ({"sequences": 0}, "sequences must be at least 1"),
        ({"sequences": 100_000}, r"has 4\d\d tokens"),
        ({"map": "atention"}, "must be one of"),
        ({"map": "head:3"}, "0 to 2"),
        ({"map": "normed"}, "behind attention"),
        ({"rtol": 0.0}, "rtol"),
        ({"rtol": float("nan")}, "rtol"),
        ({"confidence": 1.0}, "confidence"),
        ({"lengths": [2], "special_tokens": True}, "no room"),
        ({"device": "nope"}, "the device 'nope'"),
        ({"device": "meta"}, "the device 'meta'"),
        ({"text": "/no/such/file"}, "not there"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_before_any_work(options, words, tokenizer, tmp_path, small):
    with pytest.raises(hs.errors.HowsmoothError, match=words) as refusal:
        hs.measure(tiny(tokenizer), out=tmp_path / "run", **small | options)
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_measurement_shows_itself(tokenizer, small):
    measured = hs.measure(tiny(tokenizer), **small)
    shown = repr(measured).splitlines()
    assert "BertModel@" in shown[0]
    assert shown[1].split()[:2] == ["layer", "constant"]
    assert shown[2].split()[1] == f"{measured.layers[0].constant:.4g}"
    html = dataclasses.replace(measured, model="<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert f"{measured.layers[1].constant:.4g}" in html
