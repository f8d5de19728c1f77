"""Distances are homogeneous: W_p(s·μ, s·ν) = s·W_p(μ, ν) for every p, whatever the scale s."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.transport.distances import _linear_program

SCALES = [1e-200, 1e-100, 1e-30, 1e-7, 1e-5, 1.0, 1e7, 1e100, 1e200]
POWERS = [1, 1.5, 2, 3, 10, 40, 300, 1e5, math.inf]
PAIRS = 25


def gaussian(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def in_sixths(rng, d) -> hs.transport.DiscreteMeasure:
    """Draw up to six atoms whose masses are whole sixths, in two groups some way apart."""
    owners = torch.randint(0, 4, (6,), generator=rng).unique(return_counts=True)[1]
    n = len(owners)
    apart = 3 * torch.randint(0, 2, (n, 1), generator=rng).double()
    return hs.transport.DiscreteMeasure(gaussian(rng, n, d) + apart, owners.double() / 6)


def by_permutations(mu, nu, p) -> float:
    """Couple six equal parts of each by the best of all permutations: exact, since masses are whole sixths."""
    x, y = (m.points.repeat_interleave((6 * m.weights).round().long(), dim=0).numpy() for m in (mu, nu))
    distances = np.sqrt(((x[:, None] - y) ** 2).sum(-1))
    steps = distances[np.arange(6), np.array(list(itertools.permutations(range(6))))]
    longest = steps.max(1)
    if p == math.inf:
        return longest.min()
    with np.errstate(invalid="ignore"):
        means = ((steps / longest[:, None]) ** p).mean(1) ** (1 / p)
    return np.where(longest > 0, longest * means, 0).min()


def at_scale(measure, s) -> hs.transport.DiscreteMeasure:
    return hs.transport.DiscreteMeasure(s * measure.points, measure.weights, measure.positions)


@pytest.mark.untyped
@pytest.mark.parametrize("p", POWERS)
def test_at_every_scale_the_distance_is_that_of_the_best_permutation(rng, p):
    for number in range(PAIRS):
        mu, nu = (in_sixths(rng, d=1 + number % 4) for _ in range(2))
        exact = by_permutations(mu, nu, p)
        for s in SCALES:
            found = float(hs.transport.wasserstein(at_scale(mu, s), at_scale(nu, s), p))
            assert found == pytest.approx(s * exact, rel=1e-9), (number, s)


@pytest.mark.untyped
@pytest.mark.parametrize("p", [1, 2, 3])
def test_at_every_scale_the_distance_is_that_of_the_linear_program_at_scale_one(rng, p):
    for _number in range(5):
        n, k = (int(x) for x in torch.randint(5, 12, (2,), generator=rng))
        a, b = (torch.rand(m, dtype=torch.float64, generator=rng) + 0.05 for m in (n, k))
        mu = hs.transport.DiscreteMeasure(gaussian(rng, n, 3), a / a.sum())
        nu = hs.transport.DiscreteMeasure(gaussian(rng, k, 3), b / b.sum())
        costs = torch.cdist(mu.points, nu.points).numpy() ** p
        margins = np.concatenate((np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))))
        solved = linprog(costs.ravel(), A_eq=margins, b_eq=torch.cat((mu.weights, nu.weights)).numpy())
        for s in SCALES:
            found = float(hs.transport.wasserstein(at_scale(mu, s), at_scale(nu, s), p))
            assert found == pytest.approx(s * solved.fun ** (1 / p), rel=1e-9)


@pytest.mark.untyped
@pytest.mark.parametrize("p", [1, 2, 40, math.inf])
def test_at_every_scale_the_conditional_distance_couples_each_position_alone(rng, p):
    for _number in range(5):
        parts = [(in_sixths(rng, 2), in_sixths(rng, 2), mass, s) for mass, s in ((0.25, 0.3), (0.75, 0.9))]

        def joined(side, parts=parts):
            points = torch.cat([part[side].points for part in parts])
            weights = torch.cat([mass * part[side].weights for *part, mass, _s in parts])
            places = torch.cat([torch.full((len(part[side]),), s).double() for *part, _mass, s in parts])
            return hs.transport.DiscreteMeasure(points, weights, places)

        alone = [by_permutations(x, y, p) for x, y, _mass, _s in parts]
        exact = max(alone) if p == math.inf else (0.25 * alone[0] ** p + 0.75 * alone[1] ** p) ** (1 / p)
        for s in SCALES:
            found = float(hs.transport.conditional_wasserstein(at_scale(joined(0), s), at_scale(joined(1), s), p))
            assert found == pytest.approx(s * exact, rel=1e-9)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_steps_inside_clusters_that_are_far_apart_keep_their_digits(rng, p):
    # masses of both clusters are the same in both measures, so nothing goes from one to the other
    near = [(in_sixths(rng, 3), in_sixths(rng, 3)) for _ in range(2)]
    exact = (sum(by_permutations(a, b, p) ** p for a, b in near) / 2) ** (1 / p)
    for far in (1e5, 1e9, 1e200):
        offsets = torch.zeros(3, dtype=torch.float64), torch.tensor([far, 0.0, 0.0], dtype=torch.float64)
        if far > 1e9:  # so far out a step of length one is no number: the second cluster is one point
            near[1] = (hs.transport.DiscreteMeasure(torch.zeros(1, 3).double()),) * 2
            exact = by_permutations(*near[0], p) / 2 ** (1 / p)
        mu, nu = (
            hs.transport.DiscreteMeasure(
                torch.cat([pair[side].points + offset for pair, offset in zip(near, offsets, strict=True)]),
                torch.cat([pair[side].weights / 2 for pair in near]),
            )
            for side in (0, 1)
        )
        assert float(hs.transport.wasserstein(mu, nu, p)) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("s", SCALES)
@pytest.mark.parametrize("p", [1, 2, 1000, math.inf])
def test_equal_measures_are_at_distance_zero_and_single_atoms_at_theirs(rng, s, p):
    mu = at_scale(in_sixths(rng, 3), s)
    assert float(hs.transport.wasserstein(mu, mu, p)) == 0
    x = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    one, other = hs.transport.DiscreteMeasure(s * x), hs.transport.DiscreteMeasure(s * x.flip(1) / 3 * 4)
    assert_close(float(hs.transport.wasserstein(one, other, p)), 5 * s, rtol=1e-14, atol=0)


@pytest.mark.parametrize("s", [1e-40, 1e-30, 1e30, 1e37])
def test_single_precision_has_no_scale_either(rng, s):
    mu, nu = in_sixths(rng, 3), in_sixths(rng, 3)
    exact = by_permutations(mu, nu, 2)
    single = [at_scale(m, s).to(torch.float32) for m in (mu, nu)]
    assert float(hs.transport.wasserstein(*single)) == pytest.approx(s * exact, rel=1e-3 if s < 1e-38 else 1e-5)


@pytest.mark.parametrize("s", [1e-200, 1e200])
def test_its_gradient_has_no_scale(rng, s):
    mu, nu = in_sixths(rng, 3), in_sixths(rng, 2).push_forward(lambda x: torch.cat((x, x[:, :1]), dim=1))
    slopes = []
    for size in (1.0, s):
        X = (size * mu.points).requires_grad_()
        slopes += torch.autograd.grad(
            hs.transport.wasserstein(hs.transport.DiscreteMeasure(X, mu.weights), at_scale(nu, size), 3), X
        )
    assert_close(slopes[1], slopes[0])


@pytest.mark.parametrize("p", [1, 2, 10])
def test_the_value_of_the_dual_problem_is_the_least_cost_and_not_above_it(rng, p):
    for _number in range(PAIRS):
        mu, nu = in_sixths(rng, 3), in_sixths(rng, 3)
        distances = torch.cdist(mu.points, nu.points).numpy()
        plan, dual = _linear_program(mu, nu, (distances / distances.max()) ** p, p)
        least = (by_permutations(mu, nu, p) / distances.max()) ** p
        assert abs(dual - least) < 2e-14
        assert_close(float(plan.cost(mu, nu, p)), by_permutations(mu, nu, p))


def test_a_distance_that_is_no_number_is_refused():
    far = [hs.transport.DiscreteMeasure(torch.full((1, 2), x, dtype=torch.float64)) for x in (1.5e308, -1.5e308)]
    with pytest.raises(AssumptionError, match="divide the points"):
        hs.transport.wasserstein(*far)


def test_masses_at_a_position_are_compared_by_their_share(rng):
    points, places = gaussian(rng, 2, 2), torch.tensor([0.5, 1.0], dtype=torch.float64)
    light, lighter = (torch.tensor([m, 1 - m], dtype=torch.float64) for m in (2e-10, 1e-10))
    mu, nu = (hs.transport.DiscreteMeasure(points, weights, places) for weights in (light, lighter))
    assert math.isinf(hs.transport.conditional_wasserstein(mu, nu))


@pytest.mark.parametrize("s", [1e-200, 1e200])
def test_atoms_are_merged_by_their_distance_at_every_scale(s):
    apart = hs.transport.DiscreteMeasure(s * torch.tensor([[0.0, 0.0], [0.0, 1.0], [3.0, 0.0]], dtype=torch.float64))
    assert len(apart.merge()) == 3
    assert len(apart.merge(2 * s)) == 2
    assert len(apart.merge(4 * s)) == 1


@pytest.mark.parametrize("p", [40, 300])
def test_without_pot_costs_below_the_tolerances_of_scipy_count(rng, monkeypatch, p):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("howsmooth.transport.distances.EXACT_PAIRS", 0)
    for number in range(8):
        mu, nu = (in_sixths(rng, d=1 + number % 4) for _ in range(2))
        assert float(hs.transport.wasserstein(mu, nu, p)) == pytest.approx(by_permutations(mu, nu, p), rel=1e-9)
