"""Inputs of a ball and the constants there: attention in ten lines, its Jacobian by autograd, dense norms."""

import math

import torch
from draws import gaussian, uniform
from theory.example_layers import bilinear
from torch.func import jacrev, jvp, vmap


def rotated(x, rotary):
    dim = rotary.dim or x.shape[-1]
    pairs = [(2 * m, 2 * m + 1) if rotary.interleaved else (m, m + dim // 2) for m in range(dim // 2)]
    place = torch.arange(x.shape[-2]).double()
    out = list(x.unbind(-1))
    for m, (a, b) in enumerate(pairs):
        angle = place * rotary.base ** (-2 * m / dim)
        out[a], out[b] = (
            x[..., a] * angle.cos() - x[..., b] * angle.sin(),
            x[..., a] * angle.sin() + x[..., b] * angle.cos(),
        )
    return torch.stack(out, -1)


def score_bias(f, n):
    p, i, j = f.positions, torch.arange(n)[:, None], torch.arange(n)
    bias = torch.zeros(n, n, dtype=torch.float64)
    if p.causal:
        bias = bias.masked_fill(j > i, -math.inf)
    if p.window is not None:
        bias = bias.masked_fill((i - j).abs() >= p.window, -math.inf)
    if p.padding is not None:
        bias = bias.masked_fill(~p.padding, -math.inf)
    if p.relative_bias is not None:
        bias = bias + p.relative_bias[..., (p.relative_bias.shape[-1] - 1) // 2 + j - i]
    if p.position_bias is not None:
        bias = bias + p.position_bias[..., None, :n]
    if f.weights is not None:
        bias = bias + f.weights.log()
    return bias


def plain(f, X):
    shared = f.query.shape[0] // f.key.shape[0]
    q = torch.einsum("hkd,...nd->...hnk", f.query, X)
    k = torch.einsum("hkd,...nd->...hnk", f.key.repeat_interleave(shared, 0), X)
    v = torch.einsum("hvd,...nd->...hnv", f.value.repeat_interleave(shared, 0), X)
    q = q if f.query_bias is None else q + f.query_bias[:, None]
    k = k if f.key_bias is None else k + f.key_bias.repeat_interleave(shared, 0)[:, None]
    if f.positions.rotary is not None:
        q, k = rotated(q, f.positions.rotary), rotated(k, f.positions.rotary)
    S = (f.query.shape[1] ** -0.5 if f.scale is None else f.scale) * q @ k.mT
    S = S if f.softcap is None else f.softcap * torch.tanh(S / f.softcap)
    O = torch.softmax(S + score_bias(f, X.shape[-2]), -1) @ v  # noqa: E741
    return O.transpose(-3, -2).flatten(-2) if f.output is None else torch.einsum("hov,...hnv->...no", f.output, O)


def jacobians(f, X):
    J = vmap(jacrev(lambda x: plain(f, x)), chunk_size=256)(X)
    return J.reshape(len(X), -1, X[0].numel())


def constants(f, X):
    """The constant at every input of a batch, by the eigenvalues of JJᵀ."""
    J = jacobians(f, X)
    J = J if J.shape[-2] <= J.shape[-1] else J.mT
    return torch.linalg.eigvalsh(J @ J.mT)[:, -1].clamp(min=0).sqrt()


def into_ball(X, radius):
    return X * (radius / X.norm(dim=-1, keepdim=True)).clamp(max=1)


def ascended(f, X, radius, steps=20):
    """Projected ascent of the constant from every input of a batch: the best input met from each start."""
    best, at = torch.zeros(len(X)).double(), X
    for step in range(steps + 1):
        U, S, Vh = torch.linalg.svd(jacobians(f, X), full_matrices=False)
        better = S[:, 0] > best
        best, at = torch.where(better, S[:, 0], best), torch.where(better[:, None, None], X, at)
        u, v = U[:, :, 0].reshape(len(X), X.shape[1], -1), Vh[:, 0].reshape(X.shape)
        X = X.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((u * jvp(lambda x: plain(f, x), (X,), (v,))[1]).sum(), X)
        gradient = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-300)[:, None, None]
        X = into_ball(X.detach() + radius * 0.87**step * gradient, radius)
    return at


def directions(rng, A, count):
    """Unit vectors that matter to A: singular vectors, real parts of eigenvectors, random ones."""
    U, _S, Vh = torch.linalg.svd(A)
    eigen = torch.linalg.eig(A).eigenvectors
    pool = torch.cat([U.mT, Vh, eigen.real.mT, eigen.imag.mT, gaussian(rng, 2, len(A))])
    pool = pool[pool.norm(dim=-1) > 1e-9]
    chosen = pool[torch.randint(len(pool), (count,), generator=rng)]
    return chosen / chosen.norm(dim=-1, keepdim=True) * torch.sign(gaussian(rng, count, 1))


def tied(rng, A, V, count, n, radius):
    """The sharp points of docs/theory at random angles and lengths: a tied pair, and n − 2 copies of one token."""
    e = directions(rng, A, count)
    w = e @ A.mT
    w = torch.where(w.norm(dim=-1, keepdim=True) > 1e-9, w, e)
    w = w / w.norm(dim=-1, keepdim=True)
    z = torch.linalg.svd(V)[2][:1] + 0.1 * gaussian(rng, count, len(A))
    z = z - (z * w).sum(-1, keepdim=True) * w
    z = z / z.norm(dim=-1, keepdim=True).clamp(min=1e-9)
    angle, r = uniform(rng, count, 1) * math.pi / 2, radius * uniform(rng, count, 1) ** 0.3
    pair = [radius * (angle.cos() * w + sign * angle.sin() * z) for sign in (1, -1)]
    return torch.stack([*pair, *[r * e] * (n - 2)][:n], 1)


def inputs(rng, f, count, n, radius):
    """`count` inputs of each family, every token in the ball of the radius."""
    d, A, V = f.d, bilinear(f), f.value[0]
    on_sphere = gaussian(rng, count, n, d)
    on_sphere = radius * on_sphere / on_sphere.norm(dim=-1, keepdim=True)
    inside = on_sphere * uniform(rng, count, n, 1) ** (1 / d)
    clustered = on_sphere[:, :1] * uniform(rng, count, 1, 1) + 0.02 * radius * gaussian(rng, count, n, d)
    kinds = torch.randint(3, (count, n, 1), generator=rng).expand(-1, -1, d)
    few = inside[:, :3].gather(1, kinds.clamp(max=min(n, 3) - 1))
    u = directions(rng, A, count)[:, None]
    two = radius * u * torch.where(torch.arange(n)[:, None] < 1, -1.0, 1.0) * torch.ones(n, 1).double()
    half = radius * u * torch.where(torch.arange(n)[:, None] < 1, 1.0, 0.5)
    signs = radius * u * torch.sign(gaussian(rng, count, n, 1))
    origin = signs.clone()
    origin[:, -1] = 0.0  # its attention is uniform, and it sees the largest covariance
    families = [
        origin,
        on_sphere,
        inside,
        clustered,
        few,
        two.double(),
        half.double(),
        signs,
        tied(rng, A, V, count, n, radius),
    ]
    return into_ball(torch.cat(families), radius)
