"""Every theorem, input and search on a device that refuses to mix with the CPU, against the same on the CPU."""

import sys
from pathlib import Path

import torch
from torch.testing import assert_close

import howsmooth as hs
import howsmooth.theory.around_input.neighbourhood
import howsmooth.theory.worst_inputs.tied_pair

sys.path.insert(0, str(Path(__file__).parents[1]))

from elsewhere import second_device

N, RADIUS = 5, 1.5


def layer(**options):
    weights = torch.Generator().manual_seed(1)
    return hs.Attention.random(heads=2, d=4, k=2, dtype=torch.float64, seed=weights, **options)


def form():
    A, V = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return hs.Attention.single_head(A=A + A.mT, V=V)


X = torch.randn(N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
NORM = hs.maps.LayerNorm(gain=torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64))


def answers(f, g, X, norm):
    """Everything that is asked of a layer ``f`` and of one head ``g``, as numbers."""
    yield from (bound.log_value for bound in hs.bounds.table(f, n=N, radius=RADIUS, heads=1).bounds)
    yield hs.bounds.local_upper(f, X).value
    yield hs.bounds.attention_map_upper(f, X).value
    yield hs.bounds.neighbourhood_upper(f, X, eps=0.1).value
    yield hs.bounds.mean_field_lower(g, radius=RADIUS).value
    yield hs.bounds.large_radius_limit(g, X).value
    yield float(hs.typical_gain(f, X, seed=0).value)
    # a search of no steps: the starts are built and measured, and autograd, which has no such device, is not asked
    yield hs.maximise(g, n=N, domain=hs.domains.Ball(RADIUS), starts=2, steps=0).value
    yield hs.maximise(g, n=N, domain=hs.domains.LayerNormImage(norm), starts=2, steps=0).value
    yield from (row.found for row in hs.regimes(g, RADIUS, [3]).rows)


if __name__ == "__main__":  # not where tests are collected: it would change the library for all of them
    # the same on both devices: here optima are compared, not judged, and a device in Python takes its time
    howsmooth.theory.worst_inputs.tied_pair.ITERATIONS = 2
    howsmooth.theory.around_input.neighbourhood.INTERVALS = 4
    here = list(answers(layer(), form(), X, NORM))
    device, mode = second_device()
    with mode:
        f, g, norm = (x.to(device=device) for x in (layer(), form(), NORM))
        there = list(answers(f, g, X.to(device), norm))
        assert hs.inputs.equal_tokens(f, N, RADIUS).tokens.device == device
        assert hs.inputs.two_point(g.to(torch.float32), N, RADIUS).tokens.dtype == torch.float32
    assert_close(torch.tensor(there), torch.tensor(here))
    sys.stdout.write(f"{len(here)} answers")
