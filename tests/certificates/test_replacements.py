"""Searches among combinations of replacements: what is counted as proven, run and unchanged, on small networks."""

import itertools
import math

import pytest
import torch
from certificates.test_radius_search import network
from draws import gaussian

from howsmooth.certificates.sentence_certifier import SentenceCertifier
from howsmooth.certificates.synonyms import CombinationSearch, ReplacementPerturbation, Synonyms
from howsmooth.rounding import CHAIN_FACTOR


@pytest.fixture
def search(rng):
    """Return a search among two words with two and three replacements."""
    certifier = SentenceCertifier(*network(rng))
    return CombinationSearch(certifier, {0: 0.1 * gaussian(rng, 2, 3), 1: 0.2 * gaussian(rng, 3, 3)}, budget=100)


def told(**counts):
    what = {"tokens": (0,), "places": (0,), "choices": ((1,),), "share": 0.5, "changed": None, "predicted": 0}
    return Synonyms(**what, labels=(), seconds=0.0, tried=0, **counts)


def test_covered_are_those_that_are_proven_or_were_run_unchanged():
    found = told(combinations=9, proven=4, unchanged=3)
    assert (found.covered, found.certified) == (7, False)
    assert told(combinations=9, proven=6, unchanged=3).certified


def test_the_margin_of_a_hull_is_what_first_orders_and_remainders_leave(search):
    kept, share = {0: [1], 1: [0, 2]}, 0.3
    columns, counts = search._columns(kept)
    expected = torch.zeros(3, 2, 3, dtype=torch.float64)
    expected[0, 0], expected[1, 1], expected[2, 1] = (
        search._differences[0][1],
        search._differences[1][0],
        search._differences[1][2],
    )
    torch.testing.assert_close(columns, expected)
    assert counts == (1, 2)
    certifier, functionals = search._certifier, search._certifier.rivals.functionals
    hull = ReplacementPerturbation(certifier.table, columns, counts)
    left = hull.remainders(share) @ certifier.table.transfer_to(functionals)
    margins = certifier.rivals.margins - CHAIN_FACTOR * (share * hull.losses(functionals) + left)
    assert search.margin(kept, share) == pytest.approx(float(margins.min()), rel=1e-13)
    assert float(left.max()) > 1e-6


def test_a_margin_is_that_over_the_nearest_rival(rng):
    # whichever of them that is
    nearest = set()
    for seed in range(8):
        certifier = SentenceCertifier(*network(rng.manual_seed(seed)))
        search = CombinationSearch(certifier, {0: 1e-9 * gaussian(rng, 1, 3)}, budget=1)
        least = float(certifier.rivals.margins.min())
        assert search.margin({0: []}, 1.0) == least
        assert search.margin({0: [0]}, 1.0) == pytest.approx(least, abs=1e-6)
        nearest.add(int(certifier.rivals.margins.argmin()))
    assert nearest == {0, 1}


@pytest.mark.parametrize("end", [1e-3, 0.01, 0.25, 0.3, 0.9, 1.0])
def test_the_share_that_is_reached_is_the_largest_that_is_proven(end, search, monkeypatch):
    asked = []

    def margin(kept, share):
        asked.append(share)
        return end - share  # nothing is left at the end itself

    monkeypatch.setattr(search, "margin", margin)
    found = search._proven_share({})
    assert found < end
    assert found in asked
    assert end - found < 0.03 * end
    monkeypatch.setattr(search, "margin", lambda kept, share: 1e-9)
    assert search._proven_share({}) == 1.0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_as_many_of_the_nearest_replacements_are_kept_as_can_be_proven(count, search, monkeypatch):
    lengths = sorted(
        (float(each.norm()), i, s) for i, some in search._differences.items() for s, each in enumerate(some)
    )
    monkeypatch.setattr(search, "margin", lambda kept, share: count + 1 - sum(map(len, kept.values())))
    found = search._largest_proven({0: [0, 1], 1: [0, 1, 2]})
    expected = {(i, s) for _length, i, s in lengths[:count]}
    assert {(i, s) for i, some in found.items() for s in some} == expected


def test_combinations_that_are_run_are_counted_and_those_that_are_proven_are_not(search, rng):
    certifier = search._certifier
    search._differences = {0: 2 * gaussian(rng, 2, 3), 1: 2 * gaussian(rng, 3, 3)}
    every = list(itertools.product(range(3), range(4)))
    margins = []
    for a, b in every:
        Z = certifier.embeddings.clone()
        Z[0] += search._differences[0][a - 1] if a else 0
        Z[1] += search._differences[1][b - 1] if b else 0
        margins.append(float((certifier.classifier(Z)[0] @ certifier.rivals.functionals.mT).min()))
    proven = {(0, 0), (0, 1)}
    found = search._run(iter(every), proven)
    torch.testing.assert_close(found, torch.tensor(margins, dtype=torch.float64))
    assert (search.combinations, search.tried) == (12, 10)
    assert search.unchanged == sum(m > 0 for c, m in zip(every, margins, strict=True) if c not in proven)
    assert search.changed == next(c for c, m in zip(every, margins, strict=True) if m <= 0)
    assert 0 < search.unchanged < 10


def test_all_is_proven_or_run_or_a_part_of_it(search, monkeypatch):
    every = math.prod((3, 4))
    monkeypatch.setattr(search, "_proven_share", lambda kept: 1.0)
    search.run()
    assert (search.proven, search.tried, search.share) == (every, 0, 1.0)
    for budget, tried in ((every, every), (every - 1, 3)):
        other = CombinationSearch(search._certifier, search._differences, budget)
        descended = []
        monkeypatch.setattr(other, "_proven_share", lambda kept: 0.5)
        monkeypatch.setattr(other, "_largest_proven", lambda kept: {0: [1], 1: [0, 2]})
        monkeypatch.setattr(other, "_descend", descended.append)
        other.run()
        if budget == every:
            assert (other.proven, other.tried) == (0, tried)
        else:
            # the word itself and each kept replacement, one of them by two others
            assert other.proven == 2 * 3
            assert descended == [[{0, 2}, {0, 1, 3}]]
