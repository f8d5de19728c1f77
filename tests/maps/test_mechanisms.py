"""Every mechanism against its definition: values, products, batches, tiles, derivatives of derivatives."""

import pytest
import torch
from maps.mechanisms import LAYERS, plain
from oracles import dense_jacobian
from torch.testing import assert_close


def first():
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_values_and_products_are_those_of_the_definition(layer, rng):
    f, X = layer.build(first())
    by_hand = plain(f)
    value, J = f.value_and_jacobian(X)
    assert_close(value, by_hand(X))
    assert_close(f(X), value)
    dense = dense_jacobian(by_hand, X)
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    G = torch.randn(value.shape, dtype=X.dtype, generator=rng)
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())
