"""Masses near the rounding of one: their p-th roots are seen. Against rational numbers, and between equal measures."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.errors import ConvergenceWarning
from howsmooth.transport import distances

SHARE = Fraction(1, 1000)


def measure(points, masses=None, dtype=torch.float64):
    weights = None if masses is None else torch.as_tensor(np.asarray(masses), dtype=dtype)
    return hs.transport.DiscreteMeasure(torch.as_tensor(np.asarray(points), dtype=dtype), weights)


def on_a_tree(cells, a, b):
    """The only masses on the cells of a spanning tree with these sums over rows and columns; none if it is no tree."""
    cells, sums, found = set(cells), {**{("row", i): x for i, x in enumerate(a)}}, {}
    sums |= {("column", j): x for j, x in enumerate(b)}
    while cells:
        ends = [("row", i) for i, _j in cells] + [("column", j) for _i, j in cells]
        leaf = next((end for end in ends if ends.count(end) == 1), None)
        if leaf is None:
            return None
        i, j = cell = next(c for c in cells if leaf in (("row", c[0]), ("column", c[1])))
        found[cell] = mass = sums[leaf]
        sums["row", i] -= mass
        sums["column", j] -= mass
        cells.remove(cell)
    return found if not any(sums.values()) else None


def rational_distance(mu, nu, p):
    """The distance over all vertices of the polytope of couplings, in rational numbers; and the best coupling."""
    a, b = ([Fraction(float(x)) for x in m.weights] for m in (mu, nu))
    a, b = [x * sum(b) for x in a], [x * sum(a) for x in b]
    n, k = len(a), len(b)
    costs = [[Fraction(math.dist(x, y)) ** p for y in nu.points.tolist()] for x in mu.points.tolist()]
    trees = (
        on_a_tree(cells, a, b) for cells in itertools.combinations(itertools.product(range(n), range(k)), n + k - 1)
    )
    plans = (plan for plan in trees if plan is not None and min(plan.values()) >= 0)
    cost, _order, plan = min(
        (sum(m * costs[i][j] for (i, j), m in plan.items()), q, plan) for q, plan in enumerate(plans)
    )
    kept = all(not m or m > SHARE * min(a[i], b[j]) for (i, j), m in plan.items())
    cost /= sum(a)
    return 0.0 if not cost else math.exp((math.log(cost.numerator) - math.log(cost.denominator)) / p), kept


@pytest.fixture(params=[True, False], ids=["POT", "scipy"])
def either_solver(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(distances, "_by_pot", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("mass", [1e-3, 1e-10, 1e-14, 1e-18, 1e-100, 1e-300])
def test_the_lightest_atom_counts_at_every_power(either_solver, mass, d):
    far = np.zeros((2, d))
    far[1, 0] = 1
    here, there = measure(np.zeros((1, d))), measure(far, [1 - mass, mass])
    for p, (mu, nu) in itertools.product((1, 2, 10, 50, 1000), ((here, there), (there, here))):
        assert float(hs.transport.wasserstein(mu, nu, p)) == pytest.approx(mass ** (1 / p), rel=1e-6)


@pytest.mark.parametrize("p", [1, 2, 10, 40])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_masses_of_every_size_go_as_rational_numbers_say(either_solver, p, d):
    rng, compared = np.random.default_rng(p + d), 0
    for _pair in range(12):
        sites = rng.standard_normal((3, d))  # most mass stays near its site, so that the others are seen
        mu, nu = (
            measure(
                sites[:size] + 1e-4 * rng.standard_normal((size, d)), (m := 10.0 ** -rng.uniform(0, 30, size)) / m.sum()
            )
            for size in (rng.integers(1, 4), rng.integers(2, 4))
        )
        expected, kept = rational_distance(mu, nu, p)
        compared += kept
        if kept:  # what is split off an atom by rounding is left out
            assert float(hs.transport.wasserstein(mu, nu, p)) == pytest.approx(expected, rel=1e-6)
    assert compared > 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2])
def test_roundings_of_masses_send_nothing_far_at_any_power(dtype, d):
    rng = np.random.default_rng(4)
    for parts, p in itertools.product((3, 7), (1, 2, 10, 1000)):
        mu = measure(rng.standard_normal((9, d)), rng.dirichlet(np.ones(9)), dtype=dtype)
        assert float(hs.transport.wasserstein(mu, mu.split(parts), p)) == 0
        assert float(hs.transport.wasserstein(mu.split(parts), mu.split(parts + 1), p)) == 0


def test_what_is_too_large_for_whole_numbers_comes_with_a_warning():
    rng = np.random.default_rng(0)
    points, masses = rng.standard_normal((40, 2)), rng.dirichlet(np.ones(40))
    mu, nu = measure([*points, [9.0, 9.0]], [*masses, 1e-18]), measure(points + 1e-3, masses)
    with pytest.warns(ConvergenceWarning, match="may be too small: the solver leaves out masses below 1e-10"):
        hs.transport.wasserstein(mu, nu, 10)
    hs.transport.wasserstein(mu, nu, 2)  # without a warning where such a mass cannot be seen
