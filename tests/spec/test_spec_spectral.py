"""Spectral norms against dense SVDs: brackets, attained values, batches, confidence, and callables of every kind."""

import json
import math
import warnings

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, ConvergenceWarning, DtypeError, HowsmoothError, NonFiniteError, ShapeError

# PyTorch's forward mode compiles its decompositions with `torch.jit.script` at first use, and that warns; not ours.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(7)


def gaussian(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def with_spectrum(rng, values, rows, columns):
    """A matrix with the given singular values, and random singular vectors."""
    k = len(values)
    U = torch.linalg.qr(gaussian(rng, rows, k)).Q
    W = torch.linalg.qr(gaussian(rng, columns, k)).Q
    return U * values @ W.mT


def top(matrix):
    return torch.linalg.matrix_norm(matrix.double(), ord=2)


def dense(function, X):
    J = torch.autograd.functional.jacobian(function, X)
    return J.reshape(-1, X.numel())


class Diagonal:
    """A user's operator: multiplies a grid of numbers by another, for each entry of a batch."""

    def __init__(self, entries, batch=()):
        self.entries = entries
        self.batch = batch
        self.domain = self.codomain = tuple(entries.shape[len(batch) :])
        self.dtype, self.device = entries.dtype, entries.device
        self.jvps = self.vjps = 0

    def jvp(self, E):
        self.jvps += 1
        return self.entries * E

    def vjp(self, G):
        self.vjps += 1
        return self.entries * G


SPECTRA = {
    "clustered": torch.cat([1 - 1e-6 * torch.arange(10.0), torch.linspace(0.9, 0, 50)]),
    "flat": torch.ones(60),
    "nearly flat": torch.linspace(1, 0.999, 60),
    "geometric": 0.7 ** torch.arange(60.0),
    "outlier": torch.cat([torch.tensor([1e6]), torch.ones(59)]),
    "outlier above a crowd": torch.cat([torch.tensor([1.0]), torch.full((59,), 0.98)]),
    "tiny gap": torch.cat([torch.tensor([1.0, 1 - 1e-9]), torch.linspace(0.5, 0, 58)]),
    "harmonic": 1 / torch.arange(1.0, 61),
    "rank one": torch.cat([torch.tensor([2.0]), torch.zeros(59)]),
    "rank two, equal": torch.cat([torch.tensor([2.0, 2.0]), torch.zeros(58)]),
}
SHAPES = [(60, 60), (90, 60), (60, 200)]


# --- the bracket ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_bracket_holds_the_norm_and_closes(rng, name, shape):
    matrix = with_spectrum(rng, SPECTRA[name].double(), *shape)
    estimate = hs.spectral_norm(hs.Dense(matrix), generator=rng)
    truth = top(matrix)
    assert estimate.lower <= truth * (1 + 1e-12)
    assert estimate.upper >= truth * (1 - 1e-12)
    assert estimate.upper <= estimate.lower * (1 + 1e-3) * (1 + 1e-12)
    assert estimate.confidence == 0.999
    assert estimate.status in (hs.Status.CONVERGED, hs.Status.INVARIANT)


@pytest.mark.parametrize("certify", [True, False])
@pytest.mark.parametrize("name", SPECTRA)
def test_lower_is_attained_by_the_direction(rng, name, certify):
    matrix = with_spectrum(rng, SPECTRA[name].double(), 60, 70)
    estimate = hs.spectral_norm(hs.Dense(matrix), certify=certify, generator=rng)
    assert_close(estimate.direction.norm(), torch.tensor(1.0).double())
    response = matrix @ estimate.direction
    assert_close(response.norm(), estimate.lower)
    assert_close(estimate.response, response / response.norm())
    assert estimate.lower <= estimate.upper


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SPECTRA)
def test_random_starts_violate_the_upper_bound_no_more_often_than_promised(rng, name, dtype):
    starts, size, confidence = 2000, 60, 0.9
    entries = SPECTRA[name].to(dtype)
    operator = Diagonal(entries.expand(starts, size), (starts,))
    estimates = [
        hs.spectral_norm(operator, confidence=confidence, rtol=0.1, generator=rng),
        hs.spectral_norm(operator, confidence=confidence, rtol=0.1, certify=False, generator=rng),
    ]
    truth = entries.max().double()
    for estimate in estimates:
        misses = (estimate.upper.double() < truth * (1 - 4 * torch.finfo(dtype).eps)).double().mean().item()
        # three standard deviations of the count
        assert misses <= (1 - confidence) + 3 * math.sqrt(confidence * (1 - confidence) / starts)
        assert (estimate.lower.double() <= truth * (1 + 8 * torch.finfo(dtype).eps)).all()


@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_upper_bound_holds_at_its_confidence_wherever_the_solver_is_stopped(rng, steps):
    starts, confidence = 2000, 0.9
    entries = SPECTRA["outlier above a crowd"].double()
    estimate = hs.spectral_norm(
        Diagonal(entries.expand(starts, 60), (starts,)), confidence=confidence, max_steps=steps, generator=rng
    )
    misses = (estimate.upper < 1 - 1e-12).double().mean().item()
    assert misses <= 0.1 + 3 * math.sqrt(0.09 / starts)
    assert (estimate.upper < 60).all()  # and it says something: the Frobenius norm is below √60


def test_a_higher_confidence_asks_for_a_larger_upper_bound(rng):
    entries = SPECTRA["harmonic"].double()
    uppers = []
    for confidence in (0.5, 0.9, 0.999, 1 - 1e-9):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            uppers.append(
                hs.spectral_norm(
                    Diagonal(entries), confidence=confidence, max_steps=4, generator=torch.Generator().manual_seed(3)
                ).upper.item()
            )
    assert uppers == sorted(uppers)
    assert uppers[0] < uppers[-1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ten_thousand_dimensions_with_a_clustered_top_are_bracketed(rng, dtype):
    entries = torch.cat([1 - 1e-5 * torch.rand(50, generator=rng), torch.rand(9950, generator=rng) * 0.97]).to(dtype)
    operator = Diagonal(entries.view(100, 100))
    estimate = hs.spectral_norm(operator, generator=rng)
    truth = entries.max().item()
    eps = torch.finfo(dtype).eps
    assert estimate.lower <= truth * (1 + 4 * eps)
    assert estimate.upper >= truth * (1 - 4 * eps)
    assert estimate.upper <= estimate.lower * 1.0011
    assert estimate.direction.shape == (100, 100)


def test_products_count_what_the_operator_was_asked(rng):
    operator = Diagonal(SPECTRA["harmonic"].double())
    estimate = hs.spectral_norm(operator, generator=rng)
    assert estimate.products == operator.jvps + operator.vjps
    operator = Diagonal(SPECTRA["harmonic"].double())
    estimate = hs.power_iteration(operator, generator=rng)
    assert estimate.products == operator.jvps + operator.vjps


def test_stopping_on_the_residual_takes_fewer_steps_and_still_reports_an_upper_bound(rng):
    matrix = with_spectrum(rng, SPECTRA["geometric"].double(), 60, 60)
    fast = hs.spectral_norm(hs.Dense(matrix), certify=False, generator=torch.Generator().manual_seed(0))
    full = hs.spectral_norm(hs.Dense(matrix), generator=torch.Generator().manual_seed(0))
    assert fast.steps <= full.steps
    assert fast.products < full.products
    assert math.isfinite(fast.upper)
    assert fast.upper >= top(matrix)


def test_the_residual_is_the_distance_to_a_singular_pair(rng):
    matrix = with_spectrum(rng, SPECTRA["harmonic"].double(), 60, 60)
    estimate = hs.spectral_norm(hs.Dense(matrix), generator=rng)
    values = torch.linalg.svdvals(matrix)
    assert (values - estimate.lower).abs().min() <= estimate.residual + 1e-9


def test_not_converging_is_data_and_one_warning(rng):
    with pytest.warns(ConvergenceWarning) as caught:
        estimate = hs.spectral_norm(Diagonal(SPECTRA["nearly flat"].double()), max_steps=2, rtol=1e-6, generator=rng)
    assert len(caught) == 1
    assert estimate.status is hs.Status.MAX_STEPS
    assert estimate.steps == 2
    assert estimate.lower <= 1 <= estimate.upper
    assert estimate.status.value in str(estimate)
    assert json.loads(estimate.to_json())["steps"] == 2


@pytest.mark.parametrize("rtol", [1e-1, 1e-3, 1e-6, 1e-10])
def test_the_bracket_is_as_tight_as_asked(rng, rtol):
    matrix = gaussian(rng, 80, 100)
    estimate = hs.spectral_norm(hs.Dense(matrix), rtol=rtol, generator=rng)
    assert estimate.upper <= estimate.lower * (1 + rtol) * (1 + 1e-12)
    assert estimate.lower <= top(matrix) * (1 + 1e-12)
    assert estimate.upper >= top(matrix) * (1 - 1e-12)


# --- reproducible, batched --------------------------------------------------------------------------------------


def test_one_generator_gives_one_answer(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 3, 7, 6)
    one, two, other = (hs.local_lipschitz(f, X, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    for field in ("lower", "upper", "direction", "response", "residual"):
        assert torch.equal(getattr(one, field), getattr(two, field)), field
    assert not torch.equal(one.upper, other.upper)
    assert one.steps == two.steps
    assert one.products == two.products


def test_a_generator_is_advanced_so_that_two_calls_differ(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    X, generator = gaussian(rng, 7, 6), torch.Generator().manual_seed(5)
    one, two = hs.local_lipschitz(f, X, generator=generator), hs.local_lipschitz(f, X, generator=generator)
    assert not torch.equal(one.upper, two.upper)


def test_without_a_generator_the_global_seed_decides(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 7, 6)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        one = hs.local_lipschitz(f, X)
        torch.manual_seed(11)
        two = hs.local_lipschitz(f, X)
    assert torch.equal(one.upper, two.upper)


@pytest.mark.parametrize("batch", [(1,), (5,), (2, 3)])
def test_batched_estimates_equal_single_ones(rng, batch):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=torch.float64, generator=rng)
    X = gaussian(rng, *batch, 7, 6) * torch.linspace(0.1, 3, math.prod(batch)).view(*batch, 1, 1).double()
    together = hs.local_lipschitz(f, X, rtol=1e-8, generator=rng)
    assert together.lower.shape == together.upper.shape == together.residual.shape == batch
    assert together.direction.shape == X.shape
    assert together.token_sensitivity.shape == together.token_response.shape == (*batch, 7)
    for index in torch.cartesian_prod(*(torch.arange(b) for b in batch)).view(-1, len(batch)).tolist():
        alone = hs.local_lipschitz(f, X[tuple(index)], rtol=1e-8, generator=rng)
        truth = top(dense(f, X[tuple(index)]))
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
    estimate = hs.spectral_norm(hs.Dense(matrices), generator=rng)
    truth = torch.linalg.matrix_norm(matrices, ord=2)
    assert (estimate.lower <= truth * (1 + 1e-12)).all()
    assert (estimate.upper >= truth * (1 - 1e-12)).all()
    assert (estimate.upper <= estimate.lower * (1 + 1e-3) * (1 + 1e-12)).all()
    assert estimate[1].status is hs.Status.ZERO
    assert estimate[0].status is not hs.Status.ZERO


def test_shares_of_tokens_are_the_squared_norms_of_direction_and_response(rng):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 9, 6)
    estimate = hs.local_lipschitz(f, X)
    assert_close(estimate.token_sensitivity.sum(), torch.tensor(1.0).double())
    assert_close(estimate.token_response.sum(), torch.tensor(1.0).double())
    assert_close(estimate.token_sensitivity, estimate.direction.square().sum(-1))
    moved = f.jacobian(X).jvp(estimate.direction)
    assert_close(estimate.token_response, moved.square().sum(-1) / moved.square().sum())


@pytest.mark.parametrize("shape", [(5, 40, 2, 3), (9, 24, 4, 4), (4, 10, 1, 1)], ids=str)
def test_a_head_of_low_rank_is_measured_in_the_full_space(rng, shape):
    n, d, k, v = shape
    weights = {"query": gaussian(rng, 1, k, d), "key": gaussian(rng, 1, k, d), "value": gaussian(rng, 1, v, d)}
    f = hs.Attention(
        **weights, output=gaussian(rng, 1, d, v), query_bias=gaussian(rng, 1, k), value_bias=gaussian(rng, 1, v)
    )
    X = gaussian(rng, 2, n, d) * 0.3
    estimate = hs.local_lipschitz(f, X, rtol=1e-6, generator=rng)
    truth = torch.stack([top(dense(f, x)) for x in X])
    assert_close(estimate.lower, truth, rtol=1e-6, atol=0)
    assert estimate.direction.shape == X.shape
    assert_close(f.jacobian(X).jvp(estimate.direction).norm(dim=(-2, -1)), estimate.lower)
    same = hs.Attention(query=weights["query"], key=weights["query"], value=weights["query"])  # rank k, not 3k
    assert_close(
        hs.local_lipschitz(same, X[0], rtol=1e-6, generator=rng).lower, top(dense(same, X[0])), rtol=1e-6, atol=0
    )


def test_the_estimate_becomes_json_and_a_sentence(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    for X in (gaussian(rng, 5, 6), gaussian(rng, 3, 5, 6)):
        estimate = hs.local_lipschitz(f, X)
        record = json.loads(estimate.to_json())
        assert record["lower"] == estimate.lower.tolist()
        assert record["upper"] == estimate.upper.tolist()
        assert record["confidence"] == 0.999
        assert record["steps"] == estimate.steps
        assert "Lip" in str(estimate)
        assert "99.9" in str(estimate)


def test_the_estimate_of_a_zero_map_says_so_in_json_and_print(rng):
    zero = torch.zeros(4, 4).double()
    f = hs.Attention.single_head(A=gaussian(rng, 4, 4), V=zero)
    X = gaussian(rng, 3, 4)
    estimate = hs.local_lipschitz(f, X)
    assert estimate.lower == 0
    assert estimate.upper == 0
    assert estimate.status is hs.Status.ZERO
    assert estimate.status.value in str(estimate)
    assert not estimate.token_response.isnan().any()
    assert "NaN" not in estimate.to_json()
    assert_close(estimate.direction.norm(), torch.tensor(1.0).double())


def test_zero_query_weights_leave_the_average(rng):
    n, zero = 6, torch.zeros(4, 4).double()
    V, X = gaussian(rng, 4, 4), gaussian(rng, n, 4)
    estimate = hs.local_lipschitz(hs.Attention.single_head(A=zero, V=V), X, rtol=1e-9)
    assert_close(estimate.lower, top(V))  # J = (1/n)11ᵀ ⊗ V


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_float32(rng, dtype):
    f = hs.Attention.random(heads=2, d=8, causal=True, generator=rng).to(dtype)
    X = gaussian(rng, 2, 6, 8).to(dtype)
    norm = hs.LayerNorm(gain=gaussian(rng, 8).to(dtype), bias=gaussian(rng, 8).to(dtype))
    for g in (f, norm, hs.Chain(norm, f), hs.Residual(hs.Chain(norm, f))):
        estimate = hs.local_lipschitz(g, X)
        exact = g.to(torch.float64)
        truth = torch.stack([top(dense(exact, x)) for x in X.double()])
        assert estimate.lower.dtype == torch.float32
        assert estimate.direction.dtype == torch.float32
        assert (estimate.lower <= truth * (1 + 1e-5)).all()
        assert (estimate.upper >= truth * (1 - 1e-5)).all()


def test_scores_of_ten_thousand_are_bracketed_in_float32(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 12, 8) * 100
    estimate = hs.local_lipschitz(f.to(torch.float32), X.float(), generator=rng)
    truth = top(dense(f, X))
    # the scores, of size 10⁴, are themselves known to 2⁻²⁴·10⁴ ≈ 10⁻³ only
    assert_close(estimate.lower.double(), truth, rtol=5e-3, atol=0)


# --- singular values and power iteration ------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECTRA)
def test_the_largest_singular_values_come_with_vectors(rng, name):
    k = 4
    matrix = with_spectrum(rng, SPECTRA[name].double(), 60, 80)
    found = hs.singular_values(hs.Dense(matrix), k=k, rtol=1e-6, generator=rng)
    truth = torch.linalg.svdvals(matrix)[:k]
    scale = truth[0]
    assert found.values.shape == (k,)
    assert found.right.shape == (k, 80)
    assert found.left.shape == (k, 60)
    assert (found.values <= truth + 1e-10 * scale).all()
    assert (found.values >= truth * (1 - 1e-6) - 1e-10 * scale).all()
    assert (found.upper >= truth - 1e-10 * scale).all()
    assert_close(found.right @ found.right.mT, torch.eye(k).double())
    assert (found.values[:-1] >= found.values[1:] - 1e-10 * scale).all()
    for value, right, left in zip(found.values, found.right, found.left, strict=True):
        assert (matrix @ right - value * left).norm() <= 2e-3 * scale


def test_batched_singular_values_equal_single_ones(rng):
    matrices = gaussian(rng, 3, 12, 9)
    found = hs.singular_values(hs.Dense(matrices), k=9, rtol=1e-8, generator=rng)
    assert_close(found.values, torch.linalg.svdvals(matrices), rtol=1e-7, atol=1e-9)


def test_singular_values_of_attention_equal_the_dense_ones(rng):
    f = hs.Attention.random(heads=2, d=4, causal=True, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 6, 4)
    found = hs.singular_values(f.jacobian(X), k=5, rtol=1e-6, generator=rng)
    assert_close(found.values, torch.linalg.svdvals(dense(f, X))[:5], rtol=1e-6, atol=0)
    assert found.right.shape == (5, 6, 4)


@pytest.mark.parametrize("name", ["geometric", "outlier", "harmonic", "flat", "rank one"])
def test_power_iteration_agrees_with_lanczos(rng, name):
    matrix = with_spectrum(rng, SPECTRA[name].double(), 60, 60)
    power = hs.power_iteration(hs.Dense(matrix), rtol=1e-4, generator=rng)
    truth = top(matrix)
    assert isinstance(power, hs.NormEstimate)
    assert power.lower <= truth * (1 + 1e-12)
    assert power.upper >= truth * (1 - 1e-12)
    assert_close(power.lower, truth, rtol=5e-3, atol=0)
    assert_close((matrix @ power.direction).norm(), power.lower)


@seed(4)
@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31), st.floats(-20, 20))
def test_random_matrices_of_any_shape_and_size_are_bracketed(rows, columns, number, exponent):
    generator = torch.Generator().manual_seed(number)
    matrix = gaussian(generator, rows, columns) * 10**exponent
    estimate = hs.spectral_norm(hs.Dense(matrix), generator=generator)
    truth = top(matrix)
    assert estimate.lower <= truth * (1 + 1e-12)
    assert estimate.upper >= truth * (1 - 1e-12)
    assert estimate.upper <= estimate.lower * (1 + 1e-3) * (1 + 1e-12)


@pytest.mark.parametrize("matrix", [[[2.0]], [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0, 3.0]]])
def test_tiny_spaces_are_measured_without_a_warning(matrix):
    for number in range(8):
        generator = torch.Generator().manual_seed(number)
        for dtype in (torch.float64, torch.float32):
            hs.spectral_norm(hs.Dense(torch.tensor(matrix, dtype=dtype)), generator=generator)


def test_one_number_is_measured_without_a_warning():
    one = torch.ones(1, 1).double()
    estimate = hs.local_lipschitz(hs.Attention.single_head(A=one, V=2 * one), 3 * one)
    assert_close(estimate.lower, torch.tensor(2.0).double())


# --- callables and modules --------------------------------------------------------------------------------------


class Fused(nn.Module):
    """A module around PyTorch's fused attention, with dropout while training."""

    def __init__(self, causal=False):
        super().__init__()
        self.project, self.causal = nn.Linear(8, 24, dtype=torch.float64), causal

    def forward(self, X):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(-3, -2) for t in self.project(X).chunk(3, -1))
        p = 0.5 if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=p).transpose(-3, -2).flatten(-2)


def seeded(module, rng):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype) * 0.5)
    return module


MODULES = {
    "linear": lambda: nn.Linear(8, 5, dtype=torch.float64),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 3)).double(),
    "layer norm": lambda: nn.LayerNorm(8, dtype=torch.float64),
    "fused": Fused,
    "fused causal": lambda: Fused(causal=True),
    "post-norm encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64),
    "pre-norm encoder": lambda: nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=True, dtype=torch.float64
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_measured_as_their_dense_jacobian_in_eval_mode(rng, name):
    module = seeded(MODULES[name](), rng).eval()
    X = gaussian(rng, 3, 5, 8)
    truth = torch.stack([top(dense(module, x)) for x in X])
    module.train()
    estimate = hs.local_lipschitz(module, X, generator=rng)
    assert all(part.training for part in module.modules())
    assert (estimate.lower <= truth * (1 + 1e-10)).all()
    assert (estimate.upper >= truth * (1 - 1e-10)).all()


@pytest.mark.parametrize("name", MODULES)
def test_autograd_products_equal_the_dense_jacobian(rng, name):
    module = seeded(MODULES[name](), rng).eval()
    X = gaussian(rng, 5, 8)
    J = dense(module, X)
    operator = hs.JacobianOperator(module.train(), X)
    E, G = gaussian(rng, 5, 8), gaussian(rng, *operator.codomain)
    assert_close(operator.jvp(E).flatten(), J @ E.flatten())
    assert_close(operator.vjp(G).flatten(), J.mT @ G.flatten())
    assert_close(operator.vjp(G).flatten(), J.mT @ G.flatten())  # the cached pullback serves twice
    assert module.training


def test_parts_that_were_in_eval_mode_stay_there(rng):
    module = seeded(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Dropout(0.5)).double(), rng).train()
    module[2].eval()
    hs.local_lipschitz(module, gaussian(rng, 5, 8))
    assert [part.training for part in module.modules()] == [True, True, True, False]


@pytest.mark.parametrize("fault", ["raises", "tuple", "nan"])
def test_modules_are_restored_after_an_error(rng, fault):
    class Faulty(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, X):
            if fault == "raises":
                raise ZeroDivisionError("the module's own error")
            return (X, X) if fault == "tuple" else X / 0

    module = Faulty().train()
    expected = {"raises": ZeroDivisionError, "tuple": HowsmoothError, "nan": NonFiniteError}[fault]
    with pytest.raises(expected):
        hs.local_lipschitz(module, gaussian(rng, 5, 8))
    assert module.training
    assert module.dropout.training


def test_measuring_a_module_leaves_no_gradients_and_no_statistics_behind(rng):
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5)).double().train()
    X = gaussian(rng, 2, 5, 8).requires_grad_()
    before = module[1].running_mean.clone()
    hs.local_lipschitz(module, X)
    assert X.grad is None
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert torch.equal(module[1].running_mean, before)
    assert module[1].num_batches_tracked == 0


def test_gradients_may_be_switched_off_around_the_call(rng):
    module, X = seeded(nn.Linear(8, 8, dtype=torch.float64), rng), gaussian(rng, 5, 8)
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    truth = top(dense(f, X))
    with torch.no_grad():
        assert_close(hs.local_lipschitz(module, X).lower, top(module.weight), rtol=1e-3, atol=0)
        assert_close(hs.local_lipschitz(f, X).lower, truth, rtol=1e-3, atol=0)
        assert not torch.is_grad_enabled()


def test_callables_that_return_operators_are_measured(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 5, 8)
    estimate = hs.local_lipschitz(lambda Z: f.jacobian(Z, memory=0), X)
    assert_close(estimate.lower, top(dense(f, X)), rtol=1e-3, atol=0)


def test_plain_functions_are_measured(rng):
    X = gaussian(rng, 5, 8)
    estimate = hs.local_lipschitz(lambda Z: torch.cat([Z.sin(), Z.square()], 0)[:, ::2], X, rtol=1e-8, generator=rng)
    truth = torch.sqrt(X[:, ::2].cos().square() + 4 * X[:, ::2].square()).max()
    assert_close(estimate.lower, truth)


def test_maps_without_a_gradient_are_zero(rng):
    estimate = hs.local_lipschitz(lambda Z: torch.ones(5, 8).double(), gaussian(rng, 5, 8))
    assert estimate.status is hs.Status.ZERO


def test_an_operator_of_the_whole_batch_is_measured_with_batch_axes_zero(rng):
    X = gaussian(rng, 3, 5, 8)
    operator = hs.JacobianOperator(lambda Z: Z.sum(0), X, batch_axes=0)
    assert tuple(operator.batch) == ()
    assert tuple(operator.domain) == (3, 5, 8)
    assert_close(hs.spectral_norm(operator).lower, torch.tensor(3.0).double().sqrt(), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "mix", [lambda Z: Z - Z.mean(0, keepdim=True), lambda Z: Z.flip(0), lambda Z: Z + 1e-4 * Z.roll(1, 0)]
)
def test_callables_that_mix_the_batch_are_refused(rng, mix):
    with pytest.raises(AssumptionError, match="batch"):
        hs.local_lipschitz(mix, gaussian(rng, 3, 5, 8))


@pytest.mark.parametrize("answer", [lambda Z: (Z, Z), lambda Z: [Z], lambda Z: {"Z": Z}, lambda Z: None, lambda Z: 3.0])
def test_callables_that_do_not_return_one_tensor_are_refused(rng, answer):
    with pytest.raises(HowsmoothError, match="one tensor"):
        hs.local_lipschitz(answer, gaussian(rng, 5, 8))


@pytest.mark.parametrize("answer", [lambda Z: Z.argmax(-1), lambda Z: torch.fft.fft(Z), lambda Z: Z > 0])
def test_callables_that_return_other_numbers_than_reals_are_refused(rng, answer):
    with pytest.raises(DtypeError):
        hs.local_lipschitz(answer, gaussian(rng, 5, 8))


@pytest.mark.parametrize("answer", [lambda Z: Z / 0, lambda Z: Z.log(), lambda Z: (Z * 0).sqrt()])
def test_callables_that_are_not_finite_are_refused(rng, answer):
    with pytest.raises(NonFiniteError):
        hs.local_lipschitz(answer, -gaussian(rng, 5, 8).abs())


def test_callables_that_drop_the_batch_are_refused(rng):
    with pytest.raises(ShapeError):
        hs.local_lipschitz(lambda Z: Z.sum(0), gaussian(rng, 3, 5, 8))


# --- bad questions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        {"rtol": 0.0},
        {"rtol": -1.0},
        {"rtol": math.nan},
        {"confidence": 0.0},
        {"confidence": 1.0},
        {"confidence": 1.5},
        {"confidence": math.nan},
        {"max_steps": 0},
        {"max_steps": -1},
    ],
    ids=str,
)
def test_questions_without_an_answer_are_refused(rng, question):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    with pytest.raises(AssumptionError):
        hs.local_lipschitz(f, gaussian(rng, 3, 4), **question)
    with pytest.raises(AssumptionError):
        hs.spectral_norm(hs.Dense(torch.eye(4).double()), **question)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_more_singular_values_than_there_are_are_refused(k):
    with pytest.raises(AssumptionError):
        hs.singular_values(hs.Dense(torch.ones(4, 6).double()), k=k)


@pytest.mark.parametrize(
    ("matrix", "error"),
    [
        (torch.ones(3, 3).long(), DtypeError),
        (torch.ones(3, 3) + 0j, DtypeError),
        (torch.full((3, 3), math.nan), NonFiniteError),
        (torch.full((3, 3), math.inf), NonFiniteError),
    ],
)
def test_matrices_that_are_not_finite_reals_are_refused(matrix, error):
    with pytest.raises(error):
        hs.Dense(matrix)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 3, 3)])
def test_empty_operators_are_refused(shape):
    with pytest.raises(HowsmoothError):
        hs.spectral_norm(hs.Dense(torch.zeros(shape)))
