"""Numbers and random matrices, float64 unless told otherwise."""

import torch


def gaussian(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=torch.float64)


def orthogonal(rng, d):
    return torch.linalg.qr(gaussian(rng, d, d))[0]


def symmetric(rng, d):
    G = gaussian(rng, d, d)
    return (G + G.mT) / 2


def number(x):
    return torch.tensor(x, dtype=torch.float64)
