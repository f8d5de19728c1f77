"""The tables of the page on claims: ``python docs/figures/claims.py``, with x-transformers and entmax installed."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import entmax
import torch
from torch import Tensor, nn
from x_transformers.x_transformers import Attention

import howsmooth as hs
from howsmooth.theory.mechanisms.softmax_scores import phi_inverse

D, SIZES = 4, [(n, radius) for n in (4, 16) for radius in (2.0, 8.0, 32.0)]
THEIRS: dict[str, dict[str, Any]] = {
    "sigmoid": {"sigmoid": True},
    "add_zero_kv": {"add_zero_kv": True},
    "softmax": {},
}


def theirs(**options: Any) -> nn.Module:
    """Build a layer of x-transformers with one head and matrices of norm one."""
    layer: nn.Module = Attention(dim=D, heads=1, dim_head=D, flash=False, **options)
    torch.manual_seed(0)
    with torch.no_grad():
        for x in layer.parameters():
            x.copy_(torch.randn_like(x))
            if x.ndim == 2:
                x.div_(torch.linalg.matrix_norm(x, ord=2))
    return layer


def sparse(weigh: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """Build attention with the weights of the entmax package, scale 1/2 and matrices of norm one."""
    torch.manual_seed(0)
    drawn = (torch.randn(D, D) for _ in range(3))
    Q, K, V = (x / torch.linalg.matrix_norm(x, ord=2) for x in drawn)

    def f(X: Tensor) -> Tensor:
        q, k, v = (X @ M.to(X).mT for M in (Q, K, V))
        return weigh(q @ k.mT / 2, dim=-1) @ v

    return f


def kim(n: int) -> float:
    """Return Kim's bound for one head of width four and norms one."""
    return math.sqrt(n) / math.sqrt(D) * (4 * phi_inverse(n - 1) + 1)


def by_distance() -> None:
    """Audit L2 attention in closed form, put what is found through their layer, and audit the tied map."""
    layer: Any = theirs(l2_distance=True)
    query, key, value = (x.weight.detach()[None].double() for x in (layer.to_q, layer.to_k, layer.to_v))
    f = hs.maps.L2Attention(query=query, key=key, value=value)
    tied = hs.maps.L2Attention(query=query, key=query, value=value, tied=True)
    X = torch.randn(1, 5, D)
    print(f"outputs differ by {float((layer(X) - f.to(torch.float32)(X)).abs().max()):.1e}")
    for n, radius in SIZES:
        ball = hs.domains.Ball(radius)
        found, with_ties = (hs.audit(g, claimed=kim(n), n=n, domain=ball, starts=3) for g in (f, tied))
        move, tokens = radius * found.found.measured.direction, found.found.tokens
        ratios = []
        for step in (0.1, 0.03, 0.01):
            Y, Z = (ball.nearest(tokens + sign * step * move).float() for sign in (1, -1))
            with torch.no_grad():
                ratios.append(float((layer(Y[None]) - layer(Z[None])).norm() / (Y - Z).norm()))
        print(
            f"l2, n = {n}, R = {radius:g}: Kim {kim(n):.3f}, theirs {max(ratios):.4g}, ours {found.largest:.4g}, "
            f"tied {with_ties.largest:.4g}",
            flush=True,
        )


def others() -> None:
    """Audit the other layers; the claim is Kim's bound, which nobody makes for them."""
    layers: dict[str, Any] = {name: theirs(**options) for name, options in THEIRS.items()}
    layers |= {"entmax15": sparse(entmax.entmax15), "sparsemax": sparse(entmax.sparsemax)}
    for name, layer in layers.items():
        for n, radius in SIZES:
            try:
                found = hs.audit(
                    layer, claimed=kim(n), input_shape=(n, D), domain=hs.domains.Ball(radius), starts=2, steps=30
                )
            except hs.errors.HowsmoothError as reason:
                print(f"{name}, n = {n}, R = {radius:g}: {reason}", flush=True)
                continue
            print(f"{name}, n = {n}, R = {radius:g}: {found.summary}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    by_distance()
    others()
