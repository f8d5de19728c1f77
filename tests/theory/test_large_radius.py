import math

import pytest
import torch
from draws import gaussian, number
from oracles import constant
from theory.example_layers import ROUNDING, form
from theory.perturbed_inputs import constants, norms, small_layer, weights_of
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError


@pytest.mark.parametrize("causal", [False, True])
def test_the_constant_approaches_its_limit_as_fast_as_claimed(rng, causal):
    for _draw in range(5):
        A, V, X = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((3, 3), (2, 3), (6, 3)))
        f = hs.Attention.single_head(A=A, V=V, causal=causal)
        limit = hs.bounds.large_radius_limit(f, X)
        for radius in (1.0, 2.0, 5.0, 10.0, 30.0):
            assert abs(float(constant(f, radius * X)) - limit.value) <= limit.error(radius) + 1e-9
        assert limit.error(100 / math.sqrt(limit.gap)) == pytest.approx(0.0, abs=1e-100)
        assert float(constant(f, 100 / math.sqrt(limit.gap) * X)) == pytest.approx(limit.value)


def test_the_limit_counts_the_followers_of_the_most_attended_token():
    X = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.1], [0.0, 1.0]], dtype=torch.float64)
    f = hs.Attention.single_head(A=torch.eye(2, dtype=torch.float64), V=2 * torch.eye(2, dtype=torch.float64))
    limit = hs.bounds.large_radius_limit(f, X)
    assert limit.followers == 3
    assert limit.value == pytest.approx(2 * math.sqrt(3))


def test_a_tie_is_refused_and_names_the_pair():
    X = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    f = hs.Attention.single_head(A=torch.eye(2, dtype=torch.float64), V=torch.eye(2, dtype=torch.float64))
    with pytest.raises(hs.errors.AssumptionError, match="tied_pair"):
        hs.bounds.large_radius_limit(f, X)


def winners(f, X):
    """The score gap of every row to its runner-up, and the winner of every row, of a single head."""
    A, _V, P = weights_of(f, X)
    S = (X @ A.mT @ X.mT).masked_fill(P == 0, -math.inf)
    top = S.topk(2, dim=-1).values
    return top[:, 0] - top[:, 1], S.argmax(-1)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n", [2, 5, 12])
def test_the_limit_counts_the_rows_that_look_at_one_token(rng, n, causal):
    for _ in range(10):
        f, X = form(gaussian(rng, 3, 3), gaussian(rng, 4, 3), causal=causal), gaussian(rng, n, 3)
        limit = hs.bounds.large_radius_limit(f, X)
        gaps, chosen = winners(f, X)
        assert_close(number(limit.value), norms(f.value[0]) * chosen.bincount().max().sqrt())
        assert_close(number(limit.gap), gaps.min())
        assert limit.value <= norms(f.value[0]).item() * math.sqrt(n) * ROUNDING


FAR = {
    "single head": lambda g: form(gaussian(g, 3, 3), gaussian(g, 4, 3)),
    "causal": lambda g: form(gaussian(g, 3, 3), gaussian(g, 4, 3), causal=True),
    "minus identity": lambda g: form(-torch.eye(3).double()),
    "low rank": lambda g: small_layer(g, heads=1, d=6, k=2),
    "mixed heads": lambda g: small_layer(g, heads=3),
    "concatenated heads": lambda g: small_layer(g, heads=2, mixed=False),
    "grouped queries, causal": lambda g: small_layer(g, heads=4, groups=2, positions=hs.maps.Positions(causal=True)),
    "biases": lambda g: small_layer(g, query_bias=gaussian(g, 2, 2), key_bias=gaussian(g, 2, 2)),
    "padding": lambda g: small_layer(g, positions=hs.maps.Positions(padding=torch.arange(5) != 1)),
    "relative bias": lambda g: small_layer(g, positions=hs.maps.Positions(relative_bias=gaussian(g, 2, 9))),
    "rotary": lambda g: small_layer(g, positions=hs.maps.Positions(rotary=hs.maps.Rotary())),
    "soft cap": lambda g: small_layer(g, softcap=3.0),
    "token weights": lambda g: small_layer(g, weights=gaussian(g, 5).exp()),
}


ONE_HEAD = ["single head", "causal", "minus identity", "low rank"]


@pytest.mark.parametrize("kind", [kind for kind in FAR if kind not in ONE_HEAD])
def test_several_heads_have_no_common_limit_and_are_refused(rng, kind):
    with pytest.raises(AssumptionError, match="stated for one head"):
        hs.bounds.large_radius_limit(FAR[kind](rng), gaussian(rng, 5, 3))


@pytest.mark.parametrize("kind", ONE_HEAD)
def test_constants_at_growing_radius_stay_within_the_error_of_the_limit(rng, kind):
    for _ in range(6):
        f = FAR[kind](rng)
        X = gaussian(rng, 5, f.d)
        limit = hs.bounds.large_radius_limit(f, X)
        radii = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0]
        truths = constants(f, torch.stack([R * X for R in radii]))
        for R, truth in zip(radii, truths.tolist(), strict=True):
            assert abs(truth - limit.value) <= limit.error(R) + 1e-9 * limit.value


@pytest.mark.parametrize("kind", ONE_HEAD)
def test_the_error_of_the_limit_vanishes_with_the_radius(rng, kind):
    f = FAR[kind](rng)
    X = gaussian(rng, 5, f.d)
    limit = hs.bounds.large_radius_limit(f, X)
    assert limit.gap > 0
    settled = [limit.error(math.sqrt(t / limit.gap)) for t in (30.0, 60.0, 120.0, 2000.0)]
    assert settled == sorted(settled, reverse=True)
    assert settled[1] < 1e-6 * limit.value * (60.0 / limit.gap) ** 2
    assert settled[-1] < 1e-100
    far = math.sqrt(60.0 / limit.gap)
    assert_close(constant(f, far * X), number(limit.value))


def test_ties_are_refused_since_the_constant_has_no_limit_there(rng):
    f = form(-torch.eye(2).double())
    tied = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0]]).double()
    first, second = (constant(f, R * tied).item() for R in (5.0, 10.0))
    assert second > 3.5 * first
    equal = gaussian(rng, 1, 2).repeat(4, 1)
    for X in (tied, equal):
        with pytest.raises(AssumptionError):
            hs.bounds.large_radius_limit(f, X)


def test_scores_of_size_zero_tie_every_row(rng):
    with pytest.raises(AssumptionError):
        hs.bounds.large_radius_limit(form(torch.zeros(3, 3).double()), gaussian(rng, 4, 3))


def test_one_token_looks_at_itself(rng):
    f, X = form(gaussian(rng, 3, 3), gaussian(rng, 3, 3)), gaussian(rng, 1, 3)
    limit = hs.bounds.large_radius_limit(f, X)
    assert_close(number(limit.value), norms(f.value[0]))
    assert limit.error(2.0) >= 0


def test_the_error_of_the_limit_is_its_formula(rng):
    for n in (2, 5):
        f, X = form(gaussian(rng, 3, 3), gaussian(rng, 4, 3)), gaussian(rng, n, 3)
        A, V, _P = weights_of(f, X)
        limit = hs.bounds.large_radius_limit(f, X)
        D = max((x - y).norm().item() for x in X for y in X)
        steep = (X @ A.mT).norm(dim=-1).max().item()
        for R in (0.1, 2.0):
            strays = (n - 1) * math.exp(-limit.gap * R**2)
            size = math.sqrt(2 * n) + norms(A).item() * D**2 * R**2 + math.sqrt(2 * n) * steep * D * R**2
            assert limit.error(R) == pytest.approx(norms(V).item() * strays * size, rel=1e-9)
