"""Smooth activations in a Taylor model, term by term: each as its module says it, unit by unit."""

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import entered, gaussian, network

from howsmooth.certificates.mlp_stage import derivative, largest_derivative
from howsmooth.maps.activations import ACTIVATIONS
from howsmooth.verification.activation_expansion import ActivationExpansion
from howsmooth.verification.taylor_model import Forms


@pytest.mark.parametrize("forms", [False, True])
@pytest.mark.parametrize("eps", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_an_activation_has_the_orders_and_the_remainder_of_its_formulas(name, eps, forms, rng):
    f, activation = network(rng, layers=1), ACTIVATIONS[name]
    model, _enters = entered(f, eps, [f.maps[1].map], gaussian(rng, 6))
    n, d = model.centre.shape
    stage = ActivationExpansion(activation, model, forms=forms)
    functionals = gaussian(rng, 2, n, d)
    exact, ranges = (Forms(model.symbols, 2, size, functionals) for size in (model.derivative.shape[-1], None))
    pulled = stage.pull_back(functionals, exact)
    assert_close(stage.pull_back(functionals, ranges), pulled)
    form, products, remainder = torch.zeros_like(exact.matrices), torch.zeros(2).double(), torch.zeros(2).double()
    for i in range(n):
        for k in range(d):
            y, moved, at = model.centre[i, k], model.derivative[i, k], torch.zeros(1, n, d).double()
            at[0, i, k] = 1.0
            s1 = float(model.symbols.linear_range(moved))
            s2 = float(model.beyond_linear(at, forms=forms).size)
            assert s2 > 0
            slope, curvature = float(activation.slope(y)), float(derivative(activation, y))
            second, third = (float(largest_derivative(activation, y - s1 - s2, y + s1 + s2, k)) for k in (2, 3))
            # t² − t₁² = t₂(2t₁ + t₂)
            near = 0.5 * abs(curvature) * s2 * (2 * s1 + s2) + third * (s1 + s2) ** 3 / 6
            far = 0.5 * second * (s1 + s2) ** 2 + 0.5 * abs(curvature) * s1**2
            assert float(stage.value[i, k]) == pytest.approx(float(activation.value(y)), rel=1e-12)
            assert_close(stage.linear[i, k], slope * moved)
            assert float(stage.remainder[i, k]) == pytest.approx(min(near, far), rel=1e-9)
            assert_close(pulled[:, i, k], slope * functionals[:, i, k])
            form += 0.5 * curvature * functionals[:, i, k, None, None] * torch.outer(moved, moved)
            products += 0.5 * abs(curvature) * s1**2 * functionals[:, i, k].abs()
            remainder += min(near, far) * functionals[:, i, k].abs()
    assert_close(exact.matrices, form)
    assert_close(ranges.products, products)
    for sums in (exact, ranges):
        assert_close(sums.remainder, remainder)


def test_both_bounds_on_a_remainder_are_needed(rng):
    f = network(rng, layers=1)
    ways = set()
    for eps in (0.01, 3.0):
        model, _enters = entered(f, eps, [f.maps[1].map], gaussian(rng, 6))
        stage = ActivationExpansion(ACTIVATIONS["gelu"], model, forms=False)
        beyond = model.beyond_linear(model.coordinates(), forms=False).size.view_as(model.centre)
        size = stage.sizes + beyond
        third = largest_derivative(ACTIVATIONS["gelu"], model.centre - size, model.centre + size, 3)
        near = 0.5 * stage.curvature.abs() * beyond * (2 * stage.sizes + beyond) + third * size**3 / 6
        ways |= set(torch.isclose(stage.remainder, near, rtol=1e-9, atol=0).flatten().tolist())
    assert ways == {True, False}
