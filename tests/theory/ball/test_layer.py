"""Heads side by side: bounds of whole layers, in a ball and at one input."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from oracles import constant
from theory.ball_inputs import constants, inputs
from theory.example_layers import LAYERS, ROUNDING, random_layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.layer_errors import outputs
from howsmooth.theory.at_input.row_certificate import RowCertificate, query_term_norms, row_norms_squared, rows_upper
from howsmooth.theory.ball.layer import LONGEST, LayerBound, _problem, layer_bound, with_bias_column, with_sink
from howsmooth.theory.ball.rotary_forms import RotaryDistances
from howsmooth.theory.heads import heads_of
from howsmooth.theory.linalg.matrix_norms import UNIT
from howsmooth.theory.linalg.stacked_norms import StackedMatrices, largest_norm, max_unit_combination_norm

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
        upper = layer_bound(f, heads_of(f), RotaryDistances.of(f, n), n, radius)
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
        norms = [
            beta * stack.norm(s)
            for stack in (
                problem.ones,
                *problem.query_forms,
                *(stack for stacks in problem.key_forms for stack in stacks),
            )
        ]
        drawn.append(problem.with_single_rows(norms[0], norms[1], min(norms[2:])))
    assert truth <= min(drawn)
    assert layer_bound(f, heads_of(f), None, 5, 2.0) <= min(drawn) * 1.01


def test_a_query_bias_beside_the_forms_costs_no_more_than_their_sum(rng):
    f = random_layer(rng, heads=4, d=6)
    f = dataclasses.replace(f, query_bias=3 * gaussian(rng, 4, f.layout.k))
    heads, s = heads_of(f), gaussian(rng, 4).exp()
    plain = _problem(dataclasses.replace(f, query_bias=None), heads, None, 5, 2.0, 0.0)
    shift = torch.stack([t * (head.query_bias @ head.K) for t, head in zip(s, heads, strict=True)])
    added = 2.0 * largest_norm(plain.key_forms[0], s) + torch.linalg.matrix_norm(shift, 2).item()
    lengths = torch.linspace(0.05, 8, 400).tolist()
    problems = (_problem(f, heads, None, 5, 2.0, extra) for extra in lengths)
    assert min(p.length * largest_norm(p.key_forms[0], s) for p in problems) <= added * 1.001


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
        seen = heads_at_input(f, X)
        assert constant(f, X).item() <= rows_upper(seen) * ROUNDING
        rows = RowCertificate.of(seen)
        W = outputs(seen)
        first = sum(torch.kron(view.P, w @ view.head.V) for w, view in zip(W, seen, strict=True))
        y = torch.stack([view.y @ w.mT for w, view in zip(W, seen, strict=True)])
        alpha = rows.P[..., None] * (y[:, None] - (rows.P @ y)[:, :, None])
        third = torch.einsum("hija,hid->iajd", alpha, torch.stack([view.q @ view.head.K for view in seen])).flatten(2)
        eigenvalues = torch.linalg.svdvals(first.reshape(third.shape) + third).square()
        squares = row_norms_squared(seen)
        assert bool((eigenvalues[:, 0] <= squares * ROUNDING).all())
        assert bool((squares <= eigenvalues[:, 0] * 1.05).all())
        assert torch.linalg.matrix_norm(first, 2).item() <= rows.value_term() * ROUNDING
        by_blocks = rows.by_blocks(seen) - rows.value_term()
        assert torch.linalg.matrix_norm(third.flatten(0, 1), 2).item() <= by_blocks * (1 + 1e-9) + 1e-9
        blocks = sum(w @ view.covariance() @ view.head.Q for w, view in zip(W, seen, strict=True))
        second, exact = query_term_norms(seen), torch.linalg.matrix_norm(blocks, 2)
        assert bool((exact <= second * ROUNDING).all())
        assert float(second.max()) <= float(exact.max()) * 1.001 + 1e-6 * float(exact.norm())


def test_rows_that_take_too_long_are_left_to_the_blocks(rng, monkeypatch):
    f, X = random_layer(rng, heads=4, d=6), gaussian(rng, 6, 6)
    monkeypatch.setattr("howsmooth.theory.at_input.row_certificate.AFFORDABLE", 0)
    assert bool(row_norms_squared(heads_at_input(f, X)).isinf().all())
    assert constant(f, X).item() <= rows_upper(heads_at_input(f, X)) < math.inf


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
    seen = heads_at_input(f, side)
    rows = RowCertificate.of(seen)
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


def terms(n=5, heads=1, radius=2.0, length=2.5, apart=math.inf):
    """The three terms of a layer whose norms are given by hand."""
    ones = StackedMatrices.of([torch.ones(1, 1).double()] * heads)
    return LayerBound(
        n=n,
        radius=radius,
        length=length,
        values=ones,
        value_differences=ones,
        query_forms=(),
        key_forms=(),
        key_factors=[],
        sums_rows=False,
        ones=ones,
        heads_apart=apart,
    )


def worst_movement(n, few, second, row):
    """The largest length of all rows, ``second`` times their own movement plus ``row`` times that of a few tokens."""
    t = torch.linspace(0, math.pi / 2, 200001).double() if few < n else torch.zeros(1).double()
    inside = few * (second * t.cos() / math.sqrt(few) + row * t.cos()).square()
    outside = (n - few) * (second * t.sin() / math.sqrt(max(n - few, 1)) + row * t.cos()).square()
    return float((inside + outside).max().sqrt())


@pytest.mark.parametrize(("n", "heads"), [(2, 1), (3, 1), (9, 1), (9, 3), (9, 5), (100, 2)])
@pytest.mark.parametrize(("second", "third"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.1, 3.0), (7.0, 0.2)])
def test_terms_are_added_as_the_worst_movement_of_tokens_adds_them(n, heads, second, third):
    for size in (1e-170, 1.0, 1e170):
        problem = terms(n, heads)
        row = third * 2.0 * 2.5 / math.sqrt(2)
        exact = math.sqrt(n) * 0.5 + worst_movement(n, min(2 * heads, n), 2.0 * second, row)
        found = problem.with_single_rows(0.5 * size, second * size, third * size)
        assert exact * size <= found * (1 + 1e-9)
        assert found <= exact * size * (1 + 1e-8)


def test_the_first_term_is_the_smaller_one_of_two_and_sums_are_widened_by_their_rounding():
    for combine in (LayerBound.with_single_rows, LayerBound.with_all_rows):
        assert combine(terms(n=4), 3.0, 0.0, 0.0) == pytest.approx(6.0, rel=1e-12)
        assert combine(terms(n=4, apart=1.5), 3.0, 0.0, 0.0) == pytest.approx(3.0, rel=1e-12)
        assert combine(terms(n=4, apart=1.5), 3.0, 1.0, 0.0) == pytest.approx(5.0, rel=1e-12)
        assert combine(terms(n=4), 3.0, 1.0, 0.0) >= 8 * (1 + 32 * UNIT)
        assert combine(terms(), 0.0, math.inf, 1.0) == math.inf


def test_with_all_rows_at_once_the_third_term_is_added_as_it_stands():
    found = terms(n=9).with_all_rows(0.5, 3.0, 4.0)
    assert found == pytest.approx(3 * 0.5 + 2.0 * (3.0 + 4.0 * 2.5 / math.sqrt(2)), rel=1e-12)


def stacked(parts, t, dim):
    return torch.linalg.matrix_norm(torch.cat([s * part for s, part in zip(t, parts, strict=True)], dim), 2).item()


@pytest.mark.parametrize("kind", ["mixed heads", "concatenated heads", "grouped queries", "query bias", "all biases"])
@pytest.mark.parametrize("extra", [0.0, 0.7, 4.0])
def test_the_parts_of_a_layer_are_the_matrices_of_the_statement(rng, kind, extra):
    f, R = LAYERS[kind](rng), 3.0
    heads, t = heads_of(f), gaussian(rng, f.layout.heads).exp()
    problem = _problem(f, heads, None, 5, R, extra)
    forms = [head.K.mT @ head.Q for head in heads]
    longer = [
        torch.cat((A, (head.query_bias @ head.K)[:, None] / extra), 1) if extra else A
        for A, head in zip(forms, heads, strict=True)
    ]
    values = [head.V if head.W is None else head.W @ head.V for head in heads]
    alone = [torch.linalg.matrix_norm(B, 2).item() for B in values]
    beside = max(s * a for s, a in zip(t, alone, strict=True)) if f.output is None else stacked(values, t, 1)
    assert problem.length == pytest.approx(math.hypot(R, extra), rel=1e-12)
    assert problem.length >= math.hypot(R, extra) * (1 + 4 * UNIT)
    assert problem.heads_apart == pytest.approx(sum(alone), rel=1e-12)
    for found, exact in (
        (problem.values.norm(t), float(beside)),
        (problem.query_forms[0].norm(t), R * stacked(forms, t, 0)),
        (largest_norm(problem.key_forms[0], t), stacked(longer, t, 0)),
        (largest_norm(problem.key_forms[1], t), stacked(longer, t, 1)),
        (problem.ones.norm(t), t.norm().item()),
    ):
        assert exact <= found <= exact * (1 + 1e-11)
    s = t / t.norm()
    closer = problem.values.norm(1 / s) * max_unit_combination_norm(
        torch.stack([c * A for c, A in zip(s, longer, strict=True)])
    )
    assert problem.joint_key_norm(s) == pytest.approx(closer, rel=0.05)


def test_products_that_cancel_keep_what_rounding_may_have_hidden():
    # Q and K, W and V meet in nothing: whatever is left of their products is rounding
    half = torch.eye(4).double()[:2].expand(2, -1, -1)
    other = torch.eye(4).double()[2:].expand(2, -1, -1)
    f = hs.Attention(
        query=torch.cat((half, 0 * half), 1),
        key=torch.cat((0 * half, other), 1),
        value=torch.cat((half, 0 * half), 1),
        output=torch.cat((0 * half, other), 1).mT,
    )
    heads, t = heads_of(f), torch.ones(2).double()
    problem = _problem(f, heads, None, 5, 8.0, 0.0)
    least = UNIT * float(heads[0].Q.norm() * heads[0].K.norm())
    assert problem.values.norm(t) >= UNIT * float(heads[0].V.norm() * heads[0].W.norm())
    assert problem.query_forms[0].norm(t) >= 8.0 * least
    assert min(largest_norm(stacks, t) for stacks in problem.key_forms) >= least
    assert problem.joint_key_norm(t) >= 0


@pytest.mark.parametrize("kind", ["rotary", "causal rotary", "soft cap"])
def test_rotary_positions_and_soft_caps_take_norms_of_keys_for_a_tokens_own_movement(rng, kind):
    f, R = LAYERS[kind](rng), 3.0
    f = dataclasses.replace(f, key_bias=gaussian(rng, 3, f.layout.k))
    heads, t = heads_of(f), gaussian(rng, 3).exp()
    reach = [R * torch.linalg.matrix_norm(head.K, 2) + head.key_bias.norm() for head in heads]
    exact = stacked([r * head.Q for r, head in zip(reach, heads, strict=True)], t, 0)
    turns = RotaryDistances.of(f, 5)
    problem = _problem(f, heads, turns, 5, R, 0.0)
    assert exact <= problem.query_forms[0].norm(t) <= exact * (1 + 1e-11)
    if turns is not None:
        pulls = torch.tensor([turns.query_gradient(head, R) for head in heads], dtype=torch.float64)
        assert problem.query_forms[1].norm(t) == pytest.approx((t * pulls).norm().item(), rel=1e-11)
    long = _problem(f, heads, None, 5, R, 0.0)
    if f.positions.rotary is not None:
        by_keys = [torch.linalg.matrix_norm(head.K, 2) * head.Q for head in heads]
        by_queries = [torch.linalg.matrix_norm(head.Q, 2) * head.K for head in heads]
        for found, exact in zip(long.key_forms, (stacked(by_keys, t, 0), stacked(by_queries, t, 0)), strict=True):
            assert exact * (1 + 8 * UNIT) <= largest_norm(found, t) <= exact * (1 + 1e-11)
        assert long.joint_key_norm(t) == math.inf


def blocks_on_axes_of_their_own(heads=3, width=2, **options):
    part = torch.eye(heads * width).double().reshape(heads, width, -1)
    return hs.Attention(query=part, key=part, value=part, output=part.mT, scale=1.0, **options)


@pytest.mark.parametrize(("n", "R"), [(3, 0.1), (16, 1.0), (64, 5.0)])
def test_heads_on_axes_of_their_own_have_the_bound_in_closed_form(n, R):
    f = blocks_on_axes_of_their_own()
    exact = math.sqrt(3 * n) + worst_movement(n, min(6, n), R**2, R**2 / math.sqrt(2))
    assert layer_bound(f, heads_of(f), None, n, R) == pytest.approx(exact, rel=2e-3)
    assert layer_bound(f, heads_of(f), None, n, R) >= exact


@pytest.mark.parametrize(("n", "R"), [(3, 0.1), (16, 1.0), (64, 5.0)])
def test_rotary_heads_that_hardly_turn_have_the_bound_in_closed_form(n, R):
    f = blocks_on_axes_of_their_own(
        positions=hs.maps.Positions(rotary=hs.maps.Rotary(frequencies=torch.tensor([1e-12])), causal=True)
    )
    exact = math.sqrt(3 * n) + R**2 * (1 + math.sqrt(n / 2))
    found = layer_bound(f, heads_of(f), RotaryDistances.of(f, n), n, R)
    assert exact <= found <= exact * (1 + 2e-3)


def test_heads_whose_values_vanish_do_not_count_and_one_head_is_left_to_its_own_bound(rng):
    f = blocks_on_axes_of_their_own()
    with_nothing = dataclasses.replace(f, value=f.value * torch.tensor([1.0, 0.0, 1.0])[:, None, None])
    two = dataclasses.replace(
        f, query=f.query[[0, 2]], key=f.key[[0, 2]], value=f.value[[0, 2]], output=f.output[[0, 2]]
    )
    exact = layer_bound(two, heads_of(two), None, 4, 1.0)
    assert math.isfinite(exact)
    assert layer_bound(with_nothing, heads_of(with_nothing), None, 4, 1.0) == pytest.approx(exact, rel=1e-9)
    assert layer_bound(f.head(0), heads_of(f.head(0)), None, 4, 1.0) == math.inf
    still = dataclasses.replace(f, query=0 * f.query)
    assert layer_bound(still, heads_of(still), None, 4, 1.0) == math.inf


@pytest.mark.parametrize("R", [1.0, 30.0])
@pytest.mark.parametrize("n", [2, 6])
def test_two_tokens_that_tie_under_a_query_bias_attain_the_third_term(n, R):
    # no form at all: every row has the same weights, one half on each of two opposite tokens across the bias
    bias = 40 / R
    axes = torch.eye(3).double()
    f = hs.Attention(
        query=torch.zeros(2, 1, 3).double(),
        key=axes[:1].expand(2, 1, 3),
        value=torch.eye(3).double().expand(2, 3, 3),
        query_bias=torch.tensor([[bias], [bias]]).double(),
        scale=1.0,
    )
    X = torch.zeros(n, 3).double()
    X[0, 1], X[1, 1] = R, -R
    X[2:, 0] = -R  # nobody looks at the others
    truth = constant(f, X).item()
    for upper in (layer_bound(f, heads_of(f), None, n, R), hs.bounds.sharp_upper(f, n=n, radius=R).value):
        assert truth <= upper <= 1.06 * truth


def test_a_query_bias_alone_is_a_third_term_alone(rng):
    f = dataclasses.replace(blocks_on_axes_of_their_own(), query_bias=torch.ones(3, 2).double())
    f = dataclasses.replace(f, query=1e-200 * f.query)
    exact = math.sqrt(3 * 7) + 2.0 * math.sqrt(7 / 2) * math.sqrt(2)
    assert exact <= layer_bound(f, heads_of(f), None, 7, 2.0) <= 1.01 * exact


def test_the_third_term_is_the_smallest_of_three_ways(rng, monkeypatch):
    f = random_layer(rng, heads=4, d=6)
    closer = layer_bound(f, heads_of(f), None, 5, 4.0)
    monkeypatch.setattr("howsmooth.theory.ball.layer.products_norm", lambda _factors: math.inf)
    assert closer < 0.99 * layer_bound(f, heads_of(f), None, 5, 4.0) < math.inf


@pytest.mark.parametrize(("shift", "reach", "longer"), [(0.5, 2.0, 1.0), (18.0, 2.0, 3.0), (1e30, 2.0, LONGEST**0.5)])
def test_tokens_beside_a_sink_have_one_more_number_and_lie_in_a_ball_with_the_sink(rng, shift, reach, longer):
    M, bias, R = gaussian(rng, 3, 4), gaussian(rng, 3), 1.7
    tau = longer * R
    rho = (R**2 + tau**2) / (2 * tau)
    exact = rho / R * torch.cat((M, bias[:, None] / tau), 1)
    found = with_bias_column(M, bias, R, shift, reach)
    assert_close(found, exact, rtol=1e-12, atol=0)
    assert bool((found.abs() >= exact.abs() * (1 + 4 * UNIT)).all())
    # of the ball, what the map sees is the difference between a token and the sink
    x = R * torch.nn.functional.normalize(gaussian(rng, 4), dim=0)
    centre = torch.tensor([0.0, 0.0, 0.0, 0.0, rho], dtype=torch.float64)
    token, sink = (R / rho * (y - centre) for y in (torch.cat((x, torch.tensor([tau]).double())), 0 * centre))
    assert max(token.norm().item(), sink.norm().item()) <= R * (1 + 1e-9)
    if longer < 10:
        assert_close(found @ (token - sink), M @ x + bias)


def test_without_any_reach_the_extra_number_is_as_long_as_it_may_be():
    M, bias = torch.zeros(2, 3).double(), torch.ones(2).double()
    assert_close(
        with_bias_column(M, bias, 2.0, 1.0, 0.0)[:, -1], bias * (LONGEST**0.5 + LONGEST**-0.5) / 2 / (LONGEST**0.5 * 2)
    )
    assert_close(with_bias_column(M, bias, 2.0, 0.0, 0.0), torch.cat((M, bias[:, None] / 2), 1))


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "concatenated"])
def test_beside_a_sink_values_and_keys_are_extended_where_differences_count(rng, mixed):
    more = {"key_bias": 9 * gaussian(rng, 2, 2), "value_bias": 9 * gaussian(rng, 2, 3)}
    f, R = random_layer(rng, heads=2, mixed=mixed, sink=torch.zeros(2).double(), **more), 1.3
    heads, t = heads_of(dataclasses.replace(f, sink=None)), gaussian(rng, 2).exp()
    problem = _problem(f, heads, None, 5, R, 0.0)
    values, keys, plain = [], [], []
    for head in heads:
        W = torch.eye(3).double() if head.W is None else head.W
        reach = torch.linalg.matrix_norm(W @ head.V, 2).item() * R
        V = with_bias_column(head.V, head.value_bias, R, (W @ head.value_bias).norm().item(), reach)
        steep = torch.linalg.matrix_norm(head.K.mT @ head.Q, 2).item() * R
        K = with_bias_column(head.K, head.key_bias, R, (head.key_bias @ head.Q).norm().item(), steep)
        longer = with_sink(head, R)
        assert_close(longer.V, V)
        assert_close(longer.K, K)
        assert_close(longer.Q, torch.cat((head.Q, torch.zeros(2, 1).double()), 1))
        values.append(W @ V)
        keys.append(R * K.mT @ longer.Q)
        plain.append(W @ head.V)
    for found, parts in ((problem.value_differences, values), (problem.values, plain)):
        alone = [s * torch.linalg.matrix_norm(part, 2) for s, part in zip(t, parts, strict=True)]
        exact = stacked(parts, t, 1) if mixed else max(alone).item()
        assert exact <= found.norm(t) <= exact * (1 + 1e-11)
    exact = stacked(keys, t, 0)
    assert exact <= problem.query_forms[0].norm(t) <= exact * (1 + 1e-11)


def test_beside_a_sink_a_head_without_values_counts_by_its_bias(rng):
    f = random_layer(rng, heads=3, sink=torch.zeros(3).double(), value_bias=gaussian(rng, 3, 3))
    f.value[2] = 0
    heads = heads_of(dataclasses.replace(f, sink=None))

    def bound(*more):
        return layer_bound(f, (*heads[:2], *more), None, 5, 2.0)

    assert bound(dataclasses.replace(heads[2], value_bias=100 * heads[2].value_bias)) > 10 * bound()
    assert bound(dataclasses.replace(heads[2], value_bias=0 * heads[2].value_bias)) == bound()
