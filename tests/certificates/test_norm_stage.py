"""The remainder of norms, term by term: each as its theorem says it, and attained where it can be."""

import math

import pytest
import torch
from draws import gaussian, uniform

import howsmooth as hs
from howsmooth.certificates.image_norms import EUCLIDEAN
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.stages import FirstOrder

NORMS = {
    "layer norm": lambda rng: hs.maps.LayerNorm(gain=gaussian(rng, 4), bias=gaussian(rng, 4), eps=0.3),
    "rms norm": lambda rng: hs.maps.RMSNorm(gain=gaussian(rng, 4), eps=0.2),
    "layer norm without eps": lambda rng: hs.maps.LayerNorm(gain=gaussian(rng, 4), eps=0.0),
}


def many_tokens(n):
    """Return a norm of many tokens alike: sizes of each are one case."""
    f = hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64), eps=0.0)
    return NormStage(f, torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(n, 1))


def drawn(rng, n):
    return 10 ** (3 * uniform(rng, n) - 2.5)


def bounds(stage, sizes):
    """Return what is bounded along and across every token."""
    found = stage.remainder(
        sizes, FirstOrder(sizes, torch.zeros(1, 1, stage._n, 2, dtype=torch.float64), 1.0, EUCLIDEAN)
    )
    return found.view(2, -1)


def whole_remainder(u, w):
    if u >= 1:
        return 2.0, 1 + w
    across = max(u / (1 - u), 1 - 1 / math.hypot(1 + u, w)) * w
    return 1 - 1 / math.hypot(1, w / (1 - u)), min(across, 1 + w)


def beyond_second_order(u1, w1, u2, w2):
    u, w = u1 + u2, w1 + w2
    along, across = whole_remainder(u, w)
    along, across = along + 0.5 * w1**2, across + u1 * w1
    if u >= 1:
        return along, across
    # ½(w² − w₁²) + ½w²((1−u)⁻² − 1) + ⅜(w/(1−u))⁴, and uw − u₁w₁ + w·max(u²/(1−u), ½w²/(1−u)³)
    third = 0.5 * (w**2 - w1**2) + 0.5 * w**2 * (1 / (1 - u) ** 2 - 1) + 0.375 * (w / (1 - u)) ** 4
    turned = u * w - u1 * w1 + w * max(u**2 / (1 - u), 0.5 * w**2 / (1 - u) ** 3)
    return min(along, third), min(across, turned)


def test_the_whole_remainder_of_a_norm_is_bounded_as_the_theorem_says(rng):
    u, w = drawn(rng, 300), drawn(rng, 300)
    u[:2], w[1:3] = 1.0, torch.tensor([0.5, 3.0])
    found = bounds(many_tokens(300), torch.cat((u, w)))
    expected = [whole_remainder(*each) for each in zip(u.tolist(), w.tolist(), strict=True)]
    torch.testing.assert_close(found.mT, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-12)


def test_what_a_norm_leaves_beyond_its_second_order_is_bounded_as_the_theorem_says(rng):
    parts = [drawn(rng, 600) for _ in range(4)]
    parts[0][:2], parts[2][:2] = 0.25, 0.75
    parts[1][1] = parts[3][1] = 0.0
    u1, w1, u2, w2 = parts
    found = many_tokens(600).third_order_remainder(torch.cat((u1, w1)), torch.cat((u2, w2))).view(2, -1)
    expected = [beyond_second_order(*each) for each in zip(*(part.tolist() for part in parts), strict=True)]
    torch.testing.assert_close(found.mT, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def moves(rng, u, w):
    """Draw moves along and across of at most these sizes, many at their ends: (draws, cases)."""
    ends = torch.where(uniform(rng, 200, len(u)) < 0.6, 1.0, uniform(rng, 200, len(u)))
    signs = gaussian(rng, 200, len(u)).sign()
    return u * ends.roll(1, 0) * signs.roll(1, 0), w * ends * signs


def test_no_move_of_a_token_leaves_more_than_is_bounded_and_one_along_leaves_as_much(rng):
    u, w = drawn(rng, 100), drawn(rng, 100)
    along, across = bounds(many_tokens(100), torch.cat((u, w)))
    du, dw = moves(rng, u, w)
    # the steepest direction is where the token has been shortened most
    du, dw = torch.cat((du, -u[None])), torch.cat((dw, w[None]))
    rho = torch.hypot(1 + du, dw)
    left = ((1 + du) / rho - 1).abs()
    assert bool((left <= along * (1 + 1e-12) + 1e-15).all())
    assert bool(((dw / rho - dw).abs() <= across * (1 + 1e-12) + 1e-15).all())
    torch.testing.assert_close(left.amax(0)[u < 1], along[u < 1])


def test_no_move_of_a_token_meets_another_one_beyond_what_is_bounded(rng):
    sizes = [0.3 * drawn(rng, 300) for _ in range(4)]
    found = (
        many_tokens(300)
        .third_order_remainder(torch.cat((sizes[0], sizes[1])), torch.cat((sizes[2], sizes[3])))
        .view(2, -1)
    )
    (u1, w1), (u2, w2) = moves(rng, *sizes[:2]), moves(rng, *sizes[2:])
    u, w = u1 + u2, w1 + w2
    rho = torch.hypot(1 + u, w)
    shares = torch.stack((((1 + u) / rho - 1 + 0.5 * w1**2).abs(), (w / rho - w + u1 * w1).abs())) - 1e-15
    shares = (shares / found[:, None]).amax(1)
    assert float(shares.max()) <= 1
    assert float(shares.amax(1).min()) > 0.8


@pytest.mark.parametrize("name", NORMS)
def test_sizes_that_a_norm_sees_of_one_column_are_those_of_its_geometry(name, rng):
    f, X, columns = NORMS[name](rng), gaussian(rng, 3, 4), gaussian(rng, 2, 1, 3, 4)
    stage = NormStage(f, X)
    c, delta = X, columns[:, 0]
    if f.centred:
        c, delta = c - c.mean(-1, keepdim=True), delta - delta.mean(-1, keepdim=True)
    N = (c.square().sum(-1) + 4 * f.eps).sqrt()
    u = (c * delta).sum(-1) / N**2
    w = (delta.square().sum(-1) / N**2 - u**2).sqrt()
    torch.testing.assert_close(stage.image_norms(columns, EUCLIDEAN), torch.cat((u.abs(), w), dim=1))
    # all across, and what leaves along the token is γ√dĉ times a number
    assert stage.tokens.tolist() == [0, 1, 2, 0, 1, 2]
    along, across = stage.directions()
    every = torch.eye(4, dtype=torch.float64) - (0.25 if f.centred else 0.0)
    for i in range(3):
        direction = 2 * f.gain * c[i] / N[i]
        torch.testing.assert_close(along[i, 0, i], direction)
        B = across[i, :, i]
        square = 4 * f.gain[:, None] * every * f.gain - direction[:, None] * direction
        torch.testing.assert_close(B.mT @ B, square)
        others = [j for j in range(3) if j != i]
        assert not bool(along[i, :, others].any())
        assert not bool(across[i, :, others].any())


@pytest.mark.parametrize("name", NORMS)
def test_a_token_that_turns_has_the_orders_of_a_point_on_a_sphere(name, rng):
    f, X, xi = NORMS[name](rng), gaussian(rng, 3, 4), gaussian(rng, 2, 4)
    stage, tokens = NormStage(f, X), torch.tensor([2, 0])
    c = X - X.mean(-1, keepdim=True) if f.centred else X
    N = (c.square().sum(-1) + 4 * f.eps).sqrt()
    bundle, squares = stage.turning(tokens)
    first = torch.einsum("r,rnd->nd", xi.flatten(), bundle[0])
    second = torch.einsum("k,knd->nd", xi.square().sum(-1), squares[0])
    _along, across = stage.directions()
    expected, bent = torch.zeros_like(X), torch.zeros_like(X)
    for each, i in zip(xi, tokens.tolist(), strict=True):
        expected[i] = each @ across[i, :, i] / N[i]
        bent[i] = -0.5 * each.square().sum() / N[i] ** 2 * 2 * f.gain * c[i] / N[i]
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, bent)


def test_a_token_that_turns_leaves_what_its_cosine_says_and_nothing_across():
    f = hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64), eps=0.5)
    X = torch.tensor([[1.0, 0.0], [2.0, 2.0]], dtype=torch.float64)
    stage, tokens = NormStage(f, X), torch.tensor([1])
    for eps in (0.01, 1.0, 2.9):
        sine = eps / 3
        cosine = math.sqrt(1 - sine**2)
        plain, exact = (stage.turning_remainder(eps, tokens, second_order=which).tolist() for which in (False, True))
        assert plain == pytest.approx([0, 1 - cosine, 0, 0], rel=1e-9)
        assert exact == pytest.approx([0, 1 - 0.5 * sine**2 - cosine, 0, 0], rel=1e-6, abs=1e-15)
    # at its own length it may turn to anything
    for eps in (3.0, 4.0):
        assert stage.turning_remainder(eps, tokens, second_order=True).tolist() == [0, math.inf, 0, 0]
        assert stage.turning_remainder(eps, tokens, second_order=False).tolist() == [0, math.inf, 0, 0]
