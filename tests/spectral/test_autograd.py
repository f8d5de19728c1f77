import pytest
import torch
import torch.nn.functional as F
from cases import CASES
from oracles import dense_jacobian
from torch import nn
from torch.testing import assert_close

import howsmooth as hs


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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_autograd_and_closed_form_agree(case, rng):
    f, X = case.build(rng)
    assert_products(hs.JacobianOperator(f, X), dense_jacobian(f, X), X, rng)


@pytest.mark.parametrize("training", [True, False])
def test_fused_attention_is_measured_in_eval_mode_and_left_as_it_was(training, rng):
    module = Fused().double().train(training)
    X = torch.randn(5, 6, dtype=torch.float64, generator=rng)
    J = hs.JacobianOperator(module, X)
    assert_products(J, dense_jacobian(module.eval(), X), X, rng)
    module.train(training)
    hs.local_lipschitz(module, X)
    assert [m.training for m in module.modules()] == [training] * 3


def test_a_module_is_restored_even_if_it_fails(rng):
    module = nn.Sequential(nn.Dropout(), nn.Linear(3, 3)).double()
    with pytest.raises(RuntimeError):
        hs.JacobianOperator(module, torch.randn(2, 4, dtype=torch.float64, generator=rng))
    assert all(m.training for m in module.modules())


def test_encoder_layers_of_torch_are_measured(rng):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).double()
    X = torch.randn(3, 5, 8, dtype=torch.float64, generator=rng)
    estimate = hs.local_lipschitz(layer, X, rtol=1e-9, generator=rng)
    assert layer.training
    layer.eval()
    for part, x in zip(estimate, X, strict=True):
        with torch.enable_grad():
            dense = torch.autograd.functional.jacobian(lambda y: layer(y[None])[0], x).reshape(40, 40)
        assert_close(part.lower, torch.linalg.matrix_norm(dense, 2))


def test_without_forward_mode_the_pullback_is_differentiated(rng):
    X = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    J = hs.JacobianOperator(NoForwardMode.apply, X)
    assert J._push_forward != J._forward_mode
    assert_products(J, torch.diag(3 * X.flatten() ** 2), X, rng)


def test_a_constant_map_has_norm_zero(rng):
    estimate = hs.local_lipschitz(lambda X: torch.ones(3, 2), torch.randn(3, 4, generator=rng))
    assert estimate.status is hs.Status.ZERO


def test_methods_of_modules_are_measured_in_eval_mode(rng):
    module = nn.Dropout(0.9).double()
    estimate = hs.local_lipschitz(module.forward, torch.randn(4, 3, dtype=torch.float64, generator=rng))
    assert_close(estimate.lower, torch.ones((), dtype=torch.float64))
    assert module.training


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_modules_are_measured_in_single(dtype, rng):
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    X = torch.randn(5, 4, generator=rng).to(dtype)
    estimate = hs.local_lipschitz(module, X, rtol=1e-5, generator=rng)
    exact = torch.linalg.matrix_norm(dense_jacobian(module.double(), X.double()), 2).detach()
    assert float(estimate.lower) == pytest.approx(float(exact), rel=1e-5)


def test_vectors_and_one_big_input_are_single_operators(rng):
    W = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    J = hs.JacobianOperator(lambda x: W @ x, torch.randn(4, dtype=torch.float64, generator=rng))
    assert (J.batch, J.domain, J.codomain) == ((), (4,), (3,))
    assert_close(hs.spectral_norm(J, rtol=1e-9).lower, torch.linalg.matrix_norm(W, 2))
    X = torch.randn(2, 3, 4, dtype=torch.float64, generator=rng)
    mixing = hs.JacobianOperator(lambda X: X.sum(0, keepdim=True).expand_as(X), X, batch_axes=0)
    assert_close(hs.spectral_norm(mixing, rtol=1e-9).lower, torch.tensor(2.0).double())
