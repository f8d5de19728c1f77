"""How far the output moves: never further than its bound."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.example_layers import ROUNDING
from theory.perturbed_inputs import on_boundary, small_layer

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.theory.around_input import neighbourhood
from howsmooth.theory.around_input.neighbourhood import InputCentre
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.rescaling import Rescaled


@pytest.mark.slow
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("mixed", [True, False])
def test_no_output_moves_further_than_its_bound(rng, per_token, mixed):
    f, X = small_layer(rng, mixed=mixed, size=2.0), gaussian(rng, 4, 3)
    for eps in (0.01, 0.3, 5.0):
        bound = hs.bounds.displacement_upper(f, X, eps=eps, metric=("total", "token")[per_token]).value
        J = f.jacobian(X)
        along = J.vjp(J.jvp(gaussian(rng, 4, 3)))
        steep = X + eps * along / (along.norm(dim=-1, keepdim=True) if per_token else along.norm())
        points = torch.cat([on_boundary(rng, 60, X, eps, per_token), steep[None]])
        moved = (f(points) - f(X)).flatten(1).norm(dim=1).max().item()
        assert moved <= bound * ROUNDING


def test_for_small_moves_it_is_the_constant_times_the_move(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    constant = float(hs.local_lipschitz(f, X, rtol=1e-6, seed=rng).lower)
    assert hs.bounds.displacement_upper(f, X, eps=1e-6).value <= 1.01e-6 * constant


def test_a_displacement_is_not_shown_as_a_lipschitz_constant(rng):
    shown = repr(hs.bounds.displacement_upper(small_layer(rng), gaussian(rng, 4, 3), eps=0.1))
    assert "displacement ≤" in shown
    assert "Lip" not in shown


def test_rotary_positions_have_no_bound_on_the_movement(rng):
    f = small_layer(rng, positions=hs.maps.Positions(rotary=hs.maps.Rotary()))
    with pytest.raises(AssumptionError, match="rotary"):
        hs.bounds.displacement_upper(f, gaussian(rng, 4, 3), eps=0.1)


def test_the_hull_of_values_is_the_one_of_its_statement(rng):
    f, X = small_layer(rng, positions=hs.maps.Positions(causal=True)), gaussian(rng, 4, 3)
    unit = Rescaled.of(f, X)
    errors = [
        dataclasses.replace(view.errors, value=0.3 + h, scores=0.1 * gaussian(rng, 4).abs())
        for h, view in enumerate(heads_at_input(unit.attention, unit.X))
    ]
    seen = [
        dataclasses.replace(view, errors=r)
        for view, r in zip(heads_at_input(unit.attention, unit.X), errors, strict=True)
    ]
    squares = 0.0
    for i in range(4):
        row = 0.0
        for view, r, W, V in zip(seen, errors, unit.attention.output, unit.attention.value, strict=True):
            y = unit.X @ (W @ V).mT
            norm = float(torch.linalg.matrix_norm(W @ V, 2))
            wrong = 4 * r.value * norm / float(torch.linalg.matrix_norm(V, 2))
            reach = float((y - y.mean(0)).norm(dim=-1).max())
            mean = float(torch.expm1(2 * r.scores[i])) * (2 * reach + wrong)
            distances = [float((y[j] - view.P[i] @ y).norm()) for j in range(i + 1)]
            row += max(distances) + wrong + mean + norm * 0.7
        squares += row**2
    assert neighbourhood._hull([view.mixed() for view in seen], 0.7) == pytest.approx(
        math.sqrt(squares) * (1 + 1e-12), rel=2e-13, abs=0
    )


@pytest.mark.parametrize("per_token", [False, True])
def test_the_movement_is_at_most_the_length_of_its_path_times_the_constants_and_at_most_the_hull(
    rng, per_token, monkeypatch
):
    f, X, eps = small_layer(rng), 5 * gaussian(rng, 4, 3), 0.3
    unit = Rescaled.of(f, X)
    constants = gaussian(rng, 16).abs().cumsum(0).tolist()
    asked = []
    monkeypatch.setattr(InputCentre, "constants", lambda *_args: (asked.append(x) or x for x in constants))
    path = sum(constants) * eps / 16 * (2 if per_token else 1) * (1 + 1e-12)
    for hull in (1e-3, 1e3):
        asked.clear()
        monkeypatch.setattr(neighbourhood, "_hull", lambda _views, radius, hull=hull: hull * radius)
        bound = hs.bounds.displacement_upper(f, X, eps=eps, metric=("total", "token")[per_token]).value
        assert bound == pytest.approx(min(path, unit.in_original_units(hull * eps)), rel=1e-13, abs=0)
        assert len(asked) == (1 if hull < 1 else 16)  # where the hull is reached at once, no other ball is looked at


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("mixed", [True, False])
def test_balls_that_are_left_out_would_change_nothing(rng, per_token, mixed, monkeypatch):
    f, X = small_layer(rng, mixed=mixed, size=2.0), gaussian(rng, 4, 3)
    metric, radii, counts = ("total", "token")[per_token], (0.03, 0.3, 1.0, 3.0, 30.0), []
    derivatives = InputCentre._derivatives
    monkeypatch.setattr(InputCentre, "_derivatives", lambda *a: counts.append(0) or derivatives(*a))
    (found,) = neighbourhood.displacement_uppers(f, [X], radii=radii, metric=metric)
    spent = len(counts)
    monkeypatch.setattr(neighbourhood, "_sum_of_all", lambda _constants: 0.0)  # never enough
    (whole,) = neighbourhood.displacement_uppers(f, [X], radii=radii, metric=metric)
    assert [bound.value for bound in found] == [bound.value for bound in whole]
    assert spent < len(counts) - spent == 16 * len(radii)


def test_the_hull_of_values_that_are_all_zero_is_a_point(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    assert InputCentre(attention=dataclasses.replace(f, value=0 * f.value), X=X).hull(0.7) == 0.0


def test_far_away_the_hull_bounds_the_movement_closely():
    # one token goes far away and takes the whole attention with it
    one = torch.eye(1, dtype=torch.float64)
    f, X = hs.Attention.single_head(A=one, V=one), torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    Z = X + torch.tensor([[50.0], [0.0]], dtype=torch.float64)
    bound = hs.bounds.displacement_upper(f, X, eps=50.0).value
    moved = float((f(Z) - f(X)).norm())
    assert moved <= bound <= 1.5 * moved


@pytest.mark.slow
def test_several_inputs_share_what_is_known_around_the_origin(rng, monkeypatch):
    f, inputs, asked = small_layer(rng), [scale * gaussian(rng, 4, 3) for scale in (1.5, 1.0, 1.2, 0.9)], []
    radii = (0.01, 1.0, 50.0)
    alone = [[hs.bounds.displacement_upper(f, X, eps=eps).value for eps in radii] for X in inputs]
    together = neighbourhood.displacement_uppers(f, inputs, radii=radii)
    assert [[bound.value for bound in some] for some in together] == alone
    upper = neighbourhood.sharp_upper
    monkeypatch.setattr(neighbourhood, "sharp_upper", lambda *args, **more: asked.append(more) or upper(*args, **more))
    neighbourhood.displacement_uppers(f, inputs, radii=[1.0])
    assert 0 < len(asked) < len(inputs)


def test_a_ball_around_the_origin_is_asked_where_a_smaller_one_may_help(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    around = neighbourhood.AroundOrigin(attention=f)
    large, small = 1e9, 1e-9
    first = around.upper(X, 1.0, large)
    assert first == hs.bounds.sharp_upper(f, n=4, radius=next(iter(around.known))).value
    assert around.upper(2 * X, 1.0, small) == math.inf
    assert first < around.upper(2 * X, 1.0, large) < math.inf
    assert around.upper(X / 2, 1.0, small) < first  # the ball is smaller than any that is known
