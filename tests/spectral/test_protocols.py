import torch
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.spectral.operators import Compressible, Differentiable, Guessing, Separable, measurable
from howsmooth.spectral.solvers import Deflated


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def test_an_operator_has_the_abilities_whose_methods_it_has(rng):
    X = gauss(rng, 4, 3)
    J = hs.Attention.single_head(A=gauss(rng, 3, 3), V=gauss(rng, 3, 3)).jacobian(X)
    matrix = hs.maps.Dense(gauss(rng, 2, 5, 4))
    abilities = (Separable, Compressible, Guessing)
    assert [isinstance(J, ability) for ability in abilities] == [True, True, True]
    assert [isinstance(matrix, ability) for ability in abilities] == [True, False, False]
    assert [isinstance(Deflated(matrix, ()), ability) for ability in abilities] == [False, False, False]


def test_a_batch_that_cannot_be_taken_apart_is_measured_all_the_same(rng):
    matrix = hs.maps.Dense(gauss(rng, 5, 30, 30))
    found = hs.spectral_norm(Deflated(matrix, ()), rtol=1e-8, seed=rng)
    assert_close(found.lower, torch.linalg.matrix_norm(matrix.weight, ord=2), rtol=1e-8, atol=0)
    assert len(set(found.step_counts)) == 1


def test_only_maps_that_know_their_derivative_leave_half_precision():
    attention = hs.Attention.single_head(A=torch.eye(2).half(), V=torch.eye(2).half())
    module = torch.nn.Linear(2, 2).half()
    assert isinstance(attention, Differentiable)
    assert measurable(attention).dtype == torch.float32
    assert measurable(module) is module
    assert module.weight.dtype == torch.float16


def test_a_bound_method_of_a_module_is_measured_in_eval_mode(rng):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).double().train()
    X = gauss(rng, 4, 3)
    found = hs.local_lipschitz(module.forward, X, seed=rng)
    assert_close(found.lower, torch.linalg.matrix_norm(module[0].weight.detach(), ord=2), rtol=1e-3, atol=0)
    assert module.training
