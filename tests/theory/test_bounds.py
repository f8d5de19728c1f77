"""Every bound over a ball against constants measured at thousands of inputs."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.ball_inputs import ascended, constants, inputs, into_ball, plain
from theory.bounds_by_name import LOWERS_WITH_N, LOWERS_WITHOUT_N, WITH_N, WITHOUT_N, accepted
from theory.example_layers import HEADS, LAYERS, ROUNDING, WIDE, form, random_layer, scaled_to, with_mask
from torch.testing import assert_close

import howsmooth as hs

pytestmark = pytest.mark.slow  # hundreds of heads and inputs, not one slow one


def test_the_oracle_agrees_with_the_measurement_of_the_library(rng):
    f = random_layer(
        rng, heads=4, groups=2, positions=hs.maps.Positions(causal=True, rotary=hs.maps.Rotary()), softcap=2.0
    )
    X = gaussian(rng, 5, 6, f.d)
    assert_close(plain(f, X), f(X))
    assert_close(hs.local_lipschitz(f, X, rtol=1e-8, seed=rng).lower, constants(f, X))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", HEADS)
def test_every_upper_bound_holds_at_every_input_of_the_ball(rng, kind, causal):
    f = with_mask(HEADS[kind](rng), causal)
    needed = {"discrete_upper", "sharp_upper"} | (
        {"masked_mean_field_upper"} if causal else {"mean_field_upper", "sharp_mean_field_upper"}
    )
    for n, c, radius in [(2, 3.0, 1.0), (4, 0.3, 2.0), (5, 20.0, 1.5)]:
        g = scaled_to(f, c, radius)
        bounds = accepted(WITH_N + WITHOUT_N, g, n=n, radius=radius)
        assert needed <= bounds.keys()
        largest = constants(g, inputs(rng, g, 4, n, radius)).max().item()
        for name, upper in bounds.items():
            assert largest <= upper.value * ROUNDING, (name, n, c)


@pytest.mark.parametrize(("causal", "c"), [(False, 8.0), (True, 0.5)], ids=["full", "causal"])
@pytest.mark.parametrize("kind", ["minus identity", "quarter turn", "nilpotent", "gaussian"])
def test_every_upper_bound_holds_at_ascended_inputs(rng, kind, causal, c):
    f, n, radius = with_mask(HEADS[kind](rng), causal), 4, 1.0
    g = scaled_to(f, c, radius)
    starts = inputs(rng, g, 1, n, radius)
    found = constants(g, ascended(g, starts, radius))
    assert found.mean() > 1.05 * constants(g, starts).mean()  # the search is worth its name
    for name, upper in accepted(WITH_N + WITHOUT_N, g, n=n, radius=radius).items():
        assert found.max() <= upper.value * ROUNDING, name


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", WIDE)
def test_every_upper_bound_holds_for_long_sequences_and_wide_heads(rng, kind, causal):
    f, n, radius = with_mask(WIDE[kind](rng), causal), 200, 3.0
    for c in (1.0, 50.0):
        g = scaled_to(f, c, radius)
        X = inputs(rng, g, 1, n, radius)
        largest = hs.local_lipschitz(g, X, rtol=1e-2, certify=False, seed=rng).lower.max()
        bounds = accepted(WITH_N + WITHOUT_N, g, n=n, radius=radius)
        assert {"discrete_upper", "sharp_upper"} <= bounds.keys()
        for name, upper in bounds.items():
            assert largest <= upper.value * ROUNDING, (name, c)


@pytest.mark.parametrize(("place", "kind"), [*enumerate(LAYERS)])
def test_upper_bounds_of_layers_hold_wherever_they_do_not_refuse(rng, place, kind):
    f, n = LAYERS[kind](rng), 5
    for radius in (0.05, 2.0) if place % 4 == 0 else (2.0,):
        heads = [inputs(rng, f.head(h), 3, n, radius) for h in range(len(f.query))]
        X = torch.cat(heads)
        X = X if radius < 1 else torch.cat([X, ascended(f, X[::9], radius, steps=6)])
        largest = constants(f, X).max().item()
        bounds = accepted(WITH_N + WITHOUT_N, f, n=n, radius=radius)
        assert math.isfinite(bounds["sharp_upper"].value)
        for name, upper in bounds.items():
            assert largest <= upper.value * ROUNDING, (name, radius)


@pytest.mark.parametrize(("place", "kind"), [*enumerate([*HEADS][::2])])
def test_every_lower_bound_lies_below_every_upper_bound(rng, place, kind):
    n, c, radius, causal = (1000, 400.0, 3.0, True) if place % 2 else (6, 0.5, 2.0, False)
    g = with_mask(scaled_to(HEADS[kind](rng), c, radius), causal)
    uppers = accepted(WITH_N + WITHOUT_N, g, n=n, radius=radius)
    measures = accepted(WITHOUT_N, g, n=n, radius=radius)
    least = min(upper.log_value for upper in uppers.values())
    for name, lower in accepted(LOWERS_WITH_N, g, n=n, radius=radius).items():
        assert lower.value >= 0
        assert lower.log_value <= least + 1e-10, name
    for name, lower in accepted(LOWERS_WITHOUT_N, g, n=n, radius=radius).items():
        for above, upper in measures.items():
            assert lower.log_value <= upper.log_value + 1e-10, (name, above)


@pytest.mark.parametrize(
    ("place", "kind"),
    [*enumerate(kind for kind in HEADS if kind not in ("no scores", "−1 on a line", "V wide", "normal"))],
)
def test_every_lower_bound_is_attained_in_the_ball(rng, place, kind):
    n, radius, c, causal = 6, 1.0, *((0.5, True) if place % 2 else (30.0, False))
    g = with_mask(scaled_to(HEADS[kind](rng), c, radius), causal)
    pair = hs.inputs.tied_pair(g, n, radius).tokens[None]
    found = constants(g, torch.cat([pair, inputs(rng, g, 4, n, radius)])).max().item()
    for name, lower in accepted(LOWERS_WITH_N, g, n=n, radius=radius).items():
        assert lower.value <= found * ROUNDING, name


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_every_bound_of_zero_values_is_zero_or_refused(causal):
    f = with_mask(form(-torch.eye(2).double(), torch.zeros(2, 2).double()), causal)
    names = WITH_N + WITHOUT_N + LOWERS_WITH_N + LOWERS_WITHOUT_N
    for name, b in accepted(names, f, n=6, radius=2.0).items():
        assert b.value == 0, name
        assert b.log_value == -math.inf, name


def test_lower_bounds_of_cancelling_heads_refuse_or_are_zero(rng):
    f = LAYERS["heads that cancel"](rng)
    assert constants(f, gaussian(rng, 3, 5, 3)).max() < 1e-12
    for name, lower in accepted(LOWERS_WITH_N + LOWERS_WITHOUT_N, f, n=5, radius=3.0).items():
        assert lower.value <= 1e-9, name


@pytest.mark.parametrize(
    "kind", ["mixed heads", "concatenated heads", "grouped queries", "query bias", "copies side by side"]
)
def test_lower_bounds_of_layers_refuse_or_are_attained_on_the_whole_layer(rng, kind):
    f = LAYERS[kind](rng)
    tokens = torch.stack([witness.tokens for witness in hs.inputs.tied_pairs(f, 6, 2.0)])
    found = constants(f, tokens).max().item()
    for name, lower in accepted(LOWERS_WITH_N, f, n=6, radius=2.0).items():
        assert lower.value <= found * ROUNDING, name


def test_lower_bounds_with_a_query_bias_refuse_or_are_attained(rng):
    # a bias can drown the scores that the explicit inputs rely on
    for size in (1.0, 30.0):
        f = random_layer(rng, heads=1, query_bias=size * gaussian(rng, 1, 2))
        X = torch.cat([hs.bracket(f, n=6, radius=1.0).lower.tokens[None], inputs(rng, f, 2, 6, 1.0)])
        found = constants(f, ascended(f, into_ball(X, 1.0), 1.0, steps=15)).max().item()
        for name, lower in accepted(LOWERS_WITH_N, f, n=6, radius=1.0).items():
            assert lower.value <= found * 1.05, name  # the search may miss a little


@pytest.mark.parametrize(
    "positions", [hs.maps.Positions(padding=torch.arange(6) > 1), hs.maps.Positions(window=2)], ids=str
)
def test_lower_bounds_refuse_masks_that_hide_the_pair_or_are_attained(rng, positions):
    f = dataclasses.replace(form(-torch.eye(2).double()), positions=positions)
    X = inputs(rng, f, 20, 6, 3.0)
    found = constants(f, ascended(f, X[::5], 3.0, steps=30)).max().item()
    for name, lower in accepted(LOWERS_WITH_N, f, n=6, radius=3.0).items():
        assert lower.value <= found * 1.02, name  # the search may miss a little


def test_a_soft_cap_keeps_lower_bounds_from_growing(rng):
    # with scores in [−c, c] the weights stay within e^{2c} of each other and slopes shrink
    f = dataclasses.replace(form(-20 * torch.eye(2).double()), softcap=0.1)
    X = inputs(rng, f, 20, 6, 3.0)
    found = constants(f, ascended(f, X[::5], 3.0, steps=30)).max().item()
    for name, lower in accepted(LOWERS_WITH_N, f, n=6, radius=3.0).items():
        assert lower.value <= found * 1.05, name  # the search may miss a little


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_upper_bounds_refuse_a_ball_of_radius_zero_or_hold_there(rng, causal):
    f = with_mask(form(gaussian(rng, 3, 3), gaussian(rng, 3, 3)), causal)
    truth = constants(f, torch.zeros(1, 5, 3).double()).item()
    for name, upper in accepted(WITH_N + WITHOUT_N, f, n=5, radius=0.0).items():
        assert truth <= upper.value * ROUNDING, name


@pytest.mark.parametrize("n", [1, 2])
def test_lower_bounds_for_one_or_two_tokens_refuse_or_are_true(rng, n):
    f = form(-torch.eye(2).double())
    X = ascended(f, inputs(rng, f, 8, n, 2.0), 2.0, steps=60) if n > 1 else gaussian(rng, 4, 1, 2)
    found = constants(f, X).max().item()
    for name, lower in accepted(LOWERS_WITH_N, f, n=n, radius=2.0).items():
        assert lower.value <= found * 1.01, name  # the search may miss a little
