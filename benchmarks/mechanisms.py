"""Other attentions at the size of a layer, each with the matrix products that its own products cannot avoid."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import howsmooth as hs
from howsmooth.maps.heads import MultiHead


@dataclass(frozen=True)
class Bare:
    """Matrix products with nothing in between, for ``n`` tokens and heads of dimension ``k``."""

    n: int
    heads: int
    k: int
    scores: int = 1

    def by_scores(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Products of attention by scores: projections, scores, means; so many scores for each head."""
        d, E = self.heads * self.k, torch.randn(self.n, self.heads * self.k)
        p = (2 * self.scores + 1) * d
        W_in, W_out, Y = torch.randn(p, d), torch.randn(d, d), torch.randn(self.n, p)
        narrow, wide = torch.randn(self.heads, self.n, self.k), torch.randn(self.heads, self.n, 2 * self.k)
        P = torch.rand(self.heads, self.n, self.n)

        def jvp() -> None:
            E @ W_in.mT
            for _ in range(self.scores):
                wide @ wide.mT
            P @ narrow
            P @ narrow
            E @ W_out.mT

        def vjp() -> None:
            E @ W_out
            narrow @ narrow.mT
            for _ in range(self.scores):
                P @ narrow
                P.mT @ narrow
            P.mT @ narrow
            Y @ W_in

        return jvp, vjp

    def linear(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Products of linear attention: projections, sums over tokens, what queries make of them."""
        d, E = self.heads * self.k, torch.randn(self.n, self.heads * self.k)
        W_in, W_out, Y = torch.randn(3 * d, d), torch.randn(d, d), torch.randn(self.n, 3 * d)
        x, N = torch.randn(self.heads, self.n, self.k), torch.randn(self.heads, self.k, self.k)

        def jvp() -> None:
            E @ W_in.mT
            x.mT @ x
            x.mT @ x
            x @ N
            x @ N
            E @ W_out.mT

        def vjp() -> None:
            E @ W_out
            x.mT @ x
            x @ N
            x @ N
            x @ N
            Y @ W_in

        return jvp, vjp


def mechanisms(heads: int, k: int, generator: torch.Generator) -> dict[str, MultiHead]:
    """Every kind of attention with Gaussian weights, as wide as it is long."""
    d = heads * k

    def gauss(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / d**0.5

    query, key, value = gauss(heads, k, d), gauss(heads, k, d), gauss(heads, k, d)
    output, ones = gauss(heads, d, k), torch.ones(heads)
    twice = gauss(2, heads, 2 * k, d)
    return {
        "sink": hs.Attention(query=query, key=key, value=value, output=output, sink=0 * ones),
        "l2": hs.maps.L2Attention(query=query, key=key, value=value, output=output),
        "sigmoid": hs.maps.SigmoidAttention(query=query, key=key, value=value, output=output),
        "cosine": hs.maps.CosineAttention(query=query, key=key, value=value, output=output, normalise_values=True),
        "entmax 1.5": hs.maps.EntmaxAttention(query=query, key=key, value=value, output=output),
        "sparsemax": hs.maps.EntmaxAttention(query=query, key=key, value=value, output=output, alpha=2.0),
        "differential": hs.maps.DifferentialAttention(
            query=twice[0], key=twice[1], value=value, output=output, subtracted=ones / 2
        ),
        "linear": hs.maps.LinearAttention(query=query, key=key, value=value, output=output),
        "sinkhorn": hs.maps.SinkhornAttention(query=query, key=key, value=value, output=output),
    }
