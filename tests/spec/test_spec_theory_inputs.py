"""Inputs that attain the bounds: where they lie, what is proven and measured there; brackets and search."""

import dataclasses
import json
import math

import pytest
import torch
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, HowsmoothError
from howsmooth.theory import extremal

ROUNDING = 1 + 1e-10  # an inequality between two floats, each rounded
MEASURED = 1 + 1e-3  # how far apart the two ends of a measurement may be


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(31214820)


def gaussian(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def number(x):
    return torch.tensor(x, dtype=torch.float64)


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


# --- heads --------------------------------------------------------------------------------------------------------


def form(A, V=None, *, causal=False):
    return hs.Attention.single_head(A=A, V=torch.eye(len(A), dtype=torch.float64) if V is None else V, causal=causal)


def symmetric(rng, d):
    G = gaussian(rng, d, d)
    return (G + G.mT) / 2


def orthogonal(rng, d):
    return torch.linalg.qr(gaussian(rng, d, d))[0]


def turn(degrees, d=2):
    t = math.radians(degrees)
    block = torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]).double()
    return torch.kron(torch.eye(d // 2).double(), block)


def low_rank(rng, d, k, v):
    return hs.Attention(query=gaussian(rng, 1, k, d), key=gaussian(rng, 1, k, d), value=gaussian(rng, 1, v, d))


def layer(rng, *, heads=3, groups=None, d=6, k=4, v=3, out=5, mixed=True, **options):
    groups = heads if groups is None else groups
    return hs.Attention(
        query=gaussian(rng, heads, k, d),
        key=gaussian(rng, groups, k, d),
        value=gaussian(rng, groups, v, d),
        output=gaussian(rng, heads, out, v) if mixed else None,
        **options,
    )


def cancelling(rng):
    """Two equal heads with opposite output projections: the map is zero."""
    f = layer(rng, heads=1)
    pair = {name: getattr(f, name).expand(2, -1, -1) for name in ("query", "key", "value")}
    return dataclasses.replace(f, **pair, output=torch.cat([f.output, -f.output]))


HEADS = {
    "identity": lambda g: form(torch.eye(2).double()),
    "minus identity": lambda g: form(-torch.eye(3).double()),
    "quarter turn": lambda g: form(turn(90)),
    "turn by 120 degrees": lambda g: form(turn(120, 4), gaussian(g, 4, 4)),
    "orthogonal": lambda g: form(orthogonal(g, 8), gaussian(g, 8, 8)),
    "nilpotent": lambda g: form(torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()),
    "nilpotent of order six": lambda g: form(torch.triu(gaussian(g, 6, 6), 1), gaussian(g, 6, 6)),
    "symmetric": lambda g: form(symmetric(g, 5), gaussian(g, 5, 5)),
    "positive definite": lambda g: form(symmetric(g, 4) @ symmetric(g, 4).mT + torch.eye(4).double()),
    "gaussian": lambda g: form(gaussian(g, 3, 3), gaussian(g, 3, 3)),
    "V wide": lambda g: form(gaussian(g, 6, 6), gaussian(g, 2, 6)),
    "V tall": lambda g: form(gaussian(g, 3, 3), gaussian(g, 7, 3)),
    "low rank": lambda g: low_rank(g, 32, 4, 4),
    "rank one": lambda g: low_rank(g, 8, 1, 1),
    "wide": lambda g: low_rank(g, 64, 16, 8),
}


def bilinear(f):
    return f.score_scale * f.key[0].mT @ f.query[0]


def scaled_to(f, c, radius):
    return dataclasses.replace(f, query=f.query * (c / (norm(bilinear(f)) * radius**2)))


def with_mask(f, causal):
    return dataclasses.replace(f, positions=hs.Positions(causal=causal))


def assert_honest(f, witness, n, generator):
    """Shapes, the measurement once more, and that no claim exceeds it."""
    assert witness.tokens.shape == (n, f.d)
    assert witness.tokens.dtype == f.dtype
    again = hs.local_lipschitz(f, witness.tokens, rtol=1e-6, generator=generator)
    assert witness.measured.lower <= again.upper * ROUNDING
    assert witness.measured.upper >= again.lower / ROUNDING
    assert witness.value <= again.upper.item() * ROUNDING
    assert witness.value >= witness.measured.lower.item()
    if witness.formula is not None:
        assert 0 <= witness.formula <= again.upper.item() * ROUNDING
    assert witness.name
    assert witness.domain


def assert_in_ball(tokens, radius):
    assert tokens.norm(dim=-1).max() <= radius * ROUNDING


# --- extremal inputs of a ball ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HEADS)
def test_the_tied_pair_lies_in_the_ball_and_attains_the_sharp_lower_bound(rng, kind):
    f = HEADS[kind](rng)
    for n, c, radius, causal in [(3, 2.0, 1.0, True), (200 if f.d < 5 else 30, 50.0, 3.0, False)]:
        g = with_mask(scaled_to(f, c, radius), causal)
        witness = extremal.tied_pair(g, n, radius)
        assert_honest(g, witness, n, rng)
        assert_in_ball(witness.tokens, radius)
        assert witness.formula is not None
        assert witness.formula > 0
        lower = hs.bounds.sharp_lower(g, n=n, radius=radius).value
        assert lower <= witness.measured.upper.item() * ROUNDING
        assert_close(number(lower), number(witness.formula), rtol=1e-3, atol=0.0)  # one optimisation, or two


REAL = ["identity", "minus identity", "nilpotent", "symmetric", "positive definite", "gaussian", "V wide", "low rank"]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", REAL)
def test_two_points_lie_in_the_ball_and_attain_the_papers_lower_bound(rng, kind, causal):
    f = with_mask(HEADS[kind](rng), causal)
    for n, c, radius in [(2, 2.0, 1.0), (5, 8.0, 2.0), (200 if f.d < 10 else 30, 3.0, 3.0)]:
        g = scaled_to(f, c, radius)
        witness = extremal.two_point(g, n, radius)
        assert_honest(g, witness, n, rng)
        assert_in_ball(witness.tokens, radius)
        assert hs.bounds.discrete_lower(g, n=n, radius=radius).value <= witness.measured.upper.item() * ROUNDING
        assert len(torch.unique(witness.tokens.mul(1e9).round(), dim=0)) <= 2


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_two_points_of_the_identity_are_the_papers(sign, causal):
    n, R = 9, 1.5
    f = form(sign * torch.eye(2).double(), causal=causal)
    tokens = extremal.two_point(f, n, R).tokens
    far = tokens[0]
    assert_close(far.norm(), number(R))
    others = -far if sign < 0 else far / 2
    assert_close(tokens[1:], others.expand(n - 1, 2))


def test_the_formula_at_two_points_is_the_larger_value_of_the_same_points():
    n, R = 200, 2.0
    f = form(-torch.eye(2).double())
    N, gamma = n - 1, 1.0
    P = 1 / (1 + N * math.exp(-2 * gamma * R**2))
    witness = extremal.two_point(f, n, R)
    assert_close(number(witness.formula), number(math.sqrt(N) * P * (1 + 2 * gamma * R**2 * (1 - P))))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", ["minus identity", "gaussian", "V wide", "low rank"])
def test_equal_tokens_make_the_map_an_average(rng, kind, causal):
    f, n, radius = with_mask(HEADS[kind](rng), causal), 10, 2.0
    witness = extremal.equal_tokens(f, n, radius)
    assert_honest(f, witness, n, rng)
    assert_in_ball(witness.tokens, radius)
    assert_close(witness.tokens, witness.tokens[:1].expand(n, f.d))
    rows = torch.tril(torch.ones(n, n).double()) if causal else torch.ones(n, n).double()
    expected = norm(rows / rows.sum(-1, keepdim=True)) * norm(f.value[0])
    assert_close(number(witness.formula), number(expected))
    assert_close(witness.measured.lower, number(expected), rtol=1e-3, atol=0.0)  # the tolerance of a measurement


def test_printed_values_at_extremal_inputs(rng):
    eye = torch.eye(2).double()
    cesaro = extremal.equal_tokens(form(-eye, causal=True), 10, 1.0)
    assert abs(cesaro.value - 1.4101) <= 0.5e-4
    # the sharp points with θ = π/2 and r = R, and the pair with both optimised
    f, n, R = form(-eye), 200, 4.0
    points = torch.tensor([[0.0, R], [0.0, -R]] + [[R, 0.0]] * (n - 2)).double()
    assert abs(hs.local_lipschitz(f, points, rtol=1e-8, generator=rng).lower.item() - 160.310) <= 0.5e-3
    assert extremal.tied_pair(f, n, R).value >= 160.30
    assert extremal.tied_pair(form(eye), 100, 10.0).value >= 285.25


@pytest.mark.parametrize("kind", ["identity", "minus identity", "quarter turn", "nilpotent", "gaussian", "symmetric"])
def test_the_tied_pair_attains_what_no_random_choice_of_the_same_shape_does(rng, kind):
    n, radius = 50, 2.0
    f = scaled_to(HEADS[kind](rng), 20.0, radius)
    A, d = bilinear(f), f.d
    e = torch.nn.functional.normalize(gaussian(rng, 200, d), dim=-1)
    w = torch.nn.functional.normalize(e @ A.mT, dim=-1)
    z = gaussian(rng, 200, d)
    z = torch.nn.functional.normalize(z - (z * w).sum(-1, keepdim=True) * w, dim=-1)
    angle = torch.rand(200, 1, generator=rng).double() * math.pi / 2
    r = radius * torch.rand(200, 1, generator=rng).double()
    pair = [radius * (angle.cos() * w + s * angle.sin() * z) for s in (1, -1)]
    X = torch.stack([*pair, *[r * e] * (n - 2)], 1)
    found = hs.local_lipschitz(f, X, rtol=1e-2, certify=False, generator=rng).lower.max().item()
    assert extremal.tied_pair(f, n, radius).value >= found * 0.98  # the formula is maximised, not the constant


@pytest.mark.parametrize("maker", [extremal.tied_pair, extremal.two_point, extremal.equal_tokens])
def test_witnesses_scale_with_the_ball(rng, maker):
    f = form(-torch.diag(torch.tensor([1.0, 0.5, 0.2])).double(), gaussian(rng, 3, 3))
    smaller = dataclasses.replace(f, query=f.query / 16)
    left, right = maker(f, 12, 1.0), maker(smaller, 12, 4.0)
    assert_close(number(left.formula), number(right.formula), rtol=1e-4, atol=0.0)  # an optimisation
    assert_close(left.measured.lower, right.measured.lower, rtol=5e-3, atol=0.0)  # a measurement at its optimum


# --- spheres and images of norms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*HEADS][::2])
def test_the_tied_pair_on_a_sphere_lies_on_it(rng, kind):
    radius = 2.0
    for n, causal in [(3, True), (40, False)]:
        f = scaled_to(with_mask(HEADS[kind](rng), causal), 20.0, radius)
        witness = extremal.tied_pair_on_sphere(f, n, radius)
        assert_honest(f, witness, n, rng)
        assert_close(witness.tokens.norm(dim=-1), number(radius).expand(n))
        assert witness.value <= hs.bounds.sharp_upper(f, n=n, radius=radius).value * ROUNDING


def test_the_tied_pair_on_a_sphere_is_near_that_of_the_ball_where_the_ball_wants_full_length(rng):
    f = form(-torch.eye(3).double())
    sphere, ball = extremal.tied_pair_on_sphere(f, 64, 5.0), extremal.tied_pair(f, 64, 5.0)
    assert sphere.value >= 0.9 * ball.value


def norms(rng, d):
    gain, bias = gaussian(rng, d).abs() + 0.3, gaussian(rng, d)
    return {
        "layer norm": hs.LayerNorm(gain=gain, bias=bias),
        "layer norm without bias": hs.LayerNorm(gain=gain),
        "rms norm": hs.RMSNorm(gain=gain, bias=bias),
        "plain rms norm": hs.RMSNorm(gain=torch.ones(d).double()),
    }


def assert_on_image(tokens, norm, *, closure=True):
    z = (tokens - (0 if norm.bias is None else norm.bias)) / norm.gain
    d = z.shape[-1]
    assert_close(z.norm(dim=-1), number(math.sqrt(d)).expand(len(z)))
    if isinstance(norm, hs.LayerNorm):
        assert_close(z.sum(-1), torch.zeros(len(z)).double(), rtol=0.0, atol=1e-6 * d)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("which", ["layer norm", "layer norm without bias", "rms norm", "plain rms norm"])
def test_the_tied_pair_on_an_image_lies_on_the_ellipsoid(rng, which, causal):
    d, n = 6, 20
    norm_map = norms(rng, d)[which]
    for f in (form(gaussian(rng, d, d), gaussian(rng, d, d), causal=causal), with_mask(low_rank(rng, d, 2, 3), causal)):
        witness = extremal.tied_pair_on_image(f, n, norm_map)
        assert_honest(f, witness, n, rng)
        assert_on_image(witness.tokens, norm_map)
        assert witness.value <= hs.bounds.sharp_upper(f, n=n, radius=norm_map.image.radius).value * ROUNDING
        typical = hs.local_lipschitz(f, norm_map(gaussian(rng, 20, n, d)), rtol=1e-2, certify=False, generator=rng)
        assert witness.value >= typical.lower.median().item()


# --- layers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("options", [{}, {"mixed": False}, {"heads": 4, "groups": 2}, {"heads": 1}], ids=str)
def test_there_is_one_witness_per_head_measured_on_the_whole_layer(rng, options, causal):
    f, n, radius = layer(rng, **options, positions=hs.Positions(causal=causal)), 12, 2.0
    witnesses = extremal.tied_pairs(f, n, radius)
    assert len(witnesses) == len(f.query)
    upper = hs.bounds.sharp_upper(f, n=n, radius=radius).value
    for witness in witnesses:
        assert_honest(f, witness, n, rng)
        assert_in_ball(witness.tokens, radius)
        assert witness.value <= upper * ROUNDING


# a map that is zero up to rounding cannot be measured to three digits
@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")
def test_nothing_is_claimed_of_heads_that_cancel(rng):
    f, n, radius = cancelling(rng), 8, 3.0
    makers = (extremal.tied_pair, extremal.two_point, extremal.equal_tokens)
    witnesses = [*extremal.tied_pairs(f, n, radius), hs.bracket(f, n=n, radius=radius).lower]
    for make in makers:
        try:
            witnesses.append(make(f, n, radius))
        except AssumptionError:
            continue
    for witness in witnesses:
        assert witness.value <= 1e-9, witness.name


def test_zero_values_are_bracketed_by_zero_or_refused_as_such():
    f = form(-torch.eye(2).double(), torch.zeros(2, 2).double())
    for make in (extremal.tied_pair, extremal.two_point, extremal.equal_tokens, extremal.tied_pair_on_sphere):
        try:
            witness = make(f, 6, 2.0)
        except AssumptionError:
            continue
        assert witness.value == 0
        assert torch.isfinite(witness.tokens).all()
    assert hs.bracket(f, n=6, radius=2.0).lower.value == 0


def test_values_that_see_only_the_scored_direction_are_bracketed(rng):
    u = torch.nn.functional.normalize(gaussian(rng, 3), dim=0)
    f = form(-torch.outer(u, u), torch.outer(u, u))
    bracket = hs.bracket(f, n=20, radius=5.0)
    assert_honest(f, bracket.lower, 20, rng)
    assert bracket.lower.value >= extremal.two_point(f, 20, 5.0).value / MEASURED
    assert bracket.ratio >= 1


@pytest.mark.parametrize("part", ["query", "value", "output"])
def test_a_layer_with_a_pruned_head_is_bracketed(rng, part):
    f = layer(rng, heads=2)
    kept = getattr(f, part) * torch.tensor([1.0, 0.0]).double()[:, None, None]
    pruned = dataclasses.replace(f, **{part: kept})
    bracket = hs.bracket(pruned, n=6, radius=2.0)
    assert_honest(pruned, bracket.lower, 6, rng)
    tokens = extremal.tied_pair(f.head(0), 6, 2.0).tokens
    assert bracket.lower.value >= 0.95 * constant(pruned, tokens).item()  # what the other head attains


@pytest.mark.parametrize("mixed", [True, False])
def test_equal_tokens_of_a_layer_are_honest(rng, mixed):
    f = layer(rng, mixed=mixed)
    try:
        witness = extremal.equal_tokens(f, 7, 1.0)
    except AssumptionError:
        return
    assert_honest(f, witness, 7, rng)
    joined = torch.cat([f.output[h] @ f.value[h] if mixed else f.value[h] for h in range(3)]).reshape(3, -1, f.d)
    expected = norm(joined.sum(0) if mixed else joined.flatten(0, 1))
    assert_close(constant(f, witness.tokens), number(expected))


# --- brackets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "c", "causal"),
    [
        ("identity", 100.0, False),
        ("quarter turn", 0.01, True),
        ("nilpotent", 1.0, False),
        ("symmetric", 30.0, True),
        ("gaussian", 0.01, False),
        ("V tall", 5.0, True),
        ("low rank", 100.0, False),
    ],
)
def test_a_bracket_holds_its_witness_below_its_theorem(rng, kind, c, causal):
    n, radius = 24, 1.5
    g = with_mask(scaled_to(HEADS[kind](rng), c, radius), causal)
    bracket = hs.bracket(g, n=n, radius=radius)
    assert_honest(g, bracket.lower, n, rng)
    assert_in_ball(bracket.lower.tokens, radius)
    assert bracket.upper.side.name == "UPPER"
    assert bracket.ratio >= 1 / ROUNDING
    assert_close(number(bracket.ratio), number(bracket.upper.value / bracket.lower.value))
    assert bracket.upper.value <= hs.bounds.sharp_upper(g, n=n, radius=radius).value * ROUNDING
    assert bracket.lower.value >= hs.bounds.sharp_lower(g, n=n, radius=radius).value / MEASURED


@pytest.mark.parametrize("c", [1e-3, 1.0, 50.0])
def test_a_bracket_has_the_least_upper_bound_of_the_table(rng, c):
    f = scaled_to(form(gaussian(rng, 3, 3)), c, 1.0)
    bracket, table = hs.bracket(f, n=24, radius=1.0), hs.bounds.table(f, n=24, radius=1.0)
    assert_close(number(bracket.upper.value), number(table.upper.value))


def test_a_bracket_is_at_least_as_high_as_every_explicit_input(rng):
    for radius in (0.05, 1.0, 6.0):
        f = form(-torch.eye(2).double(), gaussian(rng, 2, 2))
        lower = hs.bracket(f, n=16, radius=radius).lower.value
        for make in (extremal.tied_pair, extremal.two_point, extremal.equal_tokens):
            assert lower >= make(f, 16, radius).value / MEASURED


def test_short_radii_are_bracketed_tightly_by_averages_and_measures():
    f = form(-1e-3 * torch.eye(2).double())
    assert hs.bracket(f, n=1000, radius=1.0).ratio < 1.01


@pytest.mark.parametrize(("n", "c"), [(16, 100.0), (128, 1000.0)])
@pytest.mark.parametrize(
    ("kind", "limit"), [("identity", 4.0), ("minus identity", 2.0), ("quarter turn", 2.0), ("nilpotent", 2.0)]
)
def test_brackets_are_as_tight_as_promised(rng, kind, limit, n, c):
    f = HEADS[kind](rng)
    assert hs.bracket(f, n=n, radius=math.sqrt(c / norm(bilinear(f)))).ratio <= limit


@pytest.mark.parametrize("kind", ["minus identity", "nilpotent"])
def test_brackets_of_long_sequences_far_out_are_within_a_fifth(rng, kind):
    f = HEADS[kind](rng)
    assert hs.bracket(f, n=1024, radius=math.sqrt(1000.0 / norm(bilinear(f)))).ratio <= 1.2


@pytest.mark.parametrize(("n", "c"), [(16, 100.0), (128, 1000.0)])
def test_brackets_of_gaussian_heads_are_within_a_factor_of_two(rng, n, c):
    query, key, value = gaussian(rng, 3, 1, 16, 96) / math.sqrt(96)
    f = scaled_to(hs.Attention(query=query, key=key, value=value), c, 15.0)
    assert hs.bracket(f, n=n, radius=15.0).ratio <= 2.0


@pytest.mark.parametrize("d", [2, 8])
def test_brackets_of_symmetric_and_orthogonal_forms_are_within_a_factor_of_four(rng, d):
    for A in (symmetric(rng, d), orthogonal(rng, d)):
        assert hs.bracket(form(A / norm(A)), n=64, radius=20.0).ratio <= 4.0


@pytest.mark.parametrize("options", [{}, {"mixed": False}, {"heads": 4, "groups": 2}], ids=str)
def test_layers_are_bracketed(rng, options):
    f = layer(rng, **options)
    bracket = hs.bracket(f, n=10, radius=1.5)
    assert_honest(f, bracket.lower, 10, rng)
    assert bracket.ratio >= 1 / ROUNDING
    assert bracket.lower.value > 0


def test_layers_with_biases_and_rotary_are_bracketed_or_refused(rng):
    kinds = [
        {"query_bias": gaussian(rng, 3, 4)},
        {"positions": hs.Positions(rotary=hs.Rotary())},
        {"positions": hs.Positions(window=3)},
        {"softcap": 1.0},
    ]
    for options in kinds:
        f = layer(rng, **options)
        try:
            bracket = hs.bracket(f, n=6, radius=1.5)
        except AssumptionError:
            continue
        assert_honest(f, bracket.lower, 6, rng)
        assert_in_ball(bracket.lower.tokens, 1.5)
        assert bracket.ratio >= 1 / ROUNDING


def test_a_search_does_not_lower_a_bracket():
    f = form(torch.eye(2).double())
    plain, searched = (hs.bracket(f, n=6, radius=3.0, search=search) for search in (False, True))
    assert searched.lower.value >= plain.lower.value / MEASURED
    assert searched.ratio >= 1 / ROUNDING
    assert searched.upper.value == plain.upper.value


def test_results_are_written_down(rng, tmp_path):
    from safetensors.torch import load_file

    f = form(-torch.eye(2).double())
    bracket = hs.bracket(f, n=6, radius=3.0)
    data = json.loads(bracket.to_json())
    assert data["ratio"] == bracket.ratio
    assert data["lower"]["value"] == bracket.lower.value
    bracket.lower.save(tmp_path / "witness.safetensors")
    loaded = load_file(tmp_path / "witness.safetensors")
    assert_close(loaded["tokens"], bracket.lower.tokens)
    attained = f.jacobian(loaded["tokens"]).jvp(loaded["direction"]).norm()
    assert_close(attained, bracket.lower.measured.lower)


# --- search -------------------------------------------------------------------------------------------------------


def test_search_beats_the_explicit_inputs_for_the_identity(rng):
    f = form(torch.eye(2).double())
    found = hs.maximise(f, n=10, domain=hs.Ball(5.0), starts=4, steps=100, generator=rng)
    assert found.value >= 22.5
    assert_honest(f, found, 10, rng)
    assert_in_ball(found.tokens, 5.0)
    assert found.value <= hs.bounds.sharp_upper(f, n=10, radius=5.0).value
    assert found.trace
    assert list(found.trace) == sorted(found.trace)
    assert found.trace[-1] <= found.measured.upper.item() * ROUNDING


def test_search_keeps_the_tied_pair_of_minus_the_identity(rng):
    f = form(-torch.eye(2).double())
    found = hs.maximise(f, n=10, domain=hs.Ball(5.0), starts=4, steps=60, generator=rng)
    assert found.value >= extremal.tied_pair(f, 10, 5.0).value * 0.999
    assert found.value <= hs.bounds.sharp_upper(f, n=10, radius=5.0).value


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_search_never_ends_below_its_starts(rng, causal):
    f = form(gaussian(rng, 3, 3), gaussian(rng, 3, 3), causal=causal)
    found = hs.maximise(f, n=5, domain=hs.Ball(2.0), starts=3, steps=15, generator=rng)
    best = max(extremal.tied_pair(f, 5, 2.0).value, extremal.equal_tokens(f, 5, 2.0).value)
    assert found.value >= best / MEASURED
    assert_honest(f, found, 5, rng)
    assert found.formula is None or found.formula <= found.measured.upper.item() * ROUNDING
    assert found.value <= hs.bounds.sharp_upper(f, n=5, radius=2.0).value * ROUNDING


DOMAINS = {
    "ball": (lambda X: hs.Ball(1.5), lambda X, Z: Z.norm(dim=-1).max() <= 1.5 * ROUNDING),
    "sphere": (lambda X: hs.Sphere(1.5), lambda X, Z: (Z.norm(dim=-1) - 1.5).abs().max() < 1e-9),
    "total": (lambda X: hs.Neighbourhood(X, eps=0.3), lambda X, Z: (Z - X).norm() <= 0.3 * ROUNDING),
    "per token": (
        lambda X: hs.Neighbourhood(X, eps=0.3, per_token=True),
        lambda X, Z: (Z - X).norm(dim=-1).max() <= 0.3 * ROUNDING,
    ),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_what_search_finds_lies_in_its_domain_and_beats_random_inputs(rng, name):
    f, X = form(2 * gaussian(rng, 3, 3), gaussian(rng, 3, 3)), gaussian(rng, 4, 3)
    domain, holds = DOMAINS[name]
    found = hs.maximise(f, n=4, domain=domain(X), starts=3, steps=30, generator=rng)
    assert holds(X, found.tokens)
    assert_honest(f, found, 4, rng)
    random = gaussian(rng, 200, 4, 3)
    if name in ("ball", "sphere"):
        random = 1.5 * random / random.norm(dim=-1, keepdim=True)
    else:
        random = X + 0.3 * random / random.flatten(1).norm(dim=1)[:, None, None]
    typical = hs.local_lipschitz(f, random, generator=rng).lower.max().item()
    assert found.value >= typical / MEASURED


@pytest.mark.parametrize("kind", [hs.LayerNorm, hs.RMSNorm])
def test_search_over_the_image_of_a_norm_stays_on_the_ellipsoid(rng, kind):
    f = form(gaussian(rng, 4, 4), gaussian(rng, 4, 4))
    norm_map = kind(gain=gaussian(rng, 4).abs() + 0.5, bias=gaussian(rng, 4))
    found = hs.maximise(f, n=5, domain=hs.LayerNormImage(norm_map), starts=3, steps=20, generator=rng)
    assert_on_image(found.tokens, norm_map)
    assert_honest(f, found, 5, rng)
    assert found.value <= hs.bounds.sharp_upper(f, n=5, radius=norm_map.image.radius).value * ROUNDING


def test_search_takes_layers_and_compositions(rng):
    attention = layer(rng, d=4, out=4)
    maps = [attention, hs.Residual(attention), hs.Chain(hs.LayerNorm(gain=torch.ones(4).double()), attention)]
    for f in maps:
        found = hs.maximise(f, n=4, d=4, domain=hs.Sphere(2.0), starts=2, steps=5, generator=rng)
        assert found.tokens.shape == (4, 4)
        assert found.value <= constant(f, found.tokens).item() * ROUNDING


def test_the_same_generator_finds_the_same_input():
    f = form(torch.diag(torch.tensor([1.0, -0.4])).double())
    first, second = (
        hs.maximise(f, n=5, domain=hs.Ball(2.0), starts=3, steps=10, generator=torch.Generator().manual_seed(7))
        for _ in range(2)
    )
    assert torch.equal(first.tokens, second.tokens)
    assert first.value == second.value


# --- refusals -----------------------------------------------------------------------------------------------------


def test_two_points_need_a_real_eigenvalue_and_name_the_tied_pair():
    with pytest.raises(AssumptionError, match=r"tied_pair|sharp_lower"):
        extremal.two_point(form(turn(90)), 9, 2.0)


@pytest.mark.parametrize("maker", [extremal.tied_pair, extremal.two_point])
def test_explicit_inputs_refuse_rotary_embeddings(rng, maker):
    f = layer(rng, heads=1, positions=hs.Positions(rotary=hs.Rotary()))
    with pytest.raises(AssumptionError, match=r"(?i)rotary"):
        maker(f, 9, 2.0)


def test_a_tied_pair_needs_room_scores_and_three_tokens():
    for f, n in [(form(-torch.eye(1).double()), 9), (form(torch.zeros(2, 2).double()), 9)]:
        try:
            witness = extremal.tied_pair(f, n, 2.0)
        except AssumptionError:
            continue
        assert witness.value <= constant(f, witness.tokens).item() * ROUNDING
    for n in (1, 2):
        try:
            witness = extremal.tied_pair(form(-torch.eye(2).double()), n, 2.0)
        except AssumptionError:
            continue
        assert witness.value <= constant(form(-torch.eye(2).double()), witness.tokens).item() * ROUNDING


@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "maker", [extremal.tied_pair, extremal.two_point, extremal.equal_tokens, extremal.tied_pair_on_sphere]
)
def test_radii_that_are_none_are_refused(maker, radius):
    with pytest.raises(HowsmoothError, match="radius"):
        maker(form(-torch.eye(2).double()), 5, radius)


@pytest.mark.parametrize("domain", ["Ball", "Sphere"])
@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_domains_without_a_radius_are_refused(domain, radius):
    with pytest.raises(HowsmoothError, match="radius"):
        getattr(hs, domain)(radius)


def test_a_neighbourhood_needs_a_radius_and_tokens():
    X = torch.zeros(3, 2).double()
    for eps in (-0.1, math.nan, math.inf):
        with pytest.raises(HowsmoothError, match="eps"):
            hs.Neighbourhood(X, eps=eps)


def test_a_norm_of_another_dimension_is_refused(rng):
    f = form(gaussian(rng, 3, 3))
    with pytest.raises(HowsmoothError):
        extremal.tied_pair_on_image(f, 5, hs.LayerNorm(gain=torch.ones(4).double()))
    with pytest.raises(HowsmoothError):
        hs.maximise(f, n=5, domain=hs.LayerNormImage(hs.LayerNorm(gain=torch.ones(4).double())), starts=1, steps=1)


def test_a_neighbourhood_of_another_shape_is_refused(rng):
    f = form(gaussian(rng, 3, 3))
    for X in (gaussian(rng, 5, 4), gaussian(rng, 6, 3)):
        with pytest.raises(HowsmoothError):
            hs.maximise(f, n=5, domain=hs.Neighbourhood(X, eps=0.1), starts=1, steps=1)
