"""Bounds for n tokens: their formulas once more, and printed values."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from draws import gaussian, number, symmetric
from theory.ball_inputs import directions, inputs
from theory.bounds_by_name import LOWERS_WITH_N, accepted, bound
from theory.example_layers import (
    HEADS,
    LAYERS,
    ROUNDING,
    bilinear,
    form,
    matrix_norm,
    random_layer,
    scaled_to,
    with_mask,
)
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.theory.ball.layer import layer_bound
from howsmooth.theory.ball.rotary_forms import RotaryDistances
from howsmooth.theory.heads import combine_factors, heads_of
from howsmooth.theory.worst_inputs.tied_pair import TiedProblem


def test_rotary_scores_are_bounded_by_both_factors_and_not_by_their_product(rng):
    # KᵀQ = 0, but a rotation between the two makes scores
    query, key = torch.zeros(2, 1, 2, 2, dtype=torch.float64)
    query[0, 0, 0], key[0, 1, 0] = 1.0, 1.0
    f = hs.Attention(
        query=query,
        key=key,
        value=torch.eye(2, dtype=torch.float64)[None],
        scale=1.0,
        positions=hs.maps.Positions(rotary=hs.maps.Rotary(frequencies=torch.tensor([math.pi / 2]))),
    )
    n, radius = 5, 4.0
    free = dataclasses.replace(f, positions=hs.maps.Positions())
    found = max(
        hs.local_lipschitz(f, X, seed=rng).lower.max().item()
        for X in (inputs(rng, free, 20, n, radius), radius * torch.sign(gaussian(rng, 400, n, 2)) / math.sqrt(2))
    )
    assert found > math.sqrt(n) * 1.5  # above what scores of size zero would allow
    assert found <= hs.bounds.sharp_upper(f, n=n, radius=radius).value


def paper_upper(a, v, n, R):
    return math.sqrt(3) * v * math.sqrt(a**2 * R**4 * (4 * n + 1) + n)


def our_upper(a, v, n, R, shift=0.0):
    """`shift` is |Kᵀb_q|s, what a query bias adds to every A x_i."""
    return v * (math.sqrt(n) + a * R**2 + math.sqrt(n / 2) * R * (a * R + shift))


def our_mean_field(a, v, R, p):
    c = a * R**2
    return v * ((1 + 2 * c) * math.exp(2 * c / p) + c)


def our_masked_mean_field(a, v, R, p):
    c = a * R**2
    return v * (p / (p - 1) * (1 + 2 * c) * math.exp(2 * c) + c)


SINGLE = {kind: make for kind, make in HEADS.items() if kind != "no scores"}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", SINGLE)
def test_upper_bounds_of_one_head_are_their_formulas(rng, kind, causal):
    f = with_mask(SINGLE[kind](rng), causal)
    a, v = matrix_norm(bilinear(f)), matrix_norm(f.value[0])
    for n, R in [(2, 0.3), (128, 2.5)]:
        assert_close(number(hs.bounds.discrete_upper(f, n=n, radius=R).value), number(paper_upper(a, v, n, R)))
        assert_close(number(hs.bounds.sharp_upper(f, n=n, radius=R).value), number(our_upper(a, v, n, R)))
    for R in (0.2, 0.9):
        if causal:
            for p in (1.5, 4):
                got = hs.bounds.masked_mean_field_upper(f, radius=R, p=p).value
                assert_close(number(got), number(our_masked_mean_field(a, v, R, p)))
        else:
            c = a * R**2
            paper = v * (1 + 3 * c) * math.exp(2 * c)
            assert_close(number(hs.bounds.mean_field_upper(f, radius=R).value), number(paper))
            for p in (1, 3.5):
                got = hs.bounds.sharp_mean_field_upper(f, radius=R, p=p).value
                assert_close(number(got), number(our_mean_field(a, v, R, p)))


def test_a_query_bias_enters_the_sharp_upper_bound_through_the_third_term(rng):
    f = random_layer(rng, heads=1, d=5, k=3, query_bias=gaussian(rng, 1, 3), mixed=False)
    shift = (f.score_scale * f.key[0].mT @ f.query_bias[0]).norm().item()
    for n, R in [(4, 0.5), (50, 2.0)]:
        expected = our_upper(matrix_norm(bilinear(f)), matrix_norm(f.value[0]), n, R, shift)
        assert hs.bounds.sharp_upper(f, n=n, radius=R).value <= expected * ROUNDING
        without = dataclasses.replace(f, query_bias=None)
        assert hs.bounds.sharp_upper(f, n=n, radius=R).value >= hs.bounds.sharp_upper(without, n=n, radius=R).value


@pytest.mark.parametrize("kind", ["mixed heads", "concatenated heads", "grouped queries", "heads that add up"])
def test_upper_bounds_of_layers_are_at_most_both_combinations_of_heads(rng, kind):
    f, n, R = LAYERS[kind](rng), 12, 1.7
    shared = len(f.query) // len(f.key)
    sizes = {"sharp_upper": our_upper, "discrete_upper": paper_upper}
    for name, formula in sizes.items():
        summed, squares, weighted = 0.0, 0.0, 0.0
        for h in range(len(f.query)):
            g = h // shared
            a, v = matrix_norm(f.score_scale * f.key[g].mT @ f.query[h]), matrix_norm(f.value[g])
            squares += formula(a, v, n, R) ** 2
            if f.output is not None:
                summed += formula(a, matrix_norm(f.output[h] @ f.value[g]), n, R)
                weighted += matrix_norm(f.output[h]) * formula(a, v, n, R)
        joined = 1.0 if f.output is None else matrix_norm(torch.cat(list(f.output), -1))
        combined = joined * math.sqrt(squares)
        value = bound(name, f, n=n, radius=R).value
        assert value <= combined * ROUNDING
        if f.output is not None:
            assert value <= weighted * ROUNDING
            if name == "sharp_upper":
                assert value <= summed * ROUNDING


def gamma(A):
    eigenvalues = torch.linalg.eigvals(A)
    real = eigenvalues.real[eigenvalues.imag.abs() < 1e-9]
    return max(-real.min().item(), real.max().item() / 8)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_the_papers_lower_bound_is_its_formula(rng, d, causal):
    A = symmetric(rng, d)
    for matrix in (A, -A, torch.eye(d).double(), -torch.eye(d).double()):
        f = with_mask(form(matrix), causal)
        for n, R in [(2, 1.0), (40, 0.7), (500, 2.0)]:
            expected = math.sqrt(n - 1) / (1 + (n - 1) * math.exp(-2 * R**2 * gamma(matrix)))
            assert_close(number(hs.bounds.discrete_lower(f, n=n, radius=R).value), number(expected))


def test_a_negative_scale_turns_the_sign_of_the_eigenvalues():
    eye = torch.eye(2).double()[None]
    f = hs.Attention(query=eye, key=eye, value=eye, scale=-1.0)
    assert_close(
        hs.bounds.discrete_lower(f, n=30, radius=1.2).value,
        hs.bounds.discrete_lower(form(-eye[0]), n=30, radius=1.2).value,
    )


def coarse_optimum(rng, A, V, n, R):
    """The largest sharp lower bound of docs/theory over a grid of angles and lengths and some unit vectors e."""
    angle, r = torch.linspace(0.05, math.pi / 2, 12).double()[:, None], R * torch.linspace(0.1, 1.0, 10).double()
    best = 0.0
    for e in directions(rng, A, 30):
        image = A @ e
        if image.norm() < 1e-9:
            continue
        w = image / image.norm()
        z = matrix_norm(V - V @ torch.outer(w, w))  # |Vz| for the best z ⟂ w
        p = 1 / (2 + (n - 2) * torch.exp(r**2 * (image @ e) - r * R * image.norm() * angle.cos()))
        found = math.sqrt(2 * (n - 2)) * p * image.norm() * r * R * angle.sin() * z
        best = max(best, found.max().item())
    return best


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["identity", "minus identity", "quarter turn", "nilpotent", "gaussian", "symmetric"])
def test_the_sharp_lower_bound_is_at_least_what_a_coarse_grid_finds(rng, kind):
    f = HEADS[kind](rng)
    for n, c in [(5, 1.0), (200, 300.0)]:
        g = scaled_to(f, c, 2.0)
        assert hs.bounds.sharp_lower(g, n=n, radius=2.0).value >= coarse_optimum(rng, bilinear(g), g.value[0], n, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_no_pair_ties_where_the_values_see_only_the_scored_direction(rng, causal):
    # Ae is a multiple of u for every e, and V vanishes on all that is perpendicular to u
    u = torch.nn.functional.normalize(gaussian(rng, 3), dim=0)
    f = with_mask(form(-torch.outer(u, u), torch.outer(u, u)), causal)
    for n, radius in [(5, 1.0), (20, 5.0)]:
        bounds = accepted(LOWERS_WITH_N, f, n=n, radius=radius)
        upper = hs.bounds.sharp_upper(f, n=n, radius=radius).value
        for name, lower in bounds.items():
            assert lower.value <= upper, name
        assert hs.bounds.table(f, n=n, radius=radius).lower.value <= upper


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["minus identity", "identity", "gaussian", "nilpotent"])
def test_the_sharp_lower_bound_grows_with_the_radius(rng, kind):
    f = HEADS[kind](rng)
    values = [hs.bounds.sharp_lower(f, n=12, radius=R).value for R in (0.3, 3.0, 10.0, 30.0)]
    assert values == sorted(values)
    assert values[-1] >= values[-2] * 8.9  # like R², once the weights have settled


@pytest.mark.parametrize("kind", ["minus identity", "gaussian", "nilpotent", "quarter turn"])
def test_kims_lower_bound_grows_like_the_squared_radius(rng, kind):
    f = HEADS[kind](rng)
    near, far = (hs.bounds.kim_lower(f, n=10, radius=R).value for R in (30.0, 300.0))
    assert near > 0
    assert 90 <= far / near <= 110


def test_the_sharp_upper_bound_is_almost_five_times_below_the_papers_for_long_sequences():
    f = form(-torch.eye(2).double())
    paper, ours = (bound(name, f, n=10**6, radius=30.0).value for name in ("discrete_upper", "sharp_upper"))
    assert paper / ours > 4.85


@pytest.mark.slow
@pytest.mark.parametrize("A", [(10.0, 1.0), (2.0, -1.0), (1.0, 0.0)], ids=str)
@pytest.mark.parametrize("radius", [10.0, 1000.0])
def test_a_form_whose_top_likes_itself_is_bracketed_far_out_too(A, radius):
    """Copies at the top singular vector compete with the pair: the ratio tends to about two, and stays there."""
    f = form(torch.diag(torch.tensor(A)).double())
    upper, lower = (bound(name, f, n=100, radius=radius).value for name in ("sharp_upper", "sharp_lower"))
    assert upper / lower <= 3.0


@pytest.mark.parametrize("before", [1, 2])
def test_a_line_search_that_fails_leaves_the_best_pair_that_was_met(before, monkeypatch):
    """On other processors L-BFGS ends with infinity for a value near the best start: another is no better for it."""
    loss, calls = TiedProblem.loss, []

    def failing(self, x):
        calls.append(x.copy())
        near = np.linalg.norm(x[:-2] - calls[0][:-2]) < 0.5 and len(calls) > before
        return (math.inf, np.full_like(x, math.nan)) if near else loss(self, x)

    monkeypatch.setattr(TiedProblem, "loss", failing)
    f = form(torch.diag(torch.tensor([10.0, 1.0])).double())
    upper, lower = (bound(name, f, n=100, radius=1000.0).value for name in ("sharp_upper", "sharp_lower"))
    assert upper / lower <= 3.0


@pytest.mark.parametrize("n", [10, None])
def test_the_gradient_of_a_tied_pair_is_that_of_its_value(n, rng):
    """The value by eigenvalues of the whole matrix, its gradient by differences."""
    f = hs.Attention.random(heads=1, d=6, seed=3).to(torch.float64)
    f = dataclasses.replace(f, query_bias=torch.randn(1, 6, generator=rng, dtype=torch.float64))
    problem = TiedProblem(*heads_of(f), StretchedSphere.ball(6, 2.0, solid=True), n)
    x = torch.cat((torch.randn(problem.basis.shape[1], generator=rng).double(), torch.tensor([0.7, 0.4]))).numpy()

    def value(x):
        c, r, cosine = (torch.from_numpy(part) for part in (x[:-2], x[-2:-1], x[-1:]))
        return float(problem.log_value(c / c.norm(), r[0], cosine[0]))

    overlap = torch.randn(50, len(problem.values), generator=rng).double()
    overlap = 0.9 * overlap / overlap.norm(dim=-1, keepdim=True)
    scaled = problem.values * overlap
    dense = torch.linalg.eigvalsh(torch.diag(problem.values**2) - scaled[:, :, None] * scaled[:, None])[:, -1]
    assert_close(problem._stretch_beside(overlap), dense)
    loss, gradient = problem.loss(x)
    assert loss == pytest.approx(-value(x), rel=1e-10)
    steps = 1e-5 * np.eye(len(x))
    differences = [(value(x - step) - value(x + step)) / 2e-5 for step in steps]
    assert gradient == pytest.approx(np.array(differences), rel=1e-6, abs=1e-7)


def test_a_token_that_pulls_at_nothing_ties_no_pair():
    """A start with Ae = 0 is worth nothing, and does not end the search."""
    f = form(torch.diag(torch.tensor([1.0, 0.0])).double())
    problem = TiedProblem(*heads_of(f), StretchedSphere.ball(2, 1.0, solid=True), 10)
    unseen = problem.basis.mT @ torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert problem.pair(np.array([*unseen, 1.0, 0.5])).log_value == -math.inf


def sunk(*, sink: float, rotary: bool = False, heads: int = 1, **biases: float) -> hs.Attention:
    """Attention with a sink on tokens of two numbers, all projections the identity."""
    eye = torch.eye(2, dtype=torch.float64).repeat(heads, 1, 1)
    shifts = {name: torch.full((heads, 2), value, dtype=torch.float64) for name, value in biases.items()}
    positions = hs.maps.Positions(rotary=hs.maps.Rotary() if rotary else None)
    full = torch.full((heads,), sink, dtype=torch.float64)
    output = torch.ones(heads, 1, 1) * eye / heads
    return hs.Attention(
        query=eye, key=eye, value=eye, output=output, scale=1.0, sink=full, positions=positions, **shifts
    )


SINKS = {
    "value bias": sunk(value_bias=30.0, sink=0.0),
    "key bias": sunk(key_bias=50.0, sink=1.0),
    "both": sunk(value_bias=100.0, key_bias=50.0, sink=1.0),
    "rotary": sunk(value_bias=30.0, sink=0.0, rotary=True),
    "heads together": sunk(value_bias=30.0, key_bias=20.0, sink=1.0, heads=3),
    "rotary heads together": sunk(value_bias=30.0, sink=0.0, rotary=True, heads=3),
    "soft cap": dataclasses.replace(sunk(value_bias=20.0, key_bias=5.0, sink=0.0), softcap=5.0),
    "causal, query bias": dataclasses.replace(
        sunk(value_bias=20.0, key_bias=2.0, query_bias=3.0, sink=12.0), positions=hs.maps.Positions(causal=True)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize("n", [1, 4])
def test_biases_of_keys_and_values_count_beside_a_sink(rng, name, n):
    """A sink has a constant score and the value zero: it is no token at the origin, which would have both biases."""
    f = SINKS[name]
    found = hs.maximise(f, n=n, domain=hs.domains.Ball(1.0), steps=20, seed=rng).value
    without = dataclasses.replace(f, sink=None)
    assert found > hs.bounds.sharp_upper(without, n=n, radius=1.0).value  # what no sink would allow
    for upper in (hs.bounds.sharp_upper, hs.bounds.smallest_upper):
        assert found <= upper(f, n=n, radius=1.0).value
    together_alone = layer_bound(f, heads_of(without), RotaryDistances.of(f, n), n, 1.0)
    assert found <= together_alone


def test_the_bound_beside_a_sink_is_that_of_its_formula():
    """‖V‖√n + ρ(‖A‖R, |Qᵀb_k|) ρ(‖V‖R, |b_v|) + √(n/2) ‖A‖R ρ(‖V‖R, |b_v|)."""
    f = sunk(value_bias=10.0, key_bias=5.0, sink=1.0)
    values, keys = (1 + 10 * math.sqrt(2)) / 2, (1 + 5 * math.sqrt(2)) / 2
    expected = math.sqrt(3) + values * keys + math.sqrt(1.5) * values
    assert_close(hs.bounds.sharp_upper(f, n=3, radius=1.0).value, expected, rtol=1e-10, atol=0)


def test_a_sink_without_biases_is_a_token_at_the_origin_and_small_biases_change_nothing():
    plain = hs.bounds.sharp_upper(form(torch.eye(2).double()), n=4, radius=2.0).value
    for biases in ({}, {"value_bias": 0.5, "key_bias": 0.5}):  # shorter than what tokens themselves reach
        assert_close(hs.bounds.sharp_upper(sunk(sink=3.0, **biases), n=4, radius=2.0).value, plain)


def test_heads_together_are_bounded_beside_a_sink_even_where_values_are_biases_alone():
    f = sunk(value_bias=30.0, sink=0.0, heads=2)
    f = dataclasses.replace(f, value=0 * f.value)
    alone = 0.5 * 30 * math.sqrt(2)
    expected = alone * (1 + 2 / math.sqrt(2))
    assert_close(hs.bounds.sharp_upper(f, n=4, radius=1.0).value, expected, rtol=0.1, atol=0)


def test_theorems_that_do_not_cover_a_sink_with_biases_are_refused_with_what_does():
    ladder = hs.bounds.table(sunk(value_bias=1.0, sink=0.0), n=4, radius=1.0)
    assert [bound.name for bound in ladder.bounds] == ["sharp_upper"]
    assert all("sharp_upper" in refusal.reason for refusal in ladder.refused)
    plain = hs.bounds.table(sunk(sink=0.0), n=4, radius=1.0)
    assert "sharp_mean_field_upper" in [bound.name for bound in plain.bounds]


def norms_of(f):
    s = abs(f.score_scale)
    return s * matrix_norm(f.query[0]), matrix_norm(f.key[0]), matrix_norm(f.value[0])


def test_slopes_of_rotary_and_of_capped_scores_count_biases_of_keys(rng):
    biases = {"query_bias": 3 * gaussian(rng, 1, 4), "key_bias": 5 * gaussian(rng, 1, 4)}
    given = hs.maps.Positions(rotary=hs.maps.Rotary(positions=torch.tensor([0, 3, 4, 9, 11])))
    f = random_layer(rng, heads=1, d=5, k=4, mixed=False, positions=given, **biases)
    Q, K, V = norms_of(f)
    n, R, s = 5, 1.3, f.score_scale
    bq, bk = s * f.query_bias.norm().item(), f.key_bias.norm().item()
    exact = V * (math.sqrt(n) + R * (Q * (K * R + bk) + math.sqrt(n / 2) * K * (Q * R + bq)))
    assert exact == pytest.approx(hs.bounds.sharp_upper(f, n=n, radius=R).value, rel=1e-9)
    capped = random_layer(rng, heads=1, d=5, k=4, mixed=False, softcap=2.0, **biases)
    a, V = matrix_norm(bilinear(capped)), matrix_norm(capped.value[0])
    own = a * R + s * (capped.key_bias[0] @ capped.query[0]).norm().item()
    other = a * R + s * (capped.query_bias[0] @ capped.key[0]).norm().item()
    exact = V * (math.sqrt(n) + R * (own + math.sqrt(n / 2) * other))
    assert exact == pytest.approx(hs.bounds.sharp_upper(capped, n=n, radius=R).value, rel=1e-9)
    plain = dataclasses.replace(capped, softcap=None)
    exact = V * (math.sqrt(n) + R * (a * R + math.sqrt(n / 2) * other))
    assert exact == pytest.approx(hs.bounds.sharp_upper(plain, n=n, radius=R).value, rel=1e-9)


def test_rotary_bounds_take_the_smaller_one_of_distances_and_norms(rng):
    f = random_layer(rng, heads=1, d=5, k=4, mixed=False, positions=hs.maps.Positions(rotary=hs.maps.Rotary(base=3.0)))
    (head,) = heads_of(f)
    n, R = 6, 1.3
    Q, K, V = norms_of(f)
    turns = RotaryDistances.of(f, n)
    own, other = turns.query_gradient(head, R), turns.key_gradient(head, R)
    exact = V * (math.sqrt(n) + R * (min(own, Q * K * R) + min(other, math.sqrt(n) * Q * K * R) / math.sqrt(2)))
    assert exact == pytest.approx(hs.bounds.sharp_upper(f, n=n, radius=R).value, rel=1e-9)
    # equal angles everywhere: distances say all that norms say, and groups of columns meet more than n distances
    eye = torch.eye(2).double()[None]
    still = hs.Attention(
        query=eye, key=eye, value=eye, scale=1.0, positions=hs.maps.Positions(rotary=hs.maps.Rotary(base=2.0))
    )
    exact = math.sqrt(n) + R**2 * (1 + math.sqrt(n / 2))
    assert exact == pytest.approx(hs.bounds.sharp_upper(still, n=n, radius=R).value, rel=1e-9)
    assert RotaryDistances.of(still, n).key_gradient(heads_of(still)[0], R) > math.sqrt(n) * R * 1.01


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_kims_lower_bound_is_its_formula(n):
    A = torch.diag(torch.tensor([3.0, 1.0]).double())
    V = torch.diag(torch.tensor([5.0, 0.1]).double())
    nu = (n - 1) / n - (1 / n**2 if n % 2 == 0 else 0)
    exact = math.sqrt((n - 1) / n) * nu * 4.0 * 15.0
    assert hs.bounds.kim_lower(form(A, V), n=n, radius=2.0).value == pytest.approx(exact, rel=1e-9)


def test_the_papers_lower_bound_is_stretched_by_the_values():
    f = form(-torch.eye(2).double(), 5 * torch.eye(2).double())
    exact = 5 * math.sqrt(8) / (1 + 8 * math.exp(-2 * 0.49))
    assert hs.bounds.discrete_lower(f, n=9, radius=0.7).value == pytest.approx(exact)


def test_heads_side_by_side_are_below_both_ways_to_add_them_up():
    d = 8
    part = torch.eye(d).double().reshape(4, 2, d)
    f = hs.Attention(query=part, key=part, value=part, output=part.mT, scale=1.0)
    exact = math.exp(combine_factors(heads_of(f), [math.log(8 + 25 * (1 + math.sqrt(32)))] * 4))
    assert hs.bounds.sharp_upper(f, n=64, radius=5.0).value <= 0.7 * exact
