"""Linear layers, MLPs and activations: against torch's own, and against autograd."""

import math

import pytest
import torch
from draws import gaussian
from torch.nn import functional
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, NonFiniteError, ShapeError
from howsmooth.maps.activations import ACTIVATIONS, Pointwise, entrywise, soft_cap

TORCHS = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu": lambda x: x.clamp(min=0),
    "relu_squared": lambda x: x.clamp(min=0) ** 2,
    "tanh": lambda x: 2 / (1 + torch.exp(-2 * x)) - 1,
    "identity": lambda x: x,
}


def slopes(function, x):
    """The slope of every entry, by autograd."""
    watched = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(watched).sum(), watched)
    return found


def test_a_matrix_is_a_map_on_tokens_and_an_operator_on_vectors(rng):
    W, b, X = gaussian(rng, 5, 6), gaussian(rng, 5), gaussian(rng, 3, 6)
    both = hs.maps.Dense(W, b)
    assert_close(both(X), X @ W.mT + b)
    assert_close(both.jvp(X[0]), W @ X[0])
    top = torch.linalg.matrix_norm(W, ord=2)
    for found in (hs.spectral_norm(both, rtol=1e-9, seed=rng), hs.local_lipschitz(both, X, rtol=1e-9)):
        assert_close(found.lower, top, rtol=1e-8, atol=0)


def test_a_batch_of_matrices_is_an_operator_and_no_map(rng):
    many = hs.maps.Dense(gaussian(rng, 4, 5, 6))
    assert hs.spectral_norm(many, seed=rng).lower.shape == (4,)
    with pytest.raises(hs.errors.ShapeError, match="one matrix that is not empty"):
        many(gaussian(rng, 3, 6))


def test_every_activation_is_tested():
    assert set(TORCHS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_their_formula_and_slopes_their_derivative(name):
    x = torch.cat((torch.linspace(-12, 12, 200), torch.tensor([-1e-9, 0.0, 1e-9]))).double()
    assert_close(ACTIVATIONS[name].value(x), TORCHS[name](x))
    away = x[x != 0]  # from the kinks
    assert_close(ACTIVATIONS[name].slope(away), slopes(TORCHS[name], away))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_far_away_activations_and_slopes_are_finite(name):
    x = torch.tensor([-1e4, 1e4])
    assert torch.isfinite(ACTIVATIONS[name].value(x)).all()
    assert torch.isfinite(ACTIVATIONS[name].slope(x)).all()


def test_a_soft_cap_is_the_identity_at_zero_and_bounded(rng):
    cap, x = soft_cap(3.0), 10 * gaussian(rng, 50)
    assert_close(cap.value(x), 3 * torch.tanh(x / 3))
    assert_close(cap.slope(x), slopes(cap.value, x))
    assert cap.slope(torch.zeros(1)) == 1


def test_any_other_function_of_an_entry_is_differentiated_by_autograd(rng):
    x = gaussian(rng, 4, 5)
    assert_close(entrywise(torch.sin, "sin").slope(x), torch.cos(x))


def test_an_activation_alone_is_a_map(rng):
    f, X, E = Pointwise(activation="tanh", dtype=torch.float64), gaussian(rng, 2, 3, 4), gaussian(rng, 2, 3, 4)
    assert_close(f(X), torch.tanh(X))
    J = f.jacobian(X)
    assert_close(J.jvp(E), (1 - torch.tanh(X) ** 2) * E)
    assert_close(J.vjp(E), J.jvp(E))
    assert_close(J.take(torch.tensor([1])).jvp(E[1:]), J.jvp(E)[1:])
    assert f.to(torch.float32)(X.float()).dtype == torch.float32
    with pytest.raises(DtypeError, match="dtype of the map"):
        f(X.float())


def test_an_mlp_is_torchs(rng):
    up, down = torch.nn.Linear(6, 8).double(), torch.nn.Linear(8, 5).double()
    f = hs.maps.MLP(
        up=up.weight.detach(), down=down.weight.detach(), up_bias=up.bias.detach(), down_bias=down.bias.detach()
    )
    X = gaussian(rng, 2, 3, 6)
    assert_close(f(X), down(functional.gelu(up(X))).detach())
    assert "hidden=8, out=5, gelu" in repr(f)


def test_a_gated_mlp_multiplies_the_opened_gates(rng):
    gate, up, down = gaussian(rng, 8, 6), gaussian(rng, 8, 6), gaussian(rng, 5, 8)
    f, X = hs.maps.GatedMLP(gate=gate, up=up, down=down, activation="gelu_tanh"), gaussian(rng, 4, 6)
    gates = functional.gelu(X @ gate.mT, approximate="tanh")
    assert_close(f(X), (gates * (X @ up.mT)) @ down.mT)
    assert "hidden=8, out=5, gelu_tanh" in repr(f)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_value_comes_with_the_derivative(name, rng):
    plain = hs.maps.MLP(up=gaussian(rng, 8, 6), down=gaussian(rng, 5, 8), activation=name)
    gated = hs.maps.GatedMLP(gate=gaussian(rng, 8, 6), up=plain.up, down=plain.down, activation=name)
    X, E, G = gaussian(rng, 4, 6), gaussian(rng, 4, 6), gaussian(rng, 4, 5)
    for f in (plain, gated):
        value, J = f.value_and_jacobian(X)
        assert_close(value, f(X))
        _same, tangent = torch.func.jvp(f, (X,), (E,))
        assert_close(J.jvp(E), tangent)
        _same, pull = torch.func.vjp(f, X)
        (pulled,) = pull(G)
        assert_close(J.vjp(G), pulled)


def test_products_leave_what_they_are_given_alone(rng):
    f = hs.maps.Chain(
        hs.maps.Dense(weight=torch.eye(6).double()), hs.maps.MLP(up=gaussian(rng, 8, 6), down=gaussian(rng, 6, 8))
    )
    X, E = gaussian(rng, 4, 6), gaussian(rng, 4, 6)
    kept, J = E.clone(), hs.maps.Residual(f).jacobian(X)
    once = J.vjp(J.jvp(E))
    assert_close(E, kept, rtol=0, atol=0)
    assert_close(J.vjp(J.jvp(E)), once, rtol=0, atol=0)


def test_products_of_an_mlp_are_differentiable(rng):
    X, E, up, gate, down = (gaussian(rng, *s) for s in ((3, 2), (3, 2), (4, 2), (4, 2), (2, 4)))

    def product(Z, W, V):
        f = hs.maps.GatedMLP(gate=W, up=V, down=down, activation="gelu")
        J = hs.maps.Chain(f, hs.maps.MLP(up=V, down=down, activation="gelu_tanh")).jacobian(Z)
        return J.vjp(J.jvp(E))

    assert torch.autograd.gradcheck(product, [t.clone().requires_grad_() for t in (X, gate, up)])


def test_feed_forward_maps_change_dtype(rng):
    X = torch.randn(3, 6, generator=rng)
    for f in (
        hs.maps.Dense(weight=gaussian(rng, 5, 6), bias=gaussian(rng, 5)),
        hs.maps.MLP(up=gaussian(rng, 8, 6), down=gaussian(rng, 5, 8), up_bias=gaussian(rng, 8)),
        hs.maps.GatedMLP(gate=gaussian(rng, 8, 6), up=gaussian(rng, 8, 6), down=gaussian(rng, 5, 8)),
    ):
        assert f.dtype == torch.float64
        assert f.to(torch.float32)(X).dtype == torch.float32


def test_the_constant_of_a_linear_layer_is_the_norm_of_its_matrix(rng):
    W = gaussian(rng, 5, 6)
    estimate = hs.local_lipschitz(hs.maps.Dense(weight=W), gaussian(rng, 3, 6), rtol=1e-9, seed=rng)
    assert_close(estimate.lower, torch.linalg.matrix_norm(W, 2))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"activation": "gleu"}, AssumptionError, "did you mean gelu"),
        ({"activation": torch.relu}, DtypeError, "a name such as"),
        ({"down": torch.ones(5, 7)}, ShapeError, r"\(5, 8\), got \(5, 7\)"),
        ({"up": torch.ones(8)}, ShapeError, "must be a matrix"),
        ({"up": torch.ones(0, 6)}, ShapeError, "must be a matrix"),
        ({"up_bias": torch.ones(7)}, ShapeError, "up_bias must have the shape"),
        ({"down_bias": torch.ones(5).double()}, DtypeError, "one dtype"),
        ({"down": torch.full((5, 8), torch.nan)}, NonFiniteError, "down must be finite"),
        ({"gate": torch.ones(8, 5)}, ShapeError, "gate must have the shape"),
        ({"gate_bias": torch.ones(3)}, ShapeError, "gate_bias must have the shape"),
    ],
)
def test_what_is_no_mlp_is_refused(change, error, words):
    good = {"gate": torch.ones(8, 6), "up": torch.ones(8, 6), "down": torch.ones(5, 8)}
    with pytest.raises(error, match=words) as caught:
        hs.maps.GatedMLP(**good | change)
    assert caught.value.field in change


@pytest.mark.untyped
def test_other_tokens_are_refused():
    f = hs.maps.MLP(up=torch.ones(8, 6), down=torch.ones(5, 8))
    with pytest.raises(ShapeError, match=r"n, 6\)"):
        f(torch.ones(3, 5))
    with pytest.raises(ShapeError, match="the perturbation must have the shape"):
        f.jacobian(torch.ones(3, 6)).jvp(torch.ones(2, 6))
    with pytest.raises(ShapeError, match="the cotangent must have the shape"):
        f.jacobian(torch.ones(3, 6)).vjp(torch.ones(3, 6))
    with pytest.raises(AssumptionError, match="must be positive"):
        soft_cap(0.0)
