"""Every mechanism against its definition: values, products, batches, tiles, derivatives of derivatives."""

import dataclasses
import importlib

import pytest
import torch
from cases import D, N
from draws import gaussian
from maps.matrices import pushed
from maps.mechanisms import EACH, FEATURES, KINDS, LAYERS, Layer, plain
from oracles import dense_jacobian, top
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.maps import attention_weights as pattern
from howsmooth.search.mechanisms import COUNTING as COUNTING_KINDS
from howsmooth.search.mechanisms import MECHANISMS

FEATURE = {feature.name: feature for feature in FEATURES}
CAUSAL = [Layer(kind, FEATURE["causal, grouped, weights"]) for kind in KINDS if kind.maskable]
BATCHED = [Layer(kind, FEATURE["weights per sequence"]) for kind in KINDS]
COUNTING = (hs.maps.SigmoidAttention, hs.maps.EntmaxAttention, hs.maps.LinearAttention)


def first():
    return torch.Generator().manual_seed(1)


def like(J, rng):
    """A perturbation and a cotangent."""
    E = torch.randn(*J.batch, *J.domain, dtype=J.dtype, generator=rng)
    return E, torch.randn(*J.batch, *J.codomain, dtype=J.dtype, generator=rng)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_values_and_products_are_those_of_the_definition(layer, rng):
    f, X = layer.build(first())
    by_hand = plain(f)
    value, J = f.value_and_jacobian(X)
    assert_close(value, by_hand(X))
    assert_close(f(X), value)
    dense = dense_jacobian(by_hand, X)
    E, G = like(J, rng)
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())
    means, sizes = J.push_terms(*J.projections.jvp(E))
    assert_close(means, J.push_means(*J.projections.jvp(E)))
    assert bool((sizes >= means.abs() * (1 - 1e-12)).all())


@pytest.mark.parametrize("layer", CAUSAL, ids=str)
@pytest.mark.parametrize("memory", [0, 2**30])
def test_tiles_and_rebuilt_weights_change_nothing(layer, memory, rng, monkeypatch):
    f, X = layer.build(first())
    J = f.jacobian(X)
    E, G = like(J, rng)
    expected, pulled = J.jvp(E), J.vjp(G)
    monkeypatch.setattr(pattern, "TILE_BYTES", 0)
    monkeypatch.setattr(pattern, "LEAST_ROWS", 2)
    monkeypatch.setattr("howsmooth.maps.mechanisms.linear.CHUNK", 3)
    J = f.jacobian(X, memory=memory)
    assert not hasattr(J, "pattern") or len(J.pattern.tiles) == 4
    assert_close(J.jvp(E), expected)
    assert_close(J.vjp(G), pulled)


@pytest.mark.parametrize("layer", BATCHED, ids=str)
@pytest.mark.parametrize("memory", [0, 2**30])
def test_some_operators_of_a_batch_can_be_taken(layer, memory, rng):
    f, X = layer.build(rng)
    J = f.jacobian(X, memory=memory)
    E, G = like(J, rng)
    index = torch.tensor([2, 0])
    some = J.take(index)
    assert_close(some.jvp(E[index]), J.jvp(E)[index])
    assert_close(some.vjp(G[index]), J.vjp(G)[index])


@pytest.mark.parametrize("layer", EACH, ids=str)
def test_products_can_be_differentiated(layer, rng):
    f, X = layer.build(first())
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    G = torch.randn(f(X).shape, dtype=X.dtype, generator=rng)
    inputs = X.clone().requires_grad_()
    (found,) = torch.autograd.grad((G * f.jacobian(inputs).jvp(E)).sum(), inputs)
    inputs = X.clone().requires_grad_()
    (other,) = torch.autograd.grad((E * f.jacobian(inputs).vjp(G)).sum(), inputs)
    inputs = X.clone().requires_grad_()
    _value, tangent = pushed(plain(f), (inputs,), (E,))
    (expected,) = torch.autograd.grad((G * tangent).sum(), inputs)
    assert_close(found, expected)
    assert_close(other, expected)


@pytest.mark.parametrize("layer", EACH, ids=str)
def test_values_can_be_differentiated(layer, rng):
    f, X = layer.build(first())
    assert_close(dense_jacobian(f, X), dense_jacobian(plain(f), X))


@pytest.mark.parametrize("layer", EACH, ids=str)
def test_values_can_be_differentiated_twice(layer, rng):
    f, X = layer.build(first())
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    G = torch.randn(f(X).shape, dtype=X.dtype, generator=rng)

    def second(function):
        inputs = X.clone().requires_grad_()
        _value, tangent = pushed(function, (inputs,), (E,))
        (found,) = torch.autograd.grad((G * tangent).sum(), inputs)
        return found

    assert_close(second(f), second(plain(f)))


@pytest.mark.parametrize("layer", [Layer(kind, FEATURE["weights"]) for kind in KINDS], ids=str)
def test_the_query_side_is_the_derivative_of_a_token_without_mass(layer, rng):
    """A token without mass does not change the context: its output is Γ_μ at the place where it is."""
    f, X = layer.build(first())
    if isinstance(f, COUNTING):
        f = dataclasses.replace(f, count=float(N))
    more = dataclasses.replace(f, weights=torch.cat((f.weights, torch.zeros(1).double())))
    side = f.query_side(X)
    E, G = like(side, rng)
    moved, pulled = side.jvp(E), side.vjp(G)
    for i in range(N):
        own = torch.func.jacrev(lambda x: more(torch.cat((X, x[None])))[-1])(X[i])
        assert_close(moved[i], own @ E[i])
        assert_close(pulled[i], own.mT @ G[i])


@pytest.mark.parametrize("layer", EACH, ids=str)
def test_heads_add_up_to_the_layer(layer, rng):
    f, X = layer.build(rng)
    heads = f.per_head()(X)
    assert_close(heads.sum(0) + f.output_bias, f(X))
    assert_close(heads[3], f.head(3)(X))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_cutting_an_atom_changes_nothing(kind, rng):
    """Maps on measures do not see how many atoms stand for a mass."""
    f = kind.build(lambda *shape: gaussian(rng, *shape))
    if isinstance(f, COUNTING):
        f = dataclasses.replace(f, count=4.0)
    X, a = gaussian(rng, 4, D), gaussian(rng, 4).exp()
    whole = hs.maps.mean_field(f)(hs.transport.DiscreteMeasure(X, a / a.sum())).points
    a = torch.cat((a, a[1:2] / 3))
    a[1] = 2 * a[1] / 3
    cut = hs.maps.mean_field(f)(hs.transport.DiscreteMeasure(torch.cat((X, X[1:2])), a / a.sum())).points
    assert_close(cut[:4], whole)
    assert_close(cut[4], whole[1])


@pytest.mark.parametrize("layer", EACH, ids=str)
def test_constants_are_those_of_the_dense_jacobian(layer, rng):
    f, X = layer.build(first())
    found = hs.local_lipschitz(f, X, seed=rng)
    largest = float(top(dense_jacobian(plain(f), X)))
    assert found.lower <= largest * (1 + 1e-9)
    assert found.upper >= largest * (1 - 1e-9)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_narrow_head_is_compressed_exactly(kind, rng):
    f = kind.build(lambda *shape: gaussian(rng, *shape), heads=1, k=2, v=1)
    X = gaussian(rng, N, D)
    small, embed = f.jacobian(X).compress()
    assert small.domain == (N, 5)
    E, _G = like(small, rng)
    basis = torch.eye(N * 5, dtype=X.dtype).unflatten(-1, small.domain)
    assert_close(top(torch.stack([small.jvp(e).flatten() for e in basis])), top(dense_jacobian(f, X)))
    assert_close(embed(E).norm(), E.norm())


def test_the_kinds_that_the_command_line_lists_are_those_that_classes_declare():
    for kind, (module, name, fields) in MECHANISMS.items():
        declared = getattr(importlib.import_module(f"howsmooth.maps.{module}"), name)
        assert declared.kinds[kind] == fields
        assert (kind in COUNTING_KINDS) == (kind in declared.counting_kinds)
