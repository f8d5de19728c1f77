import pytest
import torch
from cases import layer
from oracles import constant

import howsmooth as hs
from howsmooth.theory.neighbourhood import Centre, derivatives
from howsmooth.theory.views import views


def gauss_from(rng):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=rng)


def moved(X, t, per_token, rng):
    """A random input on the boundary of the ball."""
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    if torch.rand((), generator=rng) < 0.5:  # one token alone
        E = E * (torch.arange(len(X)) == torch.randint(len(X), (), generator=rng))[:, None]
    length = E.norm(dim=-1, keepdim=True).clamp_min(1e-9) if per_token else E.norm()
    return X + t * E / length


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_quantity_on_the_ball_is_bounded(rng, causal, per_token):
    f = layer(gauss_from(rng), heads=1, positions=hs.Positions(causal=causal))
    X = 0.7 * gauss_from(rng)(7, 6)
    (view,) = (alone.mixed() for alone in views(f, X))
    for t in (0.01, 0.1, 0.5, 2.0):
        region = Centre.of(view).within(t, per_token)
        for _draw in range(12):
            Z = moved(X, t, per_token, rng)
            (there,) = (alone.mixed() for alone in views(f, Z))
            here = Centre.of(there)
            visible = here.log_P > -torch.inf
            truth = {
                "P": here.P,
                "peak": here.P.amax(-1),
                "tau": here.tau,
                "sigma": here.sigma,
                "rho": torch.where(visible, here.far, 0.0).amax(-1),
                "alpha": here.key_steep,
            }
            for name, value in truth.items():
                # the standard deviations at Z carry an allowance for rounding
                assert bool((value <= getattr(region, name) * (1 + 1e-9) + 1e-6).all()), name


@pytest.mark.parametrize("causal", [False, True])
def test_the_second_derivative_is_below_its_bound(rng, causal):
    f = layer(gauss_from(rng), heads=1, positions=hs.Positions(causal=causal))
    X = 0.7 * gauss_from(rng)(7, 6)
    (view,) = (alone.mixed() for alone in views(f, X))
    second, first = derivatives(Centre.of(view).within(1e-12, False), False)
    assert float(constant(f, X)) <= first * (1 + 1e-9)
    assert largest_second_derivative(f, X, rng) <= second * (1 + 1e-6)


def largest_second_derivative(f, X, rng):
    """The largest |D²f(E, F)| that alternating maximisation finds."""

    def bilinear(E, F):
        def along(x):
            _value, tangent = torch.func.jvp(f, (x,), (E,))
            return tangent

        _value, tangent = torch.func.jvp(along, (X,), (F,))
        return tangent

    best = 0.0
    for _start in range(2):
        E, F = (torch.randn(X.shape, dtype=X.dtype, generator=rng) for _ in range(2))
        E, F = E / E.norm(), F / F.norm()
        for _round in range(12):
            G = bilinear(E, F)
            best = max(best, float(G.norm()))
            E = torch.func.grad(lambda e, F=F, G=G: (G * bilinear(e, F)).sum())(E)
            E = E / E.norm()
            F = torch.func.grad(lambda e, E=E, G=G: (G * bilinear(E, e)).sum())(F)
            F = F / F.norm()
    return best


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("output", [True, False])
def test_the_bound_holds_at_random_inputs_of_the_ball(rng, per_token, output):
    def gauss(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    f = hs.Attention(
        query=gauss(2, 3, 6), key=gauss(2, 3, 6), value=gauss(2, 2, 6), output=gauss(2, 4, 2) if output else None
    )
    X = 0.5 * gauss(5, 6)
    for eps in (0.01, 0.2, 1.0, 5.0):
        upper = hs.bounds.neighbourhood_upper(f, X, eps=eps, per_token=per_token).value
        assert all(float(constant(f, moved(X, eps, per_token, rng))) <= upper for _draw in range(20))


def test_the_targets_of_the_issue_hold_on_the_reference_instances():
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        Q, K, V = (torch.randn(1, 16, 16, generator=rng).double() / 4 for _ in range(3))
        X = 0.5 * torch.randn(8, 16, generator=rng).double()
        f = hs.Attention(query=Q, key=K, value=V)
        assert 1.8 < float(constant(f, X)) < 2.0
        assert hs.bounds.neighbourhood_upper(f, X, eps=0.1).value < 2.6
        assert hs.bounds.neighbourhood_upper(f, X, eps=0.3).value < 5.5


def test_weights_too_small_for_a_float_still_count(rng):
    """Scores far apart: P underflows to zero, yet a move within the ball can make it the largest."""
    f = hs.Attention.single_head(A=torch.eye(2, dtype=torch.float64), V=torch.eye(2, dtype=torch.float64))
    X = torch.tensor([[40.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    swapped = torch.tensor([[40.0, 0.0], [40.0, 1e-3]], dtype=torch.float64)
    upper = hs.bounds.neighbourhood_upper(f, X, eps=float((swapped - X).norm()) + 1e-9).value
    assert float(constant(f, swapped)) <= upper
