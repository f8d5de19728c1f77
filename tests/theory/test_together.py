"""Heads side by side: bounds of whole layers, in a ball and at one input."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from oracles import constant
from theory.ball import constants, inputs
from theory.forms import LAYERS, ROUNDING, random_layer

import howsmooth as hs
from howsmooth.theory.doubt import outputs
from howsmooth.theory.heads import heads_of
from howsmooth.theory.row_grams import row_squares
from howsmooth.theory.rows import Rows, rows_upper
from howsmooth.theory.second import second_term
from howsmooth.theory.together import _problem, together
from howsmooth.theory.turned import Turns
from howsmooth.theory.views import views

SEVERAL = [
    "mixed heads",
    "concatenated heads",
    "grouped queries",
    "query bias",
    "all biases",
    "rotary",
    "causal rotary",
]


def test_two_tokens_are_all_that_a_row_can_see_with_half_its_weight(rng):
    for n in (2, 3, 5, 9):
        for sharp in (0.3, 2.0, 8.0):
            p = torch.softmax(sharp * gaussian(rng, 200, n), -1)
            x = torch.nn.functional.normalize(gaussian(rng, 200, n, 2), dim=-1)
            far = (x - (p[..., None] * x).sum(1, keepdim=True)).norm(dim=-1)
            e = gaussian(rng, 200, n).abs().sort(descending=True).values
            assert bool(((p * far * e).sum(-1) <= (e[:, 0] + e[:, 1]) / 2 * ROUNDING).all())


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEVERAL)
def test_no_input_of_the_ball_exceeds_the_bound_of_heads_together(rng, kind):
    f = LAYERS[kind](rng)
    for n, radius in ((2, 1.0), (5, 3.0)):
        upper = together(f, heads_of(f), Turns.of(f, n), n, radius)
        assert constants(f, inputs(rng, f, 12, n, radius)).max().item() <= upper * ROUNDING


@pytest.mark.parametrize("biased", [False, True])
def test_any_scales_give_a_bound_and_the_search_finds_better_ones(rng, biased):
    f = random_layer(rng, heads=4, d=6)
    f = dataclasses.replace(f, query_bias=3 * gaussian(rng, 4, f.layout.k)) if biased else f
    truth = constants(f, inputs(rng, f, 12, 5, 2.0)).max().item()
    drawn = []
    for _draw in range(20):
        problem = _problem(f, heads_of(f), None, 5, 2.0, 0.5 + _draw / 10 if biased else 0.0)
        s = (gaussian(rng, 4) / 2).exp()
        beta = problem.values.norm(1 / s)
        norms = [beta * stack.norm(s) for stack in (problem.ones, *problem.own, *problem.third)]
        drawn.append(problem.added(norms[0], norms[1], min(norms[2:])))
    assert truth <= min(drawn)
    assert together(f, heads_of(f), None, 5, 2.0) <= min(drawn) * 1.01


def test_a_query_bias_beside_the_forms_costs_no_more_than_their_sum(rng):
    f = random_layer(rng, heads=4, d=6)
    f = dataclasses.replace(f, query_bias=3 * gaussian(rng, 4, f.layout.k))
    heads, s = heads_of(f), gaussian(rng, 4).exp()
    plain = _problem(dataclasses.replace(f, query_bias=None), heads, None, 5, 2.0, 0.0)
    shift = torch.stack([t * (head.query_bias @ head.K) for t, head in zip(s, heads, strict=True)])
    added = 2.0 * plain.third[0].norm(s) + torch.linalg.matrix_norm(shift, 2).item()
    lengths = torch.linspace(0.05, 8, 400).tolist()
    problems = (_problem(f, heads, None, 5, 2.0, extra) for extra in lengths)
    assert min(p.length * p.third[0].norm(s) for p in problems) <= added * 1.001


def test_heads_that_read_and_write_elsewhere_do_not_add_up():
    d = 8
    part = torch.eye(d, dtype=torch.float64).reshape(4, 2, d)
    f = hs.Attention(query=part, key=part, value=part, output=part.mT)
    alone = hs.bounds.sharp_upper(f.head(0), n=64, radius=5.0).value
    assert hs.bounds.sharp_upper(f, n=64, radius=5.0).value <= 1.1 * alone


@pytest.mark.parametrize("kind", ["mixed heads", "concatenated heads", "grouped queries", "query bias", "all biases"])
def test_the_certificate_by_rows_holds_and_its_parts_are_those_of_the_statement(rng, kind):
    f = LAYERS[kind](rng)
    for scale in (0.1, 1.0, 4.0):
        X = scale * gaussian(rng, 5, f.d)
        seen = views(f, X)
        assert constant(f, X).item() <= rows_upper(seen) * ROUNDING
        rows = Rows.of(seen)
        W = outputs(seen)
        first = sum(torch.kron(view.P, w @ view.head.V) for w, view in zip(W, seen, strict=True))
        alpha = rows.P[..., None] * (rows.y[:, None] - (rows.P @ rows.y)[:, :, None])
        third = torch.einsum("hija,hid->iajd", alpha, rows.g).flatten(2)
        eigenvalues = torch.linalg.svdvals(first.reshape(third.shape) + third).square()
        squares = row_squares(seen)
        assert bool((eigenvalues[:, 0] <= squares * ROUNDING).all())
        assert bool((squares <= eigenvalues[:, 0] * 1.05).all())
        assert torch.linalg.matrix_norm(first, 2).item() <= rows._first() * ROUNDING
        by_blocks = rows.by_blocks(seen) - rows._first()
        assert torch.linalg.matrix_norm(third.flatten(0, 1), 2).item() <= by_blocks * (1 + 1e-9) + 1e-9
        blocks = sum(w @ view.covariance() @ view.head.Q for w, view in zip(W, seen, strict=True))
        second, exact = second_term(seen), torch.linalg.matrix_norm(blocks, 2)
        assert bool((exact <= second * ROUNDING).all())
        assert float(second.max()) <= float(exact.max()) * 1.001 + 1e-6 * float(exact.norm())


def test_rows_that_take_too_long_are_left_to_the_blocks(rng, monkeypatch):
    f, X = random_layer(rng, heads=4, d=6), gaussian(rng, 6, 6)
    monkeypatch.setattr("howsmooth.theory.row_grams.AFFORDABLE", 0)
    assert bool(row_squares(views(f, X)).isinf().all())
    assert constant(f, X).item() <= rows_upper(views(f, X)) < math.inf


def test_rows_that_attend_to_tokens_of_their_own_do_not_add_up():
    # pairs of tokens that tie among themselves: every row is steep, and no token is seen by more than two of them
    far, side = 12 * torch.eye(16, dtype=torch.float64), torch.zeros(32, 17, dtype=torch.float64)
    side[:, :16], side[:, 16] = far.repeat_interleave(2, 0), torch.tensor([3.0, -3.0]).repeat(16)
    A = torch.eye(17, dtype=torch.float64)
    A[16, 16] = 0
    f = hs.Attention(
        query=torch.stack((A, A)) / 4,
        key=torch.stack((A, A)),
        value=torch.eye(17, dtype=torch.float64).expand(2, -1, -1),
    )
    seen = views(f, side)
    rows = Rows.of(seen)
    assert rows.by_blocks(seen) < 0.5 * rows.by_rows(seen)


def test_the_certificate_by_rows_can_be_left_out(rng):
    f, X = random_layer(rng, heads=4, d=6), gaussian(rng, 6, 6)
    apart, both = (hs.bounds.local_upper(f, X, rows=rows).value for rows in (False, True))
    assert constant(f, X).item() <= both <= apart
    assert math.isfinite(apart)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-100, 1e-20, 1e20, 1e60, 1e100])
def test_numbers_at_the_ends_of_their_range_make_no_bound_too_small(rng, size):
    f, X = random_layer(rng, heads=3, d=4), gaussian(rng, 4, 4)
    f = f.__class__(query=size * f.query, key=f.key, value=f.value, output=f.output)
    truth = constant(f, X).item()
    assert truth <= hs.bounds.local_upper(f, X).value * ROUNDING
    assert truth <= hs.bounds.sharp_upper(f, n=4, radius=X.norm(dim=-1).max().item()).value * ROUNDING
