"""Ball arithmetic holds what it says: compared with exact rational numbers."""

from fractions import Fraction

import numpy as np
import pytest
from flint import arb

from howsmooth.check.balls import (
    BallArray,
    ball,
    largest_eigenvalue,
    length,
    norm_at_most,
    norms_upper,
    semidefinite,
    square_below,
)

rng = np.random.default_rng(0)


def exact(x):
    return np.vectorize(Fraction, otypes=[object])(x)


def holds(found, truth):
    """Whether every true value lies in its ball."""
    pairs = zip(found.mid.ravel(), found.rad.ravel(), truth.ravel(), strict=True)
    return all(abs(Fraction(float(mid)) - value) <= Fraction(float(rad)) for mid, rad, value in pairs)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e150])
def test_sums_and_products_hold_the_exact_result(scale):
    a, b = rng.standard_normal((4, 7)) * scale, rng.standard_normal((7, 3))
    b[2] *= 1e9  # cancellation
    b[3] = -b[2]
    assert holds(ball(a) @ b, exact(a) @ exact(b))
    assert holds(ball(a) * b.T[:, :1].T[0, 0], exact(a) * Fraction(b[0, 0]))
    assert holds(ball(a).sum(), exact(a).sum(-1))
    assert holds(ball(a) - a[::-1] * 1e-9, exact(a) - exact(a[::-1] * 1e-9))


def test_radii_of_both_factors_are_carried_on():
    a, b = rng.standard_normal((3, 5)), rng.standard_normal((5, 2))
    moved_a, moved_b = a + 1e-3, b - 1e-3
    A, B = BallArray(a, np.full(a.shape, 1.1e-3)), BallArray(b, np.full(b.shape, 1.1e-3))
    for found, truth in ((A @ B, exact(moved_a) @ exact(moved_b)), (A * 2.0 + 1.0, exact(moved_a) * 2 + 1)):
        assert holds(found, truth)


def test_roots_and_reciprocals():
    x = BallArray(np.array([2.0, 1e-3]), np.array([1e-3, 1e-4]))
    for point in (x.lower, x.mid, x.upper):
        root, inverse = x.sqrt(), x.inverse()
        assert (root.lower**2 <= point).all()
        assert (root.upper**2 >= point).all()
        assert (inverse.lower * point <= 1).all()
        assert (inverse.upper * point >= 1).all()
    assert float(length(ball(np.array([3.0, 4.0]))).lower) <= 5 <= float(length(ball(np.array([3.0, 4.0]))).upper)


def test_what_may_vanish_has_no_reciprocal():
    x = BallArray(np.zeros(1), np.ones(1))
    assert np.isnan(x.inverse().mid).all()
    assert float(x.sqrt().lower[0]) <= 0 <= 1 <= float(x.sqrt().upper[0])  # of what is not negative in it
    assert np.isnan(ball(np.array([np.nan])).map(arb.exp).mid).all()


def test_functions_hold_the_image_of_a_ball():
    x = BallArray(np.array([0.3, -2.0]), np.array([0.1, 0.0]))
    found = x.map(arb.exp)
    assert (found.lower <= np.exp(x.lower)).all()
    assert (found.upper >= np.exp(x.upper)).all()
    assert found.rad[1] < 1e-15


@pytest.mark.parametrize("shape", [(3, 9), (9, 3), (40, 40)])
def test_norms_are_proven_closely_and_never_below(shape):
    x = rng.standard_normal(shape)
    norm = np.linalg.norm(x, 2)
    assert norm_at_most(ball(x), norm * (1 + 1e-10))
    assert not norm_at_most(ball(x), norm * (1 - 1e-10))
    assert not norm_at_most(BallArray(x, np.full(shape, 1e-3)), norm * (1 + 1e-10))
    assert norm_at_most(ball(x * 1e-250), norm * 1e-250 * (1 + 1e-10))


def test_norms_of_many_matrices_at_once():
    x = rng.standard_normal((5, 2, 3, 8))
    x[0] = 0
    for found, truth in ((norms_upper(ball(x)), x), (norms_upper(ball(x).T), x)):
        norms = np.linalg.norm(truth, 2, axis=(-2, -1))
        assert (found >= norms).all()
        assert (found <= norms * (1 + 1e-7) + 1e-70).all()
    moved = np.linalg.norm(x + 1e-2 * np.sign(x), 2, axis=(-2, -1))
    assert (norms_upper(BallArray(x, np.full(x.shape, 1.01e-2))) >= moved).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_proves_nothing(bad):
    x = rng.standard_normal((3, 3))
    broken = x.copy()
    broken[1, 1] = bad
    assert not norm_at_most(ball(broken), 1e6)
    assert not norm_at_most(BallArray(x, np.abs(broken)), 1e6)
    assert not norm_at_most(ball(x), bad)
    assert not semidefinite(ball(broken), 1e6)
    assert np.isnan(largest_eigenvalue(ball(broken)))
    assert not semidefinite(ball(x @ x.T), bad)


def test_largest_eigenvalues_are_proven_closely_and_never_below():
    x = rng.standard_normal((12, 12))
    x = x + x.T
    values = np.linalg.eigvalsh(x)
    for sign, truth in ((1.0, values[-1]), (-1.0, -values[0])):
        assert truth <= largest_eigenvalue(ball(sign * x)) <= truth * (1 + 1e-9)
    assert 0 <= largest_eigenvalue(ball(-x @ x.T)) < 1e-9
    moved = largest_eigenvalue(BallArray(x, np.full(x.shape, 1e-3)))
    assert np.linalg.eigvalsh(x + 1e-3)[-1] <= moved <= values[-1] + 0.05
    assert semidefinite(ball(x), -values[0] * (1 + 1e-9))
    assert not semidefinite(ball(x), -values[0] * (1 - 1e-9))
    assert Fraction(square_below(0.1)) <= Fraction(0.1) ** 2
