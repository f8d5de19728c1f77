"""The fuzzer in the suite: a bounded number of maps; ``fuzz.py`` goes on by hand."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.fuzz import attack, draw, truth

import howsmooth as hs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")  # said where scores have no digits left
@pytest.mark.parametrize("first", range(0, 12, 4))
def test_no_random_map_violates_a_bound(first, monkeypatch):
    # a coarser sum is larger by little; `fuzz.py` goes on with the finer one
    monkeypatch.setattr("howsmooth.theory.around_input.neighbourhood.INTERVALS", 4)
    found = [violation for seed in range(first, first + 4) for violation in attack(seed)]
    assert not found, "\n".join(map(str, found))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [802179, 803309, 810623])  # a sink takes all but 10⁻⁸⁵, and more, in float32
def test_what_is_too_small_for_float32_is_not_called_zero(seed):
    assert not list(attack(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [800476])  # the transpose is rounded by more than the product with the direction
def test_a_bias_beside_a_sink_is_rounded_in_every_direction(seed):
    assert not list(attack(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [700017])  # scores of 10⁵ beside a sink, which takes nothing
def test_weights_and_the_share_of_a_sink_sum_to_one(seed):
    assert not list(attack(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5115, 5131])  # weights of one came out smaller, by 10⁻¹²
def test_a_weight_of_one_stays_one_around_an_input(seed):
    assert not list(attack(seed, radii=(1e-6, 1e-3, 0.3)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")  # products that are rounding alone
@pytest.mark.parametrize("seed", [2000194, 1702076, 1400656])  # heads that cancel, each rounded by itself
def test_heads_that_cancel_do_not_hide_their_rounding(seed):
    assert not list(attack(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1702236])  # in float32 keys lose three digits before their norm
def test_norms_of_queries_and_keys_stretch_what_was_rounded(seed):
    assert not list(attack(seed))


@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")
def test_what_is_rounding_alone_is_not_known(rng):
    W, A = gaussian(rng, 1, 3, 4), gaussian(rng, 1, 2, 5)
    f = hs.Attention(query=A, key=A, value=gaussian(rng, 1, 4, 5), output=W)
    twice = {"query": A.expand(2, -1, -1), "output": torch.cat((W, -W * (1 + 2**-50)))}
    cancelled = hs.local_lipschitz(dataclasses.replace(f, **twice), gaussian(rng, 1, 5))
    assert float(cancelled.lower) == 0
    assert float(cancelled.upper) == math.inf
    assert float(hs.local_lipschitz(dataclasses.replace(f, value=0 * f.value), gaussian(rng, 1, 5)).upper) == 0


def test_the_truth_is_that_of_the_library_where_nothing_is_lost():
    checked = 0
    for seed in range(400):
        f, X = draw(seed)
        if str(f.dtype) == "torch.float64" and 0.1 < float(X.norm()) < 3 and f.query.abs().max() < 3:
            found = hs.local_lipschitz(f, X, rtol=1e-9, confidence=1 - 1e-9)
            assert float(found.lower) <= truth(f, X) * (1 + 1e-9)
            assert truth(f, X) <= float(found.upper) * (1 + 1e-9)
            checked += 1
        if checked == 8:
            return
    raise AssertionError("the draws hold too few ordinary maps")
