"""One head on a ball: every bound is the one of its statement, and none is exceeded."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.around_input.synthetic import EXACT, head_at_centre, head_on_ball, weights
from theory.perturbed_inputs import on_boundary, small_layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.around_input.head_on_ball import HeadAtCentre, _deviation, softmax_jacobian_bounds
from howsmooth.theory.at_input.head_at_input import HeadErrorBounds, heads_at_input
from howsmooth.theory.linalg.matrix_norms import norm_upper

T = 0.3


def rows(n, entry):
    return torch.tensor([[entry(i, j) for j in range(n)] for i in range(n)], dtype=torch.float64)


def change_of_scores(head, t, per_token):
    """|⟨κ_ij, e_i⟩ + ⟨g_i, e_j⟩ + ⟨Ae_i, e_j⟩| at its largest, and rounding errors."""

    def entry(i, j):
        q, g, error = head.query_gradient[i, j], head.key_gradient[i], head.score_error[i]
        if i == j:
            return t * head.diagonal_gradient[i] + head.norm_A * t**2 + error
        if per_token:
            return t * q + t * g + head.norm_A * t * t + error
        return t * math.hypot(q, g) + head.norm_A * t**2 / 2 + error

    return rows(len(head.P), entry)


def centred_change_of_scores(head, t, per_token):
    """|⟨κ_ij, e_i⟩ + ⟨g_i + Ae_i, Σ_k v_k e_k⟩| at its largest, v the unit vector j less the weights."""

    def entry(i, j):
        q, g, error = head.query_gradient[i, j], head.key_gradient[i], head.score_error[i]
        v = torch.eye(len(head.P), dtype=torch.float64)[j] - head.P[i]
        if per_token:
            return (t * q + g * t * v.abs().sum() + head.norm_A * t**2 * v.abs().sum()) * (1 + 1e-12) + error
        coefficients = g * v.abs()
        coefficients[i] += q
        return (t * coefficients.norm() + head.norm_A * t**2 * v.norm()) * (1 + 1e-12) + error

    return rows(len(head.P), entry)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_move_by_their_gradients_and_their_form(rng, per_token, causal):
    head = head_at_centre(rng, causal=causal)
    assert_close(head._score_change(T, per_token), change_of_scores(head, T, per_token), **EXACT)
    visible = head.P > 0
    found, stated = head._centred_score_change(T, per_token), centred_change_of_scores(head, T, per_token)
    assert_close(found[visible], stated[visible], **EXACT)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("scale", [0.02, 3.0])
def test_weights_are_bounded_by_the_better_of_two_proofs(rng, per_token, scale):
    head = head_at_centre(rng, scale=scale)
    delta, eta = change_of_scores(head, T, per_token), centred_change_of_scores(head, T, per_token)
    P, proofs = head.P, []

    def shifted(i, j, d):
        own = P[i, j] * math.exp(d[i, j])
        others = sum(P[i, k] * math.exp(-d[i, k]) for k in range(len(P)) if k != j)
        return math.log(own / (own + others))

    def upper(i, j):
        a, b = shifted(i, j, delta), float(P[i, j].log() + eta[i, j])
        proofs.append(a < b)
        return min(min(a, b) + 2e-12, 0.0)

    def lower(i, j):
        excess = sum(P[i, k] * eta[i, k] ** 2 * math.exp(eta[i, k]) for k in range(len(P))) / 2
        a, b = shifted(i, j, -delta), float(P[i, j].log() - eta[i, j]) - math.log1p(excess)
        return max(a, b) - 2e-12

    found = head._log_weights(T, per_token)
    assert_close(found, (rows(len(P), upper), rows(len(P), lower)), rtol=0, atol=2e-13)
    assert any(proofs) if scale > 1 else not all(proofs)


def test_a_weight_of_one_stays_at_most_one_and_hidden_tokens_stay_hidden(rng):
    head = head_at_centre(rng, causal=True, scale=3.0)
    ball = head.on_ball(5.0, False)
    assert bool((ball.upper[head.P == 0] == 0).all())
    assert ball.upper.max() <= 1
    assert math.isfinite(float(ball.rho.max()))
    assert math.isfinite(float(ball.tau.max()))


@pytest.mark.parametrize("per_token", [False, True])
def test_scores_of_a_row_deviate_as_keys_gradients_and_form_allow(rng, per_token):
    head = head_at_centre(rng)
    norm, _diagonal = softmax_jacobian_bounds(head.P, head.P)
    sd = torch.full((4,), T, dtype=torch.float64) if per_token else T * norm.sqrt()
    own, others = head.tau * T, head.key_gradient * sd
    linear = own + others if per_token else (own**2 + others**2).sqrt()
    stated = (linear + head.norm_A * T * sd) * (1 + 1e-12) + head.score_error
    assert_close(head._score_deviation(T, per_token), stated, **EXACT)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("scale", [0.02, 1.0, 20.0])
@pytest.mark.parametrize("causal", [False, True])
def test_the_ball_allows_a_head_what_the_theorem_states(rng, per_token, scale, causal):
    head = head_at_centre(rng, scale=scale, causal=causal)
    ball = head.on_ball(T, per_token)
    log_upper, log_lower = head._log_weights(T, per_token)
    assert_close(ball.log_P, (log_upper, log_lower), rtol=0, atol=0)
    upper, lower, visible = log_upper.exp(), log_lower.exp(), head.P > 0
    growth = torch.where(visible, upper / head.P, 0.0).amax(-1).sqrt()
    drift = torch.full((4,), T, dtype=torch.float64) if per_token else T * upper.amax(-1).sqrt()
    assert_close((ball.upper, ball.lower, ball.peak, ball.drift), (upper, lower, upper.amax(-1), drift), **EXACT)
    moved = growth**2 * head._score_deviation(T, per_token)
    assert_close(ball.score_deviation, moved, **EXACT)
    change = torch.maximum(upper - head.P, head.P - lower)
    mean = torch.minimum((change * head.value_distance).sum(-1), moved * head.sigma) + 0.7 * drift
    for distance, deviation, norm, found in (
        (head.query_gradient, head.tau, 1.3, ball.tau),
        (head.value_distance, head.sigma, 0.7, ball.sigma),
    ):
        seen = distance * visible
        ways = torch.stack([growth * deviation, (upper * seen**2).sum(-1).sqrt(), seen.amax(-1)])
        assert_close(found, ways.amin(0) + norm * drift, **EXACT)
    assert_close(ball.rho, (head.value_distance * visible).amax(-1) + 0.7 * T + mean, **EXACT)
    assert_close(ball.gamma, head.key_gradient + 1.3 * T, **EXACT)
    assert (ball.norm_A, ball.norm_V) == (1.3, 0.7)
    wider = head.on_ball(2 * T, per_token)
    assert_close(head.on_ball(T, per_token, like=wider).upper, wider.upper, rtol=0, atol=0)


def test_keys_that_a_row_does_not_see_are_at_no_distance(rng):
    head = head_at_centre(rng, causal=True, scale=20.0)
    hidden = torch.where(head.P > 0, 1.0, 100.0).double()
    head = dataclasses.replace(head, query_gradient=hidden, tau=50 * torch.ones(4, dtype=torch.float64))
    ball = head.on_ball(5.0, False)
    assert_close(ball.tau, 1 + 1.3 * ball.drift, **EXACT)


def test_growth_beyond_all_floats_leaves_distances(rng):
    head = head_at_centre(rng, size=3000.0, scale=1e4, causal=True)
    ball = head.on_ball(1.0, False)
    distance = torch.where(head.log_P > -math.inf, head.value_distance, 0.0).amax(-1)
    assert bool((ball.sigma <= distance + 0.7 * ball.drift + 1e-12).all())
    assert bool(torch.isfinite(ball.score_deviation).all())
    assert not bool(torch.stack(ball.log_P).isnan().any())


def test_the_row_of_a_weight_that_is_rounded_to_one_still_moves_with_its_own_token(rng):
    head = head_at_centre(rng, n=2)
    P = torch.tensor([[1e-17, 1.0], [0.5, 0.5]], dtype=torch.float64)
    head = dataclasses.replace(head, P=P, key_gradient=torch.full((2,), 1e17, dtype=torch.float64))
    found = head._centred_score_change(T, False)[0, 1]
    assert found >= T * (head.query_gradient[0, 1] + 1.0)


def test_rounding_errors_are_taken_with_norms_that_are_not_too_small(rng):
    f, X = small_layer(rng, heads=1), gaussian(rng, 4, 3)
    (view,) = heads_at_input(f, X)
    large = torch.full((4,), 1e40, dtype=torch.float64)
    view = dataclasses.replace(view, errors=dataclasses.replace(view.errors, key=1e40, query=large))
    head = HeadAtCentre.of(view)
    assert head.query_gradient[0, 0] == 2 * 1e40 * norm_upper(view.head.Q)
    assert head.key_gradient[0] == 1e40 * norm_upper(view.head.K)


def test_a_head_without_values_has_numbers(rng):
    f, X = small_layer(rng, heads=1), gaussian(rng, 4, 3)
    (view,) = heads_at_input(dataclasses.replace(f, value=0 * f.value), X)
    assert bool(torch.isfinite(HeadAtCentre.of(view).value_distance).all())


def test_the_derivatives_of_one_head_are_bounded_as_stated(rng):
    ball = head_on_ball(rng, weights(rng, 4, 4).exp())
    P, rho, tau, sigma, gamma, A, V = ball.upper, ball.rho, ball.tau, ball.sigma, ball.gamma, 1.3, 0.7
    queries, mixed, keys = rho * tau**2, V * tau + A * sigma + rho * tau * gamma, 2 * V * gamma + rho * gamma**2
    columns = max(sum(P[i, j] ** 2 * keys[i] ** 2 for i in range(4)) for j in range(4))
    each = max(sum(P[i, j] * (mixed[i] + keys[i]) ** 2 for i in range(4)) for j in range(4))
    total = max(queries) + 2 * max(ball.peak[i] ** 0.5 * mixed[i] for i in range(4)) + columns**0.5
    assert ball.second_derivative(False) == pytest.approx(float(total), rel=1e-13, abs=0)
    assert ball.second_derivative(True) == pytest.approx(float(max(queries + mixed) + each**0.5), rel=1e-13, abs=0)
    key_term = sum(gamma[i] ** 2 * ball.peak[i] * sigma[i] ** 2 for i in range(4)) ** 0.5
    first = V * max(P.sum(0)) ** 0.5 + max(sigma * tau) + key_term
    assert ball.first_derivative() == pytest.approx(float(first), rel=1e-13, abs=0)


def test_a_head_at_its_centre_has_lengths_with_their_rounding_errors(rng):
    f, X = small_layer(rng, heads=1, query_bias=gaussian(rng, 1, 2)), gaussian(rng, 4, 3)
    (view,) = heads_at_input(f, X)
    errors = HeadErrorBounds(
        scores=gaussian(rng, 4).abs(),
        query=gaussian(rng, 4).abs(),
        key=0.3,
        value=0.2,
        query_slope=torch.ones(4).double(),
        key_slope=1.0,
    )
    for seen, V in ((view, f.value[0]), (view.mixed(), f.output[0] @ f.value[0])):
        head = HeadAtCentre.of(dataclasses.replace(seen, errors=errors))
        K, A = f.key[0], f.score_scale * f.key[0].mT @ f.query[0]
        S = (X @ A.mT + f.score_scale * (K.mT @ f.query_bias[0])) @ X.mT
        P, g = S.softmax(-1), X @ A.mT + f.score_scale * f.query_bias[0] @ K
        centred = X - (P @ X)[:, None]  # i, j, d
        key, query = 2 * 0.3 * norm_upper(f.score_scale * f.query[0]), errors.query * norm_upper(K)
        norm_V = torch.linalg.matrix_norm(V, 2)
        value = 2 * 0.2 * norm_V / torch.linalg.matrix_norm(f.value[0], 2)
        kappa, C = centred @ A, torch.einsum("ij,ija,ijb->iab", P, centred, centred)
        stated = {
            "P": P,
            "query_gradient": kappa.norm(dim=-1) + key,
            "key_gradient": g.norm(dim=-1) + query,
            "diagonal_gradient": (kappa.diagonal(dim1=0, dim2=1).mT + g).norm(dim=-1) + key + query,
            "tau": torch.linalg.eigvalsh(A.mT @ C @ A)[:, -1].sqrt() + key,
            "sigma": torch.linalg.eigvalsh(V @ C @ V.mT)[:, -1].sqrt() + value,
            "value_distance": (centred @ V.mT).norm(dim=-1) + value,
            "score_error": 2 * errors.scores,
        }
        for name, stated_value in stated.items():
            assert_close(getattr(head, name), stated_value, rtol=1e-11, atol=1e-12, msg=name)
        assert head.norm_V == pytest.approx(float(norm_V), rel=1e-12, abs=0)
        assert head.norm_A == pytest.approx(float(torch.linalg.matrix_norm(A, 2)), rel=1e-12, abs=0)


def test_a_covariance_that_cancels_keeps_the_allowance_for_its_rounding(rng):
    points, form = gaussian(rng, 4, 2), gaussian(rng, 2, 3)
    one_hot = torch.eye(4, dtype=torch.float64)
    largest = (points - points.mean(0)).square().sum(1).max()
    lost = ((16 + 4) * torch.finfo(torch.float64).eps * largest).sqrt()
    assert_close(_deviation(one_hot, points, None), lost.expand(4), rtol=1e-6, atol=0)
    assert_close(
        _deviation(one_hot, points, form), lost.expand(4) * torch.linalg.matrix_norm(form, 2), rtol=1e-6, atol=0
    )


def test_a_covariance_that_rounding_makes_negative_counts_as_zero(rng):
    points, unit = gaussian(rng, 6, 1), torch.finfo(torch.float64).eps
    one_hot = (1 + unit) * torch.eye(6, dtype=torch.float64)  # weights of one up to rounding
    lost = ((16 + 6) * unit * (points - points.mean(0)).square().max()).sqrt()
    assert_close(_deviation(one_hot, points, None), lost.expand(6), rtol=1e-12, atol=0)


def test_the_derivative_of_the_softmax_lies_below_its_diagonal_matrices(rng):
    for scale in (0.1, 1.0, 6.0):
        for _draw in range(5):
            p = torch.softmax(scale * gaussian(rng, 5), 0)
            norm, diagonal = softmax_jacobian_bounds(p, p)
            S = torch.diag(p) - torch.outer(p, p)
            assert torch.linalg.eigvalsh(torch.diag(diagonal) - S)[0] >= -1e-12
            assert torch.linalg.matrix_norm(S, 2) <= norm * (1 + 1e-12)


def test_the_diagonal_above_the_softmax_is_the_better_of_two_on_every_interval(rng):
    def largest(low, high):
        grid = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
        p = low + grid * (high - low)
        return (p * (1 - p)).amax(0)

    for p, change in [
        (torch.tensor([0.9, 0.06, 0.04]), 0.0),  # twice p(1 − p)
        (torch.tensor([0.9, 0.06, 0.04]), 0.02),
        (torch.tensor([0.45, 0.3, 0.25]), 0.02),  # p itself
        (torch.tensor([0.55, 0.44, 0.01]), 0.1),  # one half inside: 2p(1 − p) is 1/2
        (torch.tensor([0.97, 0.02, 0.01]), 0.6),
        (torch.tensor([0.06, 0.9, 0.04]), 0.0),  # the largest need not be the first
        (torch.tensor([0.25, 0.45, 0.3]), 0.0),
    ]:
        low, high = (p.double() * (1 - change)), (p.double() * (1 + change)).clamp_max(1.0)
        rest = torch.stack([high.sum() - high[0], high.sum() - high[1], high.sum() - high[2]]).clamp_max(1.0)
        twice = 2 * torch.minimum(largest(low, high), high * rest)
        stated = twice if twice.max() < high.max() else high
        norm, diagonal = softmax_jacobian_bounds(high, low)
        assert_close(diagonal, stated, rtol=0, atol=1e-6)
        assert_close(norm, stated.max().clamp_max(0.5), rtol=0, atol=1e-6)


def test_a_saturated_weight_keeps_the_rounding_of_its_complement():
    p = torch.tensor([1.0, 1e-30, 2e-30], dtype=torch.float64)
    norm, diagonal = softmax_jacobian_bounds(p, p)
    assert_close(diagonal, torch.tensor([6e-30, 2e-30, 4e-30], dtype=torch.float64), rtol=1e-12, atol=0)
    assert_close(norm, diagonal[0], rtol=0, atol=0)
    one = torch.tensor([1.0, 1e-10], dtype=torch.float64)
    _norm, diagonal = softmax_jacobian_bounds(one, one)
    assert_close(diagonal[0], torch.tensor(2e-16, dtype=torch.float64), rtol=1e-6, atol=0)


def test_no_weight_has_more_than_the_whole_row_beside_it_and_no_norm_is_above_one_half():
    upper, lower = (torch.tensor(p, dtype=torch.float64) for p in ([0.9, 0.6, 1e-20], [0.2, 0.1, 0.0]))
    norm, diagonal = softmax_jacobian_bounds(upper, lower)
    assert_close(diagonal, torch.tensor([0.5, 0.5, 2e-20], dtype=torch.float64), rtol=1e-12, atol=0)
    assert norm == 0.5


def test_weights_around_an_input_stay_between_their_bounds(rng):
    f, X = small_layer(rng, heads=1, size=3.0), gaussian(rng, 5, 3)
    (view,) = heads_at_input(f, X)
    for per_token in (False, True):
        for t in (0.03, 0.3):
            ball = HeadAtCentre.of(view).on_ball(t, per_token)
            for Z in on_boundary(rng, 20, X, t, per_token):
                (there,) = heads_at_input(f, Z)
                assert bool(((ball.lower <= there.P) & (ball.upper >= there.P)).all())


@pytest.mark.parametrize("far", [25.5, 26.5, 27.0, 40.0])
def test_a_weight_of_nearly_one_reaches_its_lower_bound(far):
    # scores are the tokens themselves, and two tokens approach each other; at first one has nearly all of the row
    one = torch.ones(1, 1, dtype=torch.float64)
    f = hs.Attention(query=0 * one[None], key=one[None], value=one[None], query_bias=one)
    (view,) = heads_at_input(f, torch.tensor([[0.0], [-far]], dtype=torch.float64))
    head, t = HeadAtCentre.of(view), 0.49 * far
    found = head.on_ball(t, True).lower[0, 0]
    true = 1 / (1 + math.exp(2 * t - far))  # each token moves by t
    assert true * (1 - 1e-9) <= found <= true


def test_a_weight_reaches_its_bound_along_the_gradient_of_its_score():
    # two tokens on a line, one row: the score of the first against the second moves by x alone
    f = hs.Attention.single_head(A=torch.eye(2).double(), V=torch.eye(2).double())
    X = torch.tensor([[3.0, 0.0], [-3.0, 0.0]]).double() / 3
    (view,) = heads_at_input(f, X)
    head, t = HeadAtCentre.of(view), 1e-4
    ball = head.on_ball(t, False)
    gradient = torch.func.grad(lambda Z: torch.log_softmax(Z[0] @ Z.mT, -1)[1])(X)
    (there,) = heads_at_input(f, X + t * gradient / gradient.norm())
    gained, allowed = float(there.log_P[0, 1] - head.log_P[0, 1]), float(ball.log_P[0][0, 1] - head.log_P[0, 1])
    assert gained <= allowed <= 1.01 * gained
