"""Combinations of replacements: what is proven holds for every one of them, and for all that lies between."""

import itertools
import time

import pytest
import torch
from sentences import save_classifier, small_classifier

import howsmooth as hs
from howsmooth.certificates.sentence_certifier import SentenceCertifier
from howsmooth.certificates.sentences import classifier_at
from howsmooth.certificates.synonyms import CombinationSearch, ReplacementHull, ReplacementPerturbation
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.model_inputs import read_sentence

__all__ = ["save_classifier", "small_classifier"]

TEXT = "a fine film"
WORDS = {"film": ["movie", "mess"], "a": ["the", "this"], "fine": ["dull"]}


@pytest.fixture(scope="module")
def model(small_classifier):
    return hs.load(small_classifier, dtype=torch.float64)


@pytest.fixture(scope="module")
def certifier(model):
    return SentenceCertifier(*classifier_at(model, torch.tensor(read_sentence(model, TEXT))))


def moves(rng, certifier, size, counts=(2, 3, 1)):
    d = certifier.embeddings.shape[1]
    return {i + 1: size * torch.randn(k, d, generator=rng, dtype=torch.float64) for i, k in enumerate(counts)}


def search(certifier, some, budget=4096):
    return CombinationSearch(certifier, some, budget)


def every(some):
    return {i: list(range(len(each))) for i, each in some.items()}


@pytest.mark.parametrize("size", [1e-3, 0.1])
def test_no_point_of_a_hull_has_a_smaller_margin_than_is_proven(certifier, rng, size):
    some = moves(rng, certifier, size)
    for share in (0.3, 1.0):
        proven = search(certifier, some).margin(every(some), share)
        Z = certifier.embeddings.repeat(60, 1, 1)
        for i, each in some.items():
            weights = torch.rand(60, len(each), generator=rng, dtype=torch.float64) ** 4
            inside = weights / weights.sum(1, keepdim=True).clamp_min(1.0)
            corners = torch.eye(len(each)).double()[torch.randint(len(each), (60,), generator=rng)]
            Z[:, i] += share * torch.where(torch.rand(60, 1, generator=rng) < 0.7, corners, inside) @ each
        assert float(margins_at(certifier, Z).min()) >= proven


def margins_at(certifier, Z):
    return (certifier.classifier(Z)[:, 0] @ certifier.rivals.functionals.mT).amin(1)


def all_margins(certifier, some):
    """Return the margins of all combinations, the sentence itself among them."""
    combinations = list(itertools.product(*([0 * each[0], *each] for each in some.values())))
    Z = certifier.embeddings.repeat(len(combinations), 1, 1)
    for k, i in enumerate(some):
        Z[:, i] += torch.stack([combination[k] for combination in combinations])
    return margins_at(certifier, Z)


def test_the_first_order_of_a_hull_is_exact(certifier, rng):
    some = moves(rng, certifier, 1e-7)
    proven = search(certifier, some).margin(every(some), 1.0)
    centre = float(certifier.rivals.margins.min())
    assert centre - proven == pytest.approx(centre - float(all_margins(certifier, some).min()), rel=1e-3)


def test_sizes_add_the_largest_of_every_word(rng):
    columns = torch.randn(1, 3, 4, 5, generator=rng, dtype=torch.float64)
    choices = ReplacementHull(counts=(1, 2))
    numbers = columns[:, 0].abs() + torch.maximum(columns[:, 1].abs(), columns[:, 2].abs())
    torch.testing.assert_close(choices.scalar_norms(columns), numbers)
    lengths = columns.norm(dim=-1)
    torch.testing.assert_close(choices.vector_norms(columns), lengths[:, 0] + lengths[:, 1:].amax(1))


def test_moves_that_help_cost_nothing(certifier, rng):
    some = moves(rng, certifier, 1e-7, counts=(1,))
    margins = [search(certifier, {1: sign * some[1]}).margin({1: [0]}, 1.0) for sign in (1, -1)]
    centre = float(certifier.rivals.margins.min())
    assert max(margins) == pytest.approx(centre, abs=1e-10)
    assert min(margins) < centre - 1e-9


@pytest.mark.parametrize(("size", "budget"), [(1e-3, 4096), (0.5, 4096), (0.3, 5), (1.5, 8)])
def test_counts_are_those_of_all_combinations(certifier, rng, size, budget):
    some = moves(rng, certifier, size)
    found = search(certifier, some, budget)
    found.run()
    assert found.combinations == 3 * 4 * 2
    kept = int((all_margins(certifier, some) > 0).sum())
    assert found.proven + found.unchanged <= kept
    if budget > 24:
        assert found.proven + found.unchanged == kept
        assert (found.changed is None) == (kept == 24)
    else:
        assert 1 <= found.proven < 24
        assert found.tried <= budget
    assert (found.share == 1.0) == (found.proven == 24)


def test_the_share_that_is_proven_is_the_last_that_holds(certifier, rng):
    some = moves(rng, certifier, 0.5)
    found = search(certifier, some)
    found.run()
    assert 0 < found.share < 1
    assert found.margin(every(some), found.share) > 0
    assert found.margin(every(some), 1.5 * found.share) <= 0


def test_replacements_of_a_sentence_are_those_that_the_model_reads(model):
    began = time.perf_counter()
    found = hs.certify_synonyms(model, TEXT, WORDS)
    assert 0 < found.seconds <= time.perf_counter() - began
    assert found.combinations == 3 * 2 * 3
    assert found.places == (1, 2, 3)
    tokenizer = model.tokenizer
    assert [sorted(tokenizer.pieces(others)) for others in found.choices] == [
        ["the", "this"],
        ["dull"],
        ["mess", "movie"],
    ]
    logits = {}
    for combination in itertools.product(("a", "the", "this"), ("fine", "dull"), ("film", "movie", "mess")):
        tokens = torch.tensor(read_sentence(model, " ".join(combination)))
        f, X = classifier_at(model, tokens)
        logits[tuple(tokens.tolist())] = int(f(X)[0].argmax())
    kept = sum(winner == found.predicted for winner in logits.values())
    assert found.covered == kept
    assert found.certified == (kept == 18)
    assert found.changed is None or logits[found.changed] != found.predicted


def test_a_part_is_proven_where_all_is_too_much_and_nothing_is_run_twice(model):
    found = hs.certify_synonyms(model, TEXT, WORDS, budget=4)
    assert found.tried <= 4
    assert found.proven >= 1
    assert found.covered <= hs.certify_synonyms(model, TEXT, WORDS).covered


def test_what_cannot_be_replaced_is_refused(model):
    with pytest.raises(AssumptionError, match="no token may be swapped"):
        hs.certify_synonyms(model, TEXT, {"zebra": ["movie"]})
    with pytest.raises(AssumptionError, match="budget must be"):
        hs.certify_synonyms(model, TEXT, WORDS, budget=0)


def test_a_hull_is_an_entrance_at_the_embeddings(certifier, rng):
    columns = torch.zeros(2, *certifier.embeddings.shape, dtype=torch.float64)
    columns[:, 1] = torch.randn(2, certifier.embeddings.shape[1], generator=rng, dtype=torch.float64)
    hull = ReplacementPerturbation(certifier.table, columns, (2,))
    f, X, m = certifier.classifier, certifier.embeddings, certifier.rivals.functionals
    slopes = f.jacobian(X[None].repeat(2, 1, 1)).jvp(columns)[:, 0] @ m.mT
    torch.testing.assert_close(hull.losses(m), (-slopes).clamp_min(0).amax(0))


def test_what_is_proven_is_not_counted_again_when_it_is_run(certifier, rng):
    d = certifier.embeddings.shape[1]
    near, far = (size * torch.randn(4, d, generator=rng, dtype=torch.float64) for size in (1e-5, 3.0))
    found = search(certifier, {1: torch.stack((near[0], far[0])), 2: near[1:2], 3: far[1:2]}, budget=6)
    found.run()
    assert found.proven == 4
    assert found.tried >= 1
    # of the first four that are run, each changing one word, two are proven
    assert found.tried <= 4
    assert found.unchanged <= found.tried - (found.changed is not None)


def test_words_move_by_the_differences_of_their_embeddings(model, monkeypatch):
    seen = {}

    class Recorded(CombinationSearch):
        def __init__(self, certifier, differences, budget):
            seen.update(differences)
            super().__init__(certifier, differences, budget)

    monkeypatch.setattr("howsmooth.certificates.synonyms.CombinationSearch", Recorded)
    found = hs.certify_synonyms(model, TEXT, WORDS)
    _f, X = classifier_at(model, torch.tensor(found.tokens))
    for i, others in zip(found.places, found.choices, strict=True):
        for s, other in enumerate(others):
            swapped = torch.tensor(found.tokens)
            swapped[i] = other
            torch.testing.assert_close(seen[i][s], classifier_at(model, swapped)[1][i] - X[i])
