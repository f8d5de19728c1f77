import functools
import math

import pytest
import torch
from cases import BATCHED, CASES
from draws import gaussian
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from maps.definition import MEMORIES, SEARCH, build, naive, problems
from oracles import Diagonal, constant, dense_jacobian, top
from spectral.spectra import SHAPES, SPECTRA, Counting, with_spectrum
from torch.testing import assert_close

import howsmooth as hs

# One map of each kind: that products are right for all others is known from tests/maps.
KINDS = [
    case
    for case in CASES
    if case.name
    in (
        "causal form, rectangular V",
        "everything",
        "rotary, grouped queries",
        "concatenated heads",
        "one narrow head",
        "query norm, rotary, soft cap",
        "token weights, one zero",
        "head of a layer",
        "distances, causal window",
        "norms over all heads",
        "layer norm",
        "gated mlp",
        "pooling",
        "block, then the mean",
        "side by side",
    )
]


def assert_brackets(estimate, value):
    """The value lies inside the bracket, up to the rounding of the lower end."""
    eps = 100 * torch.finfo(estimate.lower.dtype).eps
    assert float(estimate.lower) <= float(value) * (1 + eps) + eps
    assert float(value) <= float(estimate.upper) * (1 + eps) + eps


def at_first(case):
    return case.build(torch.Generator().manual_seed(1))


@functools.cache
def exact_constant(case):
    """One dense Jacobian for all that is compared with it."""
    return constant(*at_first(case))


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_the_norm_is_that_of_the_dense_jacobian(case, rng):
    (f, X), exact = at_first(case), exact_constant(case)
    estimate = hs.local_lipschitz(f, X, rtol=1e-9, seed=rng)
    assert_close(estimate.lower, exact)
    assert_brackets(estimate, exact)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_default_bracket_holds_and_is_closed(case, rng):
    f, X = at_first(case)
    estimate = hs.local_lipschitz(f, X, seed=rng)
    assert_brackets(estimate, exact_constant(case))
    assert estimate.status in (hs.spectral.Status.CONVERGED, hs.spectral.Status.INVARIANT)
    assert float(estimate.upper) <= float(estimate.lower) * (1 + 1e-3)


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_a_batch_gives_what_its_members_give(case, rng):
    f, X = case.build(rng)
    estimate = hs.local_lipschitz(f, X, rtol=1e-9, seed=rng)
    assert estimate.lower.shape == case.batch
    assert estimate.direction.shape == X.shape
    assert estimate.token_sensitivity.shape == X.shape[:-1]
    dense = torch.func.jacrev(f)(X)
    count = torch.Size(case.batch).numel()
    blocks = dense.reshape(count, -1, count, X.numel() // count)
    exact = torch.stack([torch.linalg.matrix_norm(blocks[b, :, b], 2) for b in range(count)])
    assert_close(estimate.lower.flatten(), exact)


@pytest.mark.parametrize("certify", [True, False])
def test_the_lower_bound_is_attained_by_the_direction(certify, rng):
    f = hs.Attention.random(heads=3, d=12, causal=True, dtype=torch.float64, seed=rng)
    X = torch.randn(20, 12, dtype=torch.float64, generator=rng)
    estimate = hs.local_lipschitz(f, X, certify=certify, seed=rng)
    moved = f.jacobian(X).jvp(estimate.direction)
    assert_close(estimate.direction.norm(), torch.ones((), dtype=torch.float64))
    assert_close(moved.norm(), estimate.lower)
    assert_close(moved / moved.norm(), estimate.response)
    assert_close(estimate.token_sensitivity.sum(), torch.ones((), dtype=torch.float64))
    assert_close(estimate.token_response, estimate.response.square().sum(-1))


def test_a_single_head_is_measured_in_the_span_of_its_projections(rng):
    f = hs.Attention.random(heads=12, d=96, dtype=torch.float64, seed=rng).head(5)
    X = torch.randn(10, 96, dtype=torch.float64, generator=rng)
    estimate = hs.local_lipschitz(f, X, rtol=1e-9, seed=rng)
    assert estimate.direction.shape == (10, 96)
    assert_close(estimate.lower, constant(f, X))
    assert_close(f.jacobian(X).jvp(estimate.direction).norm(), estimate.lower)


def test_products_are_counted(rng):
    class Counted(Diagonal):
        calls = 0

        def jvp(self, E):
            Counted.calls += 1
            return super().jvp(E)

        def vjp(self, G):
            Counted.calls += 1
            return super().jvp(G)

    op = Counted(torch.linspace(0, 1, 500).double())
    estimate = hs.spectral_norm(op, seed=rng)
    assert estimate.products == Counted.calls == 2 * estimate.steps + 1


def test_stopping_on_the_residual_takes_fewer_steps(rng):
    op = Diagonal(0.9 ** torch.arange(2000).double())
    certified = hs.spectral_norm(op, seed=rng)
    quick = hs.spectral_norm(op, certify=False, seed=rng)
    assert quick.steps < certified.steps
    assert float(quick.residual) <= 1e-3
    assert float(quick.upper) >= 1.0


def test_a_good_guess_saves_products_and_keeps_the_upper_bound_honest(rng):
    f = hs.Attention.random(heads=4, d=64, dtype=torch.float64, seed=rng)
    X = 0.3 * torch.randn(3, 24, 64, dtype=torch.float64, generator=rng)

    class Guessless:
        """The same operators without their guess."""

        def __init__(self, op):
            self.op = op
            self.batch, self.domain, self.codomain = op.batch, op.domain, op.codomain
            self.dtype, self.device, self.jvp, self.vjp = op.dtype, op.device, op.jvp, op.vjp

    J = f.jacobian(X)
    informed = hs.spectral_norm(J, certify=False, seed=rng)
    random = hs.spectral_norm(Guessless(J), certify=False, seed=rng)
    exact = hs.spectral_norm(J, rtol=1e-9, seed=rng).lower
    assert informed.products < random.products
    assert_close(informed.lower, exact, rtol=1e-4, atol=0)
    assert bool((informed.upper >= exact).all())


@pytest.mark.parametrize("case", [c for c in KINDS if "norm" not in c.name], ids=str)
def test_without_certificate_every_map_is_measured_right_too(case, rng):
    f, X = at_first(case)
    estimate = hs.local_lipschitz(f, X, certify=False, rtol=1e-6, seed=rng)
    assert_close(estimate.lower, exact_constant(case))
    assert_brackets(estimate, exact_constant(case))


def test_the_residual_is_the_distance_to_a_singular_value(rng):
    op = Diagonal(torch.linspace(0, 1, 400).double() ** 0.5)
    estimate = hs.spectral_norm(op, certify=False, rtol=1e-2, seed=rng)
    nearest = (op.entries - estimate.lower).abs().min()
    assert float(nearest) <= float(estimate.residual) * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_measured_in_single(dtype, rng):
    f = hs.maps.Chain(hs.maps.LayerNorm(gain=torch.ones(8)), hs.Attention.random(heads=2, d=8, seed=rng)).to(dtype)
    X = torch.randn(9, 8, generator=rng).to(dtype)
    estimate = hs.local_lipschitz(f, X, seed=rng)
    assert estimate.lower.dtype == torch.float32
    exact = constant(f.to(torch.float64), X.double())
    assert float(estimate.lower) == pytest.approx(float(exact), rel=1e-3)


def test_every_kind_of_map_gives_the_same_number(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    X = torch.randn(6, 8, dtype=torch.float64, generator=rng)
    kinds = {
        "map": f,
        "operator factory": lambda X: f.jacobian(X, memory=0),
        "operator class": functools.partial(hs.spectral.JacobianOperator, f),
        "callable": lambda X: f(X),
    }
    values = [hs.local_lipschitz(kind, X, rtol=1e-9, seed=rng).lower for kind in kinds.values()]
    for value in values[1:]:
        assert_close(value, values[0])


def test_tokens_that_require_gradients_are_measured_without_them(rng):
    f = hs.Attention.random(heads=2, d=8, seed=rng)
    X = torch.randn(6, 8, generator=rng).requires_grad_()
    estimate = hs.local_lipschitz(f, X, seed=rng)
    assert not estimate.lower.requires_grad
    assert not estimate.direction.requires_grad


# Extremes


def test_one_token_gives_the_value_matrix(rng):
    V = torch.randn(5, 4, dtype=torch.float64, generator=rng)
    f = hs.Attention.single_head(A=torch.randn(4, 4, dtype=torch.float64, generator=rng), V=V)
    estimate = hs.local_lipschitz(f, torch.randn(1, 4, dtype=torch.float64, generator=rng), rtol=1e-9, seed=rng)
    assert_close(estimate.lower, torch.linalg.matrix_norm(V, 2))
    assert estimate.status is hs.spectral.Status.INVARIANT
    assert_close(estimate.upper, estimate.lower)


def test_a_scalar_map_is_measured_to_the_rounding_of_its_products():
    f = hs.Attention.single_head(A=torch.ones(1, 1), V=torch.full((1, 1), -3.0))
    estimate = hs.local_lipschitz(f, torch.ones(1, 1))
    assert 3.0 * (1 - 1e-5) <= float(estimate.lower) <= 3.0 <= float(estimate.upper) <= 3.0 * (1 + 1e-5)


def test_zero_weights_give_norm_zero():
    f = hs.Attention.single_head(A=torch.eye(3), V=torch.zeros(3, 3))
    estimate = hs.local_lipschitz(f, torch.randn(5, 3))
    assert float(estimate.lower) == float(estimate.upper) == 0
    assert estimate.status is hs.spectral.Status.ZERO
    assert "The operator is zero." in repr(estimate)


def test_a_zero_operator_in_a_batch_does_not_disturb_the_others(rng):
    matrices = torch.randn(3, 6, 5, dtype=torch.float64, generator=rng)
    matrices[1] = 0
    estimate = hs.spectral_norm(hs.maps.Dense(matrices), rtol=1e-9, seed=rng)
    assert_close(estimate.lower, torch.linalg.matrix_norm(matrices, 2))
    assert [part.status for part in estimate] == [
        hs.spectral.Status.INVARIANT,
        hs.spectral.Status.ZERO,
        hs.spectral.Status.INVARIANT,
    ]
    assert estimate.status is hs.spectral.Status.INVARIANT


def test_saturated_scores_are_measured_right(rng):
    A = 1e4 * torch.randn(3, 3, dtype=torch.float64, generator=rng)
    f = hs.Attention.single_head(A=A, V=torch.eye(3, dtype=torch.float64))
    X = torch.randn(6, 3, dtype=torch.float64, generator=rng)
    assert_close(hs.local_lipschitz(f, X, rtol=1e-9, seed=rng).lower, constant(f, X))


def test_tied_scores_are_measured_right():
    X = torch.tensor([[1.0, 1.0], [1.0, -1.0], [2.0, 0.0]], dtype=torch.float64)
    f = hs.Attention.single_head(A=5 * torch.eye(2, dtype=torch.float64), V=torch.eye(2, dtype=torch.float64))
    assert_close(hs.local_lipschitz(f, X, rtol=1e-9).lower, constant(f, X))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_clustered_tops_of_large_operators_stay_inside_the_error_bar(dtype, rng):
    entries = torch.linspace(0, 0.999, 10_000, dtype=torch.float64)
    entries[-50:] = 1 - 1e-6 * torch.rand(50, dtype=torch.float64, generator=rng)
    op = Diagonal(entries.to(dtype), count=2)
    estimate = hs.spectral_norm(op, seed=rng)
    top = float(entries.to(dtype).max())
    assert bool((estimate.upper >= top).all())
    assert bool((estimate.lower <= top * (1 + 4 * torch.finfo(dtype).eps)).all())
    assert estimate.status is hs.spectral.Status.CONVERGED


def test_a_space_that_is_invariant_at_once_is_no_trouble():
    for dtype in (torch.float32, torch.float64):
        estimate = hs.spectral_norm(Diagonal(torch.ones(50_000, dtype=dtype)))
        assert float(estimate.lower) == pytest.approx(1, rel=1e-6)
        assert 1 <= float(estimate.upper) <= 1.001


def test_rank_one_is_found_whatever_the_shape(rng):
    for shape in ((1, 30), (30, 1), (40, 20), (20, 40)):
        u, v = (torch.randn(size, dtype=torch.float64, generator=rng) for size in shape)
        estimate = hs.spectral_norm(hs.maps.Dense(torch.outer(u, v)), rtol=1e-9, seed=rng)
        assert_close(estimate.lower, u.norm() * v.norm())
        assert_brackets(estimate, u.norm() * v.norm())


def test_giving_up_is_data_and_one_warning(rng):
    op = Diagonal(torch.linspace(0, 1, 1000).double())
    with pytest.warns(hs.errors.ConvergenceWarning, match="max_steps"):
        estimate = hs.spectral_norm(op, max_steps=3, seed=rng)
    assert estimate.status is hs.spectral.Status.MAX_STEPS
    assert estimate.steps == 3
    assert float(estimate.lower) <= 1 <= float(estimate.upper)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (5, 3), (12, 12)], ids=str)
def test_numbers_at_the_ends_of_the_range_are_bracketed(rng, dtype, shape):
    info = torch.finfo(dtype)
    matrix = torch.randn(shape, dtype=torch.float64, generator=rng)
    matrix = matrix / torch.linalg.matrix_norm(matrix, 2)
    subnormal = info.tiny * info.eps
    for norm in (subnormal, 8 * subnormal, info.tiny / 4, info.tiny, 8 * info.tiny / info.eps, info.max / 4):
        estimate = hs.spectral_norm(hs.maps.Dense((norm * matrix).to(dtype)), seed=rng)
        rounding = subnormal * shape[0] * shape[1]
        assert float(estimate.lower) <= norm * (1 + 1e-5) + rounding
        assert norm <= float(estimate.upper) * (1 + 1e-5) + rounding
        assert bool(estimate.direction.isfinite().all())


# Closed forms


@st.composite
def matrices_with_known_norm(draw):
    """A matrix U diag(s) Vᵀ together with max(s)."""
    m, n = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    s = draw(st.lists(st.floats(0, 100), min_size=min(m, n), max_size=min(m, n)))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    U, _ = torch.linalg.qr(torch.randn(m, m, dtype=torch.float64, generator=rng))
    V, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=rng))
    k = min(m, n)
    return U[:, :k] @ torch.diag(torch.tensor(s, dtype=torch.float64)) @ V[:, :k].mT, max(s)


@pytest.mark.slow
@given(problem=matrices_with_known_norm())
@settings(deadline=None)
def test_matrices_with_known_singular_values_are_bracketed(problem):
    matrix, norm = problem
    estimate = hs.spectral_norm(hs.maps.Dense(matrix), confidence=1 - 1e-9, rtol=1e-6)
    assert float(estimate.lower) <= norm * (1 + 1e-12) + 1e-12
    assert norm <= float(estimate.upper) * (1 + 1e-12) + 1e-12


@pytest.mark.slow
@given(n=st.integers(1, 12), d=st.integers(1, 6), seed=st.integers(0, 2**32), causal=st.booleans())
@settings(deadline=None, max_examples=40)
def test_equal_tokens_have_the_constant_of_averaging(n, d, seed, causal):
    """All tokens equal: J = P⊗V with uniform weights, or with the Cesàro operator when masked."""
    rng = torch.Generator().manual_seed(seed)
    A, V, x = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((d, d), (d, d), (d,)))
    f = hs.Attention.single_head(A=A, V=V, causal=causal)
    P = torch.ones(n, n, dtype=torch.float64)
    P = (P.tril() if causal else P) / (torch.arange(1, n + 1) if causal else torch.full((n,), n))[:, None]
    exact = torch.linalg.matrix_norm(P, 2) * torch.linalg.matrix_norm(V, 2)
    assert_close(hs.local_lipschitz(f, x.expand(n, d), rtol=1e-9, confidence=1 - 1e-9).lower, exact)


@pytest.mark.slow
@given(scales=st.lists(st.floats(0.1, 10), min_size=1, max_size=6), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_a_norm_is_as_steep_as_its_smallest_token(scales, seed):
    X = torch.randn(len(scales), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    X = X / X.square().mean(-1, keepdim=True).sqrt() * torch.tensor(scales, dtype=torch.float64)[:, None]
    f = hs.maps.RMSNorm(gain=torch.ones(5, dtype=torch.float64), eps=0.0)
    exact = torch.tensor(1 / min(scales), dtype=torch.float64)
    assert_close(hs.local_lipschitz(f, X, rtol=1e-9, confidence=1 - 1e-9).lower, exact)


# Values of the theory


def test_the_sharp_points_of_minus_identity():
    """n = 200, R = 4, θ = π/2, r = R: w = −e, so x_1, x_2 = ±R z and the rest R e."""
    X = torch.zeros(200, 2, dtype=torch.float64)
    X[0, 1], X[1, 1], X[2:, 0] = 4.0, -4.0, 4.0
    f = hs.Attention.single_head(A=-torch.eye(2).double(), V=torch.eye(2).double())
    assert float(hs.local_lipschitz(f, X, rtol=1e-9).lower) == pytest.approx(160.310, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "expected"), [(1, 136.6), (3, 165.5)])
def test_two_unbalanced_diracs(copies, expected):
    """A = −1, R = 2: n − 1 copies of R and one −R, with n − 1 = copies · e^{2γR²}."""
    n = round(copies * math.exp(8)) + 1
    X = torch.full((n, 1), 2.0, dtype=torch.float64)
    X[0] = -2.0
    f = hs.Attention.single_head(A=-torch.ones(1, 1).double(), V=torch.ones(1, 1).double())
    assert float(hs.local_lipschitz(f, X, rtol=1e-4).lower) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_bracket_holds_the_norm_and_closes(rng, name, shape):
    matrix = with_spectrum(rng, SPECTRA[name].double(), *shape)
    estimate = hs.spectral_norm(hs.maps.Dense(matrix), seed=rng)
    truth = top(matrix)
    assert estimate.lower <= truth * (1 + 1e-12)
    assert estimate.upper >= truth * (1 - 1e-12)
    assert estimate.upper <= estimate.lower * (1 + 1e-3) * (1 + 1e-12)
    assert estimate.confidence == 0.999
    assert estimate.status in (hs.spectral.Status.CONVERGED, hs.spectral.Status.INVARIANT)


@pytest.mark.parametrize("certify", [True, False])
@pytest.mark.parametrize("name", SPECTRA)
def test_lower_is_attained_by_the_direction(rng, name, certify):
    matrix = with_spectrum(rng, SPECTRA[name].double(), 60, 70)
    estimate = hs.spectral_norm(hs.maps.Dense(matrix), certify=certify, seed=rng)
    assert_close(estimate.direction.norm(), torch.tensor(1.0).double())
    response = matrix @ estimate.direction
    assert_close(response.norm(), estimate.lower)
    assert_close(estimate.response, response / response.norm())
    assert estimate.lower <= estimate.upper


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ten_thousand_dimensions_with_a_clustered_top_are_bracketed(rng, dtype):
    entries = torch.cat([1 - 1e-5 * torch.rand(50, generator=rng), torch.rand(9950, generator=rng) * 0.97]).to(dtype)
    operator = Counting(entries.view(100, 100))
    estimate = hs.spectral_norm(operator, seed=rng)
    truth = entries.max().item()
    eps = torch.finfo(dtype).eps
    assert estimate.lower <= truth * (1 + 4 * eps)
    assert estimate.upper >= truth * (1 - 4 * eps)
    assert estimate.upper <= estimate.lower * 1.0011
    assert estimate.direction.shape == (100, 100)


def test_one_generator_gives_one_answer(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 3, 7, 6)
    one, two, other = (hs.local_lipschitz(f, X, seed=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    for field in ("lower", "upper", "direction", "response", "residual"):
        assert torch.equal(getattr(one, field), getattr(two, field)), field
    assert not torch.equal(one.upper, other.upper)
    assert one.steps == two.steps
    assert one.products == two.products


def test_a_generator_is_advanced_so_that_two_calls_differ(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X, generator = gaussian(rng, 7, 6), torch.Generator().manual_seed(5)
    one, two = hs.local_lipschitz(f, X, seed=generator), hs.local_lipschitz(f, X, seed=generator)
    assert not torch.equal(one.upper, two.upper)


def test_without_a_generator_the_global_seed_decides(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 7, 6)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        one = hs.local_lipschitz(f, X)
        torch.manual_seed(11)
        two = hs.local_lipschitz(f, X)
    assert torch.equal(one.upper, two.upper)


@pytest.mark.parametrize("batch", [(1,), (5,), (2, 3)])
def test_batched_estimates_equal_single_ones(rng, batch):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=torch.float64, seed=rng)
    X = gaussian(rng, *batch, 7, 6) * torch.linspace(0.1, 3, math.prod(batch)).view(*batch, 1, 1).double()
    together = hs.local_lipschitz(f, X, rtol=1e-8, seed=rng)
    assert together.lower.shape == together.upper.shape == together.residual.shape == batch
    assert together.direction.shape == X.shape
    assert together.token_sensitivity.shape == together.token_response.shape == (*batch, 7)
    for index in torch.cartesian_prod(*(torch.arange(b) for b in batch)).view(-1, len(batch)).tolist():
        alone = hs.local_lipschitz(f, X[tuple(index)], rtol=1e-8, seed=rng)
        truth = top(dense_jacobian(f, X[tuple(index)]))
        entry = together
        for i in index:
            entry = entry[i]
        assert entry.lower.shape == ()
        assert_close(entry.lower, truth, rtol=1e-8, atol=0)
        assert_close(alone.lower, truth, rtol=1e-8, atol=0)
        assert entry.direction.shape == (7, 6)
        moved = f.jacobian(X[tuple(index)]).jvp(entry.direction)
        assert_close(moved.norm(), entry.lower)
        assert_close(moved / moved.norm(), entry.response)


def test_a_batch_of_very_different_operators_keeps_each_bracket(rng):
    matrices = torch.stack(
        [
            gaussian(rng, 20, 20),
            torch.zeros(20, 20).double(),
            torch.eye(20).double(),
            gaussian(rng, 20, 20) * 1e-30,
            gaussian(rng, 20, 20) * 1e30,
            torch.ones(20, 20).double(),
            with_spectrum(rng, torch.linspace(1, 0.99, 20).double(), 20, 20),
        ]
    )
    estimate = hs.spectral_norm(hs.maps.Dense(matrices), seed=rng)
    truth = torch.linalg.matrix_norm(matrices, ord=2)
    assert (estimate.lower <= truth * (1 + 1e-12)).all()
    assert (estimate.upper >= truth * (1 - 1e-12)).all()
    assert (estimate.upper <= estimate.lower * (1 + 1e-3) * (1 + 1e-12)).all()
    assert estimate[1].status is hs.spectral.Status.ZERO
    assert estimate[0].status is not hs.spectral.Status.ZERO


@pytest.mark.parametrize("shape", [(5, 40, 2, 3), (9, 24, 4, 4), (4, 10, 1, 1)], ids=str)
def test_a_head_of_low_rank_is_measured_in_the_full_space(rng, shape):
    n, d, k, v = shape
    weights = {"query": gaussian(rng, 1, k, d), "key": gaussian(rng, 1, k, d), "value": gaussian(rng, 1, v, d)}
    f = hs.Attention(
        **weights, output=gaussian(rng, 1, d, v), query_bias=gaussian(rng, 1, k), value_bias=gaussian(rng, 1, v)
    )
    X = gaussian(rng, 2, n, d) * 0.3
    estimate = hs.local_lipschitz(f, X, rtol=1e-6, seed=rng)
    truth = torch.stack([top(dense_jacobian(f, x)) for x in X])
    assert_close(estimate.lower, truth, rtol=1e-6, atol=0)
    assert estimate.direction.shape == X.shape
    assert_close(f.jacobian(X).jvp(estimate.direction).norm(dim=(-2, -1)), estimate.lower)
    same = hs.Attention(query=weights["query"], key=weights["query"], value=weights["query"])  # rank k, not 3k
    assert_close(
        hs.local_lipschitz(same, X[0], rtol=1e-6, seed=rng).lower,
        top(dense_jacobian(same, X[0])),
        rtol=1e-6,
        atol=0,
    )


def test_zero_query_weights_leave_the_average(rng):
    n, zero = 6, torch.zeros(4, 4).double()
    V, X = gaussian(rng, 4, 4), gaussian(rng, n, 4)
    estimate = hs.local_lipschitz(hs.Attention.single_head(A=zero, V=V), X, rtol=1e-9)
    assert_close(estimate.lower, top(V))  # J = (1/n)11ᵀ ⊗ V


@pytest.mark.slow
@seed(4)
@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31), st.floats(-20, 20))
def test_random_matrices_of_any_shape_and_size_are_bracketed(rows, columns, number, exponent):
    generator = torch.Generator().manual_seed(number)
    matrix = gaussian(generator, rows, columns) * 10**exponent
    estimate = hs.spectral_norm(hs.maps.Dense(matrix), seed=generator)
    truth = top(matrix)
    assert estimate.lower <= truth * (1 + 1e-12)
    assert estimate.upper >= truth * (1 - 1e-12)
    assert estimate.upper <= estimate.lower * (1 + 1e-3) * (1 + 1e-12)


@pytest.mark.parametrize("matrix", [[[2.0]], [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0, 3.0]]])
def test_tiny_spaces_are_measured_without_a_warning(matrix):
    for number in range(8):
        generator = torch.Generator().manual_seed(number)
        for dtype in (torch.float64, torch.float32):
            hs.spectral_norm(hs.maps.Dense(torch.tensor(matrix, dtype=dtype)), seed=generator)


def test_one_number_is_measured_without_a_warning():
    one = torch.ones(1, 1).double()
    estimate = hs.local_lipschitz(hs.Attention.single_head(A=one, V=2 * one), 3 * one)
    assert_close(estimate.lower, torch.tensor(2.0).double())


@pytest.mark.slow
@seed(3)
@settings(SEARCH, max_examples=25)
@given(problems())
def test_the_bracket_holds_the_largest_singular_value_for_any_mix_of_features(problem):
    p, X = problem
    estimate = hs.local_lipschitz(build(p), X, seed=0)
    singles = X.reshape(-1, *X.shape[-2:])
    J = dense_jacobian(lambda Z: naive(Z, p), X).reshape(len(singles), -1, len(singles), singles[0].numel())
    truth = torch.stack([torch.linalg.matrix_norm(J[b, :, b], ord=2) for b in range(len(singles))]).view(X.shape[:-2])
    slack = 1e-10 * truth + 1e-12
    assert estimate.lower.shape == X.shape[:-2]
    assert (estimate.lower <= truth + slack).all()
    assert (estimate.upper >= truth - slack).all()
    assert (estimate.upper <= estimate.lower * (1 + 1e-3) + slack).all()


def test_all_heads_are_measured_in_one_batch(rng):
    f = hs.Attention.random(heads=3, d=6, causal=True, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 8, 6)
    together = hs.local_lipschitz(f.per_head(), X)
    truth = [torch.linalg.matrix_norm(dense_jacobian(f.head(h), X), ord=2) for h in range(3)]
    assert_close(together.lower, torch.stack(truth), rtol=1e-3, atol=0)


def test_the_cesaro_operator_has_norm_1_4101(rng):
    f = hs.Attention.single_head(A=gaussian(rng, 2, 2), V=torch.eye(2).double(), causal=True)
    X = gaussian(rng, 1, 2).repeat(10, 1)
    assert hs.local_lipschitz(f, X, rtol=1e-6).lower == pytest.approx(1.4101, abs=5e-5)


def test_tokens_and_weights_that_require_grad_are_measured_as_well(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 5, 4)
    g = hs.Attention(**{n: getattr(f, n).clone().requires_grad_() for n in ("query", "key", "value", "output")})
    expected = hs.local_lipschitz(f, X, seed=0)
    for memory in MEMORIES:
        J = g.jacobian(X.clone().requires_grad_(), memory=memory)
        estimate = hs.spectral_norm(J, seed=0)
        assert_close(estimate.lower.detach(), expected.lower)
    estimate = hs.local_lipschitz(g, X.clone().requires_grad_(), seed=0)
    assert_close(estimate.lower.detach(), expected.lower)
    assert isinstance(estimate.to_json(), str)
