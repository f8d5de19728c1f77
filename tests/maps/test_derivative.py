import dataclasses
import functools
import math

import pytest
import torch
from cases import BATCHED, CASES, SINGLE, Case, layer
from draws import gaussian
from hypothesis import given, seed
from hypothesis import strategies as st
from maps.definition import MEMORIES, SEARCH, build, draw_parameters, naive, problems
from maps.matrices import pushed
from oracles import dense_jacobian
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.maps import attention_weights as pattern
from howsmooth.maps.derivative import DIRECT_SHARE, AttentionJacobian
from howsmooth.maps.heads_derivative import HeadsJacobian


def first():
    return torch.Generator().manual_seed(1)


@functools.cache
def dense_of(case):
    """The dense Jacobian of a case, as its first builder draws it: one for all that is compared with it."""
    return dense_jacobian(*case.build(first()))


def products_and_dense(case, rng, **options):
    f, X = case.build(first())
    J, dense = f.jacobian(X, **options), dense_of(case)
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    G = torch.randn(*J.batch, *J.codomain, dtype=X.dtype, generator=rng)
    return J, dense, E, G


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_match_the_dense_jacobian(case, rng):
    J, dense, E, G = products_and_dense(case, rng)
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())
    if isinstance(J, HeadsJacobian):
        means, sizes = J.push_terms(*J.projections.jvp(E))
        assert_close(means, J.push_means(*J.projections.jvp(E)))
        assert bool((sizes >= means.abs() * (1 - 1e-12)).all())


@pytest.mark.parametrize("case", [c for c in SINGLE if "per head" in c.name or c.name == "everything"], ids=str)
def test_rebuilding_the_weights_changes_nothing(case, rng):
    J, dense, E, G = products_and_dense(case, rng, memory=0)
    assert J.pattern.kept is None
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in SINGLE if "per head" not in c.name], ids=str)
@pytest.mark.parametrize("memory", [0, 2**30])
def test_tiles_change_nothing(case, memory, rng, monkeypatch):
    monkeypatch.setattr(pattern, "TILE_BYTES", 0)
    monkeypatch.setattr(pattern, "LEAST_ROWS", 2)
    J, dense, E, G = products_and_dense(case, rng, memory=memory)
    assert len(J.pattern.tiles) == 4
    assert (J.pattern.kept is None) == (memory == 0)
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_a_batch_is_differentiated_sequence_by_sequence(case, rng):
    J, dense, E, G = products_and_dense(case, rng)
    assert J.batch == case.batch
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())
    count = torch.Size(case.batch).numel()
    blocks = dense.reshape(count, -1, count, E.shape[-2] * E.shape[-1])
    assert all(not blocks[a, :, b].any() for a in range(count) for b in range(count) if a != b)


def _normed(gauss):
    norm = hs.maps.LayerNorm(gain=gauss(4), bias=gauss(4))
    positions = hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(positions=torch.arange(21).reshape(3, 7)))
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


@pytest.mark.slow
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

    f = layer(gauss, heads=4, groups=2, positions=hs.maps.Positions(causal=True, relative_bias=gauss(4, 13)))
    X = gauss(7, 6)
    E = gauss(4, 7, 6)
    together = f.per_head().jacobian(X).jvp(E)
    for h in range(4):
        assert_close(together[h], f.head(h).jacobian(X).jvp(E[h]))


@pytest.mark.slow
@pytest.mark.parametrize("product", ["jvp", "vjp"])
@pytest.mark.parametrize("memory", [0, 2**30])
@pytest.mark.parametrize("rows", [2, 64])
def test_products_can_be_differentiated(product, memory, rows, rng, monkeypatch):
    monkeypatch.setattr(pattern, "TILE_BYTES", 0)
    monkeypatch.setattr(pattern, "LEAST_ROWS", rows)

    def gauss(*s):
        return torch.randn(*s, dtype=torch.float64, generator=rng)

    # as narrow as it can be with no two widths alike: finite differences in every parameter take their time
    f = hs.Attention(
        query=gauss(2, 2, 3),
        key=gauss(1, 2, 3),
        value=gauss(1, 1, 3),
        output=gauss(2, 4, 1),
        query_bias=gauss(2, 2),
        query_norm=hs.maps.RMSNorm(gain=gauss(2), eps=0.1),
        softcap=2.0,
        positions=hs.maps.Positions(causal=True),
    )
    X, V = gauss(5, 3), gauss(5, 3) if product == "jvp" else gauss(5, 4)

    def along(X, query, key, value, output, query_bias):
        g = dataclasses.replace(f, query=query, key=key, value=value, output=output, query_bias=query_bias)
        return getattr(g.jacobian(X, memory=memory), product)(V)

    inputs = [x.clone().requires_grad_() for x in (X, f.query, f.key, f.value, f.output, f.query_bias)]
    assert torch.autograd.gradcheck(along, inputs)


@pytest.mark.slow
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
    product = closed(X)
    # a linear map has the same derivative everywhere
    gradient = torch.autograd.grad(product, X)[0] if product.requires_grad else torch.zeros_like(X)
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


def test_one_head_at_a_short_sequence_is_compressed_and_measured_past_queries_and_keys(rng):
    gauss = functools.partial(gaussian, rng)
    f = hs.Attention(query=gauss(1, 16, 40), key=gauss(1, 16, 40), value=gauss(1, 3, 40), output=gauss(1, 20, 3))
    X = gaussian(rng, 4, 40)
    J = f.jacobian(X)
    small, embed = J.compress()
    assert small.direct
    assert small.domain == (4, 35)
    E = gaussian(rng, 4, 35)
    assert_close(J.jvp(embed(E)).norm(), small.jvp(E).norm())
    eye = torch.eye(140, dtype=torch.float64).reshape(140, 4, 35)
    dense = torch.stack([small.jvp(e).flatten() for e in eye], dim=1)
    assert_close(torch.linalg.svdvals(dense)[:12], torch.linalg.svdvals(dense_jacobian(f, X))[:12])
    G = gaussian(rng, *small.codomain)
    assert_close((G * small.jvp(E)).sum(), (small.vjp(G) * E).sum())


def test_wide_layers_are_not_compressed(rng):
    f = hs.Attention.random(heads=2, d=8, seed=rng)
    J = f.jacobian(torch.randn(5, 8, generator=rng))
    same, embed = J.compress()
    E = torch.randn(5, 8, generator=rng)
    assert same is J
    assert embed(E) is E


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_past_queries_and_keys_match_the_dense_jacobian(case, rng):
    J, dense, E, G = products_and_dense(case, rng)
    if not (isinstance(J, AttentionJacobian) and J.may_be_direct):
        # scores are not linear in the tokens, other projections for each, or no attention by scores at all
        core = J.compress()[0] if hasattr(J, "compress") else J
        assert not getattr(core, "direct", False)
        return
    direct = dataclasses.replace(J, direct=True)
    assert_close(direct.jvp(E).flatten(), dense @ E.flatten())
    assert_close(direct.vjp(G).flatten(), dense.mT @ G.flatten())
    with torch.enable_grad():
        for product, along, matrix in ((direct.jvp, E, dense), (direct.vjp, G, dense.mT)):
            along.requires_grad_()
            (gradient,) = torch.autograd.grad(product(along).square().sum(), along)
            assert_close(gradient.flatten(), 2 * matrix.mT @ (matrix @ along.detach().flatten()))
    if math.prod(J.batch) > 1:
        some = torch.arange(math.prod(J.batch))[1:]
        rest = direct.take(some)
        assert_close(
            rest.jvp(E.detach().reshape(-1, *J.domain)[some]), direct.jvp(E.detach()).reshape(-1, *J.codomain)[some]
        )


def test_most_single_maps_by_scores_have_products_past_queries_and_keys():
    jacobians = [f.jacobian(X) for f, X in (case.build(first()) for case in SINGLE) if isinstance(f, hs.Attention)]
    direct = [J for J in jacobians if isinstance(J, AttentionJacobian) and J.may_be_direct]
    assert len(direct) >= 8
    batched = [f.jacobian(X) for f, X in (case.build(first()) for case in BATCHED) if isinstance(f, hs.Attention)]
    assert any(J.may_be_direct for J in batched if isinstance(J, AttentionJacobian))
    assert any(J.projections.layout.shared > 1 for J in direct)


@pytest.mark.parametrize("groups", [4, 2])
def test_short_sequences_are_measured_past_queries_and_keys_and_long_ones_are_not(groups, rng):
    f = layer(functools.partial(gaussian, rng), heads=4, groups=groups, k=16)
    most = int(DIRECT_SHARE * (4 + groups) * 16 / 8)
    for n, short in ((1, True), (most, True), (most + 1, False)):
        X = gaussian(rng, n, 6)
        J = f.jacobian(X)
        core, embed = J.compress()
        assert core.direct is short
        assert embed(X) is X
        assert core.compress()[0].direct is short
        exact = torch.linalg.svdvals(dense_jacobian(f, X))[0]
        found = hs.local_lipschitz(f, X, seed=0)
        assert found.lower <= exact * (1 + 1e-9)
        assert found.upper >= exact * (1 - 1e-9)
        assert_close(J.jvp(found.direction).norm(), found.lower)
        assert_close(found.response, J.jvp(found.direction) / found.lower)


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
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    X = torch.randn(3, 5, 8, dtype=torch.float64, generator=rng)
    need = 3 * 2 * 5 * 5 * 8
    assert f.jacobian(X, memory=need).pattern.kept is not None
    assert f.jacobian(X, memory=need - 1).pattern.kept is None


def test_rebuilt_weights_keep_their_digits_at_large_scores(rng):
    f = hs.Attention.random(heads=2, d=16, seed=rng)
    X = 100 * torch.randn(12, 16, generator=rng)
    E = torch.randn(12, 16, generator=rng)
    assert torch.equal(f.jacobian(X, memory=0).jvp(E), f.jacobian(X).jvp(E))
    exact = f.to(torch.float64).jacobian(X.double()).jvp(E.double())
    assert float((f.jacobian(X, memory=0).jvp(E) - exact).norm() / exact.norm()) < 1e-4


@pytest.mark.slow
@seed(2)
@SEARCH
@given(problems(), st.sampled_from(MEMORIES))
def test_products_equal_the_dense_jacobian_for_any_mix_of_features(problem, memory):
    p, X = problem
    operator = build(p).jacobian(X, memory=memory)
    J = dense_jacobian(lambda Z: naive(Z, p), X)
    Y = naive(X, p)
    E, G = (
        torch.cos(torch.arange(X.numel()).double()).view_as(X),
        torch.sin(torch.arange(Y.numel()).double()).view_as(Y),
    )
    assert_close(operator.jvp(E), (J @ E.flatten()).view_as(Y))
    assert_close(operator.vjp(G), (J.mT @ G.flatten()).view_as(X))
    assert tuple(operator.batch) == tuple(X.shape[:-2])
    assert tuple(operator.domain) == tuple(X.shape[-2:])
    assert tuple(operator.codomain) == tuple(Y.shape[-2:])
    assert operator.dtype == X.dtype
    assert operator.device == X.device


@pytest.mark.parametrize("memory", MEMORIES)
def test_single_head_uses_the_bilinear_form_without_a_further_scale(rng, memory):
    n, d = 6, 4
    A, V, X = gaussian(rng, d, d), gaussian(rng, 3, d), gaussian(rng, n, d)
    P = torch.softmax(torch.stack([torch.stack([A @ X[i] @ X[j] for j in range(n)]) for i in range(n)]), -1)
    m = P @ X
    f = hs.Attention.single_head(A=A, V=V)
    assert_close(f(X), m @ V.mT)
    # THEORY §2: block (i, j) = P_ij V (I + (x_j − m_i)(A x_i)ᵀ) + 1_{i=j} V C_i A
    J = torch.zeros(n, 3, n, d, dtype=torch.float64)
    for i in range(n):
        C = sum(P[i, j] * torch.outer(X[j] - m[i], X[j] - m[i]) for j in range(n))
        for j in range(n):
            J[i, :, j] = P[i, j] * V @ (torch.eye(d).double() + torch.outer(X[j] - m[i], A @ X[i]))
        J[i, :, i] += V @ C @ A
    operator = f.jacobian(X, memory=memory)
    columns = torch.stack([operator.jvp(e.view(n, d)).flatten() for e in torch.eye(n * d).double()], -1)
    rows = torch.stack([operator.vjp(e.view(n, 3)).flatten() for e in torch.eye(n * 3).double()])
    assert_close(columns, J.reshape(n * 3, n * d))
    assert_close(rows, J.reshape(n * 3, n * d))


@pytest.mark.parametrize("memory", MEMORIES)
def test_strides_do_not_matter(rng, memory):
    n, d, b, h = 6, 4, 3, 2
    f = hs.Attention(
        query=gaussian(rng, d, 3, h).permute(2, 1, 0),
        key=gaussian(rng, 1, d, 3).mT.expand(h, 3, d),
        value=gaussian(rng, h, 3, 2 * d)[..., ::2],
        output=gaussian(rng, 1, 5, 3).expand(h, 5, 3),
        positions=hs.maps.Positions(causal=True),
    )
    clean = hs.Attention(
        query=f.query.contiguous(),
        key=f.key.contiguous(),
        value=f.value.contiguous(),
        output=f.output.contiguous(),
        positions=hs.maps.Positions(causal=True),
    )
    strided = {
        "transposed": gaussian(rng, b, d, n).mT,
        "expanded batch": gaussian(rng, 1, n, d).expand(b, n, d),
        "expanded tokens": gaussian(rng, b, 1, d).expand(b, n, d),
        "sliced": gaussian(rng, b, 2 * n, 3 * d)[:, ::2, ::3],
        "batch last": gaussian(rng, n, d, b).movedim(-1, 0),
    }
    for X in strided.values():
        E, G = gaussian(rng, b, d, n).mT, gaussian(rng, b, n, 1).expand(b, n, 5)
        assert_close(f(X), clean(X.contiguous()))
        one, two = f.jacobian(X, memory=memory), clean.jacobian(X.contiguous(), memory=memory)
        assert_close(one.jvp(E), two.jvp(E.contiguous()))
        assert_close(one.vjp(G), two.vjp(G.contiguous()))


def test_measuring_does_not_change_its_inputs(rng):
    p, X = draw_parameters(
        rng, 4, 2, 5, 4, 4, 3, 6, (2,), {"rotary", "float_mask", "relative", "biases", "weights", "causal"}
    )
    before = {name: value.clone() for name, value in p.items() if torch.is_tensor(value)}
    mask, tokens = p["positions"]["mask"].clone(), X.clone()
    f = build(p)
    E = gaussian(rng, *X.shape)
    kept = E.clone()
    f.jacobian(X).jvp(E)
    f.jacobian(X, memory=0).vjp(f(X))
    hs.local_lipschitz(f, X)
    assert torch.equal(X, tokens)
    assert torch.equal(E, kept)
    assert torch.equal(p["positions"]["mask"], mask)
    for name, value in before.items():
        assert torch.equal(p[name], value), name


@pytest.mark.parametrize("memory", MEMORIES)
def test_float32_products_stay_close_to_float64_at_saturated_scores(rng, memory):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    X, E = gaussian(rng, 40, 8) * 30, gaussian(rng, 40, 8)
    exact = f.jacobian(X, memory=memory).jvp(E)
    # scores of size s carry errors s·2⁻²⁴ into the exponent
    single = f.to(torch.float32).jacobian(X.float(), memory=memory).jvp(E.float()).double()
    assert (single - exact).norm() <= 1e-2 * exact.norm()


SECOND = [
    set(),
    {"causal", "biases"},
    {"rotary", "relative", "query_norm", "key_norm"},
    {"softcap", "weights", "padding"},
    {"float_mask", "rotary_interleaved", "no_output"},
    {"mask_per_batch", "weights_per_batch", "softcap", "biases"},
]


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("features", SECOND, ids=lambda s: "-".join(sorted(s)) or "bare")
def test_the_jvp_is_differentiable_in_tokens_and_weights(rng, features, memory):
    p, X = draw_parameters(rng, 2, 1, 3, 2, 4, 2, 2, (2,) if "mask_per_batch" in features else (), features)
    names = [
        n for n in ("query", "key", "value", "output", "query_bias", "key_bias", "weights") if p.get(n) is not None
    ]
    E = gaussian(rng, *X.shape)

    def product(Z, tangent, *weights):
        return build(p | dict(zip(names, weights, strict=True))).jacobian(Z, memory=memory).jvp(tangent)

    inputs = [t.clone().requires_grad_() for t in (X, E, *(p[n] for n in names))]
    assert torch.autograd.gradcheck(product, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
def test_the_vjp_is_differentiable_in_tokens_and_weights(rng, memory):
    p, X = draw_parameters(rng, 2, 1, 3, 2, 4, 2, 2, (), {"causal", "rotary", "biases", "softcap"})
    G = gaussian(rng, 3, 2)

    def product(Z, cotangent, query, value):
        return build(p | {"query": query, "value": value}).jacobian(Z, memory=memory).vjp(cotangent)

    assert torch.autograd.gradcheck(product, [t.clone().requires_grad_() for t in (X, G, p["query"], p["value"])])


def test_products_match_central_differences(rng):
    p, X = draw_parameters(
        rng, 4, 2, 5, 4, 4, 3, 6, (2,), {"rotary", "causal", "relative", "biases", "weights", "softcap"}
    )
    f, E, h = build(p), gaussian(rng, 2, 5, 4), 2e-4
    near, far = ((f(X + step * E) - f(X - step * E)) / (2 * step) for step in (h, 2 * h))
    # Richardson's extrapolation: the error is h⁴ fifth derivatives and eps/h rounding
    assert_close(f.jacobian(X).jvp(E), (4 * near - far) / 3, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("causal", [False, True])
def test_one_token_sees_only_itself(rng, causal, memory):
    A, V, X = gaussian(rng, 3, 3), gaussian(rng, 2, 3), gaussian(rng, 1, 3)
    f = hs.Attention.single_head(A=A, V=V, causal=causal)
    assert_close(f(X), X @ V.mT)
    assert_close(f.jacobian(X, memory=memory).jvp(X.cos()), X.cos() @ V.mT)
    assert_close(hs.local_lipschitz(f, X).upper, torch.linalg.matrix_norm(V, ord=2), rtol=1e-3, atol=0)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("n", [2, 10, 300])
def test_equal_tokens_give_the_kronecker_product_of_uniform_weights_and_values(rng, n, memory):
    A, V, x = gaussian(rng, 3, 3), gaussian(rng, 3, 3), gaussian(rng, 1, 3)
    X, E = x.repeat(n, 1), gaussian(rng, n, 3)
    for causal in (False, True):
        P = torch.ones(n, n).double()
        P = P.tril() if causal else P
        P = P / P.sum(-1, keepdim=True)
        f = hs.Attention.single_head(A=A, V=V, causal=causal)
        assert_close(f.jacobian(X, memory=memory).jvp(E), P @ E @ V.mT)
        truth = torch.linalg.matrix_norm(P, ord=2) * torch.linalg.matrix_norm(V, ord=2)
        estimate = hs.local_lipschitz(f, X)
        assert estimate.lower <= truth * (1 + 1e-12)
        assert estimate.upper >= truth * (1 - 1e-12)


@pytest.mark.parametrize("memory", MEMORIES)
def test_saturated_scores_of_ten_thousand_copy_the_winning_token(memory):
    # A = I on tokens 100·e_i: the score of a token with itself is 10⁴, all others 0
    X = 100 * torch.eye(4, dtype=torch.float64)
    V = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4, dtype=torch.float64), V=V)
    E = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)
    assert torch.equal(f(X), X @ V.mT)
    assert_close(f.jacobian(X, memory=memory).jvp(E), E @ V.mT)
    assert_close(f.jacobian(X, memory=memory).vjp(E), E @ V)
    assert_close(hs.local_lipschitz(f, X).lower, torch.linalg.matrix_norm(V, ord=2), rtol=1e-3, atol=0)


@pytest.mark.parametrize("memory", MEMORIES)
def test_two_tied_scores_of_ten_thousand_share_the_weight(memory):
    # rows 2, 3, … see x_0 and x_1 with exactly the same huge score; the derivative is of order R²
    X = torch.tensor([[100.0, 1.0], [100.0, -1.0], [100.0, 0.0]]).double()
    f = hs.Attention.single_head(A=torch.diag(torch.tensor([1.0, 0.0]).double()), V=torch.eye(2).double())
    oracle = lambda Z: torch.softmax(Z[:, :1] @ Z[:, :1].mT, -1) @ Z  # noqa: E731
    assert_close(f(X), oracle(X))
    E = torch.tensor([[1.0, 0.5], [-2.0, 0.25], [3.0, -1.0]]).double()
    _value, tangent = pushed(oracle, (X,), (E,))
    assert_close(f.jacobian(X, memory=memory).jvp(E), tangent)
    truth = torch.linalg.matrix_norm(dense_jacobian(oracle, X), ord=2)
    estimate = hs.local_lipschitz(f, X)
    assert estimate.lower <= truth * (1 + 1e-10)
    assert estimate.upper >= truth * (1 - 1e-10)


@pytest.mark.parametrize("memory", MEMORIES)
def test_tokens_of_dimension_one_are_measured(memory):
    X = torch.tensor([[-5.3], [-0.5]]).double()
    one = torch.ones(1, 1).double()
    f = hs.Attention.single_head(A=-one, V=one)
    J = dense_jacobian(lambda Z: torch.softmax(-Z @ Z.mT, -1) @ Z, X)
    operator = f.jacobian(X, memory=memory)
    assert_close(torch.cat([operator.jvp(e.view(2, 1)) for e in torch.eye(2).double()], -1), J)
    assert hs.local_lipschitz(f, X).lower == pytest.approx(1.1978, abs=5e-5)


@pytest.mark.parametrize("radius", [100.0, 1e3, 1e4])
@pytest.mark.parametrize("memory", [2**30, 0])
def test_saturated_attention_is_exact_in_float32(radius, memory):
    # scores R² against 0: P is exactly the identity, so J E = E Vᵀ; autograd gives that to the last bit
    X, V = radius * torch.eye(4), torch.arange(16.0).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4), V=V)
    E = torch.linspace(-1, 1, 16).view(4, 4)
    assert_close(f.jacobian(X, memory=memory).jvp(E), E @ V.mT)


def test_float32_products_at_saturation_are_as_accurate_as_those_of_autograd(rng):
    f = hs.Attention.random(heads=2, d=16, dtype=torch.float64, seed=rng)
    X, E = gaussian(rng, 32, 16) * 300, gaussian(rng, 32, 16)
    exact = f.jacobian(X).jvp(E)
    single = f.to(torch.float32)

    def error(product):
        return ((product.double() - exact).norm() / exact.norm()).item()

    _value, automatic = torch.autograd.functional.jvp(single, X.float(), E.float())
    assert error(single.jacobian(X.float()).jvp(E.float())) <= 10 * error(automatic) + 1e-6
