"""Norms and compositions that are none are refused."""

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


def test_bad_norms_are_refused():
    with pytest.raises(ShapeError, match="bias must have the shape"):
        hs.maps.LayerNorm(gain=torch.ones(3), bias=torch.ones(4))
    with pytest.raises(AssumptionError, match="eps must not be negative"):
        hs.maps.RMSNorm(gain=torch.ones(3), eps=-1.0)
    with pytest.raises(NonFiniteError, match="gain must be finite"):
        hs.maps.RMSNorm(gain=torch.tensor([torch.inf, 1.0]))
    with pytest.raises(AssumptionError, match="without spread"):
        hs.maps.LayerNorm(gain=torch.ones(3), eps=0.0)(torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"n, 3\)"):
        hs.maps.LayerNorm(gain=torch.ones(3)).jacobian(torch.ones(2, 4))


def test_bad_compositions_are_refused():
    with pytest.raises(ShapeError, match="at least one map"):
        hs.maps.Chain()
    with pytest.raises(DtypeError, match="maps with a `jacobian`, got Linear"):
        hs.maps.Chain(nn.Linear(3, 3))
    with pytest.raises(ShapeError, match="input and output"):
        hs.maps.Residual(hs.Attention.single_head(A=torch.eye(3), V=torch.ones(2, 3))).jacobian(torch.ones(4, 3))
    chain = hs.maps.Chain(hs.maps.LayerNorm(gain=torch.ones(6)), good().per_head())
    with pytest.raises(ShapeError, match="share their batch axes"):
        chain.jacobian(torch.randn(5, 6))


KINDS = {"layer": hs.maps.LayerNorm, "rms": hs.maps.RMSNorm}


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_without_spread_and_without_eps_is_refused(kind):
    norm = KINDS[kind](gain=torch.ones(4).double(), eps=0.0)
    X = torch.ones(3, 4).double() if kind == "layer" else torch.zeros(3, 4).double()
    with pytest.raises(HowsmoothError):
        norm.jacobian(X)
    with pytest.raises(HowsmoothError):
        hs.local_lipschitz(norm, X)


@pytest.mark.parametrize("kind", KINDS.values())
def test_norms_without_a_meaning_are_refused(rng, kind):
    with pytest.raises(ShapeError):
        kind(gain=gaussian(rng, 2, 2))
    with pytest.raises(ShapeError):
        kind(gain=gaussian(rng, 4), bias=gaussian(rng, 3))
    with pytest.raises(DtypeError):
        kind(gain=gaussian(rng, 4), bias=gaussian(rng, 4).float())
    with pytest.raises(DtypeError):
        kind(gain=torch.ones(4).long())
    with pytest.raises(NonFiniteError):
        kind(gain=gaussian(rng, 4) * math.nan)
    with pytest.raises(AssumptionError):
        kind(gain=gaussian(rng, 4), eps=-1e-5)


def parts(rng):
    return {
        "query": gaussian(rng, 4, 3, 4),
        "key": gaussian(rng, 2, 3, 4),
        "value": gaussian(rng, 2, 5, 4),
        "output": gaussian(rng, 4, 4, 5),
    }


def test_compositions_that_do_not_fit_are_refused(rng):
    narrow = hs.Attention(**(parts(rng) | {"output": gaussian(rng, 4, 3, 5)}))
    X = gaussian(rng, 6, 4)
    with pytest.raises(ShapeError):
        hs.maps.Residual(narrow).jacobian(X)
    with pytest.raises(ShapeError):
        hs.maps.Chain(narrow, narrow).jacobian(X)
    with pytest.raises(HowsmoothError):
        hs.maps.Chain()
    with pytest.raises(HowsmoothError):
        hs.maps.Chain(3)


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
        hs.maps.LayerNorm(gain=torch.ones(4).double())(bad)


def test_a_norm_of_one_number_does_not_broadcast_over_wider_tokens(rng):
    with pytest.raises(ShapeError):
        hs.maps.RMSNorm(gain=torch.ones(1).double())(gaussian(rng, 6, 4))


def test_a_residual_does_not_broadcast(rng):
    d = 4
    f = hs.Attention.single_head(A=gaussian(rng, d, d), V=gaussian(rng, 1, d))
    with pytest.raises(ShapeError):
        hs.maps.Residual(f)(gaussian(rng, 5, d))


def test_a_chain_of_mixed_dtypes_is_refused_when_called(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    with pytest.raises(DtypeError):
        hs.maps.Chain(hs.maps.LayerNorm(gain=torch.ones(4)), f)(gaussian(rng, 5, 4))


def test_an_eps_that_is_not_a_number_is_refused():
    with pytest.raises(HowsmoothError):
        hs.maps.LayerNorm(gain=torch.ones(4), eps=math.nan)


def test_a_norm_of_no_numbers_is_refused():
    with pytest.raises(HowsmoothError):
        hs.maps.LayerNorm(gain=torch.ones(0))
