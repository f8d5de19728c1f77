"""Corners where wrong numbers or unclear errors once hid; each test keeps one of them mended."""

import math
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import ConvergenceWarning, DtypeError, HowsmoothError, NonFiniteError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(3)


def gaussian(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def top(matrix):
    return torch.linalg.matrix_norm(matrix.double(), ord=2)


def test_inference_mode_does_not_change_the_measurement(rng):
    module = nn.Linear(8, 8, dtype=torch.float64)
    X = gaussian(rng, 5, 8)
    with torch.inference_mode():
        estimate = hs.local_lipschitz(module, X, generator=rng)
    truth = top(module.weight.detach())
    assert estimate.lower <= truth * (1 + 1e-10)
    assert estimate.upper >= truth * (1 - 1e-10)


class OnceDifferentiable(torch.autograd.Function):
    """x ↦ x² with a backward that cannot be differentiated again, like most fused kernels."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def test_functions_that_cannot_be_differentiated_twice_are_refused_or_measured(rng):
    X = gaussian(rng, 5, 8)
    try:
        estimate = hs.local_lipschitz(OnceDifferentiable.apply, X, generator=rng)
    except (HowsmoothError, RuntimeError):
        return
    assert_close(estimate.lower, 2 * X.abs().max(), rtol=1e-3, atol=0)  # and not 0 with the status ZERO


def second_sees_first(X):
    return torch.stack([X[0], X[1] + X[0], X[2]])


def last_sees_first(X):
    return torch.cat([X[:-1], X[-1:] + 0.1 * X[:1]])


@pytest.mark.parametrize("mix", [second_sees_first, last_sees_first])
def test_callables_that_mix_the_batch_in_one_direction_are_refused(rng, mix):
    with pytest.raises(HowsmoothError):
        hs.local_lipschitz(mix, gaussian(rng, 3, 5, 8))


@pytest.mark.parametrize("radius", [100.0, 1e3, 1e4])
@pytest.mark.parametrize("memory", [2**30, 0])
def test_saturated_attention_is_exact_in_float32(radius, memory):
    # scores R² against 0: P is exactly the identity, so J E = E Vᵀ; autograd gives that to the last bit
    X, V = radius * torch.eye(4), torch.arange(16.0).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4), V=V)
    E = torch.linspace(-1, 1, 16).view(4, 4)
    assert_close(f.jacobian(X, memory=memory).jvp(E), E @ V.mT)


def test_the_bracket_holds_the_norm_of_saturated_attention_in_float32(rng):
    X, V = 1e4 * torch.eye(4), torch.arange(16.0).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4), V=V)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimate = hs.local_lipschitz(f, X, generator=rng)
    assert estimate.lower <= top(V) * (1 + 1e-4)
    assert estimate.upper >= top(V) * (1 - 1e-4)


def test_float32_products_at_saturation_are_as_accurate_as_those_of_autograd(rng):
    f = hs.Attention.random(heads=2, d=16, dtype=torch.float64, generator=rng)
    X, E = gaussian(rng, 32, 16) * 300, gaussian(rng, 32, 16)
    exact = f.jacobian(X).jvp(E)
    single = f.to(torch.float32)

    def error(product):
        return ((product.double() - exact).norm() / exact.norm()).item()

    _value, automatic = torch.autograd.functional.jvp(single, X.float(), E.float())
    assert error(single.jacobian(X.float()).jvp(E.float())) <= 10 * error(automatic) + 1e-6


def test_converged_means_that_the_bracket_closed(rng):
    X, V = 1e3 * torch.eye(4), torch.arange(16.0).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4), V=V)
    estimate = hs.local_lipschitz(f, X, rtol=1e-3, generator=rng)
    assert estimate.status is hs.Status.CONVERGED
    assert bool(estimate.upper <= estimate.lower * (1 + 1e-3))


def test_a_random_module_hidden_in_a_function_is_refused(rng):
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    with pytest.raises(HowsmoothError, match="random"):
        hs.local_lipschitz(lambda Z: module(Z), gaussian(rng, 5, 8).float(), generator=rng)


def test_an_operator_that_contradicts_itself_is_found_out(rng):
    class Torn(hs.Dense):
        def vjp(self, G):
            return 3 * super().vjp(G)

    with pytest.warns(ConvergenceWarning, match="contradict"):
        estimate = hs.spectral_norm(Torn(gaussian(rng, 30, 30)), generator=rng)
    assert estimate.status is hs.Status.INCONSISTENT
    assert estimate.upper == torch.inf


@pytest.mark.parametrize("size", [1e-200, 1e-300])
def test_a_tiny_operator_is_not_called_zero(rng, size):
    matrix = gaussian(rng, 20, 30)
    estimate = hs.spectral_norm(hs.Dense(matrix * size), generator=rng)
    assert estimate.upper >= top(matrix) * size * (1 - 1e-10)


@pytest.mark.parametrize("size", [1e160, 1e200])
def test_a_huge_finite_operator_is_measured(rng, size):
    matrix = gaussian(rng, 20, 30)
    estimate = hs.spectral_norm(hs.Dense(matrix * size), generator=rng)
    assert_close(estimate.lower / size, top(matrix), rtol=1e-3, atol=0)


def test_the_radius_of_an_ellipsoid_is_a_number_when_the_bias_misses_the_longest_axis():
    norm = hs.RMSNorm(gain=torch.tensor([5.0, 1.0]).double(), bias=torch.tensor([0.0, 1e-6]).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        radius = float(norm.image.radius)
    assert radius == pytest.approx(5 * math.sqrt(2))


@pytest.mark.parametrize("bias", [0.3, 1e-6])
def test_the_radius_of_an_ellipsoid_divides_by_nothing(bias):
    norm = hs.RMSNorm(gain=torch.tensor([5.0, 1.0]).double(), bias=torch.tensor([0.0, bias]).double())
    assert math.isfinite(norm.image.radius)


def test_modules_are_measured_without_a_warning_in_a_fresh_process():
    program = "import torch, howsmooth as hs; hs.local_lipschitz(torch.nn.Linear(4, 4), torch.ones(3, 4))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-400:]


def test_an_empty_batch_is_refused(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    X = torch.zeros(0, 5, 4).double()
    for ask in (f, f.jacobian, lambda Z: hs.local_lipschitz(f, Z)):
        with pytest.raises(HowsmoothError):
            ask(X)


def test_perturbations_of_another_dtype_are_refused(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    operator = f.jacobian(gaussian(rng, 5, 4))
    for product in (operator.jvp, operator.vjp):
        with pytest.raises(DtypeError):
            product(gaussian(rng, 5, 4).float())


def test_callables_that_return_one_number_are_measured_or_refused(rng):
    X = gaussian(rng, 5, 8)
    try:
        estimate = hs.local_lipschitz(lambda Z: Z.square().sum(), X)
    except HowsmoothError:
        return
    assert_close(estimate.lower, 2 * X.norm(), rtol=1e-3, atol=0)


def test_modules_that_begin_in_place_are_measured(rng):
    X = gaussian(rng, 5, 8)
    estimate = hs.local_lipschitz(nn.Sequential(nn.ReLU(inplace=True)), X, generator=rng)
    assert_close(estimate.lower, torch.tensor(1.0).double(), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (torch.ones(6, 3).double(), ShapeError),
        (torch.ones(0, 4).double(), ShapeError),
        (torch.ones(6, 4).long(), DtypeError),
        (torch.ones(6, 4), DtypeError),
        (torch.ones(6, 4) + 0j, DtypeError),
        (torch.full((6, 4), math.nan).double(), NonFiniteError),
    ],
    ids=["wrong d", "no tokens", "integers", "float32", "complex", "NaN"],
)
def test_norms_refuse_bad_tokens_when_called(bad, error):
    with pytest.raises(error):
        hs.LayerNorm(gain=torch.ones(4).double())(bad)


def test_a_norm_of_one_number_does_not_broadcast_over_wider_tokens(rng):
    with pytest.raises(ShapeError):
        hs.RMSNorm(gain=torch.ones(1).double())(gaussian(rng, 6, 4))


def test_a_residual_does_not_broadcast(rng):
    d = 4
    f = hs.Attention.single_head(A=gaussian(rng, d, d), V=gaussian(rng, 1, d))
    with pytest.raises(ShapeError):
        hs.Residual(f)(gaussian(rng, 5, d))


def test_a_chain_of_mixed_dtypes_is_refused_when_called(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    with pytest.raises(DtypeError):
        hs.Chain(hs.LayerNorm(gain=torch.ones(4)), f)(gaussian(rng, 5, 4))


def test_half_precision_tokens_and_double_weights_are_mixed_dtypes(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    with pytest.raises(DtypeError):
        hs.local_lipschitz(f, gaussian(rng, 5, 4).half())


@pytest.mark.parametrize(
    "rotary",
    [
        {"base": math.nan},
        {"base": math.inf},
        {"frequencies": torch.tensor([math.nan, 1.0])},
        {"positions": torch.tensor([0.0, 1.0, math.nan])},
    ],
    ids=["NaN base", "inf base", "frequencies", "positions"],
)
def test_rotary_settings_that_are_not_finite_are_refused(rng, rotary):
    Q = gaussian(rng, 2, 4, 4)
    with pytest.raises(HowsmoothError):
        hs.Attention(query=Q, key=Q, value=Q, positions=hs.Positions(rotary=hs.Rotary(**rotary)))(gaussian(rng, 3, 4))


def test_an_eps_that_is_not_a_number_is_refused():
    with pytest.raises(HowsmoothError):
        hs.LayerNorm(gain=torch.ones(4), eps=math.nan)


def test_a_norm_of_no_numbers_is_refused():
    with pytest.raises(HowsmoothError):
        hs.LayerNorm(gain=torch.ones(0))


def test_a_window_that_is_not_a_whole_number_is_refused(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    with pytest.raises(HowsmoothError):
        hs.Attention(query=f.query, key=f.key, value=f.value, positions=hs.Positions(window=1.5))(gaussian(rng, 5, 4))


@pytest.mark.parametrize("axes", [-1, 4, 9])
def test_batch_axes_that_do_not_exist_are_refused(rng, axes):
    with pytest.raises(HowsmoothError):
        hs.JacobianOperator(lambda Z: 3 * Z, gaussian(rng, 2, 5, 4), batch_axes=axes)


def test_a_vector_is_not_a_matrix(rng):
    with pytest.raises(ShapeError):
        hs.Dense(gaussian(rng, 5))


@pytest.mark.parametrize("thing", [torch.eye(3), 3, None])
def test_things_that_are_not_operators_are_refused(thing):
    with pytest.raises(HowsmoothError):
        hs.spectral_norm(thing)


def test_half_precision_operators_are_measured_in_float32(rng):
    matrix = gaussian(rng, 20, 30).half()
    estimate = hs.spectral_norm(hs.Dense(matrix), generator=rng)
    assert_close(estimate.lower.double(), top(matrix), rtol=1e-3, atol=0)


def test_a_layer_without_heads_is_refused():
    with pytest.raises(HowsmoothError):
        hs.Attention.random(heads=0, d=4)


def test_a_bias_that_is_a_list_is_refused_like_a_weight_that_is_one(rng):
    Q = gaussian(rng, 2, 3, 4)
    with pytest.raises(DtypeError):
        hs.Attention(query=Q, key=Q, value=Q, query_bias=gaussian(rng, 2, 3).tolist())


def test_estimates_take_one_index_per_batch_axis(rng):
    estimate = hs.spectral_norm(hs.Dense(gaussian(rng, 2, 3, 5, 5)), generator=rng)
    assert estimate[1, 2].lower == estimate.lower[1, 2]
