"""An attack refuses before it computes anything, and says what to do."""

import math

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, ShapeError

pytestmark = pytest.mark.untyped

N, D = 4, 6


@pytest.fixture
def gauss(rng):
    return lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eps": 0.0}, "eps must be positive"),
        ({"eps": math.nan}, "eps must be positive"),
        ({"eps": math.inf}, "eps must be positive"),
        ({"eps": 1e-15}, "rounds it away"),
        ({"metric": "tokens"}, "did you mean token"),
        ({"method": "pdg"}, "did you mean pgd"),
        ({"budget": 7}, "at least 8"),
        ({"budget": 20.0}, "at least 8"),
    ],
)
def test_what_no_attack_can_work_with_is_refused(change, said, gauss):
    with pytest.raises(AssumptionError, match=said) as caught:
        hs.attack(torch.tanh, gauss(N, D), **({"eps": 1.0} | change))
    assert caught.value.field == next(iter(change))


def test_inputs_and_targets_that_do_not_fit_are_refused(gauss):
    X = gauss(2, N, D)
    with pytest.raises(DtypeError, match="f must be a map"):
        hs.attack(3, X, eps=1.0)
    with pytest.raises(ShapeError, match="tokens must have the shape"):
        hs.attack(torch.tanh, X[0, 0], eps=1.0)
    with pytest.raises(DtypeError, match="target must be callable"):
        hs.attack(torch.tanh, X, eps=1.0, target=3)
    with pytest.raises(ShapeError, match="one number for each sequence"):
        hs.attack(torch.tanh, X, eps=1.0, target=lambda Y: Y.sum())
    with pytest.raises(DtypeError, match="tensor of real numbers"):
        hs.attack(torch.tanh, X, eps=1.0, target=lambda Y: 3.0)
    heads = hs.Attention(query=X[:, None, :2], key=X[:, None, :2], value=X[:, None, :2])
    with pytest.raises(ShapeError, match="attack one map at a time"):
        hs.attack(heads, X[0], eps=1.0)
