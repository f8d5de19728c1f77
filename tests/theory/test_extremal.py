import math

import pytest
import torch
from cases import layer
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.heads import heads_of
from howsmooth.theory.quiet import quiet_token
from howsmooth.theory.tied import Frame, TiedProblem, best_pair

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
        positions=hs.Positions(causal=causal),
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
    witness = hs.extremal.tied_pair(f, 9, 1.5)
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
    norm = hs.LayerNorm(gain=gain, bias=torch.randn(7, dtype=torch.float64, generator=rng))
    for frame in (Frame.ball(head, 2.0, solid=True), Frame.image(norm)):
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
    frame = Frame.ball(head, 2.0, solid=True)
    best = best_pair(head, frame, 20).log_value
    problem = TiedProblem(head, frame, 20)
    c = torch.randn(20_000, problem.basis.shape[1], dtype=torch.float64, generator=rng)
    r, cosine = torch.rand(2, 20_000, dtype=torch.float64, generator=rng)
    assert best >= float(problem.log_value(c / c.norm(dim=-1, keepdim=True), r, cosine).max())


def test_on_the_sphere_and_on_the_image_tokens_lie_there(rng):
    f = single(rng, d=8)
    on_sphere = hs.extremal.tied_pair_on_sphere(f, 12, 2.0)
    assert_close(on_sphere.tokens.norm(dim=-1), torch.full((12,), 2.0, dtype=torch.float64))
    gain, bias = (
        torch.rand(8, dtype=torch.float64, generator=rng) + 0.5,
        torch.randn(8, dtype=torch.float64, generator=rng),
    )
    for norm in (hs.LayerNorm(gain=gain, bias=bias, eps=0.0), hs.RMSNorm(gain=gain, eps=0.0)):
        witness = hs.extremal.tied_pair_on_image(f, 12, norm)
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
        witness = hs.extremal.two_point(f, n, radius)
        lower = hs.bounds.discrete_lower(f, n=n, radius=radius)
        assert lower.value <= witness.formula * (1 + 1e-12)
        assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)


def test_a_quiet_token_beats_random_directions(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), biases=False)
    heads = heads_of(f)
    best = float(torch.linalg.matrix_norm(quiet_token(heads).response, 2))
    for _draw in range(500):
        u = torch.nn.functional.normalize(torch.randn(6, dtype=torch.float64, generator=rng), dim=0)
        M = sum(torch.outer(h.W @ (h.V @ u), h.adjoint(u)) for h in heads)
        assert float(torch.linalg.matrix_norm(M, 2)) <= best * (1 + 1e-9)


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_quiet_token_proves_what_it_claims(rng, n, output):
    def gauss(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    f = hs.Attention(
        query=gauss(2, 3, 4), key=gauss(2, 3, 4), value=gauss(2, 3, 4), output=gauss(2, 5, 3) if output else None
    )
    witness = hs.extremal.quiet_token(f, n, 2.0)
    assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)


def test_each_head_of_a_layer_has_its_own_pair_measured_on_the_whole(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), biases=False)
    pairs = hs.extremal.tied_pairs(f, 8, 1.5)
    assert len(pairs) == 3
    for h, witness in enumerate(pairs):
        assert witness.formula <= float(constant(f, witness.tokens)) * (1 + 1e-12)
        assert_close(hs.extremal.tied_pair(f.head(h), 8, 1.5).tokens, witness.tokens)
    assert hs.extremal.tied_pair(f, 8, 1.5).value == max(witness.value for witness in pairs)
    assert_close(hs.bounds.sharp_lower(f, n=8, radius=1.5).value, max(witness.formula for witness in pairs))


def test_values_of_the_notes():
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    assert hs.bounds.discrete_upper(f, n=200, radius=4.0).value == pytest.approx(784.71, abs=0.005)
    assert hs.bounds.discrete_lower(f, n=200, radius=2.0).value == pytest.approx(13.224, abs=0.0005)
    assert float(hs.extremal.tied_pair(f, 200, 4.0).measured.lower) == pytest.approx(160.310, abs=0.001)
    g = hs.Attention.single_head(A=EYE, V=EYE)
    assert hs.bounds.sharp_upper(g, n=100, radius=10.0).value == pytest.approx(817.1, abs=0.05)
    assert hs.bounds.discrete_upper(g, n=100, radius=10.0).value == pytest.approx(3468.5, abs=0.05)
    assert hs.extremal.tied_pair(g, 100, 10.0).value >= 285.25
    masked = hs.extremal.equal_tokens(hs.Attention.single_head(A=EYE, V=EYE, causal=True), 10, 1.0)
    assert masked.formula == pytest.approx(1.4101, abs=5e-5)
    one = torch.ones(1, 1, dtype=torch.float64)
    line = hs.Attention.single_head(A=-one, V=one)
    witness = hs.extremal.two_point(line, round(math.exp(8)) + 1, 2.0)
    assert witness.formula == pytest.approx(0.5 * math.exp(4) * 5, rel=1e-4)
    assert witness.value == pytest.approx(136.6, abs=0.05)
    assert hs.bounds.sharp_mean_field_lower(line, radius=2.0).value >= 165.49


def test_the_best_number_of_copies_is_found_by_the_mean_field_bound():
    f = hs.Attention.single_head(A=TURN, V=EYE)
    over_all = hs.bounds.sharp_mean_field_lower(f, radius=2.0).value
    for n in (3, 10, 30, 100, 300):
        assert hs.bounds.sharp_lower(f, n=n, radius=2.0).value <= over_all * (1 + 1e-6)
    best = max(hs.bounds.sharp_lower(f, n=n, radius=2.0).value for n in range(5, 40, 3))
    assert best == pytest.approx(over_all, rel=0.02)
