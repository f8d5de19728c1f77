"""Mechanisms that others have too: the same values, and the same products with their derivatives."""

import pytest
import torch
from draws import gaussian
from torch.testing import assert_close

import howsmooth as hs

HEADS, WIDTH, D, N = 3, 4, 10, 6


def theirs_and_ours(rng, cls, options, **ours):
    """A layer of x-transformers with every parameter random, and the map of howsmooth with the same."""
    library = pytest.importorskip("x_transformers.x_transformers", reason="x-transformers is not installed")
    layer = library.Attention(dim=D, heads=HEADS, dim_head=WIDTH, flash=False, **options).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(gaussian(rng, *parameter.shape) / 3)

    def rows(linear):
        return linear.weight.detach().unflatten(0, (HEADS, WIDTH))

    f = cls(
        query=rows(layer.to_q),
        key=rows(layer.to_k),
        value=rows(layer.to_v),
        output=layer.to_out.weight.detach().unflatten(1, (HEADS, WIDTH)).movedim(1, 0),
        **ours,
    )

    def theirs(X):
        return layer(X[None])[0]

    return theirs, f


KINDS = {
    "l2_distance": (hs.maps.L2Attention, {}),
    "sigmoid": (hs.maps.SigmoidAttention, {"bias": 0.0}),
    "add_zero_kv": (hs.Attention, {"sink": torch.zeros(HEADS, dtype=torch.float64)}),
}


@pytest.mark.parametrize("option", KINDS)
def test_products_are_those_of_x_transformers(option, rng):
    cls, ours = KINDS[option]
    theirs, f = theirs_and_ours(rng, cls, {option: True}, **ours)
    X, E, G = gaussian(rng, 3, N, D).unbind()
    tolerance = {"rtol": 1e-5, "atol": 1e-5}  # their softmax is in float32 whatever the numbers are
    assert_close(f(X), theirs(X).detach().squeeze(0), **tolerance)
    X = X.requires_grad_()
    (pulled,) = torch.autograd.grad(theirs(X).squeeze(0), X, G)
    J = f.jacobian(X.detach())
    assert_close(J.vjp(G), pulled, **tolerance)
    assert_close((J.jvp(E) * G).sum(), (E * pulled).sum(), **tolerance)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_weights_and_their_derivative_are_those_of_entmax(alpha, size, rng):
    library = pytest.importorskip("entmax", reason="entmax is not installed")
    function = library.entmax15 if alpha == 1.5 else library.sparsemax
    Q, K, V, X, G = (
        size * gaussian(rng, 4, 5),
        gaussian(rng, 4, 5),
        gaussian(rng, 3, 5),
        *gaussian(rng, 2, 8, 5).unbind(),
    )
    G = G[:, :3].contiguous()
    f = hs.maps.EntmaxAttention.single_head(Q=Q, K=K, V=V, alpha=alpha)

    def theirs(X):
        return function((X @ Q.mT) @ (X @ K.mT).mT, dim=-1) @ X @ V.mT

    assert_close(f(X), theirs(X))
    X = X.requires_grad_()
    (pulled,) = torch.autograd.grad(theirs(X), X, G)
    assert_close(f.jacobian(X.detach()).vjp(G), pulled)
