"""Attention of a Gaussian measure is Gaussian, and its constant in W₂ is the norm of an operator."""

import math

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps import Residual, mean_field

F64 = torch.float64


def gaussian(d, seed=0, spread=0.3):
    rng = torch.Generator().manual_seed(seed)
    root = spread * torch.randn(d, d, dtype=F64, generator=rng)
    return hs.GaussianMeasure(
        torch.randn(d, dtype=F64, generator=rng) / 2, root @ root.mT + 0.05 * torch.eye(d, dtype=F64)
    )


def layer(d=3, heads=2, k=2, seed=0, groups=None, **biases):
    rng = torch.Generator().manual_seed(100 + seed)
    draw = lambda *shape: torch.randn(*shape, dtype=F64, generator=rng) / 2  # noqa: E731
    groups = groups or heads
    widths = {"query_bias": (heads, k), "key_bias": (groups, k), "value_bias": (groups, k), "output_bias": (d,)}
    return hs.Attention(
        query=draw(heads, k, d),
        key=draw(groups, k, d),
        value=draw(groups, k, d),
        output=draw(heads, d, k),
        **{name: draw(*shape) for name, shape in widths.items() if biases.get(name)},
    )


LAYERS = {
    "plain": {},
    "biases": dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), True),
    "grouped": {"heads": 4, "groups": 2},
}


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("residual", [False, True])
def test_many_sampled_tokens_move_as_the_affine_map_says(options, residual):
    f, mu = layer(**options), gaussian(3)
    f = Residual(f) if residual else f
    tokens = mu.sample(200_000, seed=1)
    some = tokens[:5]
    # queries of a few tokens against all of them: attention of the whole sample, at those
    moved = f.map if residual else f
    q, k, v = moved.project(tokens)
    shared = moved.layout.shared
    weights = torch.softmax(q[:, :5] @ k.repeat_interleave(shared, 0).mT, -1)
    seen = (moved.output @ (weights @ v.repeat_interleave(shared, 0)).mT).sum(0).mT
    seen = seen + (0 if moved.output_bias is None else moved.output_bias) + (some if residual else 0)
    torch.testing.assert_close(f.on_gaussian(mu)(some), seen, atol=0.02, rtol=0)
    image = mean_field(f)(mu)
    sampled = hs.GaussianMeasure.fitted(f.on_gaussian(mu)(tokens))
    assert float(image.distance(sampled)) < 0.02


def test_in_dimension_one_everything_is_known():
    # m' = v m (1 + aσ²), σ' = |va|σ³; at m = 0 the constant is |v| max(|1 + aσ²|, 3|a|σ²)
    for a, v, s in ((0.7, 2.0, 0.5), (-1.0, 1.5, 2.0), (3.0, 0.2, 1.0)):
        f = hs.Attention.single_head(A=torch.tensor([[a]], dtype=F64), V=torch.tensor([[v]], dtype=F64))
        mu = hs.GaussianMeasure(torch.tensor([0.3], dtype=F64), torch.tensor([[s * s]], dtype=F64))
        image = mean_field(f)(mu)
        assert float(image.mean) == pytest.approx(v * 0.3 * (1 + a * s * s))
        assert float(image.covariance) ** 0.5 == pytest.approx(abs(v * a) * s**3)
        centred = hs.GaussianMeasure(torch.zeros(1, dtype=F64), mu.covariance)
        expected = abs(v) * max(abs(1 + a * s * s), 3 * abs(a) * s * s)
        assert float(hs.local_lipschitz(f, centred).lower) == pytest.approx(expected, rel=1e-6)


def test_distances_are_those_of_commuting_and_of_discrete_measures():
    first = hs.GaussianMeasure(torch.zeros(3, dtype=F64), torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=F64)))
    second = hs.GaussianMeasure(torch.ones(3, dtype=F64), torch.diag(torch.tensor([4.0, 4.0, 1.0], dtype=F64)))
    assert float(first.distance(second)) == pytest.approx(math.sqrt(3 + 1 + 0 + 4))
    assert float(hs.transport.wasserstein(second, first)) == pytest.approx(math.sqrt(8))
    mu, nu = gaussian(3, 1), gaussian(3, 2)
    cross = torch.linalg.eigvals(mu.covariance @ nu.covariance).real.clamp(min=0).sqrt().sum()
    direct = (mu.mean - nu.mean).square().sum() + (mu.covariance + nu.covariance).trace() - 2 * cross
    assert float(mu.distance(nu) ** 2) == pytest.approx(float(direct))


@pytest.mark.parametrize("step", [1e-4, 1e-9])
def test_distances_keep_their_digits_between_neighbours(step):
    mu = gaussian(4)
    moved = hs.GaussianMeasure(mu.mean, (1 + step) ** 2 * mu.covariance)
    assert float(mu.distance(moved)) == pytest.approx(step * math.sqrt(float(mu.covariance.trace())), rel=1e-4)


CASES = {"full rank": (3, 2, 2), "degenerate image": (3, 1, 1), "wide": (2, 3, 2)}


@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("residual", [False, True])
def test_the_constant_is_attained_by_neighbours_and_exceeded_by_none(sizes, residual):
    d, heads, k = sizes
    f, mu = layer(d, heads, k), gaussian(d)
    f = Residual(f) if residual else f
    J = f.on_gaussian(mu).jacobian()
    found = hs.local_lipschitz(f, mu)
    image = mean_field(f)(mu)

    def ratio(E, t=1e-5):
        squares, basis = torch.linalg.eigh(mu.covariance)
        factors = (2 * (squares[:, None] + squares)).sqrt()
        Z = (E[1:] + E[1:].mT) / 2
        change = basis @ (Z * factors) @ basis.mT
        near = hs.GaussianMeasure(mu.mean + t * E[0], mu.covariance + t * change)
        return float(image.distance(mean_field(f)(near)) / mu.distance(near))

    assert ratio(found.direction) == pytest.approx(float(found.lower), rel=1e-3)
    rng = torch.Generator().manual_seed(3)
    for _ in range(5):
        E = torch.randn(J.domain, dtype=F64, generator=rng)
        E[1:] = (E[1:] + E[1:].mT) / 2
        assert ratio(E) == pytest.approx(float(J.jvp(E).norm() / E.norm()), rel=2e-3)
        assert ratio(E) <= float(found.upper) * (1 + 1e-3)


def test_products_are_adjoint():
    J = Residual(layer(**LAYERS["biases"])).on_gaussian(gaussian(3)).jacobian()
    rng = torch.Generator().manual_seed(0)
    E, G = (torch.randn(shape, dtype=F64, generator=rng) for shape in (J.domain, J.codomain))
    assert float((J.jvp(E) * G).sum()) == pytest.approx(float((E * J.vjp(G)).sum()))


def test_what_does_not_stay_gaussian_is_refused():
    mu = gaussian(3)
    causal = hs.Attention.random(heads=1, d=3, causal=True, dtype=F64)
    with pytest.raises(AssumptionError, match="a mask or positions"):
        causal.on(mu)
    sink = hs.Attention.single_head(A=torch.eye(3, dtype=F64), V=torch.eye(3, dtype=F64), sink=0.0)
    with pytest.raises(AssumptionError, match="a sink"):
        hs.local_lipschitz(sink, mu)
    with pytest.raises(AssumptionError, match="dimension 3, got a Gaussian of dimension 2"):
        layer().on(gaussian(2))
    with pytest.raises(AssumptionError, match="affine maps"):
        mu.push_forward(torch.tanh)
    with pytest.raises(AssumptionError, match="draw atoms"):
        hs.transport.wasserstein(mu, mu, p=1)
    other = hs.maps.L2Attention.single_head(
        Q=torch.eye(3, dtype=F64), K=torch.eye(3, dtype=F64), V=torch.eye(3, dtype=F64)
    )
    with pytest.raises(AssumptionError, match="moves Gaussian ones too"):
        other.on(mu)


def test_bad_covariances_are_refused():
    with pytest.raises(AssumptionError, match="symmetric"):
        hs.GaussianMeasure(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(AssumptionError, match="negative eigenvalue"):
        hs.GaussianMeasure(torch.zeros(2), torch.diag(torch.tensor([1.0, -1.0])))
    with pytest.raises(ShapeError, match="mean must be a vector"):
        hs.GaussianMeasure(torch.zeros(2, 2), torch.eye(2))
    with pytest.raises(ShapeError, match="covariance"):
        hs.GaussianMeasure(torch.zeros(2), torch.eye(3))
