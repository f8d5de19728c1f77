"""Tied pairs: the smooth function is the bound at its tokens, and what is claimed of a layer is its response."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.example_layers import random_layer

import howsmooth as hs
from howsmooth.domains.frame import Frame
from howsmooth.theory.heads import heads_of
from howsmooth.theory.worst_inputs.rotary_tied_pair import RotaryTiedProblem
from howsmooth.theory.worst_inputs.tied_pair import TiedProblem, best_pair, best_pairs, proven, tied_in_all


def one_head(rng, **more):
    f = random_layer(rng, heads=1, d=6, k=4, query_bias=gaussian(rng, 1, 4), **more)
    return f, heads_of(f)[0], Frame.ball(6, 2.0, solid=True)


@pytest.mark.parametrize("n", [3, 9, None])
def test_the_smooth_function_with_a_query_bias_is_at_most_the_bound_at_its_tokens(rng, n):
    _f, head, frame = one_head(rng)
    problem = TiedProblem(head, frame, n)
    for _draw in range(5):
        c = gaussian(rng, problem.basis.shape[1])
        r, cosine = 0.7, 0.4
        found = problem.log_value(c / c.norm(), torch.tensor(r).double(), torch.tensor(cosine).double()).item()
        pair = problem.pair(torch.cat((c, torch.tensor([r, cosine]).double())).numpy())
        assert found == pytest.approx(pair.log_value, abs=1e-6)


def test_the_share_of_a_pair_among_copies_is_that_of_the_statement(rng):
    _f, head, frame = one_head(rng)
    delta = torch.tensor([-1.0, 0.3, 5.0]).double()
    for n in (3, 9):
        exact = math.sqrt(2 * (n - 2)) / (2 + (n - 2) * (-delta).exp())
        assert torch.allclose(TiedProblem(head, frame, n)._share(delta).exp(), exact)
    many = torch.logspace(-3, 6, 200001).double()[:, None]
    best = ((2 * many).sqrt() / (2 + many * (-delta).exp())).amax(0)
    assert torch.allclose(TiedProblem(head, frame, None)._share(delta).exp(), best, rtol=1e-6)


def test_a_pair_moves_by_a_unit_perturbation_in_opposite_directions(rng):
    f, head, frame = one_head(rng)
    pair = best_pair(head, frame, 7)
    E = pair.perturbation(7)
    assert E.norm().item() == pytest.approx(1.0)
    assert torch.allclose(E[0], -E[1])
    assert not E[2:].any()
    assert pair.log_value <= math.log(f.jacobian(pair.tokens(7)).jvp(E).norm().item()) + 1e-9


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "concatenated"])
def test_a_pair_tied_in_all_heads_turns_the_best_one_and_claims_its_response(rng, mixed):
    f = random_layer(rng, heads=2, d=8, k=3, mixed=mixed, query_bias=gaussian(rng, 2, 3))
    frame, n = Frame.ball(8, 2.0, solid=True), 9
    pairs = best_pairs(f, n, frame)
    (found,) = tied_in_all(f, pairs, n, frame)
    best = max(pairs, key=lambda pair: pair.log_value)
    assert torch.allclose(found.first + found.second, best.first + best.second)
    assert (found.first - found.second).norm().item() == pytest.approx((best.first - best.second).norm().item())
    for head in heads_of(f):
        g = (head.Q @ found.copies + head.query_bias) @ head.K
        assert abs(float(g @ (found.first - found.second))) < 1e-12 * float(g.norm())
    # all others answer as claimed; the pair itself answers too
    response = f.jacobian(found.tokens(n)).jvp(found.perturbation(n))
    assert response[2:].norm().item() == pytest.approx(math.exp(found.log_value), rel=1e-6)
    assert proven(f, found, n) >= found.log_value - 1e-9


def test_no_pair_is_tied_in_all_heads_of_narrow_layers_of_one_head_and_off_balls(rng):
    def tied(frame=None, **shape):
        f = random_layer(rng, **({"heads": 2, "d": 8, "k": 3} | shape))
        frame = Frame.ball(f.d, 2.0, solid=True) if frame is None else frame
        return tied_in_all(f, best_pairs(f, 9, frame), 9, frame)

    assert tied(heads=1) == []
    assert tied(heads=3, d=4) == []
    assert len(tied(heads=3, d=5)) == 1
    norm = hs.LayerNorm(gain=1 + torch.rand(8, dtype=torch.float64, generator=rng), bias=None, eps=1e-5)
    assert tied(Frame.image(norm.image)) == []


def test_tokens_of_turned_pairs_lie_on_the_sphere(rng):
    f = random_layer(rng, heads=2, d=8, k=4, positions=hs.Positions(rotary=hs.Rotary()))
    f = dataclasses.replace(f, query_bias=0.1 * gaussian(rng, 2, 4))
    problem = RotaryTiedProblem(f, 7, 3.0)
    for point in problem.starts(problem.heads[0])[:3]:
        X, E = problem.tokens(torch.from_numpy(point))
        assert torch.allclose(X.norm(dim=-1), torch.full((7,), 3.0).double(), rtol=1e-6)
        assert E.norm().item() == pytest.approx(1.0)
        built = problem.built(point)
        assert built.log_value == pytest.approx(math.log(f.jacobian(X).jvp(E).norm().item()))
