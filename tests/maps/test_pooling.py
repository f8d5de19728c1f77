"""From many tokens to one."""

import pytest
import torch
from draws import gaussian
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.affine import onto_sphere

REAL = torch.tensor([[True, True, True, True], [False, True, True, False]])


def test_the_mean_the_first_and_the_last_token_are_taken(rng):
    X = gaussian(rng, 3, 4, 5)
    assert_close(hs.maps.Pooling.mean(n=4, like=X)(X), X.mean(-2, keepdim=True))
    assert_close(hs.maps.Pooling.first(n=4, like=X)(X), X[:, :1])
    assert_close(hs.maps.Pooling.last(n=4, like=X)(X), X[:, -1:])


def test_only_real_tokens_are_taken(rng):
    X = gaussian(rng, 2, 4, 5)
    assert_close(hs.maps.Pooling.mean(real=REAL, like=X)(X)[1], X[1, 1:3].mean(0, keepdim=True))
    assert_close(hs.maps.Pooling.first(real=REAL, like=X)(X)[1], X[1, 1:2])
    assert_close(hs.maps.Pooling.last(real=REAL, like=X)(X)[1], X[1, 2:3])
    assert_close(hs.maps.Pooling.last(real=REAL, like=X)(X)[0], X[0, 3:])


def test_the_constant_of_the_mean_is_one_over_the_root_of_the_length(rng):
    estimate = hs.local_lipschitz(hs.maps.Pooling.mean(n=9, like=gaussian(rng, 1)), gaussian(rng, 9, 4), seed=rng)
    assert_close(estimate.lower, torch.tensor(1 / 3).double())


def test_onto_the_sphere_means_divided_by_the_norm(rng):
    X = gaussian(rng, 3, 5)
    f = onto_sphere(5, X)
    assert_close(f(X), torch.nn.functional.normalize(X, dim=-1))
    with pytest.raises(AssumptionError, match="without spread"):
        f(torch.zeros(1, 5).double())


@pytest.mark.untyped
def test_what_cannot_be_pooled_is_refused(rng):
    for make in (hs.maps.Pooling.mean, hs.maps.Pooling.first, hs.maps.Pooling.last):
        with pytest.raises(AssumptionError, match="at least one real token"):
            make(real=torch.zeros(2, 3, dtype=torch.bool))
        with pytest.raises(AssumptionError, match="either n or real"):
            make()
        with pytest.raises(ShapeError, match="n must be at least 1"):
            make(n=0)
    with pytest.raises(ShapeError, match="one entry for each token"):
        hs.maps.Pooling(weights=torch.tensor(1.0))
    f = hs.maps.Pooling.mean(real=REAL)
    for X in (torch.ones(2, 3, 5), torch.ones(3, 4, 5), torch.ones(4, 5), torch.ones(4)):
        with pytest.raises(ShapeError, match="batch axes"):
            f(X)
    with pytest.raises(DtypeError, match="one dtype"):
        f(torch.ones(2, 4, 5).double())
