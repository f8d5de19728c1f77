"""The ellipsoid that a norm sends tokens to, and the balls around it."""

import math
import warnings

import pytest
import torch
from draws import gaussian
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.domains.norm_image import Ellipsoid

KINDS = {"layer": hs.maps.LayerNorm, "rms": hs.maps.RMSNorm}


def farthest_image(kind, gain, bias, centre):
    """The largest distance of a normalised token from `centre`, without eps: the best of many starts climbs on."""
    d = gain.numel()

    def onto_sphere(Z):
        Z = Z - Z.mean(-1, keepdim=True) if kind == "layer" else Z
        return Z / Z.norm(dim=-1, keepdim=True) * math.sqrt(d)

    def distance(Z):
        return (onto_sphere(Z) * gain + bias - centre).norm(dim=-1)

    Z = torch.randn(80, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for _step in range(100):  # the linear part at a point of a convex function is highest at the next
        Z = onto_sphere(gain * (gain * onto_sphere(Z) + bias - centre))
    # those steps creep where two axes are nearly equal: the best start goes on by second differences
    best = Z[distance(Z).argmax()].clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [best], max_iter=400, tolerance_grad=1e-13, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -distance(best)
        loss.backward()
        return loss

    optimiser.step(closure)
    return max(distance(best).item(), distance(Z).max().item())


GAINS = {
    "random": lambda rng, d: (gaussian(rng, d), gaussian(rng, d)),
    "no bias": lambda rng, d: (gaussian(rng, d), None),
    "equal": lambda rng, d: (torch.full((d,), -2.0).double(), 5 * gaussian(rng, d)),
    "one direction": lambda rng, d: (torch.eye(d).double()[0], gaussian(rng, d)),
    # the hard case of the secular equation (the bias has no part along the longest axis), with a large bias:
    # test_spec_failing has the small one
    "orthogonal": lambda rng, d: (
        torch.tensor([5.0] + [1.0] * (d - 1)).double(),
        torch.tensor([0.0] + [300.0] * (d - 1)).double(),
    ),
    "two longest axes": lambda rng, d: (torch.tensor([3.0, 3.0] + [1.0] * (d - 2)).double(), gaussian(rng, d)),
}


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.parametrize("name", GAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_balls_around_the_image_touch_it_and_contain_it(rng, kind, name, d):
    gain, bias = GAINS[name](rng, d)
    image = KINDS[kind](gain=gain, bias=bias).image
    offset = torch.zeros(d).double() if bias is None else bias
    farthest = farthest_image(kind, gain, offset, torch.zeros(d).double())
    assert float(image.radius) == pytest.approx(farthest, rel=1e-9)
    around = farthest_image(kind, gain, offset, image.ball.centre)
    assert float(image.ball.radius) == pytest.approx(around, rel=1e-9)
    # an ellipsoid is symmetric about its bias, so no ball is smaller than the one centred there
    assert_close(image.ball.centre, offset)


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_tokens_lie_in_both_balls(rng, kind):
    norm = KINDS[kind](gain=gaussian(rng, 6), bias=gaussian(rng, 6))
    Y = norm(gaussian(rng, 5000, 6) * torch.logspace(-3, 3, 5000).double()[:, None])
    assert (Y.norm(dim=-1) <= norm.image.radius * (1 + 1e-12)).all()
    assert ((Y - norm.image.ball.centre).norm(dim=-1) <= norm.image.ball.radius * (1 + 1e-12)).all()


def test_a_gain_of_zero_sends_every_token_to_the_bias(rng):
    bias = gaussian(rng, 4)
    for kind in KINDS.values():
        image = kind(gain=torch.zeros(4).double(), bias=bias).image
        assert float(image.ball.radius) == 0
        assert float(image.radius) == pytest.approx(bias.norm().item())


def test_the_radius_of_a_plain_norm_is_the_root_of_the_dimension():
    assert float(hs.maps.RMSNorm(gain=torch.ones(768).double()).image.radius) == pytest.approx(math.sqrt(768))
    assert float(hs.maps.LayerNorm(gain=torch.ones(768)).image.radius) == pytest.approx(math.sqrt(768), rel=1e-6)


def test_the_radius_of_an_ellipsoid_is_a_number_when_the_bias_misses_the_longest_axis():
    norm = hs.maps.RMSNorm(gain=torch.tensor([5.0, 1.0]).double(), bias=torch.tensor([0.0, 1e-6]).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        radius = float(norm.image.radius)
    assert radius == pytest.approx(5 * math.sqrt(2))


@pytest.mark.parametrize("bias", [0.3, 1e-6])
def test_the_radius_of_an_ellipsoid_divides_by_nothing(bias):
    norm = hs.maps.RMSNorm(gain=torch.tensor([5.0, 1.0]).double(), bias=torch.tensor([0.0, bias]).double())
    assert math.isfinite(norm.image.radius)


@pytest.mark.parametrize("share", [1e-8, 1e-6, 1e-4, 1.0])
@pytest.mark.parametrize("centred", [False, True])
def test_no_output_lies_outside_the_radius_however_small_the_bias(share, centred):
    for seed in range(12):
        rng = torch.Generator().manual_seed(seed)
        gain = 1 + 1e-9 * torch.randn(64, dtype=torch.float64, generator=rng)
        bias = torch.randn(64, dtype=torch.float64, generator=rng)
        bias = bias * share * gain.norm() / bias.norm()
        image = Ellipsoid(gain=gain, centre=bias, centred=centred)
        z = gain * bias  # the worst direction, nearly: along the bias
        z = z - z.mean() if centred else z
        z = z * 8.0 / z.norm()
        assert (
            float((gain * z + bias).norm()) <= image.radius <= float(gain.max()) * 8.0 * (1 + 1e-6) + float(bias.norm())
        )
