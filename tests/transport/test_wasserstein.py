import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.transport import distances
from howsmooth.transport.distances import conditional_plan, transport_plan


def random_measure(rng, n, d, equal=False, positions=None) -> hs.transport.DiscreteMeasure:
    weights = torch.ones(n) if equal else torch.rand(n, generator=rng) + 0.05
    return hs.transport.DiscreteMeasure(
        torch.randn(n, d, generator=rng).double(), (weights / weights.sum()).double(), positions
    )


def by_pot(mu, nu, p) -> float:
    M = torch.cdist(mu.points, nu.points).numpy() ** p
    return float(ot.emd2(mu.weights.numpy(), nu.weights.numpy(), M)) ** (1 / p)


@pytest.mark.parametrize("p", [1, 2, 3.5])
@pytest.mark.parametrize(
    ("n", "k", "d", "equal"), [(7, 7, 3, True), (7, 5, 3, False), (6, 9, 1, False), (8, 8, 1, True)]
)
def test_the_distance_is_that_of_pot(rng, n, k, d, equal, p):
    mu, nu = random_measure(rng, n, d, equal), random_measure(rng, k, d, equal)
    assert_close(float(hs.transport.wasserstein(mu, nu, p)), by_pot(mu, nu, p))
    coupling = transport_plan(mu, nu, p).dense()
    assert_close(coupling.sum(1), mu.weights)
    assert_close(coupling.sum(0), nu.weights)


def test_on_the_line_it_is_that_of_scipy(rng):
    mu, nu = random_measure(rng, 9, 1), random_measure(rng, 4, 1)
    expected = wasserstein_distance(mu.points[:, 0], nu.points[:, 0], mu.weights, nu.weights)
    assert_close(float(hs.transport.wasserstein(mu, nu, p=1)), expected)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), p=st.sampled_from([1, 2, 4]), d=st.integers(1, 3))
def test_it_is_a_metric(seed, p, d):
    rng = torch.Generator().manual_seed(seed)
    a, b, c = (random_measure(rng, int(torch.randint(1, 6, (), generator=rng)), d) for _ in range(3))

    def distance(x, y):
        return float(hs.transport.wasserstein(x, y, p))

    assert distance(a, a) == pytest.approx(0, abs=1e-12)
    assert distance(a, b) == pytest.approx(distance(b, a))
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-12
    assert distance(a, a.split(3)) == pytest.approx(0, abs=1e-7)  # roots of rounding errors of masses


@pytest.mark.parametrize("shift", [1e-9, 1.0, 1e6])
def test_a_translation_costs_its_length(rng, shift):
    mu = random_measure(rng, 12, 3, equal=True)
    step = shift * torch.tensor([2.0, -1.0, 2.0]).double() / 3
    assert_close(float(hs.transport.wasserstein(mu, mu.push_forward(lambda X: X + step))), shift, rtol=1e-6, atol=0)


def test_its_gradient_is_that_of_finite_differences(rng):
    mu, nu = random_measure(rng, 5, 2), random_measure(rng, 4, 2)
    X = mu.points.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(hs.transport.wasserstein(hs.transport.DiscreteMeasure(X, mu.weights), nu), X)
    E = torch.randn(5, 2, generator=rng).double()
    near = [
        float(hs.transport.wasserstein(hs.transport.DiscreteMeasure(mu.points + t * E, mu.weights), nu))
        for t in (1e-6, -1e-6)
    ]
    assert (near[0] - near[1]) / 2e-6 == pytest.approx(float((gradient * E).sum()), rel=1e-6)
    Y = nu.points.clone().requires_grad_()
    (itself,) = torch.autograd.grad(hs.transport.wasserstein(hs.transport.DiscreteMeasure(Y, nu.weights), nu), Y)
    assert bool((itself == 0).all())


def test_the_conditional_distance_couples_each_position_alone(rng):
    positions = torch.tensor([0.2, 0.2, 0.2, 0.8, 0.8], dtype=torch.float64)
    mu = hs.transport.DiscreteMeasure(torch.randn(5, 2, generator=rng).double(), None, positions)
    nu = hs.transport.DiscreteMeasure(torch.randn(5, 2, generator=rng).double(), None, positions.flip(0).sort().values)
    total = 0.0
    for s, mass in ((0.2, 0.6), (0.8, 0.4)):
        a, b = (hs.transport.DiscreteMeasure(m.points[m.positions == s]) for m in (mu, nu))
        total += mass * by_pot(a, b, 2) ** 2
    assert_close(float(hs.transport.conditional_wasserstein(mu, nu)), math.sqrt(total))
    coupling = conditional_plan(mu, nu).dense()
    assert bool((coupling[:3, 3:] == 0).all())
    assert float(hs.transport.conditional_wasserstein(mu, nu)) >= float(hs.transport.wasserstein(mu, nu)) - 1e-12


def test_one_token_for_each_position_is_the_frobenius_norm(rng):
    X, Y = (torch.randn(6, 3, generator=rng).double() for _ in range(2))
    mu, nu = (hs.transport.DiscreteMeasure.from_sequence(Z, causal=True) for Z in (X, Y))
    assert_close(hs.transport.conditional_wasserstein(mu, nu), (X - Y).norm() / math.sqrt(6))


def test_different_marginals_are_infinitely_far_apart():
    points = torch.zeros(2, 1)
    mu = hs.transport.DiscreteMeasure(points, None, torch.tensor([0.0, 1.0]))
    assert math.isinf(
        hs.transport.conditional_wasserstein(mu, hs.transport.DiscreteMeasure(points, None, torch.tensor([0.0, 0.5])))
    )
    assert math.isinf(
        hs.transport.conditional_wasserstein(
            mu, hs.transport.DiscreteMeasure(points, torch.tensor([0.3, 0.7]), mu.positions)
        )
    )
    assert math.isinf(
        hs.transport.conditional_wasserstein(
            mu, hs.transport.DiscreteMeasure(torch.zeros(3, 1), None, torch.tensor([0.0, 0.5, 1.0]))
        )
    )


def test_many_atoms_of_unequal_mass_are_solved(rng):
    mu, nu = random_measure(rng, 300, 5), random_measure(rng, 200, 5)
    assert np.isclose(float(hs.transport.wasserstein(mu, nu)), by_pot(mu, nu, 2))


@pytest.fixture
def without_pot(monkeypatch):
    monkeypatch.setattr(distances, "_by_pot", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize("pairs", [0, distances.EXACT_PAIRS], ids=["scipy", "whole numbers"])
@pytest.mark.parametrize("p", [1, 3.5])
def test_without_pot_the_distance_is_the_same(rng, without_pot, monkeypatch, p, pairs):
    monkeypatch.setattr(distances, "EXACT_PAIRS", pairs)
    mu, nu = random_measure(rng, 12, 3), random_measure(rng, 9, 3)
    assert_close(float(hs.transport.wasserstein(mu, nu, p)), by_pot(mu, nu, p))
    coupling = transport_plan(mu, nu, p).dense()
    assert_close(coupling.sum(1), mu.weights)
    assert_close(coupling.sum(0), nu.weights)


def test_without_pot_masses_below_the_tolerances_of_scipy_are_moved_too(without_pot):
    m = 1e-13
    weights = torch.tensor([1 - m, m], dtype=torch.float64)
    near, far = (
        hs.transport.DiscreteMeasure(torch.tensor([[0.0, 0.0], [x, 1.0]], dtype=torch.float64), weights)
        for x in (1.0, 1001.0)
    )
    assert float(hs.transport.wasserstein(near, far)) == pytest.approx(1000 * m**0.5, rel=0.01)


def test_without_pot_what_takes_too_long_names_the_package(rng, without_pot):
    mu, nu = random_measure(rng, 600, 2), random_measure(rng, 500, 2)
    with pytest.raises(AssumptionError, match=r"600 and 500 atoms .* pip install 'howsmooth\[transport\]'"):
        hs.transport.wasserstein(mu, nu)


def test_the_lightest_atom_counts():
    m = 1e-15
    weights = torch.tensor([1 - m, m], dtype=torch.float64)
    near, far = (
        hs.transport.DiscreteMeasure(torch.tensor([[0.0], [x]], dtype=torch.float64), weights) for x in (1.0, 1001.0)
    )
    assert float(hs.transport.wasserstein(near, far)) == pytest.approx(
        1000 * m**0.5, rel=0.1
    )  # 1 − m has one digit of m


def test_distances_far_from_the_origin_keep_their_digits(rng):
    x, y = (torch.randn(30, 2, dtype=torch.float64, generator=rng) for _ in range(2))
    here = hs.transport.wasserstein(hs.transport.DiscreteMeasure(1e-2 * x), hs.transport.DiscreteMeasure(1e-2 * y))
    there = hs.transport.wasserstein(
        hs.transport.DiscreteMeasure(1e6 + 1e-2 * x), hs.transport.DiscreteMeasure(1e6 + 1e-2 * y)
    )
    assert float(there) == pytest.approx(float(here), rel=1e-6)
