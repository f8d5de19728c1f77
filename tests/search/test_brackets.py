"""A theorem above, an input below."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian, number, orthogonal, symmetric
from oracles import constant
from theory.example_layers import ROUNDING, bilinear, form, matrix_norm, random_layer, scaled_to, with_mask
from theory.witness_checks import HEADS, MEASURED, assert_honest, assert_in_ball
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError

pytestmark = pytest.mark.slow  # hundreds of heads and inputs, not one slow one


def test_values_that_see_only_the_scored_direction_are_bracketed(rng):
    u = torch.nn.functional.normalize(gaussian(rng, 3), dim=0)
    f = form(-torch.outer(u, u), torch.outer(u, u))
    bracket = hs.bracket(f, n=20, radius=5.0)
    assert_honest(f, bracket.lower, 20, rng)
    assert bracket.lower.value >= hs.inputs.two_point(f, 20, 5.0).value / MEASURED
    assert bracket.ratio >= 1


@pytest.mark.parametrize("part", ["query", "output"])
def test_a_layer_with_a_pruned_head_is_bracketed(rng, part):
    f = random_layer(rng, d=6, k=4, heads=2)
    kept = getattr(f, part) * torch.tensor([1.0, 0.0]).double()[:, None, None]
    pruned = dataclasses.replace(f, **{part: kept})
    bracket = hs.bracket(pruned, n=6, radius=2.0)
    assert_honest(pruned, bracket.lower, 6, rng)
    tokens = hs.inputs.tied_pair(f.head(0), 6, 2.0).tokens
    assert bracket.lower.value >= 0.95 * constant(pruned, tokens).item()  # what the other head attains


@pytest.mark.parametrize(
    ("kind", "c", "causal"),
    [
        ("quarter turn", 0.01, True),
        ("nilpotent", 1.0, False),
        ("symmetric", 30.0, True),
        ("V tall", 5.0, True),
        ("low rank", 100.0, False),
    ],
)
def test_a_bracket_holds_its_witness_below_its_theorem(rng, kind, c, causal):
    n, radius = 24, 1.5
    g = with_mask(scaled_to(HEADS[kind](rng), c, radius), causal)
    bracket = hs.bracket(g, n=n, radius=radius)
    assert_honest(g, bracket.lower, n, rng)
    assert_in_ball(bracket.lower.tokens, radius)
    assert bracket.upper.side.name == "UPPER"
    assert bracket.ratio >= 1 / ROUNDING
    assert_close(number(bracket.ratio), number(bracket.upper.value / bracket.lower.value))
    assert bracket.upper.value <= hs.bounds.sharp_upper(g, n=n, radius=radius).value * ROUNDING
    assert bracket.lower.value >= hs.bounds.sharp_lower(g, n=n, radius=radius).value / MEASURED


@pytest.mark.parametrize("c", [1e-3, 50.0])
def test_a_bracket_has_the_least_upper_bound_of_the_table(rng, c):
    f = scaled_to(form(gaussian(rng, 3, 3)), c, 1.0)
    bracket, table = hs.bracket(f, n=24, radius=1.0), hs.bounds.table(f, n=24, radius=1.0)
    assert_close(number(bracket.upper.value), number(table.upper.value))


def test_a_bracket_is_at_least_as_high_as_every_explicit_input(rng):
    for radius in (0.05, 6.0):
        f = form(-torch.eye(2).double(), gaussian(rng, 2, 2))
        lower = hs.bracket(f, n=16, radius=radius).lower.value
        for make in (hs.inputs.tied_pair, hs.inputs.two_point, hs.inputs.equal_tokens):
            assert lower >= make(f, 16, radius).value / MEASURED


def test_short_radii_are_bracketed_tightly_by_averages_and_measures():
    f = form(-1e-3 * torch.eye(2).double())
    assert hs.bracket(f, n=1000, radius=1.0).ratio < 1.01


@pytest.mark.parametrize(  # the other two at 128 tokens: below, within a fifth at 1024
    ("kind", "limit", "n", "c"),
    [
        ("identity", 4.0, 16, 100.0),
        ("identity", 4.0, 128, 1000.0),
        ("minus identity", 2.0, 16, 100.0),
        ("quarter turn", 2.0, 128, 1000.0),
        ("nilpotent", 2.0, 16, 100.0),
    ],
)
def test_brackets_are_as_tight_as_promised(rng, kind, limit, n, c):
    f = HEADS[kind](rng)
    assert hs.bracket(f, n=n, radius=math.sqrt(c / matrix_norm(bilinear(f)))).ratio <= limit


@pytest.mark.parametrize("kind", ["minus identity", "nilpotent"])
def test_brackets_of_long_sequences_far_out_are_within_a_fifth(rng, kind):
    f = HEADS[kind](rng)
    assert hs.bracket(f, n=1024, radius=math.sqrt(1000.0 / matrix_norm(bilinear(f)))).ratio <= 1.2


@pytest.mark.parametrize(("n", "c"), [(16, 100.0), (128, 1000.0)])
def test_brackets_of_gaussian_heads_are_within_a_factor_of_two(rng, n, c):
    query, key, value = gaussian(rng, 3, 1, 16, 96) / math.sqrt(96)
    f = scaled_to(hs.Attention(query=query, key=key, value=value), c, 15.0)
    assert hs.bracket(f, n=n, radius=15.0).ratio <= 2.0


@pytest.mark.parametrize("d", [2, 8])
def test_brackets_of_symmetric_and_orthogonal_forms_are_within_a_factor_of_four(rng, d):
    for A in (symmetric(rng, d), orthogonal(rng, d)):
        assert hs.bracket(form(A / matrix_norm(A)), n=64, radius=20.0).ratio <= 4.0


@pytest.mark.parametrize("options", [{}, {"mixed": False}, {"heads": 2, "groups": 1}], ids=str)
def test_layers_are_bracketed(rng, options):
    f = random_layer(rng, d=6, k=4, **options)
    bracket = hs.bracket(f, n=10, radius=1.5)
    assert_honest(f, bracket.lower, 10, rng)
    assert bracket.ratio >= 1 / ROUNDING
    assert bracket.lower.value > 0


def test_layers_with_biases_rotary_and_soft_caps_are_bracketed(rng):
    kinds = [
        {"query_bias": gaussian(rng, 3, 4)},
        {"positions": hs.maps.Positions(rotary=hs.maps.Rotary())},
        {"softcap": 1.0},
    ]
    for options in kinds:
        f = random_layer(rng, d=6, k=4, **options)
        bracket = hs.bracket(f, n=6, radius=1.5)
        assert_honest(f, bracket.lower, 6, rng)
        assert_in_ball(bracket.lower.tokens, 1.5)
        assert bracket.ratio >= 1 / ROUNDING


def test_a_window_that_hides_every_explicit_input_is_refused_and_search_is_named(rng):
    f = random_layer(rng, d=6, k=4, positions=hs.maps.Positions(window=3))
    with pytest.raises(AssumptionError, match="search=True"):
        hs.bracket(f, n=6, radius=1.5)


def test_a_search_does_not_lower_a_bracket():
    f = form(torch.eye(2).double())
    plain, searched = (hs.bracket(f, n=6, radius=3.0, search=search) for search in (False, True))
    assert searched.lower.value >= plain.lower.value / MEASURED
    assert searched.ratio >= 1 / ROUNDING
    assert searched.upper.value == plain.upper.value
