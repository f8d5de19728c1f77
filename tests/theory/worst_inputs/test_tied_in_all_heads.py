"""One pair that ties in every head at once."""

import math

import pytest
import torch
from draws import gaussian
from oracles import constant
from theory.example_layers import ROUNDING, random_layer
from torch.testing import assert_close

from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.theory.heads import heads_of
from howsmooth.theory.worst_inputs.tied_layer import best_pairs, proven, tied_in_all


@pytest.mark.parametrize("mixed", [True, False])
def test_a_pair_tied_in_all_heads_has_the_response_of_its_formula(rng, mixed):
    f, n, radius = random_layer(rng, heads=3, d=8, mixed=mixed, query_bias=gaussian(rng, 3, 2)), 9, 2.0
    frame = StretchedSphere.ball(8, radius, solid=True)
    (pair,) = tied_in_all(f, best_pairs(f, n, frame), n, frame)
    X = pair.tokens(n)
    for head in heads_of(f):
        g = (head.Q @ pair.copies + head.query_bias) @ head.K
        assert_close(g @ pair.first, g @ pair.second)
    assert X.norm(dim=-1).max().item() <= radius * ROUNDING
    # the two rows of the pair itself answer as well
    assert pair.log_value <= proven(f, pair, n) + 1e-9
    assert math.exp(proven(f, pair, n)) <= constant(f, X).item() * ROUNDING
    moved = f.jacobian(X).jvp(pair.perturbation(n))
    assert_close(moved[2:].norm(), torch.tensor(math.exp(pair.log_value)).double())
