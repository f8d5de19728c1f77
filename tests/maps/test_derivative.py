import dataclasses

import pytest
import torch
from cases import BATCHED, CASES, SINGLE, Case, layer
from oracles import dense_jacobian
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.maps import pattern


def products_and_dense(f, X, rng, **options):
    J = f.jacobian(X, **options)
    dense = dense_jacobian(f, X)
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    G = torch.randn(*J.batch, *J.codomain, dtype=X.dtype, generator=rng)
    return J, dense, E, G


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_match_the_dense_jacobian(case, rng):
    f, X = case.build(rng)
    J, dense, E, G = products_and_dense(f, X, rng)
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())


@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_rebuilding_the_weights_changes_nothing(case, rng):
    f, X = case.build(rng)
    J, dense, E, G = products_and_dense(f, X, rng, memory=0)
    assert J.pattern.kept is None
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())


@pytest.mark.parametrize("case", [c for c in SINGLE if "per head" not in c.name], ids=str)
@pytest.mark.parametrize("memory", [0, 2**30])
def test_tiles_change_nothing(case, memory, rng, monkeypatch):
    monkeypatch.setattr(pattern, "TILE_BYTES", 0)
    monkeypatch.setattr(pattern, "LEAST_ROWS", 2)
    f, X = case.build(rng)
    J, dense, E, G = products_and_dense(f, X, rng, memory=memory)
    assert len(J.pattern.tiles) == 4
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_a_batch_is_differentiated_sequence_by_sequence(case, rng):
    f, X = case.build(rng)
    J, dense, E, G = products_and_dense(f, X, rng)
    assert J.batch == case.batch
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())
    count = torch.Size(case.batch).numel()
    blocks = dense.reshape(count, -1, count, X.shape[-2] * X.shape[-1])
    assert all(not blocks[a, :, b].any() for a in range(count) for b in range(count) if a != b)


def _normed(gauss):
    norm = hs.LayerNorm(gain=gauss(4), bias=gauss(4))
    positions = hs.Positions(causal=True, rotary=hs.Rotary(positions=torch.arange(21).reshape(3, 7)))
    return layer(gauss, heads=4, groups=2, softcap=2.0, query_norm=norm, key_norm=norm, positions=positions)


TAKEN = [*BATCHED, Case("norms, rotary, soft cap", _normed, (3,)), Case("heads", lambda g: layer(g).per_head(), (2, 1))]


@pytest.mark.parametrize("case", TAKEN, ids=str)
@pytest.mark.parametrize("memory", [0, 2**30])
def test_some_operators_of_a_batch_can_be_taken(case, memory, rng):
    f, X = case.build(rng)
    J = f.jacobian(X, memory=memory) if isinstance(f, hs.Attention) else f.jacobian(X)
    E = torch.randn(*J.batch, *J.domain, dtype=X.dtype, generator=rng)
    G = torch.randn(*J.batch, *J.codomain, dtype=X.dtype, generator=rng)
    index = torch.tensor([1, 0])
    some = J.take(index)
    assert some.batch == (2,)
    axes = len(J.batch) - 1
    assert_close(some.jvp(E.flatten(0, axes)[index]), J.jvp(E).flatten(0, axes)[index])
    assert_close(some.vjp(G.flatten(0, axes)[index]), J.vjp(G).flatten(0, axes)[index])


@pytest.mark.parametrize("case", CASES + BATCHED, ids=str)
def test_the_vjp_is_the_adjoint_of_the_jvp(case, rng):
    f, X = case.build(rng)
    J = f.jacobian(X)
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    G = torch.randn(*J.batch, *J.codomain, dtype=X.dtype, generator=rng)
    assert_close((J.jvp(E) * G).sum(), (J.vjp(G) * E).sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_jvp_is_the_limit_of_finite_differences(case, rng):
    f, X = case.build(rng)
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    h = 1e-5
    central = (f(X + h * E) - f(X - h * E)) / (2 * h)
    # the error of central differences: h² third derivatives and eps/h rounding, both about 1e-10
    assert_close(f.jacobian(X).jvp(E), central, rtol=1e-6, atol=1e-7)


def test_per_head_products_match_each_head(rng):
    def gauss(*s):
        return torch.randn(*s, dtype=torch.float64, generator=rng)

    f = layer(gauss, heads=4, groups=2, positions=hs.Positions(causal=True, relative_bias=gauss(4, 13)))
    X = gauss(7, 6)
    E = gauss(4, 7, 6)
    together = f.per_head().jacobian(X).jvp(E)
    for h in range(4):
        assert_close(together[h], f.head(h).jacobian(X).jvp(E[h]))


@pytest.mark.parametrize("product", ["jvp", "vjp"])
@pytest.mark.parametrize("memory", [0, 2**30])
@pytest.mark.parametrize("rows", [2, 64])
def test_products_can_be_differentiated(product, memory, rows, rng, monkeypatch):
    monkeypatch.setattr(pattern, "TILE_BYTES", 0)
    monkeypatch.setattr(pattern, "LEAST_ROWS", rows)

    def gauss(*s):
        return torch.randn(*s, dtype=torch.float64, generator=rng)

    norm = hs.RMSNorm(gain=gauss(4), eps=0.1)
    f = layer(gauss, heads=2, groups=1, query_norm=norm, softcap=2.0, positions=hs.Positions(causal=True))
    X, V = gauss(5, 6), gauss(5, 6) if product == "jvp" else gauss(5, 5)

    def along(X, query, key, value, output, query_bias):
        g = dataclasses.replace(f, query=query, key=key, value=value, output=output, query_bias=query_bias)
        return getattr(g.jacobian(X, memory=memory), product)(V)

    inputs = [x.clone().requires_grad_() for x in (X, f.query, f.key, f.value, f.output, f.query_bias)]
    assert torch.autograd.gradcheck(along, inputs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gradient_through_a_product_is_that_of_autograd(case, rng):
    f, X = case.build(rng)
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    U = torch.randn(f(X).shape, dtype=X.dtype, generator=rng)

    def closed(X):
        return (f.jacobian(X).jvp(E) * U).sum()

    def automatic(X):
        _value, tangent = torch.func.jvp(f, (X,), (E,))
        return (tangent * U).sum()

    X.requires_grad_()
    (gradient,) = torch.autograd.grad(closed(X), X)
    assert_close(gradient, torch.func.grad(automatic)(X.detach()))


def test_compression_keeps_every_singular_value(rng):
    def gauss(*s):
        return torch.randn(*s, dtype=torch.float64, generator=rng)

    f = hs.Attention(query=gauss(1, 2, 30), key=gauss(1, 2, 30), value=gauss(1, 3, 30), output=gauss(1, 20, 3))
    X = gauss(6, 30)
    J = f.jacobian(X)
    small, embed = J.compress()
    assert (small.domain, small.codomain) == ((6, 7), (6, 3))
    eye = torch.eye(42, dtype=torch.float64).reshape(42, 6, 7)
    dense_small = torch.stack([small.jvp(e).flatten() for e in eye], dim=1)
    full = torch.linalg.svdvals(dense_jacobian(f, X))
    assert_close(torch.linalg.svdvals(dense_small), full[:18])
    assert_close(full[18:], torch.zeros_like(full[18:]), rtol=0, atol=1e-12)
    E = gauss(6, 7)
    assert_close(embed(E).norm(), E.norm())
    assert_close(J.jvp(embed(E)).norm(), small.jvp(E).norm())


def test_wide_layers_are_not_compressed(rng):
    f = hs.Attention.random(heads=2, d=8, generator=rng)
    J = f.jacobian(torch.randn(5, 8, generator=rng))
    same, embed = J.compress()
    E = torch.randn(5, 8, generator=rng)
    assert same is J
    assert embed(E) is E


def test_equal_tokens_give_uniform_weights_times_the_value_matrix(rng):
    A, V, x = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((4, 4), (3, 4), (4,)))
    f = hs.Attention.single_head(A=A, V=V)
    n = 5
    X = x.expand(n, 4)
    uniform = torch.full((n, n), 1 / n, dtype=torch.float64)
    assert_close(dense_jacobian(f, X.clone()), torch.kron(uniform, V))
    E = torch.randn(n, 4, dtype=torch.float64, generator=rng)
    assert_close(f.jacobian(X).jvp(E), uniform @ E @ V.mT)


def test_a_constant_perturbation_sees_the_attention_covariance(rng):
    A, V, X = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((4, 4), (4, 4), (6, 4)))
    e = torch.randn(4, dtype=torch.float64, generator=rng)
    f = hs.Attention.single_head(A=A, V=V)
    P = torch.softmax(X @ A.mT @ X.mT, dim=-1)
    rows = []
    for weights in P:
        mean = weights @ X
        C = (X - mean).mT @ torch.diag(weights) @ (X - mean)
        rows.append(V @ (e + C @ A @ e))
    assert_close(f.jacobian(X).jvp(e.expand(6, 4)), torch.stack(rows))


def test_a_batch_of_weights_fits_the_memory_budget_or_is_rebuilt(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    X = torch.randn(3, 5, 8, dtype=torch.float64, generator=rng)
    need = 3 * 2 * 5 * 5 * 8
    assert f.jacobian(X, memory=need).pattern.kept is not None
    assert f.jacobian(X, memory=need - 1).pattern.kept is None


def test_rebuilt_weights_keep_their_digits_at_large_scores(rng):
    f = hs.Attention.random(heads=2, d=16, generator=rng)
    X = 100 * torch.randn(12, 16, generator=rng)
    E = torch.randn(12, 16, generator=rng)
    assert torch.equal(f.jacobian(X, memory=0).jvp(E), f.jacobian(X).jvp(E))
    exact = f.to(torch.float64).jacobian(X.double()).jvp(E.double())
    assert float((f.jacobian(X, memory=0).jvp(E) - exact).norm() / exact.norm()) < 1e-4
