"""Tied pairs: the smooth function is the bound at its tokens, and what is claimed of a layer is its response."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.example_layers import random_layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.theory.heads import heads_of
from howsmooth.theory.worst_inputs.tied_layer import RotaryTiedProblem, best_pairs, pair_in_layer, proven, tied_in_all
from howsmooth.theory.worst_inputs.tied_pair import TiedProblem, best_pair


def one_head(rng, **more):
    f = random_layer(rng, heads=1, d=6, k=4, query_bias=gaussian(rng, 1, 4), **more)
    return f, heads_of(f)[0], StretchedSphere.ball(6, 2.0, solid=True)


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
    frame, n = StretchedSphere.ball(8, 2.0, solid=True), 9
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
        frame = StretchedSphere.ball(f.d, 2.0, solid=True) if frame is None else frame
        problem = TiedProblem(heads_of(f)[0], frame, 9)
        point = torch.cat((gaussian(rng, problem.basis.shape[1]), torch.tensor([1.0, 0.3])))
        return tied_in_all(f, [problem.pair(point.numpy())], 9, frame)

    assert tied(heads=1) == []
    assert tied(heads=3, d=4) == []
    assert len(tied(heads=3, d=5)) == 1
    norm = hs.maps.LayerNorm(gain=1 + torch.rand(8, dtype=torch.float64, generator=rng), bias=None, eps=1e-5)
    assert tied(StretchedSphere.image(norm.image)) == []


def test_tokens_of_turned_pairs_lie_on_the_sphere(rng):
    f = random_layer(rng, heads=2, d=8, k=4, positions=hs.maps.Positions(rotary=hs.maps.Rotary()))
    f = dataclasses.replace(f, query_bias=0.1 * gaussian(rng, 2, 4))
    problem = RotaryTiedProblem(f, 7, 3.0)
    for point in problem.starts(problem.heads[0])[:3]:
        X, E = problem.tokens(torch.from_numpy(point))
        assert torch.allclose(X.norm(dim=-1), torch.full((7,), 3.0).double(), rtol=1e-6)
        assert E.norm().item() == pytest.approx(1.0)
        built = problem.built(point)
        assert built.log_value == pytest.approx(math.log(f.jacobian(X).jvp(E).norm().item()))


def places(rng):
    """A ball, its surface, and the surface of an ellipsoid that is centred somewhere else."""
    gain, bias = 1 + torch.rand(6, dtype=torch.float64, generator=rng), gaussian(rng, 6)
    return {
        "ball": StretchedSphere.ball(6, 2.0, solid=True),
        "sphere": StretchedSphere.ball(6, 2.0, solid=False),
        "image": StretchedSphere.image(hs.maps.LayerNorm(gain=gain, bias=bias, eps=1e-5).image),
    }


@pytest.mark.parametrize("n", [3, 9])
@pytest.mark.parametrize("place", ["ball", "image"])
def test_the_pair_of_a_point_is_that_of_the_statement(rng, place, n):
    _f, head, _frame = one_head(rng)
    frame = places(rng)[place]
    problem = TiedProblem(head, frame, n)
    D = frame.pull(torch.eye(6).double())
    r, cosine = (0.7 if frame.solid else 1.0), 0.4
    sine = math.sqrt(1 - cosine**2)
    for _draw in range(3):
        c = gaussian(rng, problem.basis.shape[1])
        pair = problem.pair(torch.cat((c, torch.tensor([r, cosine], dtype=torch.float64))).numpy())
        copies = frame.centre + r * D @ (problem.basis @ c) / c.norm()
        g = head.K.mT @ (head.Q @ copies + head.query_bias)
        w = D.mT @ g / (D.mT @ g).norm()
        beside = torch.eye(6).double() - torch.outer(w, w)
        zeta = torch.linalg.svd(head.mixed @ D @ beside).Vh[0]
        zeta = zeta * ((pair.first - pair.second) @ D @ zeta).sign()
        assert_close(pair.copies, copies)
        assert_close(pair.first, frame.centre + D @ (cosine * w + sine * zeta))
        assert_close(pair.second, frame.centre + D @ (cosine * w - sine * zeta))
        assert_close(pair.direction, g / g.norm())
        share = 1 / (2 + (n - 2) * math.exp(-float(g @ (pair.first - copies))))
        stretched = float((head.mixed @ D @ zeta).norm())
        exact = math.sqrt(2 * (n - 2)) * share * float(g.norm()) * sine * stretched
        assert pair.log_value == pytest.approx(math.log(exact), abs=1e-9)
        smooth = problem.log_value(c / c.norm(), *torch.tensor([r, cosine], dtype=torch.float64))
        assert smooth.item() == pytest.approx(math.log(exact), abs=1e-6)


@pytest.mark.parametrize("place", ["ball", "sphere", "image"])
def test_searches_begin_and_end_where_tokens_may_lie(rng, place):
    _f, head, _frame = one_head(rng)
    frame = places(rng)[place]
    problem = TiedProblem(head, frame, 9)
    starts = problem.screened(problem.starts())
    for r, cosine in (start[-2:] for start in starts):
        assert 0 < r <= 1 if frame.solid else r == 1
        assert 0 <= cosine < 1
    pair = problem.climb(starts[0])
    assert pair.log_value >= problem.pair(starts[0]).log_value
    lengths = ((pair.tokens(5) - frame.centre) / frame.stretch).norm(dim=-1)
    assert_close(lengths[:2], torch.ones(2).double())
    assert float(lengths.max()) <= 1 + 1e-12
    assert frame.solid or float(lengths.min()) >= 1 - 1e-12


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "concatenated"])
def test_the_best_of_some_pairs_is_turned_and_proves_the_norm_of_the_statement(rng, mixed):
    n, d = 9, 8
    f = random_layer(rng, heads=2, d=d, k=3, mixed=mixed, query_bias=gaussian(rng, 2, 3))
    frame, heads = StretchedSphere.ball(d, 2.0, solid=True), heads_of(f)
    problem = TiedProblem(heads[0], frame, n)
    points = (torch.cat((gaussian(rng, problem.basis.shape[1]), torch.tensor([0.6, 0.3]))) for _draw in range(3))
    pairs = sorted((problem.pair(point.numpy()) for point in points), key=lambda pair: pair.log_value)
    best = pairs[-1]
    (found,) = tied_in_all(f, pairs[1:] + pairs[:1], n, frame)
    middle, half = (best.first + best.second) / 2, (best.first - best.second) / 2
    g = torch.stack([head.K.mT @ (head.Q @ best.copies + head.query_bias) for head in heads])
    basis = torch.linalg.qr(g.mT).Q  # the middle lies in it: where the first head pulls
    z = half - basis @ (basis.mT @ half)
    z = z * half.norm() / z.norm()
    assert_close(found.copies, best.copies)
    assert_close(found.first, middle + z)
    assert_close(found.second, middle - z)
    parts = []
    for head, pull in zip(heads, g, strict=True):
        share = 1 / (2 + (n - 2) * math.exp(-float(pull @ (middle - best.copies))))
        value = head.V @ z if head.W is None else head.W @ head.V @ z
        parts.append(share * torch.outer(value, pull))
    response = sum(parts) if mixed else torch.cat(parts)
    size = float(torch.linalg.matrix_norm(response, 2))
    assert found.log_value == pytest.approx(math.log(math.sqrt(2 * (n - 2)) * size), abs=1e-9)
    assert float((response @ found.direction).norm()) == pytest.approx(size)
    assert float(found.direction.norm()) == pytest.approx(1.0)


def test_what_a_pair_proves_is_its_formula_of_one_head_and_the_response_of_several(rng):
    for heads in (1, 2):
        f = random_layer(rng, heads=heads, d=6, k=4, query_bias=gaussian(rng, heads, 4))
        problem = TiedProblem(heads_of(f)[0], StretchedSphere.ball(6, 2.0, solid=True), 9)
        point = torch.cat((gaussian(rng, problem.basis.shape[1]), torch.tensor([0.6, 0.3])))
        pair = problem.pair(point.numpy())
        response = float(f.jacobian(pair.tokens(9)).jvp(pair.perturbation(9)).norm())
        found = pair_in_layer(f, pair, 9)
        assert found.log_value == pytest.approx(pair.log_value if heads == 1 else math.log(response), abs=1e-9)
        assert math.exp(found.log_value) <= response * (1 + 1e-9)
        assert_close(found.X[:2], torch.stack((pair.first, pair.second)))
        assert_close(found.X[2:], pair.copies.expand(7, -1))
        move = pair.direction / math.sqrt(2)
        assert_close(found.E, torch.cat((move[None], -move[None], torch.zeros(7, 6).double())))


def test_a_point_where_nothing_is_pulled_or_nothing_moves_has_tokens_and_proves_nothing():
    axis = torch.tensor([[[1.0, 0.0]]]).double()
    (head,) = heads_of(hs.Attention(query=axis, key=axis, value=axis))
    problem = TiedProblem(head, StretchedSphere.ball(2, 2.0, solid=True), 9)
    for e in torch.eye(2).double():  # along the one direction that is scored and valued, and across
        pair = problem.pair(torch.cat((problem.basis.mT @ e, torch.tensor([0.7, 0.4]))).numpy())
        assert bool(pair.tokens(9).isfinite().all())
        assert bool(pair.perturbation(9).isfinite().all())
        assert pair.log_value == -math.inf
