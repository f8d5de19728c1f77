import dataclasses
import math

import pytest
import torch
from cases import layer
from draws import gaussian, number
from oracles import constant
from theory.example_layers import ROUNDING, bilinear, form, low_rank, matrix_norm, random_layer, scaled_to, with_mask
from theory.witness_checks import HEADS, assert_honest, assert_in_ball, assert_on_image, cancelling
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.errors import AssumptionError
from howsmooth.theory.heads import heads_of
from howsmooth.theory.worst_inputs.origin_token import best_origin_token
from howsmooth.theory.worst_inputs.tied_pair import TiedProblem, best_pair

TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
EYE = torch.eye(2, dtype=torch.float64)
NILPOTENT = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)


def single(rng, d=5, v=4, causal=False, bias=False) -> hs.Attention:
    def gauss(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    return hs.Attention(
        query=gauss(1, 3, d),
        key=gauss(1, 3, d),
        value=gauss(1, v, d),
        output=gauss(1, 6, v),
        query_bias=gauss(1, 3) if bias else None,
        positions=hs.maps.Positions(causal=causal),
    )


def formula(f: hs.Attention, tokens: torch.Tensor) -> float:
    """The sharp lower bound at a tied pair, from its statement."""
    (head,) = heads_of(f)
    n, (x1, x2, y) = tokens.shape[0], tokens[:3]
    g = head.form(y) + head.query_bias @ head.K
    delta = float(g @ (x1 - y))
    p = 1 / (2 + (n - 2) * math.exp(-delta))
    V = head.V if head.W is None else head.W @ head.V
    return math.sqrt((n - 2) / 2) * p * float(g.norm()) * float((V @ (x1 - x2)).norm())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_tied_tokens_tie_and_prove_what_they_claim(rng, causal, bias):
    f = single(rng, causal=causal, bias=bias)
    witness = hs.inputs.tied_pair(f, 9, 1.5)
    (head,) = heads_of(f)
    g = head.form(witness.tokens[2]) + head.query_bias @ head.K
    assert_close(g @ witness.tokens[0], g @ witness.tokens[1])
    assert bool((witness.tokens.norm(dim=-1) <= 1.5 + 1e-12).all())
    assert_close(witness.formula, formula(f, witness.tokens))
    assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)
    assert_close(float(witness.measured.lower), float(constant(f, witness.tokens)), rtol=1e-3, atol=0)


def test_the_smooth_function_is_the_bound_at_its_tokens(rng):
    f = single(rng, d=7, v=5)
    (head,) = heads_of(f)
    gain = torch.rand(7, dtype=torch.float64, generator=rng) + 0.5
    norm = hs.maps.LayerNorm(gain=gain, bias=torch.randn(7, dtype=torch.float64, generator=rng))
    for frame in (StretchedSphere.ball(head.d, 2.0, solid=True), StretchedSphere.image(norm.image)):
        problem = TiedProblem(head, frame, 8)
        for _draw in range(5):
            c = torch.randn(problem.basis.shape[1], dtype=torch.float64, generator=rng)
            r, cosine = (0.7, 0.3) if frame.solid else (1.0, 0.3)
            x = torch.cat((c, torch.tensor([r, cosine], dtype=torch.float64)))
            pair = problem.pair(x.numpy())
            assert_close(float(problem.log_value(c / c.norm(), x[-2], x[-1])), pair.log_value)
            assert_close(math.exp(pair.log_value), formula(f, pair.tokens(8)))


def test_the_optimised_pair_beats_random_pairs(rng):
    f = single(rng)
    (head,) = heads_of(f)
    frame = StretchedSphere.ball(head.d, 2.0, solid=True)
    best = best_pair(head, frame, 20).log_value
    problem = TiedProblem(head, frame, 20)
    c = torch.randn(20_000, problem.basis.shape[1], dtype=torch.float64, generator=rng)
    r, cosine = torch.rand(2, 20_000, dtype=torch.float64, generator=rng)
    assert best >= float(problem.log_value(c / c.norm(dim=-1, keepdim=True), r, cosine).max())


def test_on_the_sphere_and_on_the_image_tokens_lie_there(rng):
    f = single(rng, d=8)
    on_sphere = hs.inputs.tied_pair_on_sphere(f, 12, 2.0)
    assert_close(on_sphere.tokens.norm(dim=-1), torch.full((12,), 2.0, dtype=torch.float64))
    gain, bias = (
        torch.rand(8, dtype=torch.float64, generator=rng) + 0.5,
        torch.randn(8, dtype=torch.float64, generator=rng),
    )
    for norm in (hs.maps.LayerNorm(gain=gain, bias=bias, eps=0.0), hs.maps.RMSNorm(gain=gain, eps=0.0)):
        witness = hs.inputs.tied_pair_on_image(f, 12, norm)
        z = (witness.tokens - (0 if norm.bias is None else norm.bias)) / gain
        assert_close(z.norm(dim=-1), torch.full((12,), math.sqrt(8), dtype=torch.float64))
        if norm.centred:
            assert_close(z.sum(-1), torch.zeros(12, dtype=torch.float64))
        # being normalised already, they are outputs of the norm at themselves
        assert_close(norm(z), witness.tokens)
        assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("A", [-EYE, EYE, -EYE + 0.3 * NILPOTENT], ids=["minus", "plus", "skewed"])
def test_two_points_prove_what_they_claim(rng, A, causal):
    V = torch.randn(3, 2, dtype=torch.float64, generator=rng)
    f = hs.Attention.single_head(A=A, V=V, causal=causal)
    for n, radius in ((2, 1.0), (7, 1.5), (40, 2.0)):
        witness = hs.inputs.two_point(f, n, radius)
        lower = hs.bounds.discrete_lower(f, n=n, radius=radius)
        assert lower.value <= witness.formula * (1 + 1e-12)
        assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)


def test_a_token_at_the_origin_beats_random_directions(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), biases=False)
    heads = heads_of(f)
    best = float(torch.linalg.matrix_norm(best_origin_token(heads).response, 2))
    for _draw in range(500):
        u = torch.nn.functional.normalize(torch.randn(6, dtype=torch.float64, generator=rng), dim=0)
        M = sum(torch.outer(h.W @ (h.V @ u), h.adjoint(u)) for h in heads)
        assert float(torch.linalg.matrix_norm(M, 2)) <= best * (1 + 1e-9)


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_token_at_the_origin_proves_what_it_claims(rng, n, output):
    def gauss(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    f = hs.Attention(
        query=gauss(2, 3, 4), key=gauss(2, 3, 4), value=gauss(2, 3, 4), output=gauss(2, 5, 3) if output else None
    )
    witness = hs.inputs.origin_token(f, n, 2.0)
    assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)


@pytest.mark.slow
def test_each_head_of_a_layer_has_its_own_pair_measured_on_the_whole(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), biases=False)
    pairs = hs.inputs.tied_pairs(f, 8, 1.5)
    assert len(pairs) == 3
    for witness in pairs:
        assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)
    assert_close(hs.inputs.tied_pair(f.head(1), 8, 1.5).tokens, pairs[1].tokens)
    assert hs.inputs.tied_pair(f, 8, 1.5).value == max(witness.value for witness in pairs)
    assert_close(hs.bounds.sharp_lower(f, n=8, radius=1.5).value, max(witness.formula for witness in pairs))


def test_values_of_the_notes():
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    assert hs.bounds.discrete_upper(f, n=200, radius=4.0).value == pytest.approx(784.71, abs=0.005)
    assert hs.bounds.discrete_lower(f, n=200, radius=2.0).value == pytest.approx(13.224, abs=0.0005)
    assert float(hs.inputs.tied_pair(f, 200, 4.0).measured.lower) == pytest.approx(160.310, abs=0.001)
    g = hs.Attention.single_head(A=EYE, V=EYE)
    assert hs.bounds.sharp_upper(g, n=100, radius=10.0).value == pytest.approx(817.1, abs=0.05)
    assert hs.bounds.discrete_upper(g, n=100, radius=10.0).value == pytest.approx(3468.5, abs=0.05)
    assert hs.inputs.tied_pair(g, 100, 10.0).value >= 285.25
    masked = hs.inputs.equal_tokens(hs.Attention.single_head(A=EYE, V=EYE, causal=True), 10, 1.0)
    assert masked.formula == pytest.approx(1.4101, abs=5e-5)
    one = torch.ones(1, 1, dtype=torch.float64)
    line = hs.Attention.single_head(A=-one, V=one)
    witness = hs.inputs.two_point(line, round(math.exp(8)) + 1, 2.0)
    assert witness.formula == pytest.approx(0.5 * math.exp(4) * 5, rel=1e-4)
    assert witness.value == pytest.approx(136.6, abs=0.05)
    assert hs.bounds.sharp_mean_field_lower(line, radius=2.0).value >= 165.49


@pytest.mark.slow
def test_the_best_number_of_copies_is_found_by_the_mean_field_bound():
    f = hs.Attention.single_head(A=TURN, V=EYE)
    over_all = hs.bounds.sharp_mean_field_lower(f, radius=2.0).value
    for n in (3, 10, 30, 100, 300):
        assert hs.bounds.sharp_lower(f, n=n, radius=2.0).value <= over_all * (1 + 1e-6)
    best = max(hs.bounds.sharp_lower(f, n=n, radius=2.0).value for n in range(5, 40, 6))
    assert best == pytest.approx(over_all, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "kind"), [*enumerate(HEADS)])
def test_the_tied_pair_lies_in_the_ball_and_attains_the_sharp_lower_bound(rng, place, kind):
    f = HEADS[kind](rng)
    n, c, radius, causal = (3, 2.0, 1.0, True) if place % 2 else (200 if f.d < 5 else 30, 50.0, 3.0, False)
    g = with_mask(scaled_to(f, c, radius), causal)
    witness = hs.inputs.tied_pair(g, n, radius)
    assert_honest(g, witness, n, rng)
    assert_in_ball(witness.tokens, radius)
    assert witness.formula is not None
    assert witness.formula > 0
    lower = hs.bounds.sharp_lower(g, n=n, radius=radius).value
    assert lower <= witness.measured.upper.item() * ROUNDING
    assert_close(number(lower), number(witness.formula), rtol=1e-3, atol=0.0)  # one optimisation, or two


REAL = ["identity", "minus identity", "nilpotent", "symmetric", "positive definite", "gaussian", "V wide", "low rank"]


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", REAL)
def test_two_points_lie_in_the_ball_and_attain_the_papers_lower_bound(rng, kind, causal):
    f = with_mask(HEADS[kind](rng), causal)
    for n, c, radius in [(2, 2.0, 1.0), (5, 8.0, 2.0)] if causal else [(200 if f.d < 10 else 30, 3.0, 3.0)]:
        g = scaled_to(f, c, radius)
        witness = hs.inputs.two_point(g, n, radius)
        assert_honest(g, witness, n, rng)
        assert_in_ball(witness.tokens, radius)
        assert hs.bounds.discrete_lower(g, n=n, radius=radius).value <= witness.measured.upper.item() * ROUNDING
        assert len(torch.unique(witness.tokens.mul(1e9).round(), dim=0)) <= 2


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_two_points_of_the_identity_are_the_papers(sign, causal):
    n, R = 9, 1.5
    f = form(sign * torch.eye(2).double(), causal=causal)
    tokens = hs.inputs.two_point(f, n, R).tokens
    far = tokens[0]
    assert_close(far.norm(), number(R))
    others = -far if sign < 0 else far / 2
    assert_close(tokens[1:], others.expand(n - 1, 2))


def test_the_formula_at_two_points_is_the_larger_value_of_the_same_points():
    n, R = 200, 2.0
    f = form(-torch.eye(2).double())
    N, gamma = n - 1, 1.0
    P = 1 / (1 + N * math.exp(-2 * gamma * R**2))
    witness = hs.inputs.two_point(f, n, R)
    assert_close(number(witness.formula), number(math.sqrt(N) * P * (1 + 2 * gamma * R**2 * (1 - P))))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", ["minus identity", "gaussian", "V wide", "low rank"])
def test_equal_tokens_make_the_map_an_average(rng, kind, causal):
    f, n, radius = with_mask(HEADS[kind](rng), causal), 10, 2.0
    witness = hs.inputs.equal_tokens(f, n, radius)
    assert_honest(f, witness, n, rng)
    assert_in_ball(witness.tokens, radius)
    assert_close(witness.tokens, witness.tokens[:1].expand(n, f.d))
    rows = torch.tril(torch.ones(n, n).double()) if causal else torch.ones(n, n).double()
    expected = matrix_norm(rows / rows.sum(-1, keepdim=True)) * matrix_norm(f.value[0])
    assert_close(number(witness.formula), number(expected))
    assert_close(witness.measured.lower, number(expected), rtol=1e-3, atol=0.0)  # the tolerance of a measurement


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["identity", "quarter turn", "nilpotent", "gaussian"])
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
    found = hs.local_lipschitz(f, X, rtol=1e-2, certify=False, seed=rng).lower.max().item()
    assert hs.inputs.tied_pair(f, n, radius).value >= found * 0.98  # the formula is maximised, not the constant


@pytest.mark.parametrize("maker", [hs.inputs.tied_pair, hs.inputs.two_point, hs.inputs.equal_tokens])
def test_witnesses_scale_with_the_ball(rng, maker):
    f = form(-torch.diag(torch.tensor([1.0, 0.5, 0.2])).double(), gaussian(rng, 3, 3))
    smaller = dataclasses.replace(f, query=f.query / 16)
    left, right = maker(f, 12, 1.0), maker(smaller, 12, 4.0)
    assert_close(number(left.formula), number(right.formula), rtol=1e-4, atol=0.0)  # an optimisation
    assert_close(left.measured.lower, right.measured.lower, rtol=5e-3, atol=0.0)  # a measurement at its optimum


@pytest.mark.slow
@pytest.mark.parametrize(("place", "kind"), [*enumerate([*HEADS][::2])])
def test_the_tied_pair_on_a_sphere_lies_on_it(rng, place, kind):
    radius, n, causal = 2.0, *((3, True) if place % 2 else (40, False))
    f = scaled_to(with_mask(HEADS[kind](rng), causal), 20.0, radius)
    witness = hs.inputs.tied_pair_on_sphere(f, n, radius)
    assert_honest(f, witness, n, rng)
    assert_close(witness.tokens.norm(dim=-1), number(radius).expand(n))
    assert witness.value <= hs.bounds.sharp_upper(f, n=n, radius=radius).value * ROUNDING


def test_the_tied_pair_on_a_sphere_is_near_that_of_the_ball_where_the_ball_wants_full_length(rng):
    f = form(-torch.eye(3).double())
    sphere, ball = hs.inputs.tied_pair_on_sphere(f, 64, 5.0), hs.inputs.tied_pair(f, 64, 5.0)
    assert sphere.value >= 0.9 * ball.value


def norms(rng, d):
    gain, bias = gaussian(rng, d).abs() + 0.3, gaussian(rng, d)
    return {
        "layer norm": hs.maps.LayerNorm(gain=gain, bias=bias),
        "layer norm without bias": hs.maps.LayerNorm(gain=gain),
        "rms norm": hs.maps.RMSNorm(gain=gain, bias=bias),
        "plain rms norm": hs.maps.RMSNorm(gain=torch.ones(d).double()),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "causal"),
    [("layer norm", False), ("layer norm without bias", True), ("rms norm", True), ("plain rms norm", False)],
)
def test_the_tied_pair_on_an_image_lies_on_the_ellipsoid(rng, which, causal):
    d, n = 6, 20
    norm_map = norms(rng, d)[which]
    for f in (form(gaussian(rng, d, d), gaussian(rng, d, d), causal=causal), with_mask(low_rank(rng, d, 2, 3), causal)):
        witness = hs.inputs.tied_pair_on_image(f, n, norm_map)
        assert_honest(f, witness, n, rng)
        assert_on_image(witness.tokens, norm_map)
        assert witness.value <= hs.bounds.sharp_upper(f, n=n, radius=norm_map.image.radius).value * ROUNDING
        typical = hs.local_lipschitz(f, norm_map(gaussian(rng, 20, n, d)), rtol=1e-2, certify=False, seed=rng)
        assert witness.value >= typical.lower.median().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "causal"),
    [({}, True), ({"mixed": False}, False), ({"heads": 4, "groups": 2}, True), ({"heads": 1}, False)],
    ids=str,
)
def test_there_is_one_witness_per_head_measured_on_the_whole_layer(rng, options, causal):
    f, n, radius = random_layer(rng, d=6, k=4, **options, positions=hs.maps.Positions(causal=causal)), 12, 2.0
    witnesses = hs.inputs.tied_pairs(f, n, radius)
    assert len(witnesses) == len(f.query)
    upper = hs.bounds.sharp_upper(f, n=n, radius=radius).value
    for witness in witnesses:
        assert_honest(f, witness, n, rng)
        assert_in_ball(witness.tokens, radius)
        assert witness.value <= upper * ROUNDING


# a map that is zero up to rounding cannot be measured to three digits
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")
def test_nothing_is_claimed_of_heads_that_cancel(rng):
    f, n, radius = cancelling(rng), 8, 3.0
    witnesses = [*hs.inputs.tied_pairs(f, n, radius), hs.bracket(f, n=n, radius=radius).lower]
    witnesses += [hs.inputs.equal_tokens(f, n, radius)]
    for witness in witnesses:
        assert witness.value <= 1e-9, witness.name


def test_zero_values_are_bracketed_by_zero_or_refused_as_such():
    f = form(-torch.eye(2).double(), torch.zeros(2, 2).double())
    for make in (hs.inputs.tied_pair, hs.inputs.tied_pair_on_sphere):
        with pytest.raises(AssumptionError, match="nothing moves"):
            make(f, 6, 2.0)
    for make in (hs.inputs.two_point, hs.inputs.equal_tokens):
        witness = make(f, 6, 2.0)
        assert witness.value == 0
        assert torch.isfinite(witness.tokens).all()
    assert hs.bracket(f, n=6, radius=2.0).lower.value == 0


@pytest.mark.parametrize("mixed", [True, False])
def test_equal_tokens_of_a_layer_are_honest(rng, mixed):
    f = random_layer(rng, d=6, k=4, mixed=mixed)
    witness = hs.inputs.equal_tokens(f, 7, 1.0)
    assert_honest(f, witness, 7, rng)
    joined = torch.cat([f.output[h] @ f.value[h] if mixed else f.value[h] for h in range(3)]).reshape(3, -1, f.d)
    expected = matrix_norm(joined.sum(0) if mixed else joined.flatten(0, 1))
    assert_close(constant(f, witness.tokens), number(expected))


def test_a_tied_pair_needs_room_scores_and_three_tokens():
    line, flat, plane = form(-torch.eye(1).double()), form(torch.zeros(2, 2).double()), form(-torch.eye(2).double())
    for f, n, words in [
        (line, 9, "two dimensions"),
        (flat, 9, "A ≠ 0"),
        (plane, 1, "at least 3"),
        (plane, 2, "at least 3"),
    ]:
        with pytest.raises(AssumptionError, match=words):
            hs.inputs.tied_pair(f, n, 2.0)


@pytest.mark.parametrize(
    "positions",
    [
        hs.maps.Positions(relative_bias=torch.arange(9.0).double()[None]),
        hs.maps.Positions(position_bias=torch.arange(5.0).double()[None]),
    ],
    ids=["relative bias", "position bias"],
)
def test_equal_tokens_are_refused_where_a_bias_tilts_their_weights(positions):
    f = hs.Attention.single_head(A=torch.eye(2).double(), V=torch.eye(2).double(), positions=positions)
    with pytest.raises(AssumptionError, match="uniform weights"):
        hs.inputs.equal_tokens(f, 5, 1.0)
    with pytest.raises(AssumptionError, match="no order of tokens"):
        f.on(hs.transport.DiscreteMeasure.from_sequence(torch.eye(2).double()))


def test_a_tied_pair_is_found_where_scores_are_very_steep():
    # everything is decided within an angle of 10⁻⁶: a grid of angles alone left the ratio at 6.8
    steep = torch.diag(torch.tensor([10.0, 1.0], dtype=torch.float64))
    f = hs.Attention.single_head(A=steep, V=torch.eye(2, dtype=torch.float64))
    assert hs.bracket(f, n=64, radius=1000.0).ratio < 2.5
