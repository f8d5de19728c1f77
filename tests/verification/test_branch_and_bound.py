"""Splitting: bounds against the least value over all signs of all units, by linear programs."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch.testing import assert_close
from verification.small_networks import entered, gaussian, network

from howsmooth.verification import box_symbols, branch_and_bound
from howsmooth.verification.branch_and_bound import (
    BentUnits,
    MarginFunction,
    _ascend,
    _bound,
    _children,
    _losses,
    _Nodes,
    split,
)
from howsmooth.verification.taylor_model import Deadline


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
    above = split(units, shifted(objective, -exact + 0.01 * size), Deadline.after(60))
    assert above.positive
    below = split(units, shifted(objective, -exact - 1e-6 * size), Deadline.after(1))
    assert not below.positive
    assert below.lower <= 0


def test_the_leaves_of_what_is_positive_are_all_pieces_with_a_positive_bound(rng):
    units, objective = problem(rng)
    size = float(objective.pixels.abs().sum() + objective.units.abs().sum())
    whole = split(units, shifted(objective, 2 * size), Deadline.after(60))
    assert whole.positive
    assert whole.nodes == len(whole.leaves) == 1
    assert not whole.leaves[0][2].any()  # no unit is split
    parts = split(units, shifted(objective, -least(units, objective) + 0.01 * size), Deadline.after(60))
    assert parts.positive
    # of the signs of all units every choice is on the sides of exactly one leaf
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=len(units.centre)))).double()
    held = [((side == 0) | (side == signs)).all(1) for _alpha, _beta, side in parts.leaves]
    assert (torch.stack(held).sum(0) == 1).all()
    for alpha, beta, side in parts.leaves:
        lower, _pixels, _units = _bound(
            units,
            shifted(objective, -least(units, objective) + 0.01 * size),
            _Nodes(alpha[None], beta[None], side[None]),
        )
        assert lower.item() > 0


def test_a_part_that_is_not_linear_is_taken_off(rng):
    units, objective = problem(rng)
    exact = least(units, objective)
    rough = dataclasses.replace(units, beyond_linear=torch.full_like(units.centre, 10.0))
    assert not split(rough, shifted(objective, -exact + 0.01), Deadline.after(1)).positive


def by_hand(units, objective, alpha, beta, side):
    """The bound of one node, unit by unit from the last layer to the first."""
    total, pixels, symbols = objective.centre.clone(), objective.pixels.clone(), objective.units.clone()
    for c in reversed(range(len(alpha))):
        a, low, high = symbols[c].clone(), units.lower[c], units.upper[c]
        slope, offset = (side[c] > 0).double(), 0.0
        if side[c] == 0:
            chord = high / (high - low)
            slope, offset = (chord, -low * chord) if a < 0 else (alpha[c], 0.0)
        # η = (relu(y) − σy)/g − 1, and the line in place of the unit; a side that holds, times its multiplier
        on_unit = a * (slope - units.slope[c]) / units.gap[c] - side[c] * beta[c]
        total += a * (offset / units.gap[c] - 1) + on_unit * units.centre[c] - on_unit.abs() * units.beyond_linear[c]
        pixels += on_unit * units.pixels[c]
        symbols += on_unit * units.earlier[c]
    return total - (1 + box_symbols.RANGE_SHARE) * pixels.abs().sum(), pixels, symbols


def test_the_bound_of_a_node_replaces_every_symbol_by_its_line(rng):
    units, objective = problem(rng)
    units = dataclasses.replace(units, beyond_linear=0.1 * gaussian(rng, 5).abs())
    objective = shifted(objective, 0.7)
    alpha, beta = torch.rand(9, 5, generator=rng).double(), gaussian(rng, 9, 5).abs()
    side = torch.randint(-1, 2, (9, 5), generator=rng).double()
    side[0] = 0
    found = _bound(units, objective, _Nodes(alpha, beta, side))
    for k in range(9):
        for one, other in zip(found, by_hand(units, objective, alpha[k], beta[k], side[k]), strict=True):
            assert_close(one[k], other, rtol=1e-13, atol=1e-13)


def test_a_margin_of_zero_is_not_positive_and_slopes_begin_with_the_chord(rng, monkeypatch):
    units, objective = problem(rng, layers=(2, 1))
    nothing = MarginFunction(0 * objective.centre, 0 * objective.pixels, 0 * objective.units)
    at_once, every = (split(units, nothing, Deadline.after(seconds)) for seconds in (-1, 60))
    assert (at_once.positive, at_once.lower, at_once.nodes) == (False, 0.0, 1)
    assert (every.positive, every.lower, every.nodes) == (False, 0.0, 15)  # all signs of three units
    given = []

    def ascend(_units, _objective, nodes, _steps):
        given.append(nodes)
        return torch.ones(1), nodes

    monkeypatch.setattr(branch_and_bound, "_ascend", ascend)
    assert split(units, objective, Deadline(0.0)).positive
    assert_close(given[0].alpha[0], units.upper / (units.upper - units.lower))
    assert not given[0].beta.any()
    assert not given[0].side.any()


def test_no_point_on_the_sides_of_a_node_is_below_its_bound(rng):
    units, objective = problem(rng)
    for _draw in range(200):
        xi, eta = 2 * torch.rand(5, generator=rng).double() - 1, torch.zeros(5).double()
        y = torch.zeros(5).double()
        for c in range(5):
            y[c] = units.centre[c] + units.pixels[c] @ xi + units.earlier[c] @ eta
            eta[c] = (torch.relu(y[c]) - units.slope[c] * y[c]) / units.gap[c] - 1
        if (eta.abs() > 1).any():
            continue
        side = y.sign() * torch.randint(0, 2, (5,), generator=rng)
        nodes = _Nodes(*(x[None] for x in (torch.rand(5, generator=rng).double(), gaussian(rng, 5).abs(), side)))
        value = objective.centre + objective.pixels @ xi + objective.units @ eta
        assert _bound(units, objective, nodes)[0].item() <= value.item() + 1e-12


def test_every_bound_that_an_ascent_returns_is_the_one_at_its_point(rng):
    units, objective = problem(rng)
    nodes = _Nodes(*(torch.full((3, 5), x).double() for x in (0.5, 0.1, 0.0)))
    nodes.side[1, 2], nodes.side[2, 4] = 1.0, -1.0
    first = _bound(units, objective, nodes)[0]
    lower, found = _ascend(units, objective, nodes, 30)
    assert_close(lower, _bound(units, objective, found)[0])
    assert (lower >= first).all()
    assert (lower > first + 1e-3).any()
    assert ((found.alpha >= 0) & (found.alpha <= 1) & (found.beta >= 0)).all()
    # of a positive margin nothing is left to raise
    easy = shifted(objective, 100.0)
    assert_close(_ascend(units, easy, nodes, 30)[1].alpha, nodes.alpha)


def test_an_ascent_is_adam_with_steps_that_shrink(rng):
    units, objective = problem(rng)
    objective = dataclasses.replace(objective, units=torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]) * objective.units)
    objective = shifted(objective, -least(units, objective))
    nodes = _Nodes(*(torch.full((11, 5), x).double() for x in (0.5, 0.1, 0.0)))
    nodes.side[1:6], nodes.side[6:] = torch.eye(5).double(), -torch.eye(5).double()  # each unit on each side
    scale = float((objective.units / units.gap).abs().mean())
    alpha, beta = nodes.alpha.clone().requires_grad_(), nodes.beta.clone().requires_grad_()
    groups = [{"params": [alpha]}, {"params": [beta]}]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.99), eps=1e-12, maximize=True)
    steps, best = 40, torch.full((11,), -math.inf).double()
    for step in range(1, steps + 1):
        lower = _bound(units, objective, _Nodes(alpha, beta, nodes.side))[0]
        best = torch.maximum(best, lower.detach())
        for group, size in zip(adam.param_groups, (1.0, scale), strict=True):
            group["lr"] = 0.1 * 0.97**step * size
        adam.zero_grad()
        lower.sum().backward()
        adam.step()
        with torch.no_grad():
            alpha.clamp_(0, 1)
            beta.clamp_(0)
    found, kept = _ascend(units, objective, nodes, steps)
    assert_close(found, best, rtol=1e-9, atol=1e-9)
    assert_close(_bound(units, objective, kept)[0], best, rtol=1e-9, atol=1e-9)
    assert (kept.beta > 0.2).any()  # multipliers rise where the worst point is on the other side
    # the first of a single step is the start, whatever it is
    one, at = _ascend(units, objective, nodes, 1)
    assert_close(one, _bound(units, objective, nodes)[0])
    assert_close(at.alpha, nodes.alpha)


def test_what_lines_lose_is_their_distance_from_their_units_at_the_worst_input(rng):
    for layers in ((3, 2), (2, 2, 1)):
        units, objective = problem(rng, layers=layers)
        alpha, beta = torch.rand(20, 5, generator=rng).double(), gaussian(rng, 20, 5).abs()
        side = (torch.randint(-1, 2, (20, 5), generator=rng) * torch.randint(0, 2, (20, 5), generator=rng)).double()
        found = _losses(units, objective, _Nodes(alpha, beta, side))
        for k in range(20):
            _total, pixels, symbols = by_hand(units, objective, alpha[k], beta[k], side[k])
            xi, eta = -pixels.sign(), torch.zeros(5).double()
            for c in range(5):
                y = float(units.centre[c] + units.pixels[c] @ xi + units.earlier[c] @ eta)
                eta[c] = (max(y, 0.0) - units.slope[c] * y) / units.gap[c] - 1
                low, high, a = float(units.lower[c]), float(units.upper[c]), float(symbols[c] / units.gap[c])
                chord = max(high / (high - low) * (y - low), 0.0)
                lost = -a * (chord - max(y, 0.0)) if a < 0 else a * (max(y, 0.0) - float(alpha[k, c]) * y)
                assert lost >= -1e-12
                expected = -1.0 if side[k, c] else lost + 1e-6 * abs(float(symbols[c]))
                assert found[k, c].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_children_take_both_sides_of_a_unit_that_was_not_split(rng):
    units, objective = problem(rng)
    nodes = _Nodes(*(torch.full((2, 5), x).double() for x in (0.5, 0.1, 0.0)))
    nodes.side[1, 1:] = torch.tensor([1.0, -1.0, 1.0, 1.0])
    children = _children(units, objective, nodes)
    for k in range(2):
        split_now = children.side[k] != nodes.side[k]
        assert split_now.sum() == 1
        assert (nodes.side[k][split_now] == 0).all()
        assert children.side[k][split_now].item() == 1
        assert children.side[k + 2][split_now].item() == -1
        assert_close(children.side[k + 2][~split_now], nodes.side[k][~split_now])
        assert_close(children.alpha[[k, k + 2]], nodes.alpha[[k, k]])


def test_bent_units_of_a_model_are_functions_of_the_box_and_of_each_other(rng):
    f = network(rng, layers=2)
    blocks, x, eps = [f.maps[2].map, f.maps[4].map], gaussian(rng, 6), 0.6
    model, _enters = entered(f, eps, blocks, x)
    units = BentUnits.of(model)
    assert 0 < int((units.layer == 0).sum()) < len(units.layer)
    assert [sel.tolist() for sel in units.layers] == [
        (units.layer == 1).nonzero().flatten().tolist(),
        (units.layer == 0).nonzero().flatten().tolist(),
    ]
    for xi in torch.randint(0, 2, (20, 6), generator=rng).double() * 2 - 1:
        tokens, y, eta = f.maps[0]((x + eps * xi)[None]), [], []
        for residual, block in zip(model.stages, blocks, strict=True):
            stage = residual.parts[1]  # between two linear ones
            entering = tokens @ block.up.mT + block.up_bias
            y.append(entering[stage.bent])
            eta.append(((torch.relu(entering) - stage.slope * entering) / stage.gap - 1)[stage.bent])
            tokens = tokens + block(tokens)
        y, eta = torch.cat(y), torch.cat(eta)
        assert_close(units.centre + units.pixels @ xi + units.earlier @ eta, y)
        assert ((units.lower <= y + 1e-9) & (y - 1e-9 <= units.upper)).all()
