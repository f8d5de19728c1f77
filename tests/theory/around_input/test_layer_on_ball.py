"""All heads at an input and around it: every field against its definition, and every change against its statement."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.around_input.synthetic import EXACT, head_on_ball, layer_at_centre
from theory.perturbed_inputs import on_boundary, small_layer
from torch.testing import assert_close

from howsmooth.theory.around_input.head_on_ball import HeadAtCentre, softmax_jacobian_bounds
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, LayerOnBall, row_norm, stack_norm
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.layer_errors import LayerErrorBounds
from howsmooth.theory.linalg.eigenvalue_bounds import largest_norms
from howsmooth.theory.linalg.matrix_norms import norm_upper


@pytest.mark.parametrize("mixed", [True, False])
def test_the_fields_of_a_layer_are_their_definitions(rng, mixed):
    f, X = small_layer(rng, mixed=mixed, query_bias=gaussian(rng, 2, 2)), gaussian(rng, 4, 3)
    seen = heads_at_input(f, X)
    # errors of ordinary size, so that they are seen
    seen = [
        dataclasses.replace(view, errors=dataclasses.replace(view.errors, key=0.3 + h, value=0.2 + h))
        for h, view in enumerate(seen)
    ]
    c, errors = LayerAtCentre.of(seen), LayerErrorBounds.of(seen)
    W = [f.output[h] for h in range(2)] if mixed else torch.eye(4, dtype=torch.float64).split(2, 1)
    for h in range(2):
        A, B = f.score_scale * f.key[h].mT @ f.query[h], W[h] @ f.value[h]
        g = X @ A.mT + f.score_scale * f.query_bias[h] @ f.key[h]
        P = (g @ X.mT).softmax(-1)
        x = X - (P @ X)[:, None]
        stated = {"P": P, "g": g, "g_length": g.norm(dim=-1), "alpha": P[..., None] * (x @ B.mT), "B": B}
        for name, value in stated.items():
            assert_close(getattr(c, name)[h], value, rtol=1e-11, atol=1e-12, msg=name)
        assert_close(c.y_keys[h] - P @ c.y_keys[h], X @ A - P @ X @ A, rtol=1e-11, atol=1e-12)
        assert_close(c.A[h].mT @ c.A[h], A.mT @ A, rtol=1e-11, atol=1e-12)
        assert_close(c.A_transposed[h].mT @ c.A_transposed[h], A @ A.mT, rtol=1e-11, atol=1e-12)
        for points, L in ((c.outputs, B), (c.values, f.value[h]), (c.keys, A.mT)):
            assert_close(points.from_mean[h], (x @ L.mT).norm(dim=-1), rtol=1e-11, atol=1e-12)
            assert_close(points.between[h], torch.cdist(X @ L.mT, X @ L.mT), rtol=1e-6, atol=1e-7)
            rows = [largest_norms(P[i].sqrt()[:, None] * (x[i] @ L.mT)) for i in range(4)]
            assert_close(points.deviation[h], torch.stack(rows), rtol=1e-11, atol=1e-12)
            assert_close(points.norm[h], torch.linalg.matrix_norm(L, 2), rtol=1e-10, atol=0)
        assert c.values.error[h] == 4 * (0.2 + h)
        assert c.values.norm[h] >= torch.linalg.matrix_norm(f.value[h], 2) * (1 + 9e-13)
        assert c.W_norm[h] == norm_upper(W[h])
    assert_close((c.outputs.error, c.keys.error), (4 * errors.value_error, 4 * errors.key_error), rtol=0, atol=0)
    assert_close((c.g_error, c.outputs.norm), (2 * errors.gradient_error, errors.WV_norm), rtol=0, atol=0)
    units = torch.cat([w / norm_upper(w) for w in W], dim=1)
    assert c.W_joint == norm_upper(units)
    assert_close(c.y_keys.mean(1), torch.zeros(2, 3, dtype=torch.float64), rtol=0, atol=1e-12)
    vectors = gaussian(rng, 2, 5, 2)
    alone = vectors.norm(dim=-1)
    both = torch.stack([vectors[h] @ W[h].mT for h in range(2)])
    stacked = c.W_joint * ((c.W_norm[:, None] * alone) ** 2).sum(0).sqrt()
    assert_close(c.combined(both.norm(dim=-1), alone), torch.minimum(both.norm(dim=-1).sum(0), stacked), **EXACT)
    assert bool((both.sum(0).norm(dim=-1) <= c.combined(both.norm(dim=-1), alone) * (1 + 1e-12)).all())


def test_blocks_beside_and_under_each_other_have_norms_with_their_rounding(rng):
    blocks = gaussian(rng, 3, 2, 4)
    assert row_norm(blocks) == norm_upper(torch.cat(list(blocks), dim=1))
    assert stack_norm(blocks) == norm_upper(torch.cat(list(blocks)))


def test_a_shift_of_all_tokens_costs_values_and_outputs_no_digits(rng):
    # weights of one third each, known up to rounding: a mean over values as large as the shift would lose digits
    f = small_layer(rng, d=2)
    eye = torch.eye(2, dtype=torch.float64).expand(2, -1, -1)
    f = dataclasses.replace(f, query=0 * f.query, value=eye, output=eye)
    offsets = torch.tensor([[0.0, 1.0], [1.0, -2.0], [-5.0, 3.0]], dtype=torch.float64)
    c = LayerAtCentre.of(heads_at_input(f, 2.0**40 + offsets))
    true = (offsets - offsets.mean(0)).norm(dim=-1).expand(2, 3, -1)
    for points in (c.values, c.outputs):
        assert_close(points.from_mean, true, rtol=1e-12, atol=0)


def test_a_head_without_output_counts_for_nothing(rng):
    f = small_layer(rng)
    c = LayerAtCentre.of(heads_at_input(dataclasses.replace(f, output=0 * f.output), gaussian(rng, 4, 3)))
    assert c.W_joint == 0


@pytest.mark.parametrize("per_token", [False, True])
def test_factors_change_as_stated(rng, per_token):
    t, wins = 0.4, set()
    for draw in range(6):
        c = layer_at_centre(rng, heads=2, n=4)
        if draw % 2:  # saturated rows, where pairs of tokens tell more
            P = (8 * gaussian(rng, 2, 4, 4)).softmax(-1)
            c = dataclasses.replace(c, P=P, alpha=c.alpha)
        heads = [head_on_ball(rng, P) for P in c.P]
        ball = LayerOnBall.of(c, heads, t, per_token)
        for h, head in enumerate(heads):
            up, low, P = head.upper, head.lower, c.P[h]
            change = torch.maximum(up - P, P - low)
            assert_close((ball.P[h], ball.P_change[h]), (up, change), **EXACT)
            apart = 2 if per_token else math.sqrt(2)

            def moved(y, i, j, h=h, head=head, change=change, apart=apart, up=up, low=low):
                error, norm = float(y.error[h]), float(y.norm[h])
                weights = sum(change[i, k] * (y.from_mean[h, i, k] + error) for k in range(4))
                spread = head.score_deviation[i] * (y.deviation[h, i] + error)
                mean = min(weights, spread) + norm * (t + head.drift[i])
                rest = min(1 - low[i, j], sum(up[i, k] for k in range(4) if k != j))
                pairs = sum(change[i, k] * (y.between[h, k, j] + error) for k in range(4)) + rest * apart * norm * t
                wins.update({("mean" if mean < pairs else "pairs"), ("weights" if weights < spread else "spread")})
                return float(min(mean, pairs)) + error

            for y, P_change, found in (
                (c.outputs, change, ball.alpha_change[h]),
                (c.values, change, ball.value_alpha_change[h]),
                (c.keys, None, ball.kappa[h]),
            ):
                by = torch.tensor([[moved(y, i, j) for j in range(4)] for i in range(4)], dtype=torch.float64)
                old = y.from_mean[h]
                assert_close(found, old + by if P_change is None else P_change * old + up * by, **EXACT)
                if y is c.outputs:
                    assert_close(ball.output_distance[h], (old + by).amax(-1), **EXACT)
            assert_close(ball.g_change[h], float(c.keys.norm[h]) * t + c.g_error[h], **EXACT)
            assert_close((ball.softmax_norm[h], ball.softmax_diagonal[h]), softmax_jacobian_bounds(up, low), **EXACT)
    assert wins == {"mean", "pairs", "weights", "spread"}


def test_hidden_tokens_have_no_distance(rng):
    c = layer_at_centre(rng, heads=1, n=4)
    heads = [head_on_ball(rng, c.P[0])]
    hidden = heads[0].upper.clone()
    hidden[:, 2:] = 0
    far = dataclasses.replace(c.outputs, from_mean=c.outputs.from_mean + torch.tensor([0.0, 0.0, 1e3, 1e3]))
    c = dataclasses.replace(c, outputs=far)
    assert LayerOnBall.of(c, [dataclasses.replace(heads[0], upper=hidden)], 0.1, False).output_distance.max() < 1e3
    assert LayerOnBall.of(c, heads, 0.1, False).output_distance.min() > 1e3


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("size", [1.0, 6.0])
def test_no_factor_changes_by_more(rng, per_token, size):
    f, X = small_layer(rng, size=size), gaussian(rng, 4, 3)
    seen = heads_at_input(f, X)
    c, heads = LayerAtCentre.of(seen), [HeadAtCentre.of(view) for view in seen]
    for t in (0.01, 0.3):
        ball = LayerOnBall.of(c, [head.on_ball(t, per_token) for head in heads], t, per_token)
        for Z in on_boundary(rng, 10, X, t, per_token):
            there = LayerAtCentre.of(heads_at_input(f, Z))
            true = {
                "P_change": (there.P - c.P).abs(),
                "alpha_change": (there.alpha - c.alpha).norm(dim=-1),
                "kappa": there.keys.from_mean,
                "g_change": (there.g - c.g).norm(dim=-1),
                "output_distance": there.outputs.from_mean.amax(-1),
            }
            for name, value in true.items():
                assert bool((value <= getattr(ball, name) * (1 + 1e-9) + 1e-13).all()), name
