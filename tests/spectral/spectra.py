"""Sixty singular values that are hard in one way each, and operators that have them."""

import torch
from draws import gaussian

SPECTRA = {
    "clustered": torch.cat([1 - 1e-6 * torch.arange(10.0), torch.linspace(0.9, 0, 50)]),
    "flat": torch.ones(60),
    "nearly flat": torch.linspace(1, 0.999, 60),
    "geometric": 0.7 ** torch.arange(60.0),
    "outlier": torch.cat([torch.tensor([1e6]), torch.ones(59)]),
    "outlier above a crowd": torch.cat([torch.tensor([1.0]), torch.full((59,), 0.98)]),
    "tiny gap": torch.cat([torch.tensor([1.0, 1 - 1e-9]), torch.linspace(0.5, 0, 58)]),
    "harmonic": 1 / torch.arange(1.0, 61),
    "rank one": torch.cat([torch.tensor([2.0]), torch.zeros(59)]),
    "rank two, equal": torch.cat([torch.tensor([2.0, 2.0]), torch.zeros(58)]),
}


SHAPES = [(60, 60), (90, 60), (60, 200)]


def with_spectrum(rng, values, rows, columns):
    """A matrix with the given singular values, and random singular vectors."""
    k = len(values)
    U = torch.linalg.qr(gaussian(rng, rows, k)).Q
    W = torch.linalg.qr(gaussian(rng, columns, k)).Q
    return U * values @ W.mT


class Counting:
    """A user's operator: multiplies a grid of numbers by another, for each entry of a batch."""

    def __init__(self, entries, batch=()):
        self.entries = entries
        self.batch = batch
        self.domain = self.codomain = tuple(entries.shape[len(batch) :])
        self.dtype, self.device = entries.dtype, entries.device
        self.jvps = self.vjps = 0

    def jvp(self, E):
        self.jvps += 1
        return self.entries * E

    def vjp(self, G):
        self.vjps += 1
        return self.entries * G
