import math

import pytest
import torch
import torch.nn.functional as F
from cases import BATCHED, SINGLE, UNCOVERED, layer
from draws import gaussian
from hypothesis import given, seed
from maps.definition import MEMORIES, SEARCH, build, draw_parameters, naive, problems
from maps.matrices import pushed
from oracles import attention_by_loops
from torch.testing import assert_close

import howsmooth as hs


@pytest.mark.parametrize("case", SINGLE + UNCOVERED, ids=str)
def test_the_forward_pass_is_the_definition(case, rng):
    f, X = case.build(rng)
    assert_close(f(X), attention_by_loops(f, X))


@pytest.mark.parametrize("case", [c for c in BATCHED if c.name in ("batch", "batch of batches, grouped")], ids=str)
def test_a_batch_is_mapped_sequence_by_sequence(case, rng):
    f, X = case.build(rng)
    singly = torch.stack([f(x) for x in X.flatten(0, -3)])
    assert_close(f(X).flatten(0, -3), singly)


def test_padding_differs_from_sequence_to_sequence(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X = torch.randn(2, 5, 6, dtype=torch.float64, generator=rng)
    padding = torch.tensor([[True] * 5, [True, True, True, False, False]])
    padded = hs.Attention(
        query=f.query, key=f.key, value=f.value, output=f.output, positions=hs.maps.Positions(padding=padding)
    )
    assert_close(padded(X)[0], f(X[0]))
    assert_close(padded(X)[1, :3], f(X[1, :3]))


@pytest.mark.parametrize("n", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("window", [None, 1, 40, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_tile_borders_do_not_show(n, window, causal, rng, monkeypatch):
    from howsmooth.maps import attention_weights as pattern

    monkeypatch.setattr(pattern, "TILE_BYTES", 0)
    f = layer(
        lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng),
        biases=False,
        positions=hs.maps.Positions(causal=causal, window=window),
    )
    X = torch.randn(n, 6, dtype=torch.float64, generator=rng)
    i = torch.arange(n)
    visible = (i - i[:, None]).abs() < (window or n + 1)
    if causal:
        visible &= i <= i[:, None]
    q, k, v = (torch.einsum("hkd,nd->hnk", W, X) for W in (f.query, f.key, f.value))
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    assert_close(f(X), torch.einsum("hov,hnv->no", f.output, heads))


def test_per_head_is_a_batch_of_heads(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), heads=4, groups=2)
    X = torch.randn(3, 7, 6, dtype=torch.float64, generator=rng)
    together = f.per_head()(X[:, None])
    assert together.shape == (3, 4, 7, 5)
    for h in range(4):
        assert_close(together[:, h], f.head(h)(X))


def test_queries_keys_and_values_are_those_that_the_map_attends_with(rng):
    f = layer(
        lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng),
        heads=4,
        groups=2,
        positions=hs.maps.Positions(rotary=hs.maps.Rotary()),
    )
    X = torch.randn(7, 6, dtype=torch.float64, generator=rng)
    for places in (None, torch.arange(7) + 5):  # rotary embeddings see differences of positions alone
        q, k, v = f.project(X, places=places)
        k, v = (x.repeat_interleave(2, dim=0) for x in (k, v))
        heads = torch.softmax(q @ k.mT, dim=-1) @ v
        assert_close(torch.einsum("hov,hnv->no", f.output, heads) + f.output_bias, f(X))
    moved, _k, _v = f.project(X, places=torch.arange(7) + 5)
    assert not torch.allclose(moved, f.project(X)[0])


def test_integer_weights_are_repeated_tokens(rng):
    g = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X = torch.randn(4, 6, dtype=torch.float64, generator=rng)
    counts = torch.tensor([1, 3, 2, 1])
    weighted = hs.Attention(query=g.query, key=g.key, value=g.value, output=g.output, weights=counts.double())
    repeated = X.repeat_interleave(counts, dim=0)
    assert_close(weighted(X), g(repeated)[[0, 1, 4, 6]])


def test_saturated_scores_pick_the_best_token():
    A, V = 1e4 * torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.1]], dtype=torch.float64)
    f = hs.Attention.single_head(A=A, V=V)
    assert_close(f(X), X[[0, 1, 0]])
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[[0, 1, 2], [0, 1, 0]] = 1.0
    E = torch.randn(3, 2, dtype=torch.float64)
    assert_close(f.jacobian(X).jvp(E), expected @ E)


def test_a_map_can_change_dtype(rng):
    f = layer(
        lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng),
        positions=hs.maps.Positions(
            padding=torch.ones(7, dtype=torch.bool), rotary=hs.maps.Rotary(frequencies=torch.ones(2))
        ),
    )
    g = f.to(torch.float32)
    X = torch.randn(7, 6, dtype=torch.float64, generator=rng)
    assert g.query.dtype == g.output_bias.dtype == g.positions.rotary.frequencies.dtype == torch.float32
    assert g.positions.padding.dtype == torch.bool
    assert_close(g(X.float()).double(), f(X), rtol=1e-3, atol=1e-4)  # float32 against float64


def test_vmap_and_forward_mode_work_through_the_forward_pass(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), positions=hs.maps.Positions(causal=True))
    X = torch.randn(3, 7, 6, dtype=torch.float64, generator=rng)
    assert_close(torch.vmap(f)(X), f(X))
    assert_close(torch.func.jacfwd(f)(X[0]), torch.func.jacrev(f)(X[0]))


def test_a_map_says_what_it_is():
    f = hs.Attention.random(heads=4, d=8, causal=True)
    assert repr(f) == "Attention(heads=4, d=8, k=2, v=2, out=8, causal, torch.float32)"


@pytest.mark.slow
@seed(1)
@SEARCH
@given(problems())
def test_values_equal_the_definition_for_any_mix_of_features(problem):
    p, X = problem
    assert_close(build(p)(X), naive(X, p))


@pytest.mark.parametrize("causal", [False, True])
def test_values_and_products_equal_fused_attention_of_pytorch(rng, causal):
    b, h, g, n, d, k = 3, 4, 2, 9, 6, 5
    Q, K, V, X = gaussian(rng, h, k, d), gaussian(rng, g, k, d), gaussian(rng, g, k, d), gaussian(rng, b, n, d)

    def fused(Z):
        q, key, v = (torch.einsum("hkd,bnd->bhnk", M, Z) for M in (Q, K, V))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, key, v, is_causal=causal, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)

    f = hs.Attention(query=Q, key=K, value=V, positions=hs.maps.Positions(causal=causal))
    assert_close(f(X), fused(X))
    Z = X.clone().requires_grad_()
    G = gaussian(rng, b, n, h * k)
    (expected,) = torch.autograd.grad(fused(Z), Z, G)
    assert_close(f.jacobian(X).vjp(G), expected)


def test_values_equal_multihead_attention_of_pytorch_with_padding_and_masks(rng):
    d, h, n, b = 12, 3, 7, 2
    module = torch.nn.MultiheadAttention(d, h, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(gaussian(rng, *parameter.shape))
    wq, wk, wv = module.in_proj_weight.detach().view(3, h, d // h, d)
    bq, bk, bv = module.in_proj_bias.detach().view(3, h, d // h)
    padding = torch.ones(b, n, dtype=torch.bool)
    padding[0, 5:] = False
    mask = gaussian(rng, n, n)
    f = hs.Attention(
        query=wq,
        key=wk,
        value=wv,
        query_bias=bq,
        key_bias=bk,
        value_bias=bv,
        output=module.out_proj.weight.detach().view(d, h, d // h).movedim(1, 0),
        output_bias=module.out_proj.bias.detach(),
        positions=hs.maps.Positions(padding=padding, mask=mask),
    )
    X = gaussian(rng, b, n, d)
    additive = torch.zeros(b, n, dtype=torch.float64).masked_fill(~padding, -math.inf)
    expected, _weights = module(X, X, X, key_padding_mask=additive, attn_mask=mask, need_weights=False)
    assert_close(f(X), expected.detach())


def test_single_head_is_causal_and_weighted_when_asked(rng):
    n, d = 5, 3
    A, V, X = gaussian(rng, d, d), gaussian(rng, d, d), gaussian(rng, n, d)
    a = torch.rand(n, generator=rng).double() + 0.2
    f = hs.Attention.single_head(A=A, V=V, causal=True, weights=a)
    for i in range(n):
        w = torch.stack([a[j] * torch.exp(A @ X[i] @ X[j]) for j in range(i + 1)])
        assert_close(f(X)[i], V @ (w / w.sum() @ X[: i + 1]))


def test_only_ratios_of_token_weights_matter(rng):
    A, V, X, a = (
        gaussian(rng, 3, 3),
        gaussian(rng, 3, 3),
        gaussian(rng, 4, 3),
        torch.tensor([1.0, 3.0, 1.0, 5.0]).double() * 1e-200,
    )
    small = hs.Attention.single_head(A=A, V=V, weights=a)
    large = hs.Attention.single_head(A=A, V=V, weights=a * 1e200 * 1e150)
    assert_close(small(X), large(X))
    assert_close(small.jacobian(X).jvp(X), large.jacobian(X).jvp(X))


@pytest.mark.parametrize("memory", MEMORIES)
def test_heads_add_up_to_the_layer(rng, memory):
    p, X = draw_parameters(
        rng,
        4,
        2,
        5,
        4,
        4,
        3,
        6,
        (),
        {"rotary", "mask_per_head", "relative", "query_norm", "biases", "weights", "softcap"},
    )
    f = build(p)
    E = gaussian(rng, 5, 4)
    stacked = f.per_head()
    assert_close(sum(f.head(h)(X) for h in range(4)) + p["output_bias"], f(X))
    assert_close(stacked(X), torch.stack([f.head(h)(X) for h in range(4)]))
    products = stacked.jacobian(X, memory=memory).jvp(E.expand(4, 5, 4))
    assert_close(products, torch.stack([f.head(h).jacobian(X, memory=memory).jvp(E) for h in range(4)]))
    assert_close(products.sum(0), f.jacobian(X, memory=memory).jvp(E))


def test_per_head_takes_a_batch_of_sequences_on_an_axis_before_the_heads(rng):
    p, X = draw_parameters(
        rng, 4, 2, 5, 4, 4, 3, 6, (3,), {"mask_per_batch", "padding_per_batch", "weights_per_batch", "causal"}
    )
    p["positions"].pop("mask")
    f = build(p)
    # per-batch weights live on the batch axis of X: give them a head axis by hand
    one = build(p | {"weights": None})
    values = one.per_head()(X[:, None])
    assert_close(values, torch.stack([one.head(h)(X) for h in range(4)], 1))
    assert_close(f(X), naive(X, p))


def test_permuting_the_tokens_permutes_the_output(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    X, order = gaussian(rng, 9, 4), torch.randperm(9, generator=rng)
    assert_close(f(X[order]), f(X)[order])
    assert_close(f.jacobian(X[order]).jvp(X[order].sin()), f.jacobian(X).jvp(X.sin())[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_conversion_keeps_the_map(rng, dtype):
    p, X = draw_parameters(
        rng,
        4,
        2,
        5,
        4,
        4,
        3,
        6,
        (),
        {"rotary", "float_mask", "relative", "biases", "weights", "query_norm", "key_norm"},
    )
    f = build(p)
    converted = f.to(dtype)
    assert converted.query.dtype == dtype
    value = converted(X.to(dtype))
    assert value.dtype == dtype
    tolerance = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}[dtype]  # entries of size one
    assert_close(value.double(), f(X), rtol=tolerance, atol=tolerance)


def test_forward_values_are_differentiable_too(rng):
    p, X = draw_parameters(
        rng, 2, 1, 3, 2, 4, 2, 2, (), {"causal", "rotary", "biases", "softcap", "weights", "query_norm"}
    )
    E = gaussian(rng, 3, 2)
    f = build(p)
    _value, tangent = pushed(f, (X,), (E,))
    assert_close(f.jacobian(X).jvp(E), tangent)
    assert torch.autograd.gradcheck(f, [X.clone().requires_grad_()])


def test_random_attention_is_reproducible_and_has_the_shapes_asked_for():
    make = lambda s: hs.Attention.random(heads=3, d=6, k=5, causal=True, seed=torch.Generator().manual_seed(s))  # noqa: E731
    one, two, other = make(0), make(0), make(1)
    assert one.query.shape == (3, 5, 6)
    assert torch.equal(one.query, two.query)
    assert torch.equal(one.value, two.value)
    assert not torch.equal(one.query, other.query)
    assert one.query.dtype == torch.get_default_dtype()
    X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert one(X).shape == (4, 6)
    assert_close(one(X)[:2], one(X[:2]))


def parts(rng):
    return {
        "query": gaussian(rng, 4, 3, 4),
        "key": gaussian(rng, 2, 3, 4),
        "value": gaussian(rng, 2, 5, 4),
        "output": gaussian(rng, 4, 4, 5),
    }


def test_a_scale_of_zero_is_a_scale(rng):
    f = hs.Attention(**parts(rng), scale=0.0)
    X = gaussian(rng, 6, 4)
    assert_close(f(X), f(X)[:1].expand(6, 4))


def test_values_are_frozen(rng):
    f = hs.Attention(**parts(rng))
    with pytest.raises(AttributeError):
        f.scale = 2.0
    with pytest.raises(TypeError):
        hs.Attention(f.query, f.key, f.value)
