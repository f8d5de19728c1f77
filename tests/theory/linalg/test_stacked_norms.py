"""Matrices one under the other: their norm is a dense norm, widened by rounding; scales that are found are honest."""

import math

import pytest
import torch
from draws import gaussian

from howsmooth.theory.linalg.matrix_norms import UNIT
from howsmooth.theory.linalg.stacked_norms import StackedMatrices, balance_scales, largest_norm


def dense(blocks, t):
    return torch.linalg.matrix_norm(torch.cat([s * block for s, block in zip(t, blocks, strict=True)]), 2).item()


@pytest.mark.parametrize("size", [1e-200, 1e-3, 1.0, 1e3, 1e200])
def test_the_norm_of_a_stack_is_that_of_the_scaled_blocks_one_under_the_other(rng, size):
    blocks = [size * gaussian(rng, rows, 4) for rows in (2, 5, 1)]
    stack, t = StackedMatrices.of(blocks), gaussian(rng, 3).exp()
    exact = dense([block / size for block in blocks], t) * size
    assert exact * (1 + 20 * UNIT) <= stack.norm(t) <= exact * (1 + 1e-12)
    # scales far from one: squares would leave the range of floats
    assert stack.norm(1e-90 * t) == pytest.approx(1e-90 * exact, rel=1e-12)
    assert stack.norm(1e90 * t) == pytest.approx(1e90 * exact, rel=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_blocks_whose_largest_entry_is_negative_have_the_same_norm(size):
    blocks = [torch.tensor([[0.0, -3.0]]).double() * size, torch.tensor([[0.0, -4.0]]).double() * size]
    t = torch.ones(2).double()
    assert StackedMatrices.of(blocks).norm(t) == pytest.approx(5 * size, rel=1e-12, abs=0)


def test_what_rounding_took_from_blocks_is_added_as_the_root_of_squares_under_the_same_scales():
    blocks, t = [torch.zeros(2, 3).double()] * 2, torch.tensor([2.0, 3.0]).double()
    assert StackedMatrices.of(blocks, [5.0, 7.0]).norm(t) == pytest.approx(math.hypot(10.0, 21.0), rel=1e-12)
    assert StackedMatrices.of(blocks, [5.0, 7.0]).norm(t) > math.hypot(10.0, 21.0)
    assert StackedMatrices.of(blocks).norm(t) == 0.0


def test_a_stack_with_infinite_entries_has_an_infinite_norm():
    assert StackedMatrices.of([torch.ones(2, 2).double()] * 2).norm(torch.tensor([1.0, math.inf]).double()) == math.inf


def test_of_several_stacks_the_largest_counts(rng):
    stacks = [StackedMatrices.of([size * torch.eye(2).double()] * 2) for size in (1.0, 3.0, 2.0)]
    t = torch.ones(2).double()
    assert largest_norm(tuple(stacks), t) == pytest.approx(3 * math.sqrt(2), rel=1e-12)
    best, _scales = balance_scales(stacks[0], tuple(stacks), t)
    assert best == stacks[0].norm(t) * stacks[1].norm(t)


def test_the_norm_among_directions_met_is_about_the_norm_where_it_was_computed(rng):
    stack, t = StackedMatrices.of([2 * gaussian(rng, 3, 5) for _head in range(3)]), gaussian(rng, 3).exp()
    exact, images = stack.norm_and_images(t)
    assert exact == stack.norm(t)
    assert 0.99 * exact <= stack.norm_of_images([images], t).item() <= 1.2 * exact
    # at other scales it stays at or below the norm but for the sum over three directions
    other = gaussian(rng, 3).exp()
    assert stack.norm_of_images([images], other).item() <= 3 ** (1 / 16) * stack.norm(other)


def test_the_product_of_norms_that_a_search_returns_is_the_one_at_its_scales(rng):
    values, stack = (
        StackedMatrices.of([gaussian(rng, 3, 5) * size for size in sizes]) for sizes in ((1, 9, 0.1), (4, 0.2, 1))
    )
    start = torch.ones(3).double()
    best, scales = balance_scales(values, (stack,), start)
    assert best == values.norm(1 / scales) * stack.norm(scales)
    assert best < 0.9 * values.norm(1 / start) * stack.norm(start)


def test_a_search_finds_the_scales_of_blocks_that_do_not_meet():
    # of blocks a_h and b_h on axes of their own the product of norms is at least max a_h b_h
    axes = torch.eye(3).double()
    values = StackedMatrices.of([a * axis[None] for a, axis in zip((8.0, 1.0, 0.25), axes, strict=True)])
    stack = StackedMatrices.of([b * axis[None] for b, axis in zip((0.5, 3.0, 4.0), axes, strict=True)])
    best, _scales = balance_scales(values, (stack,), torch.ones(3).double())
    assert 4.0 <= best <= 4.0 * 1.01


def test_a_search_that_starts_where_numbers_end_returns_infinity():
    blocks = StackedMatrices.of([torch.full((1, 1), 1e300, dtype=torch.float64)] * 2)
    assert balance_scales(blocks, (blocks,), torch.ones(2).double())[0] == math.inf
