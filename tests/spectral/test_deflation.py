import pytest
import torch
from draws import gaussian
from oracles import Diagonal, dense_jacobian
from spectral.spectra import SPECTRA, with_spectrum
from torch.testing import assert_close

import howsmooth as hs


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (3, 25, 25)])
def test_the_values_are_those_of_the_dense_svd(shape, rng):
    matrix = torch.randn(*shape, dtype=torch.float64, generator=rng)
    found = hs.singular_values(hs.maps.Dense(matrix), k=5, rtol=1e-6, seed=rng)
    exact = torch.linalg.svdvals(matrix)[..., :5]
    assert_close(found.values, exact)
    assert bool((found.values <= exact * (1 + 1e-12)).all())
    assert bool((found.upper >= exact * (1 - 1e-12)).all())


def test_the_vectors_are_singular_vectors(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X = torch.randn(8, 6, dtype=torch.float64, generator=rng)
    J = f.jacobian(X)
    found = hs.singular_values(J, k=4, rtol=1e-8, seed=rng)
    assert found.right.shape == found.left.shape == (4, 8, 6)
    for sigma, u, v in zip(found.values, found.left, found.right, strict=True):
        assert_close(J.jvp(v), sigma * u)
        assert_close(J.vjp(u), sigma * v, rtol=1e-4, atol=1e-4)  # vectors are accurate to the root of rtol
    gram = torch.einsum("ind,jnd->ij", found.right, found.right)
    assert_close(gram, torch.eye(4, dtype=torch.float64))
    assert_close(found.values, torch.linalg.svdvals(dense_jacobian(f, X))[:4])


def test_multiple_values_are_found_as_often_as_they_occur(rng):
    op = Diagonal(torch.tensor([3.0, 3.0, 3.0, 2.0, 2.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    found = hs.singular_values(op, k=8, seed=rng)
    assert_close(found.values, op.entries)


def test_a_compressed_head_gives_its_values(rng):
    f = hs.Attention.random(heads=8, d=64, dtype=torch.float64, seed=rng).head(2)
    X = torch.randn(5, 64, dtype=torch.float64, generator=rng)
    found = hs.singular_values(f.jacobian(X), k=3, rtol=1e-8, seed=rng)
    assert found.right.shape == (3, 5, 64)
    assert_close(found.values, torch.linalg.svdvals(dense_jacobian(f, X))[:3])


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRA)
def test_the_largest_singular_values_come_with_vectors(rng, name):
    k = 4
    matrix = with_spectrum(rng, SPECTRA[name].double(), 60, 80)
    found = hs.singular_values(hs.maps.Dense(matrix), k=k, rtol=1e-6, seed=rng)
    truth = torch.linalg.svdvals(matrix)[:k]
    scale = truth[0]
    assert found.values.shape == (k,)
    assert found.right.shape == (k, 80)
    assert found.left.shape == (k, 60)
    assert (found.values <= truth + 1e-10 * scale).all()
    assert (found.values >= truth * (1 - 1e-6) - 1e-10 * scale).all()
    assert (found.upper >= truth - 1e-10 * scale).all()
    assert_close(found.right @ found.right.mT, torch.eye(k).double())
    assert (found.values[:-1] >= found.values[1:] - 1e-10 * scale).all()
    for value, right, left in zip(found.values, found.right, found.left, strict=True):
        assert (matrix @ right - value * left).norm() <= 2e-3 * scale


def test_batched_singular_values_equal_single_ones(rng):
    matrices = gaussian(rng, 3, 12, 9)
    found = hs.singular_values(hs.maps.Dense(matrices), k=9, rtol=1e-8, seed=rng)
    assert_close(found.values, torch.linalg.svdvals(matrices), rtol=1e-7, atol=1e-9)


def test_singular_values_of_attention_equal_the_dense_ones(rng):
    f = hs.Attention.random(heads=2, d=4, causal=True, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 6, 4)
    found = hs.singular_values(f.jacobian(X), k=5, rtol=1e-6, seed=rng)
    assert_close(found.values, torch.linalg.svdvals(dense_jacobian(f, X))[:5], rtol=1e-6, atol=0)
    assert found.right.shape == (5, 6, 4)


def test_a_large_neighbour_in_the_batch_does_not_widen_the_bounds(rng):
    small = torch.tensor([1e-5, 7.8e-6, 1e-7, 1e-8])
    values = hs.singular_values(hs.maps.Dense(torch.stack((torch.diag(small), 1e6 * torch.eye(4)))), k=2, seed=rng)
    assert float(values.upper[0, 1]) <= 8e-6
