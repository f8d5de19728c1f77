import math

import pytest
import torch
from draws import gaussian
from oracles import dense_by_rows, dense_jacobian
from torch.testing import assert_close

import howsmooth as hs


def test_a_chain_applies_the_first_map_first(rng):
    norm = hs.maps.LayerNorm(gain=torch.randn(8, generator=rng))
    attention = hs.Attention.random(heads=2, d=8, seed=rng)
    X = torch.randn(5, 8, generator=rng)
    assert_close(hs.maps.Chain(norm, attention)(X), attention(norm(X)))
    assert_close(hs.maps.Residual(attention)(X), X + attention(X))


def test_a_composition_changes_dtype_as_a_whole(rng):
    block = hs.maps.Residual(
        hs.maps.Chain(hs.maps.RMSNorm(gain=torch.ones(8)), hs.Attention.random(heads=2, d=8, seed=rng))
    )
    X = torch.randn(5, 8, dtype=torch.float64, generator=rng)
    assert block.to(torch.float64)(X).dtype == torch.float64


def test_a_constant_residual_has_constant_one():
    zero = hs.Attention.single_head(A=torch.eye(3), V=torch.zeros(3, 3))
    estimate = hs.local_lipschitz(hs.maps.Residual(zero), torch.randn(4, 3))
    assert_close(estimate.lower, torch.tensor(1.0))


def columns(operator):
    """The matrix of an operator, one product at a time: by jvp and by vjp."""
    inputs, outputs = math.prod(operator.domain), math.prod(operator.codomain)
    forward = [operator.jvp(e.view(operator.domain)).flatten() for e in torch.eye(inputs, dtype=operator.dtype)]
    backward = [operator.vjp(e.view(operator.codomain)).flatten() for e in torch.eye(outputs, dtype=operator.dtype)]
    return torch.stack(forward, -1), torch.stack(backward)


def make_compositions(rng, d=4):
    f = hs.Attention.random(heads=2, d=d, causal=True, dtype=torch.float64, seed=rng)
    first, last = (
        hs.maps.LayerNorm(gain=gaussian(rng, d), bias=gaussian(rng, d)),
        hs.maps.RMSNorm(gain=gaussian(rng, d)),
    )
    narrow = hs.Attention(query=f.query, key=f.key, value=f.value, output=gaussian(rng, 2, 3, f.value.shape[-2]))
    return {
        "pre-norm": (hs.maps.Chain(first, f), lambda X: f(first(X))),
        "post-norm": (hs.maps.Chain(hs.maps.Residual(f), first), lambda X: first(X + f(X))),
        "pre-norm residual": (hs.maps.Residual(hs.maps.Chain(first, f)), lambda X: X + f(first(X))),
        "two blocks": (
            hs.maps.Chain(hs.maps.Residual(hs.maps.Chain(first, f)), hs.maps.Residual(hs.maps.Chain(last, f)), last),
            lambda X: last((Y := X + f(first(X))) + f(last(Y))),
        ),
        "narrowing": (hs.maps.Chain(last, f, narrow), lambda X: narrow(f(last(X)))),
        "side by side": (hs.maps.Sum(f, hs.maps.Chain(first, f)), lambda X: f(X) + f(first(X))),
        "sum of one": (hs.maps.Sum(f), f),
        "chain of one": (hs.maps.Chain(f), f),
        "chain of chains": (
            hs.maps.Chain(hs.maps.Chain(first, f), hs.maps.Chain(f, last)),
            lambda X: last(f(f(first(X)))),
        ),
        "residual of residual": (hs.maps.Residual(hs.maps.Residual(f)), lambda X: 2 * X + f(X)),
    }


@pytest.mark.parametrize("name", make_compositions(torch.Generator().manual_seed(0)))
def test_compositions_are_maps_with_a_jacobian(rng, name):
    composed, plain = make_compositions(rng)[name]
    X = gaussian(rng, 5, 4)
    assert_close(composed(X), plain(X))
    J = dense_jacobian(plain, X)
    for matrix in columns(composed.jacobian(X)):
        assert_close(matrix, J)
    truth = torch.linalg.matrix_norm(J, ord=2)
    estimate = hs.local_lipschitz(composed, X, seed=rng)
    assert estimate.lower <= truth * (1 + 1e-10)
    assert estimate.upper >= truth * (1 - 1e-10)


@pytest.mark.parametrize("name", ["pre-norm residual", "two blocks", "narrowing", "side by side"])
def test_batches_of_compositions_equal_single_ones(rng, name):
    composed, _plain = make_compositions(rng)[name]
    X, E = gaussian(rng, 2, 3, 5, 4), gaussian(rng, 2, 3, 5, 4)
    operator = composed.jacobian(X)
    products = operator.jvp(E)
    assert tuple(operator.batch) == (2, 3)
    for b in range(2):
        for c in range(3):
            assert_close(products[b, c], composed.jacobian(X[b, c]).jvp(E[b, c]))
            assert_close(operator.vjp(products)[b, c], composed.jacobian(X[b, c]).vjp(products[b, c]))


def test_the_norm_of_a_linear_chain_is_that_of_the_product(rng):
    zero = torch.zeros(3, 3).double()
    U, V, X = gaussian(rng, 3, 3), gaussian(rng, 3, 3), gaussian(rng, 6, 3)
    f, g = hs.Attention.single_head(A=zero, V=U), hs.Attention.single_head(A=zero, V=V)  # averages, then U, V
    estimate = hs.local_lipschitz(hs.maps.Chain(f, g), X, rtol=1e-9, seed=rng)
    assert_close(estimate.lower, torch.linalg.matrix_norm(V @ U, ord=2))
    twice = hs.local_lipschitz(hs.maps.Residual(f), X, rtol=1e-9, seed=rng)
    assert_close(twice.lower, torch.linalg.matrix_norm(torch.eye(3).double() + U, ord=2).clamp(min=1))


def test_products_of_compositions_are_differentiable(rng):
    f = hs.Attention.random(heads=1, d=2, dtype=torch.float64, seed=rng)
    X, E, gain = gaussian(rng, 3, 2), gaussian(rng, 3, 2), gaussian(rng, 2)

    def product(Z, alpha, query):
        g = hs.Attention(query=query, key=f.key, value=f.value, output=f.output)
        return hs.maps.Residual(hs.maps.Chain(hs.maps.LayerNorm(gain=alpha, eps=1e-2), g)).jacobian(Z).jvp(E)

    assert torch.autograd.gradcheck(product, [t.clone().requires_grad_() for t in (X, gain, f.query)])


def test_a_layer_of_pytorch_is_the_composition_of_its_parts(rng):
    d, h = 8, 2
    layer = torch.nn.TransformerEncoderLayer(d, h, 4, batch_first=True, norm_first=True, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(gaussian(rng, *parameter.shape))
        layer.linear2.weight.zero_()  # only the attention half is left
        layer.linear2.bias.zero_()
    inner = layer.self_attn
    q, k, v = inner.in_proj_weight.detach().view(3, h, d // h, d)
    bq, bk, bv = inner.in_proj_bias.detach().view(3, h, d // h)
    attention = hs.Attention(
        query=q,
        key=k,
        value=v,
        query_bias=bq,
        key_bias=bk,
        value_bias=bv,
        output=inner.out_proj.weight.detach().view(d, h, d // h).transpose(0, 1),
        output_bias=inner.out_proj.bias.detach(),
    )
    norm = hs.maps.LayerNorm(gain=layer.norm1.weight.detach(), bias=layer.norm1.bias.detach(), eps=layer.norm1.eps)
    block = hs.maps.Residual(hs.maps.Chain(norm, attention))
    X = gaussian(rng, 5, d)
    assert_close(block(X), layer(X[None]).squeeze(0).detach())
    truth = torch.linalg.matrix_norm(dense_by_rows(lambda Z: layer(Z[None]).squeeze(0), X), ord=2)
    assert_close(hs.local_lipschitz(block, X, rtol=1e-8).lower, truth)


class Counting:
    """A map that counts how often it is evaluated; its value does not come with its derivative."""

    def __init__(self, f):
        self.f, self.dtype, self.times = f, f.dtype, 0

    def __call__(self, X):
        self.times += 1
        return self.f(X)

    def jacobian(self, X):
        return self.f.jacobian(X)

    def to(self, dtype=None, device=None):
        return Counting(self.f.to(dtype, device))


def test_the_value_of_a_composition_comes_with_its_derivative(rng):
    for name, (composed, plain) in make_compositions(rng).items():
        X, E = gaussian(rng, 5, 4), gaussian(rng, 5, 4)
        value, J = composed.value_and_jacobian(X)
        assert_close(value, plain(X), msg=name)
        assert_close(J.jvp(E), composed.jacobian(X).jvp(E), msg=name)


def test_a_map_of_anybody_else_is_evaluated_once(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    mine = Counting(f)
    X, E = gaussian(rng, 5, 4), gaussian(rng, 5, 4)
    chain = hs.maps.Chain(hs.maps.Residual(mine), hs.maps.Sum(f, f))
    assert_close(chain.jacobian(X).jvp(E), hs.maps.Chain(hs.maps.Residual(f), hs.maps.Sum(f, f)).jacobian(X).jvp(E))
    assert mine.times == 1


@pytest.mark.parametrize(("memory", "kept"), [(6 * 2 * 25 * 8, True), (6 * 2 * 25 * 8 - 1, False)])
def test_all_attention_maps_share_the_memory(memory, kept, rng):
    # six layers of two heads and 5 × 5 weights; one byte less, and none of them has enough
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    chain = hs.maps.Chain(
        hs.maps.Residual(hs.maps.Chain(f, f)), hs.maps.Sum(f, f), hs.maps.Dense(weight=gaussian(rng, 4, 4)), f, f
    )
    X, E = gaussian(rng, 5, 4), gaussian(rng, 5, 4)
    J = chain.jacobian(X, memory=memory)
    residual, side, _linear, *last = J.links
    patterns = [link.pattern for link in (*residual.inner.links, *side.terms, *last)]
    assert [pattern.kept is not None for pattern in patterns] == [kept] * 6
    assert_close(J.jvp(E), chain.jacobian(X).jvp(E))


@pytest.mark.untyped
def test_what_cannot_be_added_is_refused(rng):
    narrow, wide = hs.maps.Dense(weight=gaussian(rng, 3, 4)), hs.maps.Dense(weight=gaussian(rng, 4, 4))
    X = gaussian(rng, 5, 4)
    for act in (lambda f: f(X), lambda f: f.jacobian(X)):
        with pytest.raises(hs.errors.ShapeError, match="one shape"):
            act(hs.maps.Sum(narrow, wide))
        with pytest.raises(hs.errors.ShapeError, match="as many tokens"):
            act(hs.maps.Residual(hs.maps.Pooling.mean(n=5, like=X)))
    with pytest.raises(hs.errors.ShapeError, match="a Sum needs at least one map"):
        hs.maps.Sum()
    with pytest.raises(hs.errors.AssumptionError, match="a number of bytes"):
        hs.maps.Chain(wide).jacobian(X, memory=-1)
