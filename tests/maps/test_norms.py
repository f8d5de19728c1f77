import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import howsmooth as hs


def test_layer_norm_is_torchs(rng):
    gain, bias, X = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((6,), (6,), (2, 5, 6)))
    ours = hs.LayerNorm(gain=gain, bias=bias, eps=0.03)
    assert_close(ours(X), nn.functional.layer_norm(X, (6,), gain, bias, 0.03))


def test_rms_norm_is_torchs(rng):
    gain, X = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((6,), (2, 5, 6)))
    assert_close(hs.RMSNorm(gain=gain, eps=0.03)(X), nn.functional.rms_norm(X, (6,), gain, 0.03))


def farthest(ellipsoid, centre, rng, starts=64, steps=400) -> float:
    """The farthest point of the ellipsoid from ``centre``, by the fixed-point iteration of convex maximisation."""
    alpha, beta = ellipsoid.gain, ellipsoid.centre
    d = alpha.numel()

    def onto_sphere(z):
        z = z - z.mean(-1, keepdim=True) if ellipsoid.centred else z
        return z * d**0.5 / z.norm(dim=-1, keepdim=True)

    z = onto_sphere(torch.randn(starts, d, dtype=torch.float64, generator=rng))
    for _step in range(steps):
        z = onto_sphere(alpha * (alpha * z + beta - centre))
    return float((alpha * z + beta - centre).norm(dim=-1).max())


@pytest.mark.parametrize("d", [2, 3, 5, 12])
@pytest.mark.parametrize("norm", [hs.LayerNorm, hs.RMSNorm])
@pytest.mark.parametrize("biased", [False, True])
def test_the_balls_touch_the_image(d, norm, biased, rng):
    gain, bias = (torch.randn(d, dtype=torch.float64, generator=rng) for _ in range(2))
    image = norm(gain=gain, bias=bias if biased else None).image
    # the iteration creeps when two half-axes are nearly equal
    assert image.ball.radius == pytest.approx(farthest(image, image.centre, rng), rel=1e-4)
    assert image.radius == pytest.approx(farthest(image, torch.zeros(d).double(), rng), rel=1e-4)
    assert_close(image.ball.centre, bias if biased else torch.zeros_like(bias))


@pytest.mark.parametrize("norm", [hs.LayerNorm, hs.RMSNorm])
def test_every_output_lies_in_both_balls(norm, rng):
    f = norm(gain=torch.randn(8, dtype=torch.float64, generator=rng), bias=torch.randn(8).double(), eps=1e-6)
    X = 10 * torch.randn(10_000, 8, dtype=torch.float64, generator=rng)
    ball, radius = f.image.ball, f.image.radius
    assert float((f(X) - ball.centre).norm(dim=-1).max()) <= ball.radius
    assert float(f(X).norm(dim=-1).max()) <= radius
    assert radius <= ball.radius + float(ball.centre.norm()) + 1e-12


@given(gain=st.floats(0.1, 10), d=st.integers(2, 20))
def test_equal_gains_give_a_sphere(gain, d):
    image = hs.LayerNorm(gain=torch.full((d,), gain, dtype=torch.float64)).image
    assert image.ball.radius == pytest.approx(gain * d**0.5)
    assert image.radius == pytest.approx(gain * d**0.5)


def test_one_dominant_gain_is_shared_by_centring():
    # z ⟂ 1 in two dimensions leaves z = ±(1, −1): the point (α, 0) z has length α
    image = hs.LayerNorm(gain=torch.tensor([3.0, 0.0], dtype=torch.float64)).image
    assert image.ball.radius == pytest.approx(3.0)
    assert hs.RMSNorm(gain=torch.tensor([3.0, 0.0])).image.ball.radius == pytest.approx(3 * 2**0.5)


def test_a_one_dimensional_layer_norm_is_constant():
    f = hs.LayerNorm(gain=torch.tensor([2.0]), bias=torch.tensor([0.5]))
    assert f.image.ball.radius == 0
    assert f.image.radius == pytest.approx(0.5)
    assert hs.local_lipschitz(f, torch.randn(4, 1)).status is hs.Status.ZERO
