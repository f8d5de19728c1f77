import pytest
import torch

from howsmooth.theory.linalg.eigenvalue_bounds import largest_eigenvalues, largest_norms


@pytest.mark.parametrize("size", [1e-150, 1e-30, 1.0, 1e30, 1e140])
@pytest.mark.parametrize("v", [1, 2, 5, 32])
def test_the_largest_eigenvalue_is_bounded_closely(rng, v, size):
    for decay in (0.1, 0.5, 0.9):
        U, _ = torch.linalg.qr(torch.randn(6, v, v, dtype=torch.float64, generator=rng))
        spectrum = size * decay ** torch.arange(v, dtype=torch.float64)
        found = largest_eigenvalues((U * spectrum) @ U.mT)
        assert bool((found >= size * (1 - 1e-13)).all())
        assert bool((found <= size * (1.001 if decay < 0.9 else 1.12)).all())


def test_equal_eigenvalues_are_nearly_exact_and_zero_is_zero():
    found = largest_eigenvalues(torch.stack([3 * torch.eye(4), torch.zeros(4, 4)]).double())
    assert 3 <= float(found[0]) < 3 * (1 + 1e-7)  # what a scatter below rounding could add
    assert float(found[1]) == 0


@pytest.mark.parametrize("scatter", [1e-6, 1e-8, 3e-9, 1e-9, 1e-10, 1e-12])
def test_eigenvalues_that_are_nearly_alike_are_not_below_the_largest(rng, scatter):
    S = torch.randn(40, 16, 16, dtype=torch.float64, generator=rng)
    S = (S + S.mT) / 2
    largest = 1 + scatter * torch.linalg.eigvalsh(S).amax(-1)  # exact to rounding: the identity only shifts
    found = largest_eigenvalues(torch.eye(16, dtype=torch.float64) + scatter * S)
    assert bool((found >= largest).all())
    assert bool((found <= 1 + 20 * scatter + 1e-6).all())


def test_norms_of_flat_and_tall_matrices_are_bounded_closely(rng):
    for shape in ((7, 3, 9), (7, 9, 3), (2, 1, 1)):
        x = torch.randn(shape, dtype=torch.float64, generator=rng)
        exact = torch.linalg.matrix_norm(x, ord=2)
        found = largest_norms(x)
        assert bool((found >= exact * (1 - 1e-13)).all())
        assert bool((found <= 1.05 * exact).all())


def test_rounding_that_is_not_symmetric_has_a_bound_too():
    turn = 1e-17 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert float(largest_eigenvalues(turn + 1e-20 * torch.eye(2, dtype=torch.float64))) >= 1e-20
    assert float(largest_eigenvalues(turn)) == 0
