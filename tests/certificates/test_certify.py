"""The front of certificates: sentences, labels, layers; and certificates that check themselves."""

import dataclasses
import math
import time

import pytest
import torch
import transformers
from models.small_models import CONFIGS, randomised
from sentences import save_classifier, small_classifier

import howsmooth as hs
from howsmooth.certificates.flip_attack import random_sphere
from howsmooth.certificates.sentences import (
    classifier_at,
    label_number,
    ordinary_positions,
    word_positions,
)
from howsmooth.certificates.settings import norm_in
from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.models.inputs.model_inputs import read_sentence

__all__ = ["save_classifier", "small_classifier"]

TEXT = "a fine film , a film"


@pytest.fixture(scope="module")
def model(small_classifier):
    return hs.load(small_classifier, dtype=torch.float64)


@pytest.fixture(scope="module")
def tokens(model):
    return torch.tensor(read_sentence(model, TEXT))


@pytest.mark.parametrize("where", [("embeddings", 0), ("attention", 0), ("attention", 1)])
def test_the_classifier_is_the_same_wherever_it_begins(model, tokens, where):
    at, layer = where
    f, X = classifier_at(model, tokens, at=at, layer=layer)
    whole, embeddings = classifier_at(model, tokens)
    torch.testing.assert_close(f(X), whole(embeddings))
    assert (at == "embeddings") == torch.equal(X, embeddings)


@pytest.mark.parametrize("metric", ["total", hs.metrics.entries])
def test_what_enters_a_layer_is_certified_and_verified(model, metric):
    found = hs.certify(model, TEXT, word=2, at="attention", layer=1, metric=metric)
    (radius,) = found.radii
    assert 0 < radius.certified < radius.attacked
    assert 0 < found.verify(samples=300) <= float(found.rivals.margins.min())


def test_a_sentence_is_certified_as_its_tokens_are(model, tokens):
    began = time.perf_counter()
    spoken, numbered = hs.certify(model, TEXT, word=2), hs.certify(model, tokens, word=2)
    assert 0 < spoken.seconds <= time.perf_counter() - began
    assert spoken.radii[0].certified == numbered.radii[0].certified
    assert spoken.labels == ("LABEL_0", "LABEL_1")


def test_a_certificate_that_is_wrong_does_not_verify(model):
    found = hs.certify(model, TEXT, word=range(8))
    (radius,) = found.radii
    wrong = dataclasses.replace(radius, certified=1.5 * radius.attacked)
    with pytest.raises(AssumptionError, match="changes the prediction"):
        dataclasses.replace(found, radii=(wrong,)).verify(samples=1)


def test_a_classifier_that_was_changed_after_loading_is_not_certified(small_classifier):
    model = hs.load(small_classifier, dtype=torch.float64)
    hook = model.with_head.classifier.register_forward_hook(lambda _module, _given, output: -output)
    with pytest.raises(hs.errors.HowsmoothError, match="has a hook"):
        hs.certify(model, TEXT, word=2)
    hook.remove()
    hs.certify(model, TEXT, word=2)
    model.with_head.classifier.register_forward_hook(lambda _module, _given, output: -output)
    with pytest.raises(AssumptionError, match=r"the module has the logits .* and its weights say .* has a hook"):
        hs.certify(model, TEXT, word=2)


def test_what_is_verified_is_the_module(small_classifier):
    model = hs.load(small_classifier, dtype=torch.float64)
    found = hs.certify(model, TEXT, word=2)
    assert found.verify(samples=1) > 0
    model.with_head.classifier.register_forward_hook(lambda _module, _given, output: -output)
    with pytest.raises(AssumptionError, match="changes the prediction"):
        found.verify(samples=1)


def test_a_decoder_that_knows_no_padding_is_verified_one_sequence_at_a_time(rng):
    config = CONFIGS["gpt2"]()
    config.pad_token_id = None
    module = randomised(config, rng, build=transformers.AutoModelForSequenceClassification.from_config)
    found = hs.certify(module, torch.tensor([5, 9, 12]), word=1)
    with torch.no_grad():
        assert found.predicted == int(module(torch.tensor([[5, 9, 12]])).logits.argmax())
    assert found.verify(samples=2) > 0


def test_far_balls_where_nothing_slopes_can_be_verified():
    # the score of the other token is so low that no derivative of its weight is a float
    X = torch.tensor([[0.0, 1.0], [-1e4, -1.0]], dtype=torch.float64)
    first, second = torch.eye(2, dtype=torch.float64)[:, None, None]
    f = hs.Attention(query=0 * first, key=first, value=second, query_bias=torch.ones(1, 1).double(), scale=1.0)
    head = hs.maps.Dense(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    found = hs.certify(hs.maps.Chain(f, hs.maps.Pooling.first(n=2, like=X), head), X, word=1)
    (radius,) = found.radii
    assert 50 < radius.certified < 1e4 <= radius.attacked
    assert found.verify() > 0


def test_samples_alone_find_what_is_wrong(rng):
    X = torch.zeros(2, 3, dtype=torch.float64)
    X[0] = 1.0
    f = hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(torch.eye(3, dtype=torch.float64)[:2]))
    X[0, 1] = 0.9
    found = hs.certify(f, X, word=0)
    (radius,) = found.radii
    wrong = dataclasses.replace(radius, certified=10 * radius.certified)
    assert min(found._sampled(radius, 300, rng)) > 0
    assert min(found._sampled(wrong, 300, rng)) < 0


@pytest.mark.untyped
def test_as_many_samples_as_asked_for_are_at_the_radius_itself(rng, monkeypatch):
    X = torch.zeros(2, 3, dtype=torch.float64)
    X[0, 0] = 1.0
    f = hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(torch.eye(3, dtype=torch.float64)[:2]))
    found, seen = hs.certify(f, X, word=0), []
    monkeypatch.setattr("howsmooth.certificates.certify.BATCH", 4)
    watched = dataclasses.replace(found, classifier=lambda Z: seen.append(Z) or f(Z))
    sampled = watched._sampled(found.radii[0], 10, rng)
    assert [len(Z) for Z in seen] == [4, 4, 2]
    assert sampled == [float((f(Z)[:, 0] @ found.rivals.functionals.mT).min()) for Z in seen]
    moved = (torch.cat(seen) - X)[:, 0].norm(dim=-1)
    torch.testing.assert_close(moved, torch.full_like(moved, found.radii[0].certified))


@pytest.mark.parametrize(
    ("certified", "flip", "sampled", "told"), [(1, 0.3, 0.2, 0.2), (1, 0.1, 0.2, 0.1), (1, 5, 6, 0.4), (0, -1, -1, 0.4)]
)
def test_the_smallest_margin_that_was_met_is_told(certified, flip, sampled, told, monkeypatch):
    X = torch.tensor([[1.0, 0.2, 0.6]], dtype=torch.float64)
    f = hs.maps.Chain(hs.maps.Pooling.first(n=1, like=X), hs.maps.Dense(torch.eye(3, dtype=torch.float64)))
    found = hs.certify(f, X, word=0)
    found = dataclasses.replace(found, radii=(dataclasses.replace(found.radii[0], certified=float(certified)),))
    monkeypatch.setattr("howsmooth.certificates.certify.smallest_flip", lambda *_given, **_more: (None, flip))
    monkeypatch.setattr(type(found), "_sampled", lambda *_given: [7.0, sampled])
    assert found.verify() == pytest.approx(told)


def test_two_logits_of_a_module_are_rounded(model, monkeypatch):
    found = hs.certify(model, TEXT, word=2)
    monkeypatch.setattr("howsmooth.certificates.certify.rounding", lambda *_given: (0.0, 3.0))
    assert found._rounding_error() == pytest.approx(3 * math.sqrt(2))
    assert dataclasses.replace(found, module=None)._rounding_error() == 0


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_samples_lie_on_the_surface_of_the_ball(p, rng):
    sizes = torch.linalg.vector_norm(random_sphere((20, 2, 3), p, rng).flatten(1), p, dim=1)
    torch.testing.assert_close(sizes, torch.ones(20, dtype=torch.float64))


def test_words_are_found_by_number_and_by_name_wherever_they_stand(model, tokens):
    assert word_positions(model, tokens.tolist(), "3") == [(3,)]
    assert word_positions(model, tokens.tolist(), "film") == [(3,), (6,)]
    assert word_positions(model, tokens.tolist(), "a fine") == [(1, 2)]
    assert ordinary_positions(model, tokens.tolist()) == [1, 2, 3, 4, 5, 6]
    assert ordinary_positions(model, read_sentence(model, "film zzzz film")) == [1, 2, 3]


@pytest.mark.untyped
@pytest.mark.parametrize(("unknown", "ordinary"), [(None, [4]), (3, [3, 4])])
def test_what_frames_a_sentence_is_special_and_a_word_that_is_not_known_is_a_word(model, unknown, ordinary):
    class Framing:
        def frame(self):
            return [1, 3], [2, 3]

    tokenizer = Framing()
    tokenizer.unknown = unknown
    framed = dataclasses.replace(model, tokenizer=tokenizer)
    assert ordinary_positions(framed, [1, 2, 3, 4]) == [o - 1 for o in ordinary]


@pytest.mark.parametrize(("name", "p"), [("sum", 1.0), ("total", 2.0), ("entries", math.inf)])
def test_metrics_are_norms(name, p):
    assert norm_in(name) == p
    with pytest.raises(AssumptionError, match="proven in the metrics"):
        norm_in(f"{name}s")


def test_labels_are_numbers_or_names(model):
    assert [label_number(model, label) for label in (0, "1", "LABEL_1")] == [0, 1, 1]
    with pytest.raises(AssumptionError, match="no class"):
        label_number(model, 2)


def test_the_attack_finds_what_is_behind_a_norm_near_the_length_of_the_embedding(rng):
    # a norm sees the direction alone: to turn it round, hardly more than its own length is needed
    X = torch.zeros(1, 4, dtype=torch.float64)
    X[0, 0] = 1.0
    head = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]], dtype=torch.float64)
    f = hs.maps.Chain(hs.maps.RMSNorm(gain=torch.ones(4, dtype=torch.float64), eps=0.0), hs.maps.Dense(head))
    (radius,) = hs.certify(f, X, word=0).radii
    assert 0.5 < radius.certified <= 1
    assert 1 <= radius.attacked < 1.1


@pytest.mark.parametrize(
    ("error", "said", "asked"),
    [
        (AssumptionError, "nothing to certify", {"label": 1}),
        (AssumptionError, "has no class 'fine'", {"label": "fine"}),
        (AssumptionError, "has no class -1", {"label": -1}),
        (AssumptionError, "layers 0 to 1, got 2", {"at": "attention", "layer": 2}),
        (AssumptionError, "before all layers", {"layer": 1}),
        (ShapeError, "once each", {"word": []}),
        (ShapeError, "once each", {"word": [1, 1]}),
        (ShapeError, "tokens 0 to 7", {"word": 8}),
    ],
)
def test_what_cannot_be_certified_is_refused(model, tokens, error, said, asked):
    f, X = classifier_at(model, tokens)
    predicted = int(f(X)[0].argmax())
    asked = asked | ({"label": 1 - predicted} if asked.get("label") == 1 else {})
    with pytest.raises(error, match=said):
        hs.certify(model, TEXT, **asked)


def test_tokens_must_be_one_sentence_of_whole_numbers(model, tokens):
    with pytest.raises(ShapeError, match="one sentence"):
        hs.certify(model, tokens.repeat(2, 1))
    with pytest.raises(DtypeError, match="whole numbers"):
        hs.certify(model, tokens.double())
    with pytest.raises(AssumptionError, match="positions for 20"):
        hs.certify(model, tokens.repeat(4))


def test_a_chain_of_maps_knows_no_words_labels_or_layers(model, tokens):
    f, X = classifier_at(model, tokens)
    for more in ({"label": "LABEL_0"}, {"at": "attention"}, {"layer": 1}):
        with pytest.raises(AssumptionError, match="a chain of maps knows no"):
            hs.certify(f, X, **more)
    with pytest.raises(AssumptionError, match="a chain of maps knows no"):
        hs.certify(f, TEXT)
