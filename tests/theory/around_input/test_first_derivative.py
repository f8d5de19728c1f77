"""The first derivative of a whole layer on a ball: three terms, each against its definition and its statement."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.around_input.synthetic import EXACT, head_on_ball, layer_at_centre, positive
from theory.around_input.test_second_derivative import KINDS
from theory.perturbed_inputs import ascended, on_boundary, small_layer
from torch.testing import assert_close

from howsmooth.theory.around_input.first_derivative import Deviations, FirstDerivative, _joint_norm, _radius
from howsmooth.theory.around_input.head_on_ball import HeadAtCentre, softmax_jacobian_bounds
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, Scaled
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.layer_errors import outputs
from howsmooth.theory.linalg.matrix_norms import norm_upper

ROOT2 = math.sqrt(2)


def looked_at(f, X):
    """The first derivative around an input, and heads with values before and after the output projection."""
    seen = heads_at_input(f, X)
    first = FirstDerivative.of(seen, LayerAtCentre.of(seen))
    return first, [[HeadAtCentre.of(view) for view in side] for side in (seen, [view.mixed() for view in seen])]


def ball_of(sides, t, per_token):
    values, mixed = sides
    before = [head.on_ball(t, per_token) for head in values]
    return before, [head.on_ball(t, per_token, like=x) for head, x in zip(mixed, before, strict=True)]


def definitions(f, Z):
    """The value, query and key terms at Z as matrices."""
    seen, eye = heads_at_input(f, Z), torch.eye(len(Z), dtype=Z.dtype)
    value = query = key = 0
    for view, W in zip(seen, outputs(seen), strict=True):
        head, P = view.head, view.P
        A, B, g = head.K.mT @ head.Q, W @ head.V, view.q @ head.K
        x = Z - (P @ Z)[:, None]
        C = torch.einsum("ij,ija,ijb->iab", P, x, x)
        value = value + torch.einsum("ij,od->iojd", P, B)
        query = query + torch.einsum("ik,ioa->ioka", eye, B @ C @ A)
        key = key + torch.einsum("ij,ijo,id->iojd", P, x @ B.mT, g)
    return {"value_term": value, "query_term": query, "key_term": key}


@pytest.mark.parametrize("kind", KINDS)
def test_the_three_terms_add_up_to_the_derivative(rng, kind):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    assert_close(sum(definitions(f, X).values()), torch.func.jacrev(f)(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_term_is_below_its_bound_on_balls_of_any_size(rng, kind, per_token):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    first, sides = looked_at(f, X)
    for t in (1e-9, 0.1, 1.0, 10.0):
        d = first.deviations(*ball_of(sides, t, per_token), t, per_token)
        for Z in on_boundary(rng, 6, X, t, per_token):
            for name, T in definitions(f, Z).items():
                true = torch.linalg.matrix_norm(T.flatten(0, 1).flatten(1), 2)
                assert true <= getattr(first, name)(d) * (1 + 1e-9), name


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_derivative_of_a_whole_layer_is_below_its_bound_on_balls_of_any_size(rng, kind, per_token):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    first, sides = looked_at(f, X)
    for t in (1e-9, 0.1, 1.0, 10.0):
        bound = first.upper(*ball_of(sides, t, per_token), t, per_token)
        assert ascended(f, X, on_boundary(rng, 6, X, t, per_token), t, per_token) <= bound


@pytest.mark.parametrize("name", ["value_term", "query_term", "key_term"])
def test_a_term_of_one_head_on_a_line_nearly_attains_its_bound(name):
    f = small_layer(torch.Generator().manual_seed(3), heads=1, d=1, k=1, v=1, out=1)
    X = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    first, sides = looked_at(f, X)
    d = first.deviations(*ball_of(sides, 1e-9, False), 1e-9, False)
    T = definitions(f, X)[name]
    true = float(torch.linalg.matrix_norm(T.flatten(0, 1).flatten(1), 2))
    assert true * (1 - 1e-12) <= getattr(first, name)(d) <= 1.05 * true


# Statements: with every field drawn at random, each bound is the formula of the theorem.


def drawn(rng, heads=2, n=4, small=False):
    """A first derivative and deviations of which every field is drawn; radii small enough to count, or not."""
    c, radius = layer_at_centre(rng, heads=heads, n=n), 0.3 if small else 3.0
    first = FirstDerivative(
        centre=c,
        output_radius=radius * positive(rng, heads),
        value_radius=radius * positive(rng, heads),
        key_radius=radius * positive(rng, heads),
        value_scales=Scaled(positive(rng, heads), 1.1),
        rest_scales=Scaled(positive(rng, heads), 0.9),
        rest_forms=1.7,
        move_scales=Scaled(positive(rng, heads), 1.4),
        move_forms=0.6,
        covariance=float(positive(rng, 1)),
        key_covariance=float(positive(rng, 1)),
    )
    d = Deviations(
        P=positive(rng, heads, n, n),
        root_peak=positive(rng, heads, n),
        outputs=positive(rng, heads, n),
        values=positive(rng, heads, n),
        keys=positive(rng, heads, n),
        movements=positive(rng, heads, n),
        weighted_movements=positive(rng, heads, n),
        length=0.8,
    )
    return c, first, d


def value_term(c, first, d):
    heads, n, _n = d.P.shape
    columns = [[min(sum(d.P[h, i, j] for i in range(n)), n) for j in range(n)] for h in range(heads)]
    s, norm = first.value_scales
    added = sum(c.outputs.norm[h] * max(columns[h]) ** 0.5 for h in range(heads))
    joined = norm * max(sum(s[h] ** 2 * columns[h][j] for h in range(heads)) for j in range(n)) ** 0.5
    return min(added, joined), {added < joined}


def query_term(c, first, d):
    heads, n, _n = d.P.shape
    (_c, W), (s, B), H, wins, rows = first.rest_scales, first.move_scales, range(heads), set(), []
    for i in range(n):
        sigma, values, tau, e = d.outputs[:, i], d.values[:, i], d.keys[:, i], d.movements[:, i]
        added = sum(sigma[h] * tau[h] for h in H)
        stacked = c.W_joint * sum((c.W_norm[h] * values[h] * tau[h]) ** 2 for h in H) ** 0.5
        ball = first.covariance * max(values[h] / first.value_radius[h] for h in H)
        moved = B * sum((s[h] * e[h] * tau[h]) ** 2 for h in H) ** 0.5
        moved_ball = first.key_covariance * max(e)
        keys = W * first.rest_forms * max(values[h] * e[h] * ROOT2 / first.value_radius[h] for h in H)
        both = B * first.move_forms * max(e) ** 2
        rows.append(min(added, stacked, ball) + min(moved, moved_ball) + keys + both)
        wins |= {torch.stack([added, stacked, ball]).argmin().item(), "moved" if moved < moved_ball else "ball"}
    return max(rows), wins


def key_term(c, first, d):
    heads, n, _n = d.P.shape
    (scales, W), (s, B), wins, rows = first.rest_scales, first.move_scales, set(), []
    nu = torch.minimum(d.root_peak * d.values, first.value_radius[:, None] / ROOT2)
    nu_outputs = torch.minimum(d.root_peak * d.outputs, first.output_radius[:, None] / ROOT2)

    def norm(weights):
        stack = torch.cat([weights[h, i] * c.g[h, i][None] for h in range(heads) for i in range(n)])
        return norm_upper(stack) + float((weights * c.g_error).norm())

    for i in range(n):
        joined = torch.stack([W * nu[h, i] / scales[h] for h in range(heads)])
        added = torch.stack([(nu_outputs[h, i] * nu_outputs[:, i].sum()).sqrt() for h in range(heads)])
        first_is_better = (joined * c.g_length[:, i]).norm() <= (added * c.g_length[:, i]).norm()
        wins.add(bool(first_is_better))
        rows.append(joined if first_is_better else added)
    share = max(float((nu[h] / (first.value_radius[h] / ROOT2)).max()) for h in range(heads))
    moving = W * first.rest_forms * share + B * first.move_forms * float(d.weighted_movements.max())
    return norm(torch.stack(rows, dim=1)) + B * norm(s[:, None] * d.weighted_movements) + moving * d.length, wins


@pytest.mark.parametrize(
    ("statement", "ways"),
    [(value_term, {True, False}), (query_term, {0, 1, 2, "moved", "ball"}), (key_term, {True, False})],
)
def test_every_term_is_the_one_of_its_statement(rng, statement, ways):
    seen = set()
    for draw in range(16):
        c, first, d = drawn(rng, small=draw % 2 == 0)
        found, wins = statement(c, first, d)
        assert getattr(first, statement.__name__)(d) == pytest.approx(float(found), rel=1e-13, abs=0)
        seen |= {win.item() if isinstance(win, torch.Tensor) else win for win in wins}
    assert seen == ways  # every proof is the best one somewhere


@pytest.mark.parametrize("per_token", [False, True])
def test_deviations_on_a_ball_are_those_of_its_statement(rng, per_token):
    t = 0.4
    for draw in range(4):
        c, first, _d = drawn(rng, small=draw % 2 == 0)
        values, mixed = ([head_on_ball(rng, P) for P in c.P] for _side in range(2))
        d = first.deviations(values, mixed, t, per_token)
        for h, (head, after) in enumerate(zip(values, mixed, strict=True)):
            norm, _diagonal = softmax_jacobian_bounds(head.upper, head.lower)
            assert_close((d.P[h], d.root_peak[h]), (head.upper, head.peak.sqrt()), **EXACT)
            for found, total, points, radius in (
                (d.outputs, after.sigma, c.outputs, first.output_radius),
                (d.values, head.sigma, c.values, first.value_radius),
                (d.keys, head.tau, c.keys, first.key_radius),
            ):
                at_rest = (total - points.norm[h] * head.drift).clamp_min(0.0)
                assert_close(found[h], torch.minimum(at_rest, radius[h]), **EXACT)
            if per_token:
                stated = (head.drift, (head.peak.sqrt() * head.drift).clamp_max(t / ROOT2))
            else:
                stated = (t * norm.sqrt(), t * norm)
            assert_close((d.movements[h], d.weighted_movements[h]), stated, **EXACT)
        assert d.length == pytest.approx(t * 2 if per_token else t, rel=1e-14, abs=0)
        total = first.value_term(d) + first.query_term(d) + first.key_term(d)
        assert first.upper(values, mixed, t, per_token) == pytest.approx(total * (1 + 1e-9), rel=1e-13, abs=0)
        assert first.upper(values, mixed, math.inf, per_token) == math.inf


def test_movements_deviate_by_no_more_than_their_bounds(rng):
    for scale in (0.1, 1.0, 5.0):
        p = torch.softmax(scale * gaussian(rng, 6), 0)
        S = torch.diag(p) - torch.outer(p, p)
        norm, _diagonal = softmax_jacobian_bounds(p, p)
        E = gaussian(rng, 200, 6, 2)
        whole = E / E.flatten(1).norm(dim=1)[:, None, None]
        each = E / E.norm(dim=-1, keepdim=True)
        assert torch.linalg.matrix_norm(whole.mT @ S @ whole, 2).max().sqrt() <= norm.sqrt()
        assert torch.linalg.matrix_norm(S @ whole, 2).max() <= norm
        assert torch.linalg.matrix_norm(each.mT @ S @ each, 2).max().sqrt() <= 1
        assert torch.linalg.matrix_norm(S @ each, 2).max() <= min(p.max().sqrt(), 1 / ROOT2)


def test_radii_scales_and_norms_are_those_of_their_statements(rng):
    f, X = small_layer(rng, heads=3, query_bias=gaussian(rng, 3, 2)), gaussian(rng, 5, 3)
    # errors of ordinary size, so that they are seen
    seen = [
        dataclasses.replace(view, errors=dataclasses.replace(view.errors, key=0.3 + h, value=0.2 + h))
        for h, view in enumerate(heads_at_input(f, X))
    ]
    c = LayerAtCentre.of(seen)
    first = FirstDerivative.of(seen, c)
    for radius, y, points in (
        (first.output_radius, [x @ (W @ V).mT for x, W, V in zip([X] * 3, f.output, f.value, strict=True)], c.outputs),
        (first.value_radius, [X @ V.mT for V in f.value], c.values),
        (first.key_radius, list(c.y_keys), c.keys),
    ):
        stated = torch.stack([_radius(x) for x in y]) + points.error
        assert_close(radius, stated, rtol=1e-11, atol=0)

    def stacked(scale):
        blocks = [x * (f.score_scale * K.mT @ Q) for x, K, Q in zip(scale, f.key, f.query, strict=True)]
        return torch.linalg.matrix_norm(torch.cat(blocks), 2)

    def row(scale, blocks):
        return torch.linalg.matrix_norm(torch.cat([x * b for x, b in zip(scale, blocks, strict=True)], dim=1), 2)

    B = [W @ V for W, V in zip(f.output, f.value, strict=True)]
    s, norm = first.value_scales
    assert norm == pytest.approx(float(row(1 / s, B)), rel=1e-11, abs=0)
    s, norm = first.rest_scales
    assert norm == pytest.approx(float(row(s, f.output)), rel=1e-11, abs=0)
    lost = 1e-12 * float((first.value_radius / ROOT2 / s * c.keys.norm).sum())
    blocks = (first.value_radius / ROOT2 / s)[:, None, None] * c.A
    assert first.rest_forms == pytest.approx(norm_upper(blocks.flatten(0, 1)) + lost, rel=1e-14, abs=0)
    assert first.rest_forms == pytest.approx(float(stacked(first.value_radius / ROOT2 / s)), rel=1e-10, abs=0)
    s, norm = first.move_scales
    assert norm == pytest.approx(float(row(1 / s, B)), rel=1e-11, abs=0)
    lost = 1e-12 * float((s * c.keys.norm).sum())
    assert first.move_forms == pytest.approx(
        norm_upper((s[:, None, None] * c.A).flatten(0, 1)) + lost, rel=1e-14, abs=0
    )
    assert first.move_forms == pytest.approx(float(stacked(s)), rel=1e-10, abs=0)
    Q = f.score_scale * f.query
    keys = torch.stack([_radius(view.k) + 4 * view.errors.key for view in seen])
    values = _joint_norm(f.output, c.W_norm, Q, first.value_radius * keys)
    assert first.covariance == pytest.approx(values, rel=1e-11, abs=0)
    assert first.key_covariance == pytest.approx(_joint_norm(torch.stack(B), c.outputs.norm, Q, keys), rel=1e-11, abs=0)


@pytest.mark.parametrize("dead", [(1.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("name", ["query", "value", "output"])
def test_heads_that_do_nothing_leave_numbers(rng, dead, name):
    f = small_layer(rng)
    factors = torch.tensor(dead, dtype=torch.float64)[:, None, None]
    f = dataclasses.replace(f, **{name: getattr(f, name) * factors})
    first, sides = looked_at(f, gaussian(rng, 4, 3))
    for t in (1e-9, 1.0):
        d = first.deviations(*ball_of(sides, t, False), t, False)
        assert all(math.isfinite(term(d)) for term in (first.value_term, first.query_term, first.key_term))
    still = dataclasses.replace(first, value_radius=torch.zeros(2, dtype=torch.float64))
    d = dataclasses.replace(d, values=torch.zeros(2, 4, dtype=torch.float64))
    assert math.isfinite(still.query_term(d))
    assert math.isfinite(still.key_term(d))


def test_a_sum_of_products_is_below_its_joint_norm_and_sometimes_near_it(rng):
    left, right, sizes = gaussian(rng, 3, 4, 2), gaussian(rng, 3, 2, 3), positive(rng, 3)
    norms = torch.linalg.matrix_norm(left, 2)
    bound = _joint_norm(left, norms, right, sizes)
    for _draw in range(100):
        C = gaussian(rng, 3, 2, 2)
        C = C * (sizes / torch.linalg.matrix_norm(C, 2))[:, None, None]
        assert torch.linalg.matrix_norm((left @ C @ right).sum(0), 2) <= bound
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    assert _joint_norm(one, one[:, 0, 0], one, 3 * one[:, 0, 0]) == pytest.approx(6.0, rel=1e-12, abs=0)
    single = _joint_norm(left[:1], norms[:1], right[:1], sizes[:1])
    alone = norms[0] * sizes[0] * torch.linalg.matrix_norm(right[0], 2)
    assert single == pytest.approx(float(alone), rel=1e-12, abs=0)


def test_the_ball_around_points_holds_them_all_and_is_nearly_the_smallest(rng):
    angles = torch.arange(3, dtype=torch.float64) * 2 * math.pi / 3
    triangle = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert float(_radius(triangle)) == pytest.approx(1.0, rel=1e-9, abs=0)
    crowd = torch.cat([triangle[:1].expand(20, -1), -triangle[:1]])  # the mean is far from the middle
    assert 1.0 <= float(_radius(crowd)) <= 1.1
    assert float(_radius(3 * triangle + 7)) == pytest.approx(3.0, rel=1e-9, abs=0)
