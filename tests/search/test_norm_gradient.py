import pytest
import torch
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.search.norm_gradient import norm_gradient

H = 1e-5


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def layer(rng, **options):
    return hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng, **options)


MAPS = {
    "single head": lambda rng: hs.Attention.single_head(A=gauss(rng, 4, 4), V=gauss(rng, 4, 4)),
    "layer": layer,
    "causal layer": lambda rng: layer(rng, causal=True),
    "norm": lambda rng: hs.maps.LayerNorm(gain=gauss(rng, 4)),
    "block": lambda rng: hs.maps.Residual(hs.maps.Chain(hs.maps.RMSNorm(gain=gauss(rng, 4)), layer(rng))),
    "callable": lambda rng: layer(rng).__call__,
    "module": lambda rng: torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double(),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_gradient_is_that_of_the_dense_constant(name, rng):
    f, X, E = MAPS[name](rng), gauss(rng, 2, 5, 4), gauss(rng, 2, 5, 4)
    found = norm_gradient(f, X, gauss(rng, 2, 5, 4), rng, steps=20)
    assert_close(found.value, torch.stack([constant(f, x) for x in X]))
    for x, e, g in zip(X, E, found.gradient, strict=True):
        quotient = (constant(f, x + H * e) - constant(f, x - H * e)) / (2 * H)
        assert_close((g * e).sum(), quotient, rtol=1e-5, atol=1e-6)  # the error of a difference quotient


def test_a_few_steps_from_a_good_guess_lose_little_and_never_exceed_the_constant(rng):
    f, X = layer(rng), gauss(rng, 4, 8, 4)
    exact = norm_gradient(f, X, gauss(rng, 4, 8, 4), rng, steps=32)
    near = norm_gradient(f, X, exact.direction, rng)
    assert (near.value <= exact.value * (1 + 1e-12)).all()
    assert_close(near.value, exact.value, rtol=1e-3, atol=0)  # what a tenth of randomness costs after four steps
    attained = f.jacobian(X).jvp(near.direction).flatten(1).norm(dim=1)
    assert (attained >= near.value * (1 - 1e-12)).all()


def test_a_linear_map_has_no_slope(rng):
    X = gauss(rng, 2, 3, 4)
    found = norm_gradient(lambda X: 2 * X, X, X, rng)
    assert_close(found.value, torch.full((2,), 2.0).double())
    assert torch.equal(found.gradient, torch.zeros_like(X))
