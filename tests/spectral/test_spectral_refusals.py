"""Operators, callables and questions that are refused."""

import math

import pytest
import torch
from cases import good
from draws import gaussian
from torch import nn

import howsmooth as hs
from howsmooth.errors import (
    AssumptionError,
    DtypeError,
    HowsmoothError,
    NonFiniteError,
    ShapeError,
)

pytestmark = pytest.mark.untyped


SETTINGS = [
    ({"rtol": 0.0}, "rtol must be at least"),
    ({"rtol": 1e-9}, "use float64"),
    ({"rtol": float("nan")}, "rtol must be at least"),
    ({"confidence": 1.0}, "strictly between 0 and 1"),
    ({"confidence": 0.0}, "strictly between 0 and 1"),
    ({"max_steps": 0}, "max_steps must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("settings", "sentence"), SETTINGS, ids=str)
def test_bad_settings_are_refused(settings, sentence):
    with pytest.raises(AssumptionError, match=sentence):
        hs.local_lipschitz(good(), torch.ones(5, 6), **settings)


def test_bad_requests_for_singular_values_are_refused():
    for k in (0, 4):
        with pytest.raises(AssumptionError, match=f"between 1 and 3, .* got {k}"):
            hs.singular_values(hs.maps.Dense(torch.ones(3, 5)), k=k)


NAN = torch.tensor([[torch.nan] * 6] * 5)


def test_operators_that_are_empty_or_not_finite_are_refused():
    with pytest.raises(AssumptionError, match="must not be empty"):
        hs.spectral_norm(hs.maps.Dense(torch.ones(0, 5)))
    with pytest.raises(NonFiniteError, match="weight must be finite"):
        hs.maps.Dense(NAN)


def test_maps_whose_output_is_not_finite_are_refused():
    huge = hs.Attention.single_head(A=1e38 * torch.eye(2), V=torch.eye(2))
    with pytest.raises(NonFiniteError, match="output of attention"):
        hs.local_lipschitz(huge, 1e10 * torch.randn(3, 2))
    with pytest.raises(NonFiniteError, match="output of the callable"):
        hs.local_lipschitz(lambda X: X / 0, torch.ones(3, 2))
    with pytest.raises(NonFiniteError, match="product with the operator is not finite"):
        hs.local_lipschitz(torch.sqrt, torch.zeros(3, 2))


def test_callables_that_are_no_maps_are_refused():
    X = torch.ones(2, 3)
    with pytest.raises(DtypeError, match="one tensor, got tuple"):
        hs.local_lipschitz(lambda X: (X, X), X)
    with pytest.raises(DtypeError, match="callable on tensors, got int"):
        hs.local_lipschitz(3, X)
    with pytest.raises(DtypeError, match="output of the callable must hold real"):
        hs.local_lipschitz(lambda X: X.long(), X)
    with pytest.raises(ShapeError, match="keep the batch axes"):
        hs.local_lipschitz(lambda X: X.sum(), torch.ones(4, 2, 3))
    with pytest.raises(AssumptionError, match="mixes the batch axes"):
        hs.local_lipschitz(lambda X: X + X.mean(0), torch.randn(4, 2, 3))


@pytest.mark.parametrize(
    "mix", [lambda Z: Z - Z.mean(0, keepdim=True), lambda Z: Z.flip(0), lambda Z: Z + 1e-4 * Z.roll(1, 0)]
)
def test_callables_that_mix_the_batch_are_refused(rng, mix):
    with pytest.raises(AssumptionError, match="batch"):
        hs.local_lipschitz(mix, gaussian(rng, 3, 5, 8))


def test_rounding_is_not_taken_for_mixing():
    def coarse(Z):
        return torch.softmax(Z.float(), -1).double()

    # weights are one but for a few units of float32, and their derivatives are differences of such
    X = torch.zeros(4, 3, 2, dtype=torch.float64)
    X[..., 0] = 12 + torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(AssumptionError, match="mostly rounding here"):
        hs.local_lipschitz(coarse, X)
    with pytest.raises(AssumptionError, match="mixes the batch axes"):
        hs.local_lipschitz(lambda Z: coarse(Z) + Z.flip(0), X[:3])


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
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    with pytest.raises(AssumptionError):
        hs.local_lipschitz(f, gaussian(rng, 3, 4), **question)
    with pytest.raises(AssumptionError):
        hs.spectral_norm(hs.maps.Dense(torch.eye(4).double()), **question)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_more_singular_values_than_there_are_are_refused(k):
    with pytest.raises(AssumptionError):
        hs.singular_values(hs.maps.Dense(torch.ones(4, 6).double()), k=k)


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
        hs.maps.Dense(matrix)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 3, 3)])
def test_empty_operators_are_refused(shape):
    with pytest.raises(HowsmoothError):
        hs.spectral_norm(hs.maps.Dense(torch.zeros(shape)))


def second_sees_first(X):
    return torch.stack([X[0], X[1] + X[0], X[2]])


def last_sees_first(X):
    return torch.cat([X[:-1], X[-1:] + 0.1 * X[:1]])


@pytest.mark.parametrize("mix", [second_sees_first, last_sees_first])
def test_callables_that_mix_the_batch_in_one_direction_are_refused(rng, mix):
    with pytest.raises(HowsmoothError):
        hs.local_lipschitz(mix, gaussian(rng, 3, 5, 8))


def test_a_random_module_hidden_in_a_function_is_refused(rng):
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    with pytest.raises(HowsmoothError, match="random"):
        hs.local_lipschitz(lambda Z: module(Z), gaussian(rng, 5, 8).float(), seed=rng)


@pytest.mark.parametrize("axes", [-1, 4, 9])
def test_batch_axes_that_do_not_exist_are_refused(rng, axes):
    with pytest.raises(HowsmoothError):
        hs.spectral.JacobianOperator(lambda Z: 3 * Z, gaussian(rng, 2, 5, 4), batch_axes=axes)


def test_a_vector_is_not_a_matrix(rng):
    with pytest.raises(ShapeError):
        hs.maps.Dense(gaussian(rng, 5))


@pytest.mark.parametrize("thing", [torch.eye(3), 3, None])
def test_things_that_are_not_operators_are_refused(thing):
    with pytest.raises(HowsmoothError):
        hs.spectral_norm(thing)
