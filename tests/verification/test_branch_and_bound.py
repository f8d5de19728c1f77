"""Splitting: bounds against the least value over all signs of all units, by linear programs."""

import itertools
import math
import time

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from verification.small_networks import gaussian

from howsmooth.verification.branch_and_bound import BentUnits, MarginFunction, split


def problem(rng, layers=(3, 2), pixels=5):
    """Random units whose later layers see the symbols of earlier ones, and a random objective."""
    count = sum(layers)
    layer = torch.cat([torch.full((size,), float(k)) for k, size in enumerate(layers)]).double()
    f, t = gaussian(rng, count, pixels), gaussian(rng, count, count)
    t = torch.where(layer[:, None] > layer, 0.3 * t, 0.0)
    reach = f.abs().sum(1) + t.abs().sum(1)
    centre = reach * (torch.rand(count, generator=rng).double() - 0.5)
    lower, upper = centre - reach, centre + reach
    slope = upper / (upper - lower)
    units = BentUnits(
        centre=centre,
        pixels=f,
        earlier=t,
        lower=lower,
        upper=upper,
        slope=slope,
        gap=-slope * lower / 2,
        beyond_linear=torch.zeros(count).double(),
        layer=layer,
    )
    return units, MarginFunction(torch.tensor(0.0).double(), gaussian(rng, pixels), gaussian(rng, count))


def least(units, objective):
    """The exact least value: one linear program for every choice of signs."""
    count, pixels = units.pixels.shape
    best = math.inf
    for signs in itertools.product((1, -1), repeat=count):
        # variables: ξ, η; η is linear in y on each side
        A_ub, b_ub, A_eq, b_eq = [], [], [], []
        for c, sign in enumerate(signs):
            y = np.concatenate([units.pixels[c].numpy(), units.earlier[c].numpy()])
            A_ub.append(-sign * y)
            b_ub.append(sign * float(units.centre[c]))
            k = ((1.0 if sign > 0 else 0.0) - float(units.slope[c])) / float(units.gap[c])
            row = -k * y
            row[pixels + c] += 1
            A_eq.append(row)
            b_eq.append(k * float(units.centre[c]) - 1)
        cost = np.concatenate([objective.pixels.numpy(), objective.units.numpy()])
        bounds = [(-1, 1)] * pixels + [(None, None)] * count
        found = linprog(cost, A_ub, b_ub, A_eq, b_eq, bounds)
        if found.status == 0:
            best = min(best, found.fun)
    return best


def shifted(objective, by):
    return MarginFunction(objective.centre + by, objective.pixels, objective.units)


@pytest.mark.parametrize("seed", range(6))
def test_splitting_decides_on_both_sides_of_the_least_value(seed):
    units, objective = problem(torch.Generator().manual_seed(seed))
    exact = least(units, objective)
    size = abs(exact) + float(objective.pixels.abs().sum())
    above = split(units, shifted(objective, -exact + 0.01 * size), time.monotonic() + 60)
    assert above.positive
    below = split(units, shifted(objective, -exact - 1e-6 * size), time.monotonic() + 1)
    assert not below.positive
    assert below.lower <= 0


def test_a_part_that_is_not_linear_is_taken_off(rng):
    units, objective = problem(rng)
    exact = least(units, objective)
    import dataclasses

    rough = dataclasses.replace(units, beyond_linear=torch.full_like(units.centre, 10.0))
    assert not split(rough, shifted(objective, -exact + 0.01), time.monotonic() + 1).positive
