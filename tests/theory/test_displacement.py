"""How far the output moves: never further than its bound."""

import pytest
import torch
from draws import gaussian
from theory.around import on_boundary, small_layer
from theory.forms import ROUNDING

import howsmooth as hs
from howsmooth.errors import AssumptionError


@pytest.mark.slow
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("mixed", [True, False])
def test_no_output_moves_further_than_its_bound(rng, per_token, mixed):
    f, X = small_layer(rng, mixed=mixed, size=2.0), gaussian(rng, 4, 3)
    for eps in (0.01, 0.3, 5.0):
        bound = hs.bounds.displacement_upper(f, X, eps=eps, per_token=per_token).value
        J = f.jacobian(X)
        along = J.vjp(J.jvp(gaussian(rng, 4, 3)))
        steep = X + eps * along / (along.norm(dim=-1, keepdim=True) if per_token else along.norm())
        points = torch.cat([on_boundary(rng, 60, X, eps, per_token), steep[None]])
        moved = (f(points) - f(X)).flatten(1).norm(dim=1).max().item()
        assert moved <= bound * ROUNDING


def test_for_small_moves_it_is_the_constant_times_the_move(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    constant = float(hs.local_lipschitz(f, X, rtol=1e-6, generator=rng).lower)
    assert hs.bounds.displacement_upper(f, X, eps=1e-6).value <= 1.01e-6 * constant


def test_rotary_positions_have_no_bound_on_the_movement(rng):
    f = small_layer(rng, positions=hs.Positions(rotary=hs.Rotary()))
    with pytest.raises(AssumptionError, match="rotary"):
        hs.bounds.displacement_upper(f, gaussian(rng, 4, 3), eps=0.1)
