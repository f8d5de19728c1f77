"""Every result becomes JSON that every reader takes."""

import json
import math

import pytest
import torch

import howsmooth as hs
from howsmooth.markup import finite, strict_json
from howsmooth.theory.results import BoundsTable, Bracket, lower_bound, upper_bound

EYE = torch.eye(2, dtype=torch.float64)


def strictly(text):
    """Read JSON as a reader does that knows the standard alone."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_without_end_are_null_however_deep():
    deep = {"a": [1.0, math.inf, (-math.inf, {"b": math.nan})], "c": "inf", "d": True, "e": 2}
    assert finite(deep) == {"a": [1.0, None, [None, {"b": None}]], "c": "inf", "d": True, "e": 2}
    assert strictly(strict_json(deep)) == finite(deep)


@pytest.mark.parametrize("log_value", [-math.inf, -2000.0, 0.0, 2000.0, math.inf])
@pytest.mark.parametrize("make", [upper_bound, lower_bound])
def test_a_ladder_reads_back_what_it_wrote_whatever_its_values(make, log_value):
    ladder = BoundsTable(bounds=(make(log_value, "name", "somewhere", "a theorem"),))
    strictly(ladder.to_json())
    assert BoundsTable.from_json(ladder.to_json()) == ladder


def test_an_estimate_without_an_upper_bound_is_strict_json():
    class TwoMatrices(hs.maps.Dense):
        def vjp(self, G):
            return 9 * super().vjp(G)

    with pytest.warns(hs.errors.ConvergenceWarning):
        estimate = hs.spectral_norm(TwoMatrices(torch.randn(6, 6, dtype=torch.float64)))
    assert estimate.upper == math.inf
    assert strictly(estimate.to_json())["upper"] is None


def test_results_with_numbers_beyond_a_float_are_strict_json():
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    witness = hs.inputs.equal_tokens(f, 5, 1.0)
    bracket = Bracket(lower=witness, upper=upper_bound(2000.0, "name", "somewhere", "a theorem"))
    assert strictly(bracket.to_json())["ratio"] is None
    limit = hs.bounds.large_radius_limit(f, torch.ones(1, 2, dtype=torch.float64))
    assert strictly(limit.to_json())["gap"] is None
    assert strictly(hs.regimes(f, 40.0, [3]).to_json())["upper"]["value"] is None
    assert len(strictly(hs.singular_values(hs.maps.Dense(EYE), k=2).to_json())["values"]) == 2
