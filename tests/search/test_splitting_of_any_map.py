import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.search.mean_field_context import in_context

F64 = torch.float64


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=F64, generator=rng)


def head(kind, rng, **more):
    Q, K, V = gauss(rng, 2, 2), gauss(rng, 2, 2), gauss(rng, 2, 2)
    return kind.single_head(Q=Q, K=Q if more.get("tied") else K, V=V, **more)


MAPS = {
    "l2": lambda rng: head(hs.maps.L2Attention, rng),
    "l2 tied": lambda rng: head(hs.maps.L2Attention, rng, tied=True),
    "sigmoid": lambda rng: head(hs.maps.SigmoidAttention, rng),
    "linear": lambda rng: head(hs.maps.LinearAttention, rng),
    "linear plain": lambda rng: head(hs.maps.LinearAttention, rng, normalised=False),
    "sinkhorn": lambda rng: head(hs.maps.SinkhornAttention, rng),
    "cosine": lambda rng: head(hs.maps.CosineAttention, rng, eps=0.1),
    "entmax": lambda rng: head(hs.maps.EntmaxAttention, rng),
    "sparsemax": lambda rng: head(hs.maps.EntmaxAttention, rng, alpha=2.0),
    "differential": lambda rng: head(hs.maps.DifferentialAttention, rng),
    "sink": lambda rng: hs.Attention.single_head(A=gauss(rng, 2, 2), V=gauss(rng, 2, 2), sink=0.0),
    "residual": lambda rng: hs.maps.Residual(hs.Attention.single_head(A=gauss(rng, 2, 2), V=gauss(rng, 2, 2))),
    "pre-norm block": lambda rng: hs.maps.Residual(
        hs.maps.Chain(hs.maps.RMSNorm(gain=gauss(rng, 2)), head(hs.maps.SigmoidAttention, rng))
    ),
    "two terms": lambda rng: hs.maps.Sum(head(hs.maps.L2Attention, rng), hs.maps.Dense(weight=gauss(rng, 2, 2))),
    "mlp": lambda rng: hs.maps.MLP(up=gauss(rng, 3, 2), down=gauss(rng, 2, 3)),
}


def smooth_kernel(points, masses):
    """A mean of the others by a kernel, as a plain function of points and masses."""
    apart = (points[:, None] - points).square().sum(-1)
    return torch.tanh(points * (torch.exp(-apart) @ (masses[:, None] * points)))


MAPS["callable"] = lambda rng: smooth_kernel


def brute_force(f, mu, parts):
    """The constant of the measure whose atoms are cut into equal parts that all move: dense, weighted."""
    points = mu.points.repeat_interleave(parts, dim=0)
    masses = (mu.weights / parts).repeat_interleave(parts)
    context = in_context(f, len(mu))
    J = torch.autograd.functional.jacobian(lambda x: context(x, masses, None), points)
    n, out, _n, d = J.shape
    roots = masses.sqrt()
    J = roots[:, None, None, None] * J / roots[None, None, :, None]
    return float(torch.linalg.matrix_norm(J.reshape(n * out, n * d), ord=2))


@pytest.mark.parametrize("name", MAPS)
def test_the_formula_is_the_constant_of_the_split_measure(name, rng):
    f = MAPS[name](rng)
    masses = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
    mu = hs.transport.DiscreteMeasure(gauss(rng, 3, 2), masses)
    found = hs.splitting(f, mu, rtol=1e-9, seed=rng)
    assert_close(found.move, brute_force(f, mu, 1), rtol=1e-6, atol=0.0)
    assert_close(found.value, brute_force(f, mu, 2), rtol=1e-6, atol=0.0)


def test_context_free_maps_never_split(rng):
    mu = hs.transport.DiscreteMeasure(gauss(rng, 4, 2))
    for f in (MAPS["mlp"](rng), hs.maps.RMSNorm(gain=gauss(rng, 2))):
        found = hs.splitting(f, mu, rtol=1e-9, seed=rng)
        assert found.split <= found.move * (1 + 1e-8)


def test_a_residual_adds_the_identity_to_both(rng):
    A, V = gauss(rng, 2, 2), gauss(rng, 2, 2)
    mu = hs.transport.DiscreteMeasure(gauss(rng, 3, 2))
    f = hs.Attention.single_head(A=A, V=V)
    found = hs.splitting(hs.maps.Residual(f), mu, rtol=1e-9, seed=rng)
    P = torch.softmax(mu.points @ A.mT @ mu.points.mT, -1)
    centred = mu.points - (P @ mu.points)[:, None]
    C = torch.einsum("ij,ijd,ije->ide", P, centred, centred)
    expected = torch.linalg.matrix_norm(torch.eye(2, dtype=F64) + V @ C @ A, ord=2).max()
    assert_close(found.split, float(expected), rtol=1e-6, atol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l2", "sigmoid", "sinkhorn", "residual", "callable"])
def test_the_attack_attains_the_constants(name, rng):
    f = MAPS[name](rng)
    mu = hs.transport.DiscreteMeasure(gauss(rng, 3, 2))
    attack = hs.split_attack(f, mu, eps=1e-4, seed=rng)
    assert attack.split_ratio == pytest.approx(attack.splitting.split, rel=1e-2)
    assert attack.move_ratio == pytest.approx(attack.splitting.move, rel=1e-2)


def test_a_little_mass_may_go_far_under_every_map(rng):
    mu = hs.transport.DiscreteMeasure(torch.tensor([[5.0], [-5.0]], dtype=F64))
    one = torch.ones(1, 1, dtype=F64)
    f = hs.Attention.single_head(A=one, V=one)
    as_function = hs.splitting(
        lambda x, a: torch.softmax(x @ x.mT + a.log(), -1) @ x, mu, near=False, radius=5.0, seed=rng
    )
    assert hs.splitting(f, mu, near=False, radius=5.0, seed=rng).far == pytest.approx(as_function.far, rel=1e-3)
    assert as_function.far == pytest.approx(1.8186, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l2", "sigmoid", "sinkhorn", "entmax", "sink"])
def test_worst_measures_are_searched_for_every_mechanism(name, rng):
    f = MAPS[name](rng)
    found = hs.maximise(f, n=3, domain=hs.domains.Ball(1.0), weights=True, steps=3, seed=rng)
    assert_close(found.value, brute_force(f, found.measure, 1), rtol=1e-3, atol=0.0)
    assert found.trace[-1] >= found.trace[0]


def test_what_is_no_map_is_refused():
    with pytest.raises(hs.errors.DtypeError, match="a map, or a callable"):
        in_context(3, 2)
