"""Inputs around one input, and the constants there, by autograd through the forward pass."""

import math

import torch
from draws import gaussian

import howsmooth as hs


def jacobians(f, X):
    """Dense Jacobians of a batch of inputs, by autograd through the forward pass."""
    X = X.detach().requires_grad_()
    Y = f(X)
    m = Y[0].numel()
    basis = torch.eye(m, dtype=X.dtype).reshape(m, 1, *Y.shape[1:]).expand(-1, len(X), -1, -1)
    (J,) = torch.autograd.grad(Y, X, basis, is_grads_batched=True)
    return J.transpose(0, 1).flatten(2)


def norms(matrix):
    return torch.linalg.matrix_norm(matrix, 2)


def constants(f, X):
    return norms(jacobians(f, X))


def onto(shift, eps, per_token):
    """The nearest perturbation that is allowed."""
    length = shift.norm(dim=-1, keepdim=True) if per_token else shift.flatten(1).norm(dim=1)[:, None, None]
    return shift * (eps / length.clamp(min=1e-300)).clamp(max=1)


def on_boundary(rng, count, X, eps, per_token):
    shift = gaussian(rng, count, *X.shape)
    return X + onto(1e6 * shift, eps, per_token)


def ascended(f, X, starts, eps, per_token, steps=12):
    """The largest constant met by projected ascent from the starts, inside the neighbourhood of X."""
    Z, best = starts, 0.0
    for step in range(steps + 1):
        U, S, Vh = torch.linalg.svd(jacobians(f, Z), full_matrices=False)
        best = max(best, S.max().item())
        u, v = U[:, :, 0].reshape(len(Z), len(X), -1), Vh[:, 0].reshape(Z.shape)
        Z = Z.detach().requires_grad_()
        (pulled,) = torch.autograd.grad((u * f(Z)).sum(), Z, create_graph=True)
        (gradient,) = torch.autograd.grad((pulled * v).sum(), Z)
        gradient = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-300)[:, None, None]
        reach = eps * math.sqrt(len(X)) if per_token else eps
        Z = X + onto(Z.detach() + reach * 0.85**step * gradient - X, eps, per_token)
    return best


def weights_of(f, X):
    """A, V and the attention weights of a single head without biases."""
    A, V = f.score_scale * f.key[0].mT @ f.query[0], f.value[0]
    S = X @ A.mT @ X.mT
    if f.positions.causal:
        S = S.masked_fill(torch.ones_like(S, dtype=torch.bool).triu(1), -math.inf)
    return A, V, torch.softmax(S, -1)


def small_layer(rng, *, heads=2, groups=None, d=3, k=2, v=2, out=3, mixed=True, size=1.0, **options):
    groups = heads if groups is None else groups
    return hs.Attention(
        query=size * gaussian(rng, heads, k, d),
        key=gaussian(rng, groups, k, d),
        value=gaussian(rng, groups, v, d),
        output=gaussian(rng, heads, out, v) if mixed else None,
        **options,
    )
