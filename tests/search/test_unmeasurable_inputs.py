"""Inputs that cannot be measured are left out of a search."""

import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import UnmeasurableError
from howsmooth.search.norm_gradient import measurable_inputs, norm_gradient, norm_gradient_or_skip

ONE = torch.ones(1, 1, dtype=torch.float64)
# few steps, so that giving up takes no time
F = hs.maps.SinkhornAttention(query=ONE[None], key=ONE[None], value=ONE[None], max_steps=40)
GOOD = torch.tensor([[-1.0], [0.3], [1.0]], dtype=torch.float64)
BAD = 20 * GOOD


def test_the_bad_one_is_bad():
    with pytest.raises(UnmeasurableError, match="were not found in 40 steps"):
        F(BAD)


def test_the_others_are_measured_as_without_it():
    X = torch.stack((GOOD, BAD, 0.5 * GOOD))
    some, found = measurable_inputs(lambda _index: F, X, torch.Generator().manual_seed(0))
    assert some.tolist() == [0, 2]
    alone = hs.local_lipschitz(F, X[some], seed=0)
    assert_close(found.lower, alone.lower)


def test_no_run_prefers_an_input_without_a_value():
    X = torch.stack((GOOD, 0.5 * GOOD, BAD))
    guess = torch.full_like(X, 3**-0.5)
    found = norm_gradient_or_skip(lambda _index: F, X, guess, torch.Generator().manual_seed(0))
    assert found.value[2] == -torch.inf
    assert_close(found.gradient[2], torch.zeros_like(GOOD))
    exact = norm_gradient(F, X[:2], guess[:2], torch.Generator().manual_seed(1), steps=3)
    assert_close(found.value[:2], exact.value, rtol=1e-6, atol=0)
    assert_close(found.gradient[:2], exact.gradient, rtol=1e-4, atol=1e-8)


def test_a_search_goes_on_without_it():
    found = hs.maximise(F, n=3, domain=hs.domains.Ball(25.0), starts=[BAD, GOOD], steps=2)
    assert found.value >= float(hs.local_lipschitz(F, GOOD).lower) * (1 - 1e-3)


def test_an_audit_goes_on_without_it():
    assert hs.audit(F, claimed=0.5, n=3, domain=hs.domains.Ball(25.0), starts=1, steps=1).refuted


def test_where_none_can_be_measured_that_is_said():
    domain = hs.domains.Neighbourhood(BAD, eps=1e-6)
    with pytest.raises(UnmeasurableError, match="no input of the search can be measured: weights"):
        hs.maximise(F, n=3, domain=domain, steps=1)
    with pytest.raises(UnmeasurableError, match="no input of the search"):
        hs.audit(F, claimed=1.0, n=3, domain=domain, starts=1, steps=1)
