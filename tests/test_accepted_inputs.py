"""What Python users hold is taken where it has one meaning: arrays, lists, paths, words, tokenizers, pipelines."""

import importlib.util
import json
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.cli.commands import _names, defaults_for, load
from howsmooth.studies.json_values import settings_of
from howsmooth.studies.plans.measurement_plan import MeasureSettings, Measuring

SENTENCES = ["a gripping film", "a dull film"]
QUICK = {"layers": 0, "rtol": np.float32(1e-2)}


@pytest.fixture(scope="module")
def reviews():
    return hs.load("reviews")


@pytest.mark.untyped
def test_arrays_and_lists_are_tokens_in_the_numbers_of_the_map(rng):
    f = hs.Attention.random(heads=2, d=4, seed=rng)
    X = torch.randn(3, 4, generator=rng)
    expected, gain = hs.local_lipschitz(f, X, seed=rng).lower, hs.attack(f, X, eps=0.1, budget=20).gain
    for given in (X.numpy(), X.numpy().astype(float), X.tolist()):
        assert_close(f(given), f(X))
        assert_close(hs.local_lipschitz(f, given, seed=rng).lower, expected, rtol=2e-3, atol=0)
        assert_close(hs.attack(f, given, eps=np.float32(0.1), budget=np.int64(20)).gain, gain)
        assert hs.bounds.local_upper(f, given).value == hs.bounds.local_upper(f, X).value
        assert hs.typical_gain(f, given, samples=4).value > 0
        for around in (hs.bounds.neighbourhood_upper, hs.bounds.displacement_upper):
            assert around(f, given, eps=0.1).value == around(f, X, eps=0.1).value
    with pytest.raises(hs.errors.DtypeError, match="rows of numbers of one length"):
        hs.local_lipschitz(f, [[1.0], [1.0, 2.0]])
    assert hs.bounds.smallest_upper(f, n=np.int64(3), radius=np.float32(1)).value > 0


@pytest.mark.slow
@pytest.mark.untyped
def test_a_word_is_certified_by_its_name(reviews):
    by_name = hs.certify(reviews, SENTENCES[0], word="gripping")
    by_place = hs.certify(reviews, SENTENCES[0], word=np.int64(2))
    assert by_name.radii[0].tokens == by_place.radii[0].tokens == (2,)
    assert by_name.radii[0].certified == by_place.radii[0].certified
    assert json.loads(by_name.to_json())["radii"][0]["certified"] == by_name.radii[0].certified
    ids = [*reviews.tokenizer.frame()[0], *reviews.tokenizer.encode(SENTENCES[0]), *reviews.tokenizer.frame()[1]]
    assert hs.certify(reviews, ids, word=2).radii[0].certified == by_place.radii[0].certified
    with pytest.raises(hs.errors.AssumptionError, match="no word 'boring'"):
        hs.certify(reviews, SENTENCES[0], word="boring")


def test_inputs_in_memory_are_measured_as_those_of_a_file(reviews, tmp_path):
    file = tmp_path / "two.txt"
    file.write_text("\n".join(SENTENCES))
    ids = [reviews.tokenizer.encode(line) for line in SENTENCES]
    expected = [record.answer.lower for record in hs.measure(reviews, sentences=file, **QUICK).records]
    for given in ({"sentences": SENTENCES}, {"token_ids": ids}, {"token_ids": np.array(ids)}):
        found = hs.measure(reviews, **given, **QUICK)
        assert [record.answer.lower for record in found.records] == pytest.approx(expected, rel=1e-2)
        assert "in memory" in found.text
    text = hs.measure(reviews, text=" ".join(SENTENCES * 4), lengths=[np.int64(8)], sequences=np.int64(1), **QUICK)
    assert text.records[0].ask.length == 8
    with pytest.raises(hs.errors.FileError, match="must hold one at least"):
        hs.measure(reviews, sentences=[])
    with pytest.raises(hs.errors.FileError):
        hs.measure(reviews, text="no-such-file.txt")


def test_a_classifier_that_reads_no_special_tokens_says_how_it_would(reviews):
    bare = hs.measure(reviews, map="classes", sentence=SENTENCES[0], rtol=0.1)
    framed = hs.measure(reviews, map="classes", sentence=SENTENCES[0], rtol=0.1, special_tokens=True)
    assert [["special_tokens=True" in note for note in found.notes].count(True) for found in (bare, framed)] == [1, 0]


def test_what_a_tokenizer_returns_is_run_as_it_is(reviews):
    tokenizer = reviews.tokenizer._inner
    both = tokenizer(["a film", "a gripping film"], padding=True, return_tensors="pt")
    found = reviews.activations(**both)
    alone = reviews.activations(tokenizer("a film")["input_ids"])
    assert found.padding.sum(-1).tolist() == [4, 5]
    assert_close(found.attention[1][0, :4], alone.attention[1][0])
    assert_close(reviews.activations(both).attention[1], found.attention[1])
    with pytest.raises(hs.errors.AssumptionError, match="not both"):
        reviews.activations()
    with pytest.raises(hs.errors.DtypeError, match="padding=True"):
        reviews.activations([[1, 2], [3]])


def test_pipelines_paths_and_tokenizers_lead_to_models(reviews):
    inner = reviews.tokenizer._inner
    pipeline = types.SimpleNamespace(model=reviews.with_head, tokenizer=inner)
    found = hs.load(pipeline)
    assert found.digest == reviews.digest
    assert found.tokenizer.encode("a film") == reviews.tokenizer.encode("a film")
    assert hs.measure(reviews.with_head, tokenizer=inner, sentence="a film", **QUICK).records
    with pytest.raises(hs.errors.UnsupportedModelError, match="no model"):
        hs.load(Path("/nowhere/at/all"))


@pytest.mark.untyped
def test_a_sentence_has_its_words_replaced_as_its_tokens_have(reviews):
    before, behind = reviews.tokenizer.frame()
    ids = [*before, *reviews.tokenizer.encode(SENTENCES[0]), *behind]
    found = [hs.swap(reviews, given).displacement for given in (SENTENCES[0], ids, torch.tensor(ids))]
    assert found[0] == found[1] == found[2]


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda net, X: hs.local_lipschitz(net, X), "reads token ids, and a derivative is about vectors"),
        (lambda net, X: hs.local_lipschitz(net.head.double(), X), "tokens and weights must have one dtype"),
        (lambda net, X: hs.load(net.encoder.layers[0]).activations([[1, 2]]), "reads hidden states"),
        (lambda net, X: hs.load(net).activations([[1, 20]]), "no embedding for a token of 1 to 20"),
        (lambda net, X: hs.budget(net, [[1, 20]], schemes=["int4"], passes=2), "no embedding for a token"),
        (lambda net, X: hs.budget(net, X, schemes=["int4"], passes=2), "reads token ids, got float32 numbers"),
        (lambda net, X: hs.certify(net, SENTENCES), r"hs\.certified_accuracy takes many"),
        (lambda net, X: hs.bracket(hs.Attention.random(heads=1, d=4), n="6", radius=1), "at least 1, got '6'"),
        (lambda net, X: hs.bracket(hs.Attention.random(heads=1, d=4), n=6, radius="1"), "positive and finite, got '1'"),
        (lambda net, X: hs.domains.Sphere("1"), "positive and finite, got '1'"),
        (lambda net, X: hs.domains.Ball("1"), "positive and finite, got '1'"),
        (lambda net, X: hs.domains.Neighbourhood(X, "1"), "positive and finite, got '1'"),
        (
            lambda net, X: hs.bounds.neighbourhood_upper(hs.Attention.random(heads=2, d=8), X[None], eps=0.1),
            "takes one sequence",
        ),
    ],
)
def test_what_is_not_meant_is_told_in_a_sentence_and_not_by_torch(call, said):
    with pytest.raises(hs.errors.HowsmoothError, match=said):
        call(OwnClassifier().eval(), torch.ones(3, 8))


class Pooling(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def get_config_dict(self):
        return {"embedding_dimension": 8, "pooling_mode": self.mode}


class Transformer(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.auto_model = model


class Normalize(torch.nn.Module):
    pass


class SentenceTransformer(torch.nn.Sequential):
    tokenizer = None


def test_a_sentence_transformer_is_read_with_its_own_pooling(reviews):
    def embedding(*behind):
        return hs.load(SentenceTransformer(Transformer(reviews.module), *behind)).ends.sentence_embedding

    assert (embedding(Pooling("cls")).pooling, embedding(Pooling("cls")).normalised) == ("first", False)
    assert (embedding(Pooling("mean"), Normalize()).pooling, embedding(Pooling("mean"), Normalize()).normalised) == (
        "mean",
        True,
    )
    assert "Linear, which is not read" in embedding(Pooling("mean"), torch.nn.Linear(8, 8))
    with pytest.raises(hs.errors.UnsupportedModelError, match="begins with Pooling"):
        hs.load(SentenceTransformer(Pooling("cls")))


@pytest.mark.untyped
def test_one_head_is_built_of_arrays(rng):
    A, V = torch.randn(2, 3, 3, generator=rng, dtype=torch.float64)
    X = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    f = hs.Attention.single_head(A=A.numpy(), V=V.numpy())
    assert_close(f(X), hs.Attention.single_head(A=A, V=V)(X))
    assert hs.Attention.single_head(Q=[[1.0, 0.0]], K=[[0.0, 1.0]], V=[[1.0, 1.0]]).d == 2


class OwnClassifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)).mean(1))


@pytest.mark.untyped
def test_a_budget_of_an_own_classifier_takes_arrays_of_token_ids():
    torch.manual_seed(0)
    net = OwnClassifier().eval()
    ids = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    found = hs.budget(net, ids, schemes=["int4"], passes=2)
    assert found.cost == "nats an input"
    assert [each.kl for each in found.effects] == [
        each.kl for each in hs.budget(net, ids.tolist(), schemes=["int4"], passes=2).effects
    ]


@pytest.mark.untyped
def test_token_ids_in_place_of_tokens_or_sentences_are_told_where_they_belong(reviews):
    with pytest.raises(hs.errors.DtypeError, match=r"activations\(ids\)"):
        hs.attack(lambda X: X, torch.tensor([[1, 2]]), eps=0.1)
    with pytest.raises(hs.errors.DtypeError, match=r"hs\.certify takes token ids"):
        hs.certified_accuracy(reviews, torch.tensor([[1, 2]]), labels=["good"])


@pytest.mark.untyped
def test_swaps_growths_and_budgets_are_written_as_json(reviews):
    swapped = hs.swap(reviews, SENTENCES[0])
    assert json.loads(swapped.to_json())["displacement"] == swapped.displacement
    grown = hs.growth({8: [1.0, 1.1], 16: [1.4, 1.5]})
    assert json.loads(grown.to_json())["exponent"] == grown.exponent
    found = hs.budget(OwnClassifier().eval(), [[1, 2, 3]], schemes=["int4"], passes=2)
    assert [each["kl"] for each in json.loads(found.to_json())["effects"]] == [each.kl for each in found.effects]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is not None, reason="pandas is here")
def test_without_pandas_a_frame_says_so(reviews):
    with pytest.raises(hs.errors.AssumptionError, match="pip install pandas"):
        hs.measure(reviews, sentence="a film", **QUICK).to_frame()


def test_type_checkers_know_every_keyword_of_measure():
    assert set(MeasureSettings.__annotations__) == set(settings_of(Measuring)) - {"model"}


def test_a_file_has_defaults_of_options(tmp_path):
    (tmp_path / "howsmooth.toml").write_text('threads = 2\n[measure]\nlengths = [8, 16]\n"per-head" = true\n')
    parameters = {name: name for name in ("lengths", "per_head", "threads")}
    inside = tmp_path / "inside"
    inside.mkdir()
    assert defaults_for("measure", parameters, inside) == {"threads": 2, "lengths": "8,16", "per_head": True}
    assert defaults_for("runs", {}, inside) == {}
    (inside / "pyproject.toml").write_text("[tool.howsmooth.measure]\nbracket = false\nn = 8\n")
    called = _names(load("measure"))
    assert defaults_for("measure", called, inside) == {"certify": False, "lengths": 8}
    (inside / "pyproject.toml").write_text("[tool.howsmooth.measure]\nlenths = [8]\n")
    with pytest.raises(hs.errors.FileError, match="did you mean lengths"):
        defaults_for("measure", parameters, inside)
