"""A callable whose gradient does not reach the tokens has no constant of zero: it is refused."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import howsmooth as hs
from howsmooth.errors import AssumptionError

F64 = torch.float64
W = torch.linspace(-1, 1, 9, dtype=F64).reshape(3, 3)


def weights(X):
    return W.to(X.dtype)


def attention(X):
    return torch.softmax(X @ X.mT, -1) @ X @ weights(X)


@torch.no_grad()
def without_gradients(X):
    return attention(X)


@torch.inference_mode()
def in_inference_mode(X):
    return attention(X)


def detached(X):
    return attention(X.detach())


def by_numpy(X):
    x = X.detach().numpy()
    return torch.from_numpy(x @ weights(X).numpy() + np.tanh(x))


def partly_detached(X):
    return X + 2 * X.detach() @ weights(X)


def in_float32(X):
    return attention(X.detach().float()).to(X.dtype)


def on_a_fine_grid(X):
    return torch.round(1e3 * X) / 1e3


def beside_a_bias(X):
    return attention(X.detach()) + 1e3


LOST = [without_gradients, in_inference_mode, detached, by_numpy, partly_detached, in_float32]
CALLS = {
    "local_lipschitz": hs.local_lipschitz,
    "typical_gain": hs.typical_gain,
    "JacobianOperator": hs.spectral.JacobianOperator,
    "penalty": hs.penalty,
    "attack": lambda f, X: hs.attack(f, X, eps=0.1, budget=20),
    "maximise": lambda f, X: hs.maximise(f, n=4, d=3, domain=hs.domains.Ball(1.0), starts=1, steps=2),
    "audit": lambda f, X: hs.audit(f, claimed=1.0, input_shape=(4, 3), domain=hs.domains.Ball(1.0), starts=1, steps=2),
}


@pytest.mark.parametrize("f", LOST)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_gradient_that_does_not_reach_the_tokens_is_refused(rng, f, dtype, size):
    X = size * torch.randn(4, 3, dtype=F64, generator=rng).to(dtype)
    with pytest.raises(AssumptionError, match="gradients do not reach"):
        hs.local_lipschitz(f, X)


@pytest.mark.parametrize("f", [on_a_fine_grid, beside_a_bias])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_grid_and_a_bias_do_not_hide_it(rng, f, dtype):
    with pytest.raises(AssumptionError, match="gradients do not reach"):
        hs.local_lipschitz(f, torch.randn(4, 3, dtype=F64, generator=rng).to(dtype))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("f", [without_gradients, in_inference_mode, detached])
def test_every_way_to_measure_refuses_it(rng, call, f):
    X = torch.randn(2, 4, 3, dtype=F64, generator=rng)
    with pytest.raises(AssumptionError, match="gradients do not reach") as refusal:
        call(f, X)
    assert "torch.no_grad" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def constant(X):
    return torch.ones_like(X)


def parameter_only(X):
    return torch.ones_like(X, requires_grad=True) * 2


def one_hot(X):
    return nn.functional.one_hot(X.argmax(-1), X.shape[-1]).to(X.dtype)


def on_a_coarse_grid(X):
    return torch.round(X)


@pytest.mark.parametrize("f", [constant, parameter_only, one_hot, on_a_coarse_grid])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_what_is_constant_around_an_input_has_the_constant_zero(rng, f, dtype):
    X = torch.tensor([[0.1, 0.9, 2.2], [-0.8, 3.1, 0.2]], dtype=dtype)
    assert float(hs.local_lipschitz(f, X).upper) == 0
    assert float(hs.typical_gain(f, X).value) == 0
    assert float(hs.penalty(f, X).detach()) == 0


def in_bfloat16(X):
    return (X.bfloat16() @ W.bfloat16()).to(X.dtype)


HONEST = {
    "rectified at the kink": (torch.relu, torch.zeros(3, 3, dtype=F64)),
    "a cube at its critical point": (lambda X: X**3, torch.zeros(3, 3, dtype=F64)),
    "an absolute value at the kink": (torch.abs, torch.zeros(3, 3, dtype=F64)),
    "dead units": (lambda X: torch.relu(X - 1), torch.full((3, 3), 0.9, dtype=F64)),
    "saturated": (lambda X: torch.tanh(1e3 * X), torch.linspace(-1, 1, 9, dtype=F64).reshape(3, 3)),
    "steep": (lambda X: torch.tanh(1e9 * X), torch.zeros(3, 3, dtype=F64)),
    "a square at its minimum": (torch.square, torch.zeros(3, 3, dtype=F64)),
    "beside a bias": (lambda X: X @ W + 1e12, torch.ones(3, 3, dtype=F64)),
    "single precision beside a bias": (lambda X: X + 1e6, torch.ones(3, 3)),
    "single precision inside": (lambda X: attention(X.float()).double(), torch.eye(3, dtype=F64)),
    "bfloat16 inside": (in_bfloat16, torch.linspace(-1, 1, 9, dtype=F64).reshape(3, 3)),
    "an exponential": (lambda X: torch.exp(30 * X), torch.eye(3, dtype=F64)),
    "sorted with ties": (lambda X: X.sort(-1).values, torch.ones(3, 3, dtype=F64)),
    "far from the origin": (torch.sin, torch.full((3, 3), 1e6, dtype=F64)),
    "tiny tokens": (attention, 1e-200 * torch.eye(3, dtype=F64)),
}


@pytest.mark.parametrize("name", HONEST)
def test_rounding_kinks_and_critical_points_raise_no_alarm(name):
    f, X = HONEST[name]
    hs.spectral.JacobianOperator(f, X)


@pytest.mark.parametrize("rounds", range(40))
def test_random_networks_in_single_precision_raise_no_alarm(rounds):
    generator = torch.Generator().manual_seed(rounds)
    widths = [3, *torch.randint(2, 40, (3,), generator=generator).tolist()]
    scale = 10.0 ** float(torch.randint(-3, 4, (), generator=generator))
    layers = []
    for i, o in itertools.pairwise(widths):
        layer = nn.Linear(i, o)
        with torch.no_grad():
            layer.weight.copy_(scale * torch.randn(o, i, generator=generator))
        layers += [layer, [nn.ReLU, nn.Tanh, nn.GELU, nn.Softplus][rounds % 4]()]
    hs.spectral.JacobianOperator(nn.Sequential(*layers), torch.randn(5, 3, generator=generator))
