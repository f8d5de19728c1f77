import pytest
import torch
from oracles import Diagonal, dense_jacobian
from torch.testing import assert_close

import howsmooth as hs


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (3, 25, 25)])
def test_the_values_are_those_of_the_dense_svd(shape, rng):
    matrix = torch.randn(*shape, dtype=torch.float64, generator=rng)
    found = hs.singular_values(hs.Dense(matrix), k=5, rtol=1e-6, generator=rng)
    exact = torch.linalg.svdvals(matrix)[..., :5]
    assert_close(found.values, exact)
    assert bool((found.values <= exact * (1 + 1e-12)).all())
    assert bool((found.upper >= exact * (1 - 1e-12)).all())


def test_the_vectors_are_singular_vectors(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    X = torch.randn(8, 6, dtype=torch.float64, generator=rng)
    J = f.jacobian(X)
    found = hs.singular_values(J, k=4, rtol=1e-8, generator=rng)
    assert found.right.shape == found.left.shape == (4, 8, 6)
    for sigma, u, v in zip(found.values, found.left, found.right, strict=True):
        assert_close(J.jvp(v), sigma * u)
        assert_close(J.vjp(u), sigma * v, rtol=1e-4, atol=1e-4)  # vectors are accurate to the root of rtol
    gram = torch.einsum("ind,jnd->ij", found.right, found.right)
    assert_close(gram, torch.eye(4, dtype=torch.float64))
    assert_close(found.values, torch.linalg.svdvals(dense_jacobian(f, X))[:4])


def test_multiple_values_are_found_as_often_as_they_occur(rng):
    op = Diagonal(torch.tensor([3.0, 3.0, 3.0, 2.0, 2.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    found = hs.singular_values(op, k=8, generator=rng)
    assert_close(found.values, op.entries)


def test_a_compressed_head_gives_its_values(rng):
    f = hs.Attention.random(heads=8, d=64, dtype=torch.float64, generator=rng).head(2)
    X = torch.randn(5, 64, dtype=torch.float64, generator=rng)
    found = hs.singular_values(f.jacobian(X), k=3, rtol=1e-8, generator=rng)
    assert found.right.shape == (3, 5, 64)
    assert_close(found.values, torch.linalg.svdvals(dense_jacobian(f, X))[:3])
