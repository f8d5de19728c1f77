"""The benchmark of the steepness of the softmax computes what it says."""

import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "experiments"))
from softmax_theta import softmax_theta


@pytest.mark.parametrize("n", [2, 5, 9])
def test_theta_of_weights_is_that_of_the_best_subset(n, rng):
    one = torch.ones(1, 1, dtype=torch.float64)
    X = 2 * torch.randn(n, 1, generator=rng, dtype=torch.float64)
    f = hs.Attention.single_head(A=one, V=one)
    P = torch.softmax(X @ X.mT, dim=-1)
    subsets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * n)
    shares = P @ subsets.mT
    truth = 4 * (shares * (1 - shares)).amax(-1)
    found = softmax_theta(f.jacobian(X))[0]
    decided = P.amax(-1) >= 0.5
    assert_close(found[decided], truth[decided])
    assert bool((found <= truth + 1e-12).all())
    # the two halves differ by at most the least weight of the heavier one
    assert bool((found >= 1 - P.amax(-1).square() - 1e-12)[~decided].all())
