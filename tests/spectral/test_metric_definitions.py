"""Every metric is what its formula says, at the edges too: tiny gradients, surfaces of balls, zero tokens."""

import math

import pytest
import torch
from draws import gaussian
from oracles import dense_jacobian

import howsmooth as hs
from howsmooth import metrics
from howsmooth.spectral.metric_norms import bracket_in, climb


def test_comparisons_with_the_euclidean_norm_are_attained():
    roots = {"token": (math.sqrt(5), 1.0), "entries": (math.sqrt(15), 1.0), "sum": (1.0, math.sqrt(15))}
    for name, ratios in roots.items():
        assert metrics.NAMED[name].euclidean_ratios((5, 3)) == pytest.approx(ratios)
    form = metrics.weighted(torch.diag(torch.tensor([4.0, 9.0, 0.25])))
    assert form.euclidean_ratios((5, 3)) == pytest.approx((2.0, 3.0))
    scale = torch.tensor([[-2.0], [0.5]], dtype=torch.float64)
    assert metrics.Euclidean(name="signed", words="", scale=scale).euclidean_ratios((2, 1)) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_directions_of_gradients_of_any_size_are_kept(size, rng):
    G = -gaussian(rng, 4, 3).abs()  # the largest coordinate is negative
    for metric, unit in ((metrics.total, G / G.norm()), (metrics.token, G / G.norm(dim=-1, keepdim=True))):
        torch.testing.assert_close(metric.steepest(size * G), unit)
        torch.testing.assert_close(metric.steepest(0 * G), torch.zeros_like(G))
    longest = int(G.norm(dim=-1).argmax())
    support = torch.zeros_like(G)
    support[longest] = G[longest] / G[longest].norm()
    torch.testing.assert_close(metrics.token.support(G), support)


def test_relative_sizes_are_shares_of_norms(rng):
    X, E = gaussian(rng, 4, 3), gaussian(rng, 4, 3)
    shares = E.norm(dim=-1) / X.norm(dim=-1)
    torch.testing.assert_close(metrics.relative.at(X).size(E), shares.norm())
    torch.testing.assert_close(metrics.condition.at(X).size(E), E.norm() / X.norm())


def test_a_covariance_is_that_of_centred_tokens_with_a_ridge(rng):
    X = gaussian(rng, 9, 3) * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor([5.0, -4.0, 2.0])
    Sigma = torch.cov(X.mT)
    for ridge in (1e-3, 0.5):
        M = torch.linalg.inv(Sigma + ridge * Sigma.diagonal().mean() * torch.eye(3, dtype=X.dtype))
        E = gaussian(rng, 2, 3)
        torch.testing.assert_close(metrics.covariance(X, ridge=ridge).size(E).square(), ((E @ M) * E).sum())


def test_the_simplex_is_met_where_it_should_be():
    for given, eps, nearest in (
        ([3.0, 1.0], 1.0, [1.0, 0.0]),
        ([2.0, -1.5], 1.0, [0.75, -0.25]),
        ([0.2, 0.3], 1.0, [0.2, 0.3]),
        ([4.0, 3.0, 2.0], 3.0, [2.0, 1.0, 0.0]),
        ([1.0, -2.0], 0.0, [0.0, 0.0]),
    ):
        E, truth = (torch.tensor([x], dtype=torch.float64) for x in (given, nearest))
        torch.testing.assert_close(metrics.sum.nearest(E, eps), truth)


def test_along_a_ball_what_leads_outwards_is_left_out():
    # outwards, inwards, and inside of the ball
    E = torch.tensor([[2.0, 0.0], [0.0, -2.0], [0.5, 0.0]], dtype=torch.float64)
    G = torch.tensor([[3.0, 1.0], [4.0, 1.0], [3.0, 1.0]], dtype=torch.float64)
    along = torch.tensor([[0.0, 1.0], [4.0, 1.0], [3.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(metrics.token.along(E, G, 2.0), along)
    torch.testing.assert_close(metrics.token.along(E, G, 2.5), G)
    # the box: coordinates at its faces; the base class looks at the projection nearby
    box = torch.tensor([[0.0, 1.0], [4.0, 1.0], [3.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(metrics.entries.along(E, G, 2.0), box)
    torch.testing.assert_close(metrics.entries.along(E, 0 * G, 2.0), 0 * G)
    torch.testing.assert_close(metrics.entries.along(E, -1e5 * G, 2.0)[0], -1e5 * G[0])
    # an ellipse: what is left is orthogonal to its normal
    form = metrics.weighted(torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)))
    e, g = torch.tensor([[1.0, 1.0]], dtype=torch.float64), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    normal = torch.tensor([[1.0, 4.0]], dtype=torch.float64)
    truth = g - normal * (normal * g).sum() / normal.square().sum()
    torch.testing.assert_close(form.along(e, g, float(form.size(e))), truth)
    torch.testing.assert_close(form.along(e, g, 2 * float(form.size(e))), g)
    torch.testing.assert_close(form.along(e, -g, float(form.size(e))), -g)


class Counted:
    """An operator that counts its products."""

    def __init__(self, op):
        self.op, self.count = op, 0
        # from Python 3.12 on, what __getattr__ finds does not make it an operator
        for name in ("batch", "domain", "codomain", "dtype", "device"):
            setattr(self, name, getattr(op, name))

    def __getattr__(self, name):
        return getattr(self.op, name)

    def jvp(self, E):
        self.count += 1
        return self.op.jvp(E)

    def vjp(self, G):
        self.count += 1
        return self.op.vjp(G)


def test_climbing_never_falls_below_its_start(rng):
    X = gaussian(rng, 3, 2)
    f = hs.Attention.single_head(A=gaussian(rng, 2, 2), V=gaussian(rng, 2, 2))
    J = dense_jacobian(f, X)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 6)
    truth = (corners @ J.mT).norm(dim=-1).max()
    best = corners[(corners @ J.mT).norm(dim=-1).argmax()].view(3, 2)
    E, value, _products = climb(f.jacobian(X), best, metrics.entries, metrics.total, torch.Generator().manual_seed(0))
    torch.testing.assert_close(value, truth)  # the best corner is where it stays
    torch.testing.assert_close(metrics.total.size(f.jacobian(X).jvp(E)), truth)


@pytest.mark.parametrize("limit", [2048, 0])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [("total", "total"), ("entries", "total"), ("total", "token"), ("sum", "token"), ("sum", "sum")],
)
def test_all_products_that_a_bracket_takes_are_counted(given, wanted, limit, rng, monkeypatch):
    monkeypatch.setattr("howsmooth.spectral.metric_norms.BASIS_PRODUCTS", limit)
    pair = metrics.Metrics(input=metrics.NAMED[given], output=metrics.NAMED[wanted])
    op = Counted(hs.maps.Dense(gaussian(rng, 3, 4)).jacobian(gaussian(rng, 5, 4)))
    found = bracket_in(op, pair, hs.spectral_norm, 1e-3, 0.999, torch.Generator().manual_seed(0))
    assert found.products == op.count


def test_what_is_attained_is_told_with_its_response_and_its_cost(rng):
    X = gaussian(rng, 3, 2)
    f = hs.Attention.single_head(A=gaussian(rng, 2, 2), V=gaussian(rng, 2, 2))
    found = hs.local_lipschitz(f, X, metric="entries")
    # a product for each coordinate of the output, and one that attains
    assert (found.products, found.step_counts) == (7, (7,))
    torch.testing.assert_close(metrics.entries.size(found.response), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(found.residual, torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-12)
    mixed = hs.local_lipschitz(f, X, metric=hs.Metrics(input=metrics.token, output=metrics.total), seed=0)
    top = hs.local_lipschitz(f, X, seed=0)
    torch.testing.assert_close(mixed.upper, top.upper * math.sqrt(3), rtol=1e-9, atol=0.0)
    torch.testing.assert_close(mixed.residual, mixed.upper - mixed.lower, rtol=1e-9, atol=0.0)
