"""Bounds for n tokens: their formulas once more, and printed values."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian, number, symmetric
from theory.ball import directions, inputs
from theory.forms import HEADS, LAYERS, ROUNDING, bilinear, form, matrix_norm, random_layer, scaled_to, with_mask
from theory.theorems import LOWERS_WITH_N, accepted, bound
from torch.testing import assert_close

import howsmooth as hs

ALWAYS_SHARP = [
    "mixed heads",
    "concatenated heads",
    "grouped queries",
    "heads that add up",
    "query bias",
    "all biases",
    "rotary",
    "causal rotary",
    "negative scale",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALWAYS_SHARP)
def test_the_sharp_upper_bound_takes_heads_biases_and_rotary(rng, kind):
    upper = hs.bounds.sharp_upper(LAYERS[kind](rng), n=5, radius=1.0)
    assert 0 < upper.value < math.inf


def test_rotary_scores_are_bounded_by_both_factors_and_not_by_their_product(rng):
    # KᵀQ = 0, but a rotation between the two makes scores
    query, key = torch.zeros(2, 1, 2, 2, dtype=torch.float64)
    query[0, 0, 0], key[0, 1, 0] = 1.0, 1.0
    f = hs.Attention(
        query=query,
        key=key,
        value=torch.eye(2, dtype=torch.float64)[None],
        scale=1.0,
        positions=hs.Positions(rotary=hs.Rotary(frequencies=torch.tensor([math.pi / 2]))),
    )
    n, radius = 5, 4.0
    free = dataclasses.replace(f, positions=hs.Positions())
    found = max(
        hs.local_lipschitz(f, X, generator=rng).lower.max().item()
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
    """The largest sharp lower bound of docs/theory.md §3 over a grid of angles and lengths and some unit vectors e."""
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


def rounded(got, printed, digits):
    assert abs(got - printed) <= 0.5000001 * 10.0**-digits, got


def test_printed_values_of_the_discrete_bounds():
    eye = torch.eye(2).double()
    rounded(hs.bounds.discrete_upper(form(-eye), n=200, radius=4.0).value, 784.71, 2)
    rounded(hs.bounds.discrete_lower(form(-eye), n=200, radius=2.0).value, 13.224, 3)
    rounded(hs.bounds.sharp_upper(form(eye), n=100, radius=10.0).value, 817.1, 1)
    rounded(hs.bounds.discrete_upper(form(eye), n=100, radius=10.0).value, 3468.5, 1)
    assert hs.bounds.sharp_lower(form(eye), n=100, radius=10.0).value >= 270.0


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
