import math

import pytest
import torch
from draws import gaussian
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_jacobian
from torch import nn
from torch.testing import assert_close

import howsmooth as hs


def test_layer_norm_is_torchs(rng):
    gain, bias, X = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((6,), (6,), (2, 5, 6)))
    ours = hs.maps.LayerNorm(gain=gain, bias=bias, eps=0.03)
    assert_close(ours(X), nn.functional.layer_norm(X, (6,), gain, bias, 0.03))


def test_rms_norm_is_torchs(rng):
    gain, X = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((6,), (2, 5, 6)))
    assert_close(hs.maps.RMSNorm(gain=gain, eps=0.03)(X), nn.functional.rms_norm(X, (6,), gain, 0.03))


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
@pytest.mark.parametrize("norm", [hs.maps.LayerNorm, hs.maps.RMSNorm])
@pytest.mark.parametrize("biased", [False, True])
def test_the_balls_touch_the_image(d, norm, biased, rng):
    gain, bias = (torch.randn(d, dtype=torch.float64, generator=rng) for _ in range(2))
    image = norm(gain=gain, bias=bias if biased else None).image
    # the iteration creeps when two half-axes are nearly equal
    assert image.ball.radius == pytest.approx(farthest(image, image.centre, rng), rel=1e-4)
    assert image.radius == pytest.approx(farthest(image, torch.zeros(d).double(), rng), rel=1e-4)
    assert_close(image.ball.centre, bias if biased else torch.zeros_like(bias))


@pytest.mark.parametrize("norm", [hs.maps.LayerNorm, hs.maps.RMSNorm])
def test_every_output_lies_in_both_balls(norm, rng):
    f = norm(gain=torch.randn(8, dtype=torch.float64, generator=rng), bias=torch.randn(8).double(), eps=1e-6)
    X = 10 * torch.randn(10_000, 8, dtype=torch.float64, generator=rng)
    ball, radius = f.image.ball, f.image.radius
    assert float((f(X) - ball.centre).norm(dim=-1).max()) <= ball.radius
    assert float(f(X).norm(dim=-1).max()) <= radius
    assert radius <= ball.radius + float(ball.centre.norm()) + 1e-12


@pytest.mark.slow
@given(gain=st.floats(0.1, 10), d=st.integers(2, 20))
def test_equal_gains_give_a_sphere(gain, d):
    image = hs.maps.LayerNorm(gain=torch.full((d,), gain, dtype=torch.float64)).image
    assert image.ball.radius == pytest.approx(gain * d**0.5)
    assert image.radius == pytest.approx(gain * d**0.5)


def test_one_dominant_gain_is_shared_by_centring():
    # z ⟂ 1 in two dimensions leaves z = ±(1, −1): the point (α, 0) z has length α
    image = hs.maps.LayerNorm(gain=torch.tensor([3.0, 0.0], dtype=torch.float64)).image
    assert image.ball.radius == pytest.approx(3.0)
    assert hs.maps.RMSNorm(gain=torch.tensor([3.0, 0.0])).image.ball.radius == pytest.approx(3 * 2**0.5)


def test_a_one_dimensional_layer_norm_is_constant():
    f = hs.maps.LayerNorm(gain=torch.tensor([2.0]), bias=torch.tensor([0.5]))
    assert f.image.ball.radius == 0
    assert f.image.radius == pytest.approx(0.5)
    assert hs.local_lipschitz(f, torch.randn(4, 1)).status is hs.spectral.Status.ZERO


KINDS = {"layer": hs.maps.LayerNorm, "rms": hs.maps.RMSNorm}


def naive_norm(kind, X, gain, bias, eps):
    rows = []
    for x in X.reshape(-1, X.shape[-1]):
        centred = x - sum(x) / len(x) if kind == "layer" else x
        y = gain * centred / torch.sqrt(sum(t * t for t in centred) / len(x) + eps)
        rows.append(y if bias is None else y + bias)
    return torch.stack(rows).view(X.shape)


def columns(operator):
    """The matrix of an operator, one product at a time: by jvp and by vjp."""
    inputs, outputs = math.prod(operator.domain), math.prod(operator.codomain)
    forward = [operator.jvp(e.view(operator.domain)).flatten() for e in torch.eye(inputs, dtype=operator.dtype)]
    backward = [operator.vjp(e.view(operator.codomain)).flatten() for e in torch.eye(outputs, dtype=operator.dtype)]
    return torch.stack(forward, -1), torch.stack(backward)


@pytest.mark.parametrize(("d", "eps"), [(1, 1e-5), (1, 0.5), (2, 0.0), (2, 1e-5), (5, 0.0), (5, 1e-5), (5, 0.5)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_their_products_equal_the_definition(rng, kind, d, biased, eps):
    gain, bias = gaussian(rng, d), gaussian(rng, d) if biased else None
    norm = KINDS[kind](gain=gain, bias=bias, eps=eps)
    X = gaussian(rng, 3, d) * 2 + 1
    assert_close(norm(X), naive_norm(kind, X, gain, bias, eps))
    J = dense_jacobian(lambda Z: naive_norm(kind, Z, gain, bias, eps), X)
    for matrix in columns(norm.jacobian(X)):
        assert_close(matrix, J)


def test_norms_equal_those_of_pytorch(rng):
    d = 7
    gain, bias, X = gaussian(rng, d), gaussian(rng, d), gaussian(rng, 2, 3, d)
    assert_close(hs.maps.LayerNorm(gain=gain, bias=bias)(X), torch.nn.functional.layer_norm(X, (d,), gain, bias))
    assert_close(hs.maps.RMSNorm(gain=gain, eps=1e-6)(X), torch.nn.functional.rms_norm(X, (d,), gain, 1e-6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-150, 1e-8, 1e8, 1e150])
def test_norms_of_tiny_and_huge_tokens_stay_finite(rng, kind, size):
    X, gain = gaussian(rng, 3, 4), gaussian(rng, 4)
    norm = KINDS[kind](gain=gain, eps=0.0 if size > 1 else 1e-5)
    value, product = norm(X * size), norm.jacobian(X * size).jvp(X * size)
    if size > 1:
        assert_close(value, norm(X))
        assert (product.abs() < 1e-6).all()  # along the ray the norm does not move
    else:
        assert (value.abs() < 1e-4).all()
        assert_close(product, value, rtol=1e-5, atol=1e-12)  # linear near zero


def test_a_constant_token_has_a_large_but_finite_derivative():
    norm = hs.maps.LayerNorm(gain=torch.ones(4).double(), eps=1e-6)
    estimate = hs.local_lipschitz(norm, torch.full((3, 4), 5.0).double())
    assert_close(estimate.lower, torch.tensor(1e3).double())


@pytest.mark.parametrize("kind", KINDS)
def test_norms_take_strided_and_expanded_tokens(rng, kind):
    norm = KINDS[kind](gain=gaussian(rng, 8)[::2], bias=gaussian(rng, 1).expand(4))
    clean = KINDS[kind](gain=norm.gain.contiguous(), bias=norm.bias.contiguous())
    for X in (gaussian(rng, 2, 4, 3).mT, gaussian(rng, 1, 1, 4).expand(2, 3, 4), gaussian(rng, 2, 3, 8)[..., ::2]):
        E = gaussian(rng, 2, 4, 3).mT
        assert_close(norm(X), clean(X.contiguous()))
        assert_close(norm.jacobian(X).jvp(E), clean.jacobian(X.contiguous()).jvp(E.contiguous()))
        assert_close(norm.jacobian(X).vjp(E), clean.jacobian(X.contiguous()).vjp(E.contiguous()))


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_norms_are_differentiable(rng, kind):
    X, E, gain = gaussian(rng, 3, 4), gaussian(rng, 3, 4), gaussian(rng, 4)

    def product(Z, tangent, alpha):
        return KINDS[kind](gain=alpha, eps=1e-3).jacobian(Z).jvp(tangent)

    assert torch.autograd.gradcheck(product, [t.clone().requires_grad_() for t in (X, E, gain)])
