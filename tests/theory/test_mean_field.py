"""Bounds for measures: masks, token weights, exponents, and two Diracs that attain them."""

import dataclasses
import json
import math

import pytest
import torch
from draws import gaussian, number
from theory.ball_inputs import constants, jacobians
from theory.bounds_by_name import LOWERS_WITHOUT_N, WITH_N, WITHOUT_N, accepted, bound
from theory.example_layers import HEADS, ROUNDING, form, matrix_norm, random_layer, scaled_to, with_mask
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.heads import heads_of
from howsmooth.theory.mean_field import _tied_diracs, _two_diracs


@pytest.mark.parametrize(
    "positions",
    [
        hs.maps.Positions(padding=torch.arange(30) == 0),
        hs.maps.Positions(window=3),
        hs.maps.Positions(relative_bias=-0.3 * (torch.arange(59) - 29).abs().double()[None]),
        hs.maps.Positions(relative_bias=0.3 * (torch.arange(59) - 29).double()[None]),
        hs.maps.Positions(position_bias=0.3 * torch.arange(30).double()[None]),
        hs.maps.Positions(causal=True),
        hs.maps.Positions(causal=True, window=4),
    ],
    ids=["one visible token", "window", "local bias", "slanted bias", "position bias", "causal", "causal window"],
)
def test_mean_field_bounds_refuse_or_survive_masks_that_tell_positions_apart(rng, positions):
    # without scores every measure-theoretic bound is about ‖V‖, but a mask can let many rows look at one token
    f = hs.Attention.single_head(
        A=1e-6 * torch.eye(2, dtype=torch.float64), V=torch.eye(2, dtype=torch.float64), positions=positions
    )
    X = gaussian(rng, 1, 30, 2) * 0.1
    truth = constants(f, X).item()
    assert truth > 1.002
    bounds = accepted(WITHOUT_N, f, n=30, radius=1.0)
    assert set(bounds) == ({"masked_mean_field_upper"} if positions.causal and not positions.window else set())
    for name, upper in bounds.items():
        assert truth <= upper.value * ROUNDING, name


def test_mean_field_bounds_refuse_or_survive_token_weights(rng):
    f = form(1e-6 * torch.eye(2).double())
    f = dataclasses.replace(f, weights=torch.tensor([1.0] + [1e-6] * 20).double())
    X = 0.1 * gaussian(rng, 1, 21, 2)
    bounds = accepted(WITH_N + WITHOUT_N, f, n=21, radius=1.0)
    assert set(bounds) == set(WITH_N)
    for name, upper in bounds.items():
        assert constants(f, X).item() <= upper.value * ROUNDING, name


def test_p_is_two_unless_given(rng):
    f = form(gaussian(rng, 3, 3))
    assert_close(
        hs.bounds.sharp_mean_field_upper(f, radius=0.5).value,
        hs.bounds.sharp_mean_field_upper(f, radius=0.5, p=2).value,
    )
    g = with_mask(f, True)
    assert_close(
        hs.bounds.masked_mean_field_upper(g, radius=0.5).value,
        hs.bounds.masked_mean_field_upper(g, radius=0.5, p=2).value,
    )


def rounded(got, printed, digits):
    assert abs(got - printed) <= 0.5000001 * 10.0**-digits, got


def two_diracs(radius, ratio):
    """The constant of the map with A = −1 at two Diracs of masses 1 : ratio, in the metric of the measure."""
    f = hs.Attention.single_head(
        A=-torch.ones(1, 1).double(), V=torch.ones(1, 1).double(), weights=torch.tensor([1.0, ratio]).double()
    )
    J = jacobians(f, torch.tensor([[[-radius], [radius]]]).double())[0]
    root = f.weights.sqrt()
    return matrix_norm(root[:, None] * J / root)


def test_two_diracs_attain_the_printed_values():
    rounded(two_diracs(2.0, math.exp(8.0)), 136.6, 1)
    rounded(two_diracs(2.0, 3 * math.exp(8.0)), 165.5, 1)


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0, 3.0])
def test_mean_field_lower_bounds_stand_between_the_papers_and_two_diracs(radius):
    f = form(-torch.ones(1, 1).double())
    paper = radius**2 / 2 * math.exp(radius**2)
    lower = hs.bounds.mean_field_lower(f, radius=radius).value
    best = max(two_diracs(radius, t * math.exp(2 * radius**2)) for t in (0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0))
    assert paper / ROUNDING <= lower <= best * ROUNDING
    sharp = hs.bounds.sharp_mean_field_lower(f, radius=radius).value
    assert sharp >= lower / ROUNDING
    assert sharp >= 3 * math.sqrt(3) / 8 * radius**2 * math.exp(radius**2) / ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["minus identity", "quarter turn", "gaussian", "identity"])
def test_the_sharp_mean_field_lower_bound_is_attained_by_some_number_of_tokens(rng, kind):
    f = scaled_to(HEADS[kind](rng), 3.0, 1.0)
    sharp = hs.bounds.sharp_mean_field_lower(f, radius=1.0).value
    makers = [hs.inputs.tied_pair] if kind == "quarter turn" else [hs.inputs.tied_pair, hs.inputs.two_point]
    found = max(make(f, n, 1.0).value for make in makers for n in (8, 20, 40, 1200))
    assert sharp <= found * 1.05  # a grid of n, and masses that are no multiples of 1/n
    for n in (4, 300):
        assert sharp >= hs.bounds.sharp_lower(f, n=n, radius=1.0).value / ROUNDING


def test_the_logarithm_is_finite_where_the_bound_overflows():
    f = form(-torch.eye(2).double())
    R = math.sqrt(1000.0)
    paper, sharp = hs.bounds.mean_field_upper(f, radius=R), hs.bounds.sharp_mean_field_upper(f, radius=R)
    masked = hs.bounds.masked_mean_field_upper(with_mask(f, True), radius=R)
    assert paper.value == sharp.value == masked.value == math.inf
    assert_close(number(paper.log_value), number(math.log(3001.0) + 2000.0))
    assert_close(number(sharp.log_value), number(math.log(2001.0) + 1000.0))
    assert_close(number(masked.log_value), number(math.log(2 * 2001.0) + 2000.0))
    for name in LOWERS_WITHOUT_N:
        lower = bound(name, f, n=None, radius=R)
        assert math.isfinite(lower.log_value)
        assert 900.0 < lower.log_value <= sharp.log_value
        assert json.loads(lower.to_json())["log_value"] == lower.log_value


def diagonal(a, v):
    return form(torch.diag(torch.tensor(a).double()), torch.diag(torch.tensor(v).double()))


@pytest.mark.parametrize(
    ("a", "v", "gamma", "size"), [((-2.0, 1.0), (3.0, 7.0), 2.0, 3.0), ((8.0, -0.5), (3.0, 7.0), 1.0, 3.0)]
)
def test_mean_field_lower_bounds_are_their_formulas(a, v, gamma, size):
    for R in (0.7, 1.5):
        f, c = diagonal(a, v), gamma * R**2
        exact = c / 2 * math.exp(c) * size
        assert hs.bounds.mean_field_lower(f, radius=R).value == pytest.approx(exact)
        t = torch.logspace(-2, 2, 100001).double()
        diracs = (t.sqrt() / (1 + t) * (1 + 2 * c * t / (1 + t))).max().item() * math.exp(c) * size
        (head,) = heads_of(f)
        assert _two_diracs(head, R) == pytest.approx(math.log(diracs), abs=1e-6)
        tied = _tied_diracs(head, R)
        largest = max(diracs, math.exp(tied), max(v))
        assert hs.bounds.sharp_mean_field_lower(f, radius=R).value == pytest.approx(largest, rel=1e-6)


def test_pairs_that_tie_need_two_dimensions_scores_and_values():
    for a, v in (((-2.0,), (3.0,)), ((0.0, 0.0), (1.0, 1.0)), ((1.0, 1.0), (0.0, 0.0))):
        (head,) = heads_of(diagonal(a, v))
        assert _tied_diracs(head, 1.0) == -math.inf
    (head,) = heads_of(diagonal((-2.0, 1.0), (3.0, 7.0)))
    assert _tied_diracs(head, 1.0) > -math.inf
    assert hs.bounds.sharp_mean_field_lower(diagonal((1e-9, 1e-9), (3.0, 7.0)), radius=1.0).value == pytest.approx(7.0)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0, math.inf])
def test_heads_add_up_below_two_and_combine_above(rng, p):
    for mixed in (True, False):
        f, R = random_layer(rng, mixed=mixed), 0.4
        heads = heads_of(f)
        for masked in (False, True):
            if masked and p == 1:
                continue
            g = with_mask(f, True) if masked else f
            c = [head.norm_A * R**2 for head in heads]
            hardy = 1.0 if p == math.inf else p / (p - 1) if masked else 0.0
            each = [
                hardy * (1 + 2 * x) * math.exp(2 * x) + x if masked else (1 + 2 * x) * math.exp(2 * x / p) + x
                for x in c
            ]
            apart = sum(head.norm_WV * e for head, e in zip(heads, each, strict=True))
            stacked = math.hypot(*(head.norm_V * e for head, e in zip(heads, each, strict=True)))
            whole = min(apart, stacked * matrix_norm(torch.cat(list(f.output), -1))) if mixed else stacked
            name = "masked_mean_field_upper" if masked else "sharp_mean_field_upper"
            found = getattr(hs.bounds, name)(g, radius=R, p=p).value
            assert found == pytest.approx(whole if p >= 2 else apart)


def test_tied_diracs_of_a_quarter_turn_prove_their_formula():
    f = form(torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double())
    (head,) = heads_of(f)
    for R in (1.0, 2.0, 4.0):
        theta = torch.linspace(1e-4, math.pi / 2, 200001).double()
        exact = (0.5 * (R**2 * theta.cos() / 2).exp() * R**2 * theta.sin()).max().item()
        assert _tied_diracs(head, R) <= math.log(exact) + 1e-9
        assert _tied_diracs(head, R) == pytest.approx(math.log(exact), abs=1e-5)
