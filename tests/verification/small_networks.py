"""Small networks with known boxes."""

import torch

import howsmooth as hs
from howsmooth.maps.affine import Affine
from howsmooth.verification.attention_expansion import AttentionExpansion
from howsmooth.verification.box_symbols import BoxSymbols
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.taylor_model import TaylorModel


def gaussian(rng, *shape, size=1.0):
    return size * torch.randn(*shape, dtype=torch.float64, generator=rng)


def network(rng, *, layers=2, n=3, d=4, inputs=6, hidden=5, heads=2, size=0.8, shared_inputs=False):
    """Embedding of patches with a class token, residual attention and ReLU layers, a mean and a readout."""
    weight = torch.zeros(n, d, 1, inputs, dtype=torch.float64)
    for token in range(1, n):
        cut = slice(None) if shared_inputs else slice(*(k * inputs // (n - 1) for k in (token - 1, token)))
        weight[token, :, 0, cut] = gaussian(rng, d, inputs, size=0.5)[:, cut]
    maps = [Affine(weight=weight, bias=gaussian(rng, n, d))]
    for _layer in range(layers):
        maps.append(
            hs.maps.Residual(
                hs.Attention(
                    query=gaussian(rng, heads, 2, d, size=size),
                    key=gaussian(rng, heads, 2, d, size=size),
                    value=gaussian(rng, heads, 3, d, size=size),
                    output=gaussian(rng, heads, d, 3, size=size),
                    query_bias=gaussian(rng, heads, 2),
                    key_bias=gaussian(rng, heads, 2),
                    value_bias=gaussian(rng, heads, 3),
                    output_bias=gaussian(rng, d),
                )
            )
        )
        maps.append(
            hs.maps.Residual(
                hs.maps.MLP(
                    up=gaussian(rng, hidden, d, size=size),
                    down=gaussian(rng, d, hidden, size=size),
                    up_bias=gaussian(rng, hidden),
                    down_bias=gaussian(rng, d),
                    activation="relu",
                )
            )
        )
    readout = gaussian(rng, 3, d)[None, :, None].expand(1, 3, n, d) / n
    maps.append(Affine(weight=readout.contiguous(), bias=gaussian(rng, 1, 3)))
    return hs.maps.Chain(*maps)


def outputs(f, x):
    return f(x.unsqueeze(-2)).flatten(-2)


def entered(f, eps, blocks, x):
    """A Taylor model of the first blocks on the box around x, and the first tokens as a function of coordinates."""
    embedding = f.maps[0]
    symbols, derivative = BoxSymbols.of(embedding, torch.full_like(x, eps))
    centre = embedding(x[None])
    model = TaylorModel(symbols, centre, derivative)
    for block in blocks:
        if isinstance(block, hs.maps.MLP):
            ReLURelaxation(block, model, forms=False)
        else:
            AttentionExpansion(block, model, forms=False, all_forms=False)
    return model, lambda y: centre + derivative @ y
