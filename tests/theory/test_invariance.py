"""What changes no constant changes no bound, and what scales the one scales the other."""

import dataclasses
import functools

import pytest
import torch
from draws import gaussian, number, orthogonal
from theory.bounds_by_name import WITH_N, WITHOUT_N, accepted, bound, every_bound
from theory.example_layers import HEADS, LAYERS, bilinear, form, low_rank, random_layer, scaled_to, with_mask
from torch.testing import assert_close

import howsmooth as hs

pytestmark = pytest.mark.slow  # hundreds of heads and inputs, not one slow one

# lower bounds are maxima found by an iteration, which stops a little earlier or later in other coordinates
SEARCHED = {"sharp_lower": 1e-4, "sharp_mean_field_lower": 1e-4, "kim_lower": 1e-4}


def assert_same(left, right, factor=1.0):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert_close(number(right[name]), number(value * factor), rtol=SEARCHED.get(name, 1e-7), atol=0.0, msg=name)


IDENTITIES = ["symmetric", "rank two of ten", "nilpotent of order five"]


@functools.cache
def known(kind, causal):
    """A head and all its bounds, computed once."""
    f = with_mask(scaled_to(HEADS[kind](torch.Generator().manual_seed(1)), 4.0, 1.3), causal)
    return f, every_bound(f, n=9, radius=1.3)


@pytest.mark.parametrize("kind", IDENTITIES)
def test_scaling_the_values_scales_every_bound(kind):
    f, bounds = known(kind, kind == "symmetric")
    tripled = dataclasses.replace(f, value=-3 * f.value)
    assert_same(bounds, every_bound(tripled, n=9, radius=1.3), factor=3.0)


@pytest.mark.parametrize("kind", IDENTITIES)
def test_only_the_product_of_scores_and_squared_radius_matters(kind):
    f, bounds = known(kind, False)
    smaller = dataclasses.replace(f, query=f.query / 4)
    assert_same(bounds, every_bound(smaller, n=9, radius=2.6))


BY_EIGENVALUE = ("discrete_lower", "mean_field_lower")


@pytest.mark.parametrize("kind", IDENTITIES)
def test_an_orthogonal_change_of_basis_changes_no_bound(rng, kind):
    f, left = known(kind, False)
    U = orthogonal(rng, f.d)
    turned = dataclasses.replace(f, query=f.query @ U.mT, key=f.key @ U.mT, value=f.value @ U.mT)
    right = every_bound(turned, n=9, radius=1.3)
    if "nilpotent" in kind:  # rounding moves a fivefold eigenvalue by 10⁻³, off the real line or along it
        left, right = ({name: x for name, x in side.items() if name not in BY_EIGENVALUE} for side in (left, right))
    assert_same(left, right)


def test_factors_and_their_product_give_the_same_bounds(rng):
    f = low_rank(rng, 6, 3, 2)
    product = form(bilinear(f), f.value[0])
    assert_same(every_bound(f, n=9, radius=0.5), every_bound(product, n=9, radius=0.5))


@pytest.mark.parametrize("kind", ["mixed heads", "query bias", "gaussian"])
def test_biases_that_do_not_enter_the_derivative_do_not_enter_the_bounds(rng, kind):
    f = {**HEADS, **LAYERS}[kind](rng)
    groups, k, v = len(f.key), f.layout.k, f.layout.v
    moved = dataclasses.replace(
        f, key_bias=gaussian(rng, groups, k), value_bias=gaussian(rng, groups, v), output_bias=gaussian(rng, f.out)
    )
    assert_same(every_bound(f, n=6, radius=0.8), every_bound(moved, n=6, radius=0.8))


def test_a_pruned_head_changes_no_bound(rng):
    f = random_layer(rng, heads=2)
    pruned = dataclasses.replace(f, output=f.output * torch.tensor([1.0, 0.0]).double()[:, None, None])
    alone = f.head(0)
    for name in WITH_N + WITHOUT_N:
        whole, one = (bound(name, g, n=6, radius=1.0).value for g in (pruned, alone))
        assert_close(number(whole), number(one), msg=name)
    whole, one = (hs.bounds.sharp_lower(g, n=6, radius=1.0).value for g in (pruned, alone))
    assert whole >= one * 0.999  # two optimisations


@pytest.mark.parametrize("kind", ["minus identity", "gaussian", "mixed heads", "concatenated heads", "query bias"])
def test_upper_bounds_grow_with_the_number_of_tokens_and_with_the_radius(rng, kind):
    f = {**HEADS, **LAYERS}[kind](rng)
    for name in ["sharp_upper"] if kind == "query bias" else WITH_N:
        by_n = [bound(name, f, n=n, radius=1.5).value for n in (1, 2, 3, 10, 100, 1000)]
        by_radius = [bound(name, f, n=7, radius=R).value for R in (0.1, 0.5, 1.0, 2.0, 8.0)]
        assert by_n == sorted(by_n)
        assert by_radius == sorted(by_radius)


@pytest.mark.parametrize("kind", [*LAYERS, "gaussian", "V tall"])
def test_the_sharp_upper_bounds_are_below_the_papers(rng, kind):
    f = {**HEADS, **LAYERS}[kind](rng)
    for n, radius in [(2, 0.05), (5, 1.0)]:
        found = accepted(WITH_N + WITHOUT_N, f, n=n, radius=radius)
        for paper, ours in [("discrete_upper", "sharp_upper"), ("mean_field_upper", "sharp_mean_field_upper")]:
            if paper in found and ours in found:
                assert found[ours].log_value <= found[paper].log_value + 1e-12


def test_bounds_of_float32_maps_agree_with_float64(rng):
    f = form(gaussian(rng, 3, 3), gaussian(rng, 3, 3))
    left, right = (every_bound(g, n=9, radius=1.3) for g in (f, f.to(torch.float32)))
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert_close(right[name], value, rtol=1e-3, atol=0.0, msg=name)  # the weights themselves were rounded
