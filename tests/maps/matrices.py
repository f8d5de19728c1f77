"""Attention as plain products of matrices, where loops would be slow, and products with Jacobians by autograd."""

import math

import torch


def pushed(function, points, tangents):
    """The value and the forward product by differentiating twice backwards; the result can be differentiated again."""
    (X,), (E,) = points, tangents
    X = X if X.requires_grad else X.detach().requires_grad_()
    Y = function(X)
    G = torch.zeros_like(Y, requires_grad=True)
    (pull,) = torch.autograd.grad(Y, X, G, create_graph=True)
    (tangent,) = torch.autograd.grad(pull, G, E, create_graph=True)
    return Y, tangent


def pulled(function, X):
    X = X.detach().requires_grad_()
    Y = function(X)
    return lambda G: torch.autograd.grad(Y, X, G)[0]


def plain_attention(X, Q, K, V, W, *, allowed, bias=None, scale=None):
    """Plain matrix attention for long sequences (heads, k, d), used where loops would be slow."""
    q, k, v = (torch.einsum("hkd,nd->hnk", M, X) for M in (Q, K, V))
    S = q @ k.mT * (scale or 1 / math.sqrt(Q.shape[1]))
    if bias is not None:
        S = S + bias
    P = torch.softmax(S.masked_fill(~allowed, -math.inf), -1)
    return torch.einsum("hov,hnv->no", W, P @ v)
