"""Units of tokens, values and outputs: powers of two that change no number, taken only where floats reach."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.example_layers import random_layer

from howsmooth.theory.at_input.rescaling import LEAST, Rescaled, _power


@pytest.mark.parametrize(("size", "power"), [(1.0, 1.0), (3.9, 2.0), (4.0, 4.0), (0.3, 0.25), (0.0, 1.0)])
def test_the_power_of_two_below_the_largest_entry(size, power):
    assert _power(torch.tensor([0.1 * size, -size], dtype=torch.float64)) == power
    assert _power(torch.full((1,), 5e-324, dtype=torch.float64)) == 2.0**-1000


@pytest.mark.parametrize("mixed", [True, False])
def test_the_map_in_other_units_is_the_same_times_both_factors(rng, mixed):
    f, X = random_layer(rng, heads=2, d=4, mixed=mixed), 37 * gaussian(rng, 5, 4)
    f = dataclasses.replace(f, value=300 * f.value, output=f.output / 900 if mixed else None)
    unit = Rescaled.of(f, X)
    v, w = unit.factors
    assert (v, w) == (_power(f.value), _power(f.output) if mixed else 1.0)
    moved = gaussian(rng, 5, 4)
    there = unit.attention.jacobian(unit.X).jvp(moved)
    torch.testing.assert_close(v * w * there, f.jacobian(X).jvp(moved))
    assert all(x.abs().max() <= 2 for x in (unit.X, unit.attention.value))
    assert not mixed or unit.attention.output.abs().max() <= 2


@pytest.mark.parametrize(("power", "kept"), [(997, True), (996, False), (-996, False), (-997, True)])
@pytest.mark.parametrize("name", ["query", "key"])
def test_tokens_keep_their_unit_where_queries_or_keys_would_leave_the_floats(rng, name, power, kept):
    f, X = random_layer(rng, heads=1, d=4), torch.full((3, 4), 2.0 ** (power // 2), dtype=torch.float64)
    matrix = torch.full_like(f.query, 2.0 ** (power - power // 2))
    unit = Rescaled.of(dataclasses.replace(f, **{name: matrix}), X)
    assert torch.equal(unit.X, X if kept else torch.ones_like(X))


def test_a_bound_that_is_not_zero_stays_so_and_no_product_leaves_the_floats_on_its_way(rng):
    unit = Rescaled.of(random_layer(rng, heads=1, d=4), gaussian(rng, 3, 4))
    tiny = dataclasses.replace(unit, factors=(2.0**-900, 2.0**-900))
    assert tiny.in_original_units(1.0) == LEAST
    assert tiny.in_original_units(0.0) == 0.0
    assert math.isnan(tiny.in_original_units(math.nan))
    far = dataclasses.replace(unit, factors=(2.0**-900, 2.0**900))
    assert far.in_original_units(2.0**-200) == 2.0**-200
    assert dataclasses.replace(unit, factors=(4.0, 8.0)).in_original_units(3.0) == 96.0
