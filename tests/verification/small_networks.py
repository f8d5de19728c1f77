"""Small networks with known boxes."""

import dataclasses

import torch

import howsmooth as hs
from howsmooth.maps.affine import Affine
from howsmooth.verification.box_symbols import BoxSymbols
from howsmooth.verification.network_expansion import expand
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


def smooth_network(rng, *, n=3, d=4, hidden=5, activation="gelu", norm=hs.maps.LayerNorm, before=True, causal=False):
    """One block with norms before or behind, a smooth activation, the mean of all tokens, and a readout with a tanh."""
    parts = network(rng, layers=1, n=n, d=d, hidden=hidden).maps
    attention = dataclasses.replace(parts[1].map, positions=hs.maps.Positions(causal=causal))
    mlp = dataclasses.replace(parts[2].map, activation=activation)
    norms = [norm(gain=1 + gaussian(rng, d, size=0.2), bias=gaussian(rng, d, size=0.2), eps=1e-3) for _ in range(2)]
    blocks = []
    for f, g in zip((attention, mlp), norms, strict=True):
        blocks += [hs.maps.Residual(hs.maps.Chain(g, f))] if before else [hs.maps.Residual(f), g]
    head = hs.maps.MLP(up=gaussian(rng, 4, d), down=gaussian(rng, 3, 4), activation="tanh")
    return hs.maps.Chain(*blocks, hs.maps.Pooling.mean(n=n, like=head.up), head)


def outputs(f, x):
    return f(x.unsqueeze(-2)).flatten(-2)


def entered(f, eps, blocks, x):
    """A Taylor model of the first blocks on the box around x, and the first tokens as a function of coordinates."""
    embedding = f.maps[0]
    symbols, derivative = BoxSymbols.of(embedding, torch.full_like(x, eps))
    centre = embedding(x[None])
    model = TaylorModel(symbols, centre, derivative)
    for block in blocks:
        model = expand(hs.maps.Residual(block), model, 0)
    return model, lambda y: centre + derivative @ y
