import itertools
import math

import pytest
import torch
from oracles import constant, dense_jacobian
from torch.testing import assert_close

import howsmooth as hs

ONE = torch.ones(1, 1, dtype=torch.float64)


def weighted_constant(f: hs.Attention, mu: hs.transport.DiscreteMeasure) -> float:
    """The norm of D^½ J D^-½ by dense algebra."""
    J = dense_jacobian(f.on(mu), mu.points)
    out, d = J.shape[0] // len(mu), mu.d
    scale = mu.weights.sqrt()
    return float(torch.linalg.matrix_norm(scale.repeat_interleave(out)[:, None] * J / scale.repeat_interleave(d), 2))


def random_attention(rng, heads, causal) -> hs.Attention:
    def gauss(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    return hs.Attention(
        query=1.5 * gauss(heads, 2, 3),
        key=gauss(heads, 2, 3),
        value=gauss(heads, 2, 3),
        output=gauss(heads, 3, 2),
        query_bias=gauss(heads, 2),
        positions=hs.maps.Positions(causal=causal),
    )


def random_measure(rng, n, causal, equal) -> hs.transport.DiscreteMeasure:
    weights = torch.ones(n) if equal else torch.rand(n, generator=rng) + 0.2
    places = torch.tensor([0.0, 0.5, 0.5, 1.0, 1.0])[:n].double() if causal else None
    return hs.transport.DiscreteMeasure(
        torch.randn(n, 3, dtype=torch.float64, generator=rng), (weights / weights.sum()).double(), places
    )


@pytest.mark.slow
@pytest.mark.parametrize(  # every pair of settings
    ("heads", "causal", "k", "equal"),
    [
        (1, False, 2, True),
        (3, True, 2, False),
        (1, True, 3, True),
        (3, False, 3, False),
        (3, True, 5, True),
        (1, False, 5, False),
    ],
)
def test_the_formula_is_the_constant_of_the_split_measure(rng, heads, causal, k, equal):
    f, mu = random_attention(rng, heads, causal), random_measure(rng, 4, causal, equal)
    found = hs.splitting(f, mu, rtol=1e-9, seed=rng)
    assert_close(found.move, weighted_constant(f, mu))
    assert_close(found.value, weighted_constant(f, mu.split(k)))
    assert found.value == max(found.move, found.split)
    assert found.splits == (found.split > found.move)


@pytest.mark.parametrize("k", [2, 3])
def test_without_weights_it_is_the_duplicated_sequence(rng, k):
    f, X = random_attention(rng, 2, False), torch.randn(4, 3, dtype=torch.float64, generator=rng)
    found = hs.splitting(f, hs.transport.DiscreteMeasure(X), rtol=1e-9, seed=rng)
    assert_close(found.value, float(constant(f, X.repeat_interleave(k, 0))))


def test_one_duplicate_of_the_best_atom_is_enough(rng):
    f = hs.Attention.single_head(A=-ONE, V=ONE)
    mu = hs.transport.DiscreteMeasure(torch.tensor([[-5.3], [-0.5]], dtype=torch.float64))
    found = hs.splitting(f, mu, rtol=1e-9)
    assert found.splits
    assert found.decided
    assert_close(weighted_constant(f, mu.split(found.atom, 2)), found.value)


def test_values_of_the_notes():
    f = hs.Attention.single_head(A=-ONE, V=ONE)
    mu = hs.transport.DiscreteMeasure(torch.tensor([[-5.3], [-0.5]], dtype=torch.float64))
    found = hs.splitting(f, mu)
    assert found.split == pytest.approx(1.7569, abs=5e-5)
    assert found.move == pytest.approx(1.1978, abs=5e-5)
    attack = hs.split_attack(f, mu, eps=1e-3)
    assert attack.split_ratio == pytest.approx(1.757, abs=5e-4)
    assert attack.move_ratio == pytest.approx(1.196, abs=5e-3)
    assert attack.splits
    # the weighted example: the plain Euclidean norm is another number
    nu = hs.transport.DiscreteMeasure(mu.points, torch.tensor([0.3, 0.7], dtype=torch.float64))
    assert_close(hs.splitting(f, nu, rtol=1e-9).move, weighted_constant(f, nu))
    assert abs(weighted_constant(f, nu) - float(constant(f.on(nu), nu.points))) > 0.01


def test_true_ratios_tend_to_the_formula_linearly():
    f = hs.Attention.single_head(A=-ONE, V=ONE)
    mu = hs.transport.DiscreteMeasure(torch.tensor([[-5.3], [-0.5]], dtype=torch.float64))
    found = hs.splitting(f, mu, rtol=1e-9)
    errors = []
    for eps in (1e-2, 1e-3, 1e-4):
        attack = hs.split_attack(f, mu, eps=eps)
        errors.append((abs(attack.split_ratio - found.split), abs(attack.move_ratio - found.move)))
    for coarse, fine in itertools.pairwise(errors):
        assert fine[0] <= coarse[0] / 5 + 1e-8
        assert fine[1] <= coarse[1] / 5 + 1e-8


def test_merging_equal_atoms_does_not_change_the_constants(rng):
    for causal in (False, True):
        f, mu = random_attention(rng, 2, causal), random_measure(rng, 4, causal, False)
        split = mu.split(3)
        merged = hs.splitting(f, split.merge(), rtol=1e-9)
        assert_close(merged.value, hs.splitting(f, split, rtol=1e-9).value)
        assert_close(merged.move, hs.splitting(f, mu, rtol=1e-9).move)


@pytest.mark.slow
def test_masked_attacks_keep_positions(rng):
    f, mu = random_attention(rng, 2, True), random_measure(rng, 5, True, False)
    attack = hs.split_attack(f, mu, eps=1e-5, seed=rng)
    assert math.isfinite(attack.split_ratio)
    assert attack.split_ratio == pytest.approx(attack.splitting.split, rel=1e-3)
    assert attack.move_ratio == pytest.approx(attack.splitting.move, rel=1e-3)


def test_the_cesaro_operator_breaks_the_unmasked_bound():
    """Equal tokens, masked: the constant tends to 2, above (1 + 3c)e^{2c} for small c."""
    identity = torch.eye(2, dtype=torch.float64)
    f = hs.Attention.single_head(A=0.01 * identity, V=identity, causal=True)
    mu = hs.transport.DiscreteMeasure.from_sequence(torch.zeros(200, 2, dtype=torch.float64), causal=True)
    constant_there = float(hs.local_lipschitz(f, mu).lower)
    unmasked = hs.bounds.mean_field_upper(hs.Attention.single_head(A=0.01 * identity, V=identity), radius=1.0)
    assert constant_there > 1.6 > unmasked.value
    assert constant_there <= hs.bounds.masked_mean_field_upper(f, radius=1.0).value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_atoms_that_see_nothing_else_do_not_split(rng, dtype):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=dtype, seed=rng)
    alone = hs.transport.DiscreteMeasure(
        5 * torch.randn(1, 6, dtype=dtype, generator=rng), None, torch.ones(1, dtype=dtype)
    )
    equal = hs.transport.DiscreteMeasure.from_sequence(
        5 * torch.randn(1, 6, dtype=dtype, generator=rng).expand(4, 6), causal=True
    )
    for mu in (alone, equal):
        found = hs.splitting(f, mu, rtol=1e-3)
        assert found.split <= 1e-5 * found.move
        assert not found.splits


def test_a_little_mass_that_goes_far_beats_moving_and_splitting_near():
    f = hs.Attention.single_head(A=ONE, V=ONE)
    mu = hs.transport.DiscreteMeasure(torch.tensor([[5.0], [-5.0]], dtype=torch.float64))
    near, found = hs.splitting(f, mu), hs.splitting(f, mu, near=False)
    assert not near.splits
    assert found.splits
    assert found.far == pytest.approx(1.8186, abs=1e-3)  # at y = −0.5 it is 1.806
    # the true ratio of distances, for a mass that is small enough
    weights = torch.tensor([0.5 - 1e-8, 1e-8, 0.5], dtype=torch.float64)
    atom = found.secant.atom
    points = torch.stack((mu.points[atom], found.secant.place, mu.points[1 - atom]))
    nu, F = hs.transport.DiscreteMeasure(points, weights), hs.maps.mean_field(f)
    assert float(hs.transport.wasserstein(F(mu), F(nu)) / hs.transport.wasserstein(mu, nu)) == pytest.approx(
        found.far, rel=1e-3
    )


def little_mass_moved(mu, atom, place, m=1e-12):
    """The measure with a little mass of an atom elsewhere, at the atom's position."""
    split = mu.split(atom, 2)
    weights, points = split.weights.clone(), split.points.clone()
    weights[atom], weights[atom + 1] = weights[atom] * 2 - m, m
    points[atom + 1] = place
    return hs.transport.DiscreteMeasure(points, weights, split.positions)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_the_steepest_secant_is_a_ratio_of_distances(rng, causal):
    """Also where the cheapest plan hands the mass on through other atoms, before attention or after it."""
    distance = hs.transport.conditional_wasserstein if causal else hs.transport.wasserstein
    f, mu = random_attention(rng, 1, causal), random_measure(rng, 4, causal, False)
    found, F = hs.splitting(f, mu, near=False, radius=3.0, rtol=0.1, seed=rng).secant, hs.maps.mean_field(f)
    nu = little_mass_moved(mu, found.atom, found.place)
    assert float(distance(F(mu), F(nu)) / distance(mu, nu)) == pytest.approx(found.slope, rel=1e-3)


def test_true_ratios_hold_where_one_atom_has_next_to_no_mass():
    """The worst measure for A = 8 in a ball of radius 2: sums of its masses have no digits for the lightest one."""
    f = hs.Attention.single_head(A=8 * ONE, V=ONE)
    light = torch.tensor([5.29609e-16, 1.93079e-12], dtype=torch.float64)
    places = torch.tensor([[2.0], [1.08453730574], [-2.0]], dtype=torch.float64)
    mu = hs.transport.DiscreteMeasure(places, torch.cat((light, 1 - light.sum()[None])))
    attack = hs.split_attack(f, mu, eps=1e-12)
    assert attack.move_ratio == pytest.approx(attack.splitting.move, rel=1e-3)
    assert attack.split_ratio == pytest.approx(attack.splitting.split, rel=1e-3)


def test_mass_that_is_handed_on_goes_less_far():
    """Three atoms in a row: two steps of one cost 2, one step of two costs 4."""
    from howsmooth.search.mean_field_context import _least_step_costs

    points = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    free, apart = torch.zeros(3, 3, dtype=torch.bool), torch.ones(3, 3, dtype=torch.bool).fill_diagonal_(False)
    assert_close(_least_step_costs(points, free)[0], torch.tensor([0.0, 1.0, 2.0]).double())
    assert _least_step_costs(points, apart)[0].tolist() == [0.0, math.inf, math.inf]
