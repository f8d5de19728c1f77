"""Certificates of whole classifiers: nothing that is sampled or found inside a ball contradicts them."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from networks import classifier

import howsmooth as hs
from howsmooth.certificates.image_norms import UnitBall
from howsmooth.certificates.radius_search import Proof, Rivals
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.errors import AssumptionError, ShapeError

NETWORKS = {
    "as in BERT": {},
    "rectified": {"activation": "relu"},
    "norms before, masked": {"before": True, "causal": True, "activation": "gelu_tanh"},
    "as in Llama": {"before": True, "causal": True, "activation": "silu", "norm": "rms", "gated": True,
                    "rotary": hs.maps.Rotary(base=100.0)},
    "tanh": {"activation": "tanh", "layers": 1},
}  # fmt: skip


# every network in the round ball, and each other ball with and without a norm that the word turns before
BALLS = [*((name, 2.0) for name in NETWORKS), ("as in BERT", 1.0), ("norms before, masked", math.inf)]


@pytest.mark.parametrize(("name", "p"), BALLS)
def test_no_sampled_margin_is_below_what_is_proven_at_any_radius(name, p, rng):
    f, X, word = classifier(rng, **{"d": 4, "n": 4, **NETWORKS[name]}), gaussian(rng, 4, 4), 1
    rivals = Rivals.of(f(X)[0])
    proof = Proof(RemainderTable(f, X), rivals, torch.tensor([word]), UnitBall(p))
    radius = proof.radius()
    assert 0 < radius <= proof.linear
    for eps in (0.1 * radius, radius, 3 * radius, 10 * radius):
        E = gaussian(rng, 200, 4)
        Z = X.repeat(200, 1, 1)
        Z[:, word] += eps * E / torch.linalg.vector_norm(E, p, dim=1, keepdim=True)
        margins = f(Z)[:, 0] @ rivals.functionals.mT
        proven = proof.margins(eps)
        assert bool((margins >= torch.where(proven.isnan(), -math.inf, proven)).all())


@pytest.mark.parametrize("word", [3, range(4)])
@pytest.mark.parametrize("name", ["as in BERT", "as in Llama"])
def test_no_attack_flips_a_prediction_inside_a_certified_ball(name, word, rng):
    f, X = classifier(rng, **{"d": 4, "n": 4, "layers": 1, **NETWORKS[name]}), gaussian(rng, 4, 4)
    found = hs.certify(f, X, word=word)
    (radius,) = found.radii
    assert 0 < radius.certified < radius.attacked
    assert found.verify() > 0


def test_the_margin_of_a_linear_classifier_is_used_up_exactly_at_the_radius(rng):
    weight, X = gaussian(rng, 2, 4), gaussian(rng, 3, 4)
    f = hs.maps.Chain(hs.maps.Pooling.mean(n=3, like=X), hs.maps.Dense(weight))
    (radius,) = hs.certify(f, X, word=1).radii
    logits = f(X)[0]
    exact = 3 * float((logits.max() - logits.min()) / (weight[0] - weight[1]).norm())
    assert radius.certified == pytest.approx(exact, rel=2e-3)
    assert radius.certified <= exact
    assert radius.attacked == pytest.approx(exact, rel=0.05)
    assert radius.attacked >= exact


def test_in_a_weighted_metric_a_linear_classifier_is_certified_up_to_its_dual_norm(rng):
    X, weight, root = gaussian(rng, 3, 4), gaussian(rng, 2, 4), gaussian(rng, 4, 4)
    f = hs.maps.Chain(hs.maps.Pooling.mean(n=3, like=X), hs.maps.Dense(weight))
    metric = hs.metrics.weighted(root @ root.mT + 0.1 * torch.eye(4))
    logits = f(X)[0]
    exact = 3 * float((logits.max() - logits.min()) / metric.dual_size(weight[:1] - weight[1:]))
    found = hs.certify(f, X, word=1, metric=metric)
    (radius,) = found.radii
    assert radius.certified == pytest.approx(exact, rel=2e-3)
    assert radius.certified <= exact <= radius.attacked
    assert found.metric == "weighted"
    torch.testing.assert_close(found.embeddings.norm(), metric.size(X))


@pytest.mark.parametrize("before", [False, True])
def test_a_weighted_metric_that_is_a_multiple_of_the_total_one_has_that_multiple_of_its_radius(before, rng):
    # a constant that is large beside the tokens: a norm of shorter tokens would be another one
    f, X = classifier(rng, before=before), gaussian(rng, 5, 8)
    if not before:
        f = hs.maps.Chain(hs.maps.Chain(dataclasses.replace(f.maps[0], eps=0.5)), *f.maps[1:])
    (total,) = hs.certify(f, X, word=2).radii
    found = hs.certify(f, X, word=2, metric=hs.metrics.weighted(9.0 * torch.eye(8)))
    assert found.radii[0].certified == pytest.approx(3 * total.certified, rel=5e-4)  # searched for, to a tolerance
    assert found.verify(samples=20) > 0
    with pytest.raises(ShapeError, match="dimension 3"):
        hs.certify(f, X, metric=hs.metrics.weighted(torch.eye(3)))
    with pytest.raises(AssumptionError, match="nearly singular"):
        hs.certify(f, X, metric=hs.metrics.weighted(torch.diag(torch.tensor([1e-30] + [1e10] * 7))))


def test_the_table_is_the_network_at_the_centre(rng):
    f, X = classifier(rng), gaussian(rng, 5, 8)
    torch.testing.assert_close(RemainderTable(f, X).output, f(X))


def test_weights_beyond_floats_prove_nothing(rng):
    f, X = classifier(rng), gaussian(rng, 5, 8)
    wild = hs.maps.Chain(*f.maps[:-1], hs.maps.MLP(up=1e200 * gaussian(rng, 8, 8), down=1e200 * gaussian(rng, 3, 8)))
    (radius,) = hs.certify(wild, X, word=0).radii
    assert radius.certified == 0


def test_margins_that_drown_in_large_logits_prove_nothing(rng):
    X = gaussian(rng, 1, 4)
    far = torch.full((2,), 1e14, dtype=torch.float64)
    (radius,) = hs.certify(hs.maps.Dense(gaussian(rng, 2, 4), bias=far), X).radii
    assert radius.certified == 0
    (radius,) = hs.certify(hs.maps.Dense(gaussian(rng, 2, 4), bias=1e-6 * far), X).radii
    assert 0 < radius.certified < radius.attacked


def test_what_cannot_be_certified_is_refused(rng):
    f, X = classifier(rng), gaussian(rng, 5, 8)
    with pytest.raises(ShapeError, match="tokens 0 to 4"):
        hs.certify(f, X, word=7)
    with pytest.raises(
        AssumptionError, match=r"proven in .* total, entries, sum and hs.metrics.weighted, got 'relative'"
    ):
        hs.certify(f, X, metric=hs.metrics.relative)
    with pytest.raises(AssumptionError, match="two classes"):
        hs.certify(hs.maps.Chain(hs.maps.Pooling.mean(n=5, like=X), hs.maps.Dense(gaussian(rng, 1, 8))), X)
    with pytest.raises(ShapeError, match="one sentence"):
        hs.certify(f, X[None])


def test_a_certificate_says_both_ends_rounded_outwards_and_no_weights():
    X = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    f = hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(torch.eye(2, dtype=torch.float64)))
    found = hs.certify(f, X, word=0)
    head, line = repr(found).splitlines()
    assert head == "Certificate: class 0 wins by 1.99; how far embeddings may move, in the metric total:"
    assert line == "token 0: 1.41 ≤ radius ≤ 1.42"
    assert "<td>1.41</td><td>1.42</td>" in found._repr_html_()
