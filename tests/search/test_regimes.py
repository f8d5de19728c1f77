import math

import pytest
import torch
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.search.length_regimes import Regime
from howsmooth.search.measure_search import few_atom_measures
from howsmooth.theory.heads import heads_of

ONE, EYE = torch.ones(1, 1, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("A", [-EYE, EYE, TURN], ids=["minus", "plus", "turn"])
def test_what_is_found_is_a_sequence_of_that_length_below_its_bound(A):
    f = hs.Attention.single_head(A=A, V=EYE)
    found = hs.regimes(f, 1.5, [3, 2000])
    for row in found.rows:
        assert sum(row.shape) == row.n
        assert row.found <= row.upper.value
    assert [row.n for row in found.rows] == [3, 2000]


def test_whole_numbers_of_tokens_make_a_sequence():
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    for place in few_atom_measures(heads_of(f)[0], 1.0):
        for counts in place.counts(30):
            assert sum(counts) == 30
            mu = hs.transport.DiscreteMeasure(place.points, torch.tensor(counts, dtype=torch.float64) / 30)
            X = place.points.repeat_interleave(torch.tensor(counts), dim=0)
            assert_close(float(hs.local_lipschitz(f, mu, rtol=1e-9).lower), float(constant(f, X)))


def test_the_constant_grows_like_the_root_of_the_length_and_then_stops():
    f = hs.Attention.single_head(A=-ONE, V=ONE)
    found = hs.regimes(f, 2.0, [100, 400, 30_000, 10**6])
    # the light one of two Diracs has one part in 1 + 3 e^(2γR²) of the mass
    assert found.crossing == pytest.approx(1 + 3 * math.exp(8))
    few, more, many, most = (row.found for row in found.rows)
    assert 2 < more / few < 4
    assert most == pytest.approx(many, rel=0.01)
    assert many == pytest.approx(165.8, abs=0.3)
    assert most <= found.lower.value <= 165.85
    said = (
        "Beyond n = 30,000 no constant found is larger by more than one percent; that the constant stops growing is not"
    )
    assert found.headline == f"{said} proven"


def test_two_points_do_not_tell_where_tied_pairs_stop():
    g = torch.Generator().manual_seed(1)
    A = 0.08 * torch.randn(16, 16, dtype=torch.float64, generator=g)
    found = hs.regimes(hs.Attention.single_head(A=A, V=torch.eye(16, dtype=torch.float64)), 3.0, [30, 1000, 3000])
    few, more, many = (row.found for row in found.rows)
    assert many > 1.3 * more > 3 * few
    assert found.lower.value >= many
    assert found.headline.startswith("At n = 3,000 the largest constant found is 100.7")
    assert found.headline.endswith(" and still grows")
    # the two points have masses as light from e^(2γR²) on, long before
    (two_points, *_others) = few_atom_measures(heads_of(hs.Attention.single_head(A=A, V=A))[0], 3.0)
    assert math.exp(two_points.exponent) < 30 < found.crossing


def test_a_constant_that_is_proven_to_stop_is_said_to():
    found = hs.regimes(hs.Attention.single_head(A=1e-3 * EYE, V=EYE), 1.0, [3, 300])
    assert found.headline == "From n = 3 on the constant grows by at most one percent, proven"
    assert found.sentence.endswith(f"no measure exceeds {found.upper.digits}.")


def test_what_attains_more_than_is_proven_is_a_bug():
    upper = hs.bounds.sharp_upper(hs.Attention.single_head(A=ONE, V=ONE), n=3, radius=1.0)
    with pytest.raises(hs.errors.ContradictionError, match="contradicts itself"):
        Regime(n=3, found=9.0, shape=(3,), upper=upper)
    raised = Regime(n=3, found=upper.value * (1 + 1e-15), shape=(3,), upper=upper)
    assert raised.upper.value == raised.found


@pytest.mark.slow
@pytest.mark.parametrize(("A", "atoms", "value"), [(-1.0, 3, 165.84), (8.0, 3, 278.0)])
def test_worst_measures_are_few_unbalanced_diracs(A, atoms, value):
    f = hs.Attention.single_head(A=A * ONE, V=ONE)
    worst = hs.maximise(f, n=atoms, domain=hs.domains.Ball(2.0), weights=True, steps=60)
    assert worst.value >= value
    assert_close(float(worst.weights.sum()), 1.0)
    assert bool((worst.tokens.abs() <= 2).all())
    assert_close(float(hs.local_lipschitz(f, worst.measure, rtol=1e-6).lower), worst.value, rtol=1e-3, atol=0)
    merged = worst.measure.merge(tol=1e-3)
    assert len(merged) == (2 if A < 0 else 3)
    assert float(merged.weights.min()) < 1e-3
    assert worst.value <= hs.bounds.sharp_mean_field_upper(f, radius=2.0).value


def test_a_search_over_masses_starts_where_it_is_told(rng):
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    mu = hs.transport.DiscreteMeasure(
        torch.randn(3, 2, dtype=torch.float64, generator=rng), torch.tensor([0.5, 0.3, 0.2]).double()
    )
    here = float(hs.local_lipschitz(f, mu).lower)
    worst = hs.maximise(f, n=4, domain=hs.domains.Ball(4.0), weights=True, steps=0, starts=[mu])
    assert worst.value >= here * (1 - 1e-9)


def test_the_gradient_over_masses_is_that_of_finite_differences(rng):
    from howsmooth.search.measure_search import over_masses
    from howsmooth.search.norm_gradient import norm_gradient

    f = hs.Attention.random(heads=2, d=3, k=2, dtype=torch.float64, seed=rng)
    on_measures, domain, _starts, _d = over_masses(f, 4, hs.domains.Ball(2.0), 1)
    X = torch.randn(1, 4, 4, dtype=torch.float64, generator=rng)
    top = hs.local_lipschitz(on_measures, X, rtol=1e-12).direction
    here = norm_gradient(on_measures, X, top, rng)
    E = torch.randn(1, 4, 4, dtype=torch.float64, generator=rng)
    near = [float(hs.local_lipschitz(on_measures, X + t * E, rtol=1e-12).lower) for t in (1e-5, -1e-5)]
    assert (near[0] - near[1]) / 2e-5 == pytest.approx(float((here.gradient * E).sum()), rel=1e-3)
    assert domain.shape == (None, None)


@pytest.mark.slow
def test_the_map_of_pairs_is_that_of_splitting():
    found = hs.search.splitting_map(A=-1.0, V=2.0, span=6.0, step=3.0)
    f = hs.Attention.single_head(A=-ONE, V=2 * ONE)
    for i, x in enumerate(found.grid):
        for j, y in enumerate(found.grid):
            if x != y:
                there = hs.splitting(f, hs.transport.DiscreteMeasure(torch.stack((x, y))[:, None]), rtol=1e-9)
                assert_close(float(found.move[i, j]), there.move)
                assert_close(float(found.split[i, j]), there.split, atol=1e-12, rtol=1e-7)


def test_four_strips_along_the_axes_split_and_none_for_a_positive_form():
    found = hs.search.splitting_map(A=-1.0)
    # 8.3 % of a grid of step 0.3, 7.4 % of the square in the limit
    assert found.share == pytest.approx(140 / 41**2)
    assert hs.search.splitting_map(A=-1.0, step=0.03).share == pytest.approx(0.074, abs=0.001)
    places = found.splits.nonzero()
    assert bool((found.grid[places].abs().min(dim=1).values <= 0.6001).all())
    assert bool((found.grid[places].abs().max(dim=1).values >= 2.3).all())
    assert hs.search.splitting_map(A=1.0).share == 0
