"""The bottleneck distance: against all permutations, against Strassen's criterion for all sets, and its own traps."""

import itertools
import math

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.transport.distances import conditional_plan, transport_plan

INF = float("inf")


def measure(points, weights=None, positions=None, dtype=torch.float64):
    tensors = (
        None if x is None else torch.as_tensor(np.asarray(x, dtype=float)).to(dtype)
        for x in (points, weights, positions)
    )
    return hs.transport.DiscreteMeasure(*tensors)


def random_measure(rng, n, d):
    weights = rng.dirichlet(np.ones(n))
    return measure(rng.standard_normal((n, d)), weights)


def distances(mu, nu):
    return np.linalg.norm(mu.points.numpy()[:, None] - nu.points.numpy()[None], axis=-1)


def by_permutations(x, y):
    D = np.linalg.norm(x[:, None] - y[None], axis=-1)
    return min(max(D[i, j] for i, j in enumerate(order)) for order in itertools.permutations(range(len(x))))


def by_strassen(mu, nu):
    """The smallest t at which every set of atoms finds at least its mass within t."""
    D, a, b = distances(mu, nu), mu.weights.numpy(), nu.weights.numpy()
    sets = [list(s) for k in range(1, len(mu) + 1) for s in itertools.combinations(range(len(mu)), k)]
    return next(t for t in np.unique(D) if all(a[s].sum() <= b[(D[s] <= t).any(0)].sum() + 1e-12 for s in sets))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_equal_masses_go_as_the_best_permutation(n, d):
    rng = np.random.default_rng(n + 10 * d)
    for _ in range(3):
        x, y = rng.standard_normal((2, n, d))
        assert float(hs.transport.wasserstein(measure(x), measure(y), p=INF)) == pytest.approx(
            by_permutations(x, y), rel=1e-14
        )


@pytest.mark.parametrize("d", [1, 2])
def test_masses_in_sixths_go_as_six_equal_parts(d):
    rng = np.random.default_rng(d)
    for first, second in (((1, 2, 3), (3, 3)), ((2, 2, 2), (1, 5)), ((4, 1, 1), (1, 1, 1, 3)), ((6,), (5, 1))):
        x, y = (rng.standard_normal((len(parts), d)) for parts in (first, second))
        found = hs.transport.wasserstein(measure(x, np.divide(first, 6)), measure(y, np.divide(second, 6)), p=INF)
        assert float(found) == pytest.approx(
            by_permutations(np.repeat(x, first, 0), np.repeat(y, second, 0)), rel=1e-14
        )


@pytest.mark.parametrize("d", [1, 2, 5])
def test_any_masses_meet_strassens_criterion(d):
    rng = np.random.default_rng(d)
    for _ in range(8):
        mu, nu = (random_measure(rng, int(rng.integers(1, 7)), d) for _ in range(2))
        assert float(hs.transport.wasserstein(mu, nu, p=INF)) == pytest.approx(by_strassen(mu, nu), rel=1e-14)
        assert float(hs.transport.wasserstein(nu, mu, p=INF)) == float(hs.transport.wasserstein(mu, nu, p=INF))
        coupling = transport_plan(mu, nu, INF).dense()
        torch.testing.assert_close(coupling.sum(1), mu.weights, atol=1e-13, rtol=0)
        torch.testing.assert_close(coupling.sum(0), nu.weights, atol=1e-13, rtol=0)


def test_it_is_the_limit_of_the_others_and_above_them():
    rng = np.random.default_rng(3)
    mu, nu = random_measure(rng, 5, 2), random_measure(rng, 4, 2)
    rising = [float(hs.transport.wasserstein(mu, nu, p)) for p in (1, 2, 8, 60, INF)]
    assert rising == sorted(rising)
    assert rising[-2] == pytest.approx(rising[-1], rel=0.1)


@pytest.mark.parametrize("mass", [1e-3, 1e-15, 1e-100, 1e-300])
@pytest.mark.parametrize("d", [1, 2])
def test_the_lightest_atom_has_to_go_too(mass, d):
    far = np.zeros((2, d))
    far[1] = 7 / math.sqrt(d)
    here, there = measure(np.zeros((1, d))), measure(far, [1 - mass, mass])
    for mu, nu in ((here, there), (there, here)):
        assert float(hs.transport.wasserstein(mu, nu, p=INF)) == pytest.approx(7, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2])
def test_roundings_of_masses_send_nothing_far(dtype, d):
    rng = np.random.default_rng(4)
    for parts in (3, 7):
        mu = measure(rng.standard_normal((9, d)), rng.dirichlet(np.ones(9)), dtype=dtype)
        assert float(hs.transport.wasserstein(mu, mu.split(parts), p=INF)) == 0
        assert float(hs.transport.wasserstein(mu.split(parts), mu.split(parts + 1), p=INF)) == 0
    points = rng.standard_normal((6, d))
    sixths = (measure(points, weights, dtype=dtype) for weights in (None, [np.nextafter(np.float32(1 / 6), 1)] * 6))
    assert float(hs.transport.wasserstein(*sixths, p=INF)) == 0
    close, apart = ((measure([[0.0] * d, [1.0] * d], [0.5 + e, 0.5 - e])) for e in (1e-16, 1e-13))
    even = measure([[0.0] * d, [1.0] * d, [1.0] * d], [0.5, 0.25, 0.25])
    assert float(hs.transport.wasserstein(close, even, p=INF)) == 0
    assert float(hs.transport.wasserstein(apart, even, p=INF)) == pytest.approx(math.sqrt(d))


def test_the_conditional_one_is_the_largest_of_all_positions():
    rng = np.random.default_rng(5)
    places = [0.2, 0.2, 0.2, 0.7, 0.7, 1.0]
    mu = measure(rng.standard_normal((6, 2)), rng.dirichlet(np.ones(6)), places)
    second = mu.weights.numpy().copy()
    second[:3] = second[:3].sum() * rng.dirichlet(np.ones(3))
    nu = measure(rng.standard_normal((6, 2)), second, places)
    each = []
    for s in sorted(set(places)):
        at = mu.positions == s
        a, b = (measure(m.points[at], m.weights[at] / m.weights[at].sum()) for m in (mu, nu))
        each.append(by_strassen(a, b))
    assert float(hs.transport.conditional_wasserstein(mu, nu, p=INF)) == pytest.approx(max(each), rel=1e-14)
    assert bool((conditional_plan(mu, nu, INF).dense()[:3, 3:] == 0).all())
    assert math.isinf(hs.transport.conditional_wasserstein(mu, measure(nu.points, None, places), p=INF))
    X, Y = rng.standard_normal((2, 6, 3))
    causal = [hs.transport.DiscreteMeasure.from_sequence(torch.as_tensor(Z), causal=True) for Z in (X, Y)]
    expected = np.linalg.norm(X - Y, axis=1).max()
    assert float(hs.transport.conditional_wasserstein(*causal, p=INF)) == pytest.approx(expected, rel=1e-14)


def test_its_gradient_is_that_of_the_longest_step():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    nu = measure([[0.0, 0.5], [1.0, 3.0]])
    (gradient,) = torch.autograd.grad(hs.transport.wasserstein(hs.transport.DiscreteMeasure(x), nu, p=INF), x)
    assert gradient.tolist() == [[0.0, 0.0], [0.0, -1.0]]
    (still,) = torch.autograd.grad(
        hs.transport.wasserstein(hs.transport.DiscreteMeasure(x), hs.transport.DiscreteMeasure(x.detach()), p=INF), x
    )
    assert bool((still == 0).all())


def test_no_number_is_no_p():
    mu = measure([[0.0]])
    for p in (float("nan"), 0.5, -INF):
        with pytest.raises(hs.errors.AssumptionError, match="at least 1, or infinity"):
            hs.transport.wasserstein(mu, mu, p)
