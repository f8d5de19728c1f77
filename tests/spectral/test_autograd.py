import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from cases import CASES
from draws import gaussian
from oracles import dense_by_rows, dense_jacobian, top
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, HowsmoothError, NonFiniteError


class Fused(nn.Module):
    """Attention through PyTorch's fused kernel, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 18)
        self.drop = nn.Dropout(0.5)

    def forward(self, X):
        q, k, v = self.drop(self.project(X)).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q[..., None, :, :], k[..., None, :, :], v[..., None, :, :])[..., 0, :, :]


class NoForwardMode(torch.autograd.Function):
    """The cube, without a forward-mode rule."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def assert_products(J, dense, X, rng):
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    G = torch.randn(*J.batch, *J.codomain, dtype=X.dtype, generator=rng)
    assert_close(J.jvp(E).flatten(), dense @ E.flatten())
    assert_close(J.vjp(G).flatten(), dense.mT @ G.flatten())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_autograd_and_closed_form_agree(case, rng):
    f, X = case.build(rng)
    assert_products(hs.spectral.JacobianOperator(f, X), dense_jacobian(f, X), X, rng)


@pytest.mark.parametrize("training", [True, False])
def test_fused_attention_is_measured_in_eval_mode_and_left_as_it_was(training, rng):
    module = Fused().double().train(training)
    X = torch.randn(5, 6, dtype=torch.float64, generator=rng)
    J = hs.spectral.JacobianOperator(module, X)
    assert_products(J, dense_by_rows(module.eval(), X), X, rng)
    module.train(training)
    hs.local_lipschitz(module, X)
    assert [m.training for m in module.modules()] == [training] * 3


def test_a_module_is_restored_even_if_it_fails(rng):
    module = nn.Sequential(nn.Dropout(), nn.Linear(3, 3)).double()
    with pytest.raises(AssumptionError, match=r"does not work on tokens of the shape \(2, 4\)"):
        hs.spectral.JacobianOperator(module, torch.randn(2, 4, dtype=torch.float64, generator=rng))
    assert all(m.training for m in module.modules())


def test_encoder_layers_of_torch_are_measured(rng):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).double()
    X = torch.randn(3, 5, 8, dtype=torch.float64, generator=rng)
    estimate = hs.local_lipschitz(layer, X, rtol=1e-9, seed=rng)
    assert layer.training
    layer.eval()
    for part, x in zip(estimate, X, strict=True):
        with torch.enable_grad():
            dense = torch.autograd.functional.jacobian(lambda y: layer(y[None])[0], x).reshape(40, 40)
        assert_close(part.lower, torch.linalg.matrix_norm(dense, 2))


def test_without_forward_mode_the_pullback_is_differentiated(rng):
    X = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    J = hs.spectral.JacobianOperator(NoForwardMode.apply, X)
    assert J._push_forward != J._forward_mode
    assert_products(J, torch.diag(3 * X.flatten() ** 2), X, rng)


def test_a_constant_map_has_norm_zero(rng):
    estimate = hs.local_lipschitz(lambda X: torch.ones(3, 2), torch.randn(3, 4, generator=rng))
    assert estimate.status is hs.spectral.Status.ZERO


def test_methods_of_modules_are_measured_in_eval_mode(rng):
    module = nn.Dropout(0.9).double()
    estimate = hs.local_lipschitz(module.forward, torch.randn(4, 3, dtype=torch.float64, generator=rng))
    assert_close(estimate.lower, torch.ones((), dtype=torch.float64))
    assert module.training


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_modules_are_measured_in_single(dtype, rng):
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    X = torch.randn(5, 4, generator=rng).to(dtype)
    estimate = hs.local_lipschitz(module, X, rtol=1e-5, seed=rng)
    exact = torch.linalg.matrix_norm(dense_jacobian(module.double(), X.double()), 2).detach()
    assert float(estimate.lower) == pytest.approx(float(exact), rel=1e-5)


def test_vectors_and_one_big_input_are_single_operators(rng):
    W = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    J = hs.spectral.JacobianOperator(lambda x: W @ x, torch.randn(4, dtype=torch.float64, generator=rng))
    assert (J.batch, J.domain, J.codomain) == ((), (4,), (3,))
    assert_close(hs.spectral_norm(J, rtol=1e-9).lower, torch.linalg.matrix_norm(W, 2))
    X = torch.randn(2, 3, 4, dtype=torch.float64, generator=rng)
    mixing = hs.spectral.JacobianOperator(lambda X: X.sum(0, keepdim=True).expand_as(X), X, batch_axes=0)
    assert_close(hs.spectral_norm(mixing, rtol=1e-9).lower, torch.tensor(2.0).double())


def seeded(module, rng):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype) * 0.5)
    return module


class FusedHeads(nn.Module):
    """A module around PyTorch's fused attention, with dropout while training."""

    def __init__(self, causal=False):
        super().__init__()
        self.project, self.causal = nn.Linear(8, 24, dtype=torch.float64), causal

    def forward(self, X):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(-3, -2) for t in self.project(X).chunk(3, -1))
        p = 0.5 if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=p).transpose(-3, -2).flatten(-2)


MODULES = {
    "linear": lambda: nn.Linear(8, 5, dtype=torch.float64),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 3)).double(),
    "layer norm": lambda: nn.LayerNorm(8, dtype=torch.float64),
    "fused": FusedHeads,
    "fused causal": lambda: FusedHeads(causal=True),
    "post-norm encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64),
    "pre-norm encoder": lambda: nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=True, dtype=torch.float64
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_measured_as_their_dense_jacobian_in_eval_mode(rng, name):
    module = seeded(MODULES[name](), rng).eval()
    X = gaussian(rng, 3, 5, 8)
    truth = torch.stack([top(dense_by_rows(module, x)) for x in X])
    module.train()
    estimate = hs.local_lipschitz(module, X, seed=rng)
    assert all(part.training for part in module.modules())
    assert (estimate.lower <= truth * (1 + 1e-10)).all()
    assert (estimate.upper >= truth * (1 - 1e-10)).all()


@pytest.mark.parametrize("name", MODULES)
def test_autograd_products_equal_the_dense_jacobian(rng, name):
    module = seeded(MODULES[name](), rng).eval()
    X = gaussian(rng, 5, 8)
    J = dense_by_rows(module, X)
    operator = hs.spectral.JacobianOperator(module.train(), X)
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
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    truth = top(dense_jacobian(f, X))
    with torch.no_grad():
        assert_close(hs.local_lipschitz(module, X).lower, top(module.weight), rtol=1e-3, atol=0)
        assert_close(hs.local_lipschitz(f, X).lower, truth, rtol=1e-3, atol=0)
        assert not torch.is_grad_enabled()


def test_callables_that_return_operators_are_measured(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 5, 8)
    estimate = hs.local_lipschitz(lambda Z: f.jacobian(Z, memory=0), X)
    assert_close(estimate.lower, top(dense_jacobian(f, X)), rtol=1e-3, atol=0)


def test_plain_functions_are_measured(rng):
    X = gaussian(rng, 5, 8)
    estimate = hs.local_lipschitz(lambda Z: torch.cat([Z.sin(), Z.square()], 0)[:, ::2], X, rtol=1e-8, seed=rng)
    truth = torch.sqrt(X[:, ::2].cos().square() + 4 * X[:, ::2].square()).max()
    assert_close(estimate.lower, truth)


def test_maps_without_a_gradient_are_zero(rng):
    estimate = hs.local_lipschitz(lambda Z: torch.ones(5, 8).double(), gaussian(rng, 5, 8))
    assert estimate.status is hs.spectral.Status.ZERO


def test_an_operator_of_the_whole_batch_is_measured_with_batch_axes_zero(rng):
    X = gaussian(rng, 3, 5, 8)
    operator = hs.spectral.JacobianOperator(lambda Z: Z.sum(0), X, batch_axes=0)
    assert tuple(operator.batch) == ()
    assert tuple(operator.domain) == (3, 5, 8)
    assert_close(hs.spectral_norm(operator).lower, torch.tensor(3.0).double().sqrt(), rtol=1e-3, atol=0)


def test_inference_mode_does_not_change_the_measurement(rng):
    module = nn.Linear(8, 8, dtype=torch.float64)
    X = gaussian(rng, 5, 8)
    with torch.inference_mode():
        estimate = hs.local_lipschitz(module, X, seed=rng)
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


def test_functions_that_cannot_be_differentiated_twice_are_refused(rng):
    with pytest.raises(AssumptionError, match="do not belong to one matrix"):  # and not 0 with the status ZERO
        hs.local_lipschitz(OnceDifferentiable.apply, gaussian(rng, 5, 8), seed=rng)


@pytest.mark.slow
def test_modules_are_measured_without_a_warning_in_a_fresh_process():
    program = "import torch, howsmooth as hs; hs.local_lipschitz(torch.nn.Linear(4, 4), torch.ones(3, 4))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-400:]


def test_callables_that_return_one_number_are_measured(rng):
    X = gaussian(rng, 5, 8)
    estimate = hs.local_lipschitz(lambda Z: Z.square().sum(), X)
    assert_close(estimate.lower, 2 * X.norm(), rtol=1e-3, atol=0)


def test_modules_that_begin_in_place_are_measured(rng):
    X = gaussian(rng, 5, 8)
    estimate = hs.local_lipschitz(nn.Sequential(nn.ReLU(inplace=True)), X, seed=rng)
    assert_close(estimate.lower, torch.tensor(1.0).double(), rtol=1e-3, atol=0)
