"""Planted flips: none lies in a box or a ball that is proven, and boxes that end just before one are proven."""

import time

import pytest
import torch
from certificates.planted import monotone, needle
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.certificates.sentence_certifier import SentenceCertifier

MONOTONE = {
    "two layers": {},
    "one layer, a wide box": {"layers": 1, "eps": 0.5},
    "one word moves": {"tokens": (1,)},
    "tanh": {"activation": "tanh", "eps": 0.02},
}
NEEDLES = {"all move": {}, "two words move": {"tokens": (0, 2)}}
JUST = 1e-6


def decided(planted, eps):
    return hs.verify(planted.f, planted.box(eps), timeout=3, clock=time.process_time)


def radius(planted):
    tokens = planted.moves.any(1).nonzero().flatten().tolist()
    return SentenceCertifier(planted.f, planted.X).radius(tokens, p=torch.inf)


@pytest.mark.parametrize("kind", MONOTONE)
def test_of_a_network_that_grows_one_corner_is_the_worst_point(kind, rng):
    planted = monotone(rng, **MONOTONE[kind])
    scale = planted.margin(planted.X)
    assert abs(planted.margin(planted.corner(planted.unsafe))) < 1e-12 * scale
    corners = torch.randint(0, 2, (300, *planted.X.shape), generator=rng).double() * 2 - 1
    for share in (0.3, 1.0):
        margins = planted.f(planted.X + share * planted.unsafe * planted.moves * corners).flatten(1)
        least = planted.margin(planted.corner(share * planted.unsafe))
        assert (margins[:, 0] - margins[:, 1]).min() >= least - 1e-12 * scale
    # the attention sees tokens, and units bend: it is no linear function
    at = [planted.margin(planted.corner(share * planted.unsafe)) for share in (0.0, 0.5, 1.0)]
    assert abs(at[0] + at[2] - 2 * at[1]) > 1e-5 * scale


@pytest.mark.parametrize("kind", MONOTONE)
def test_a_box_is_proven_before_the_corner_flips_and_falsified_behind(kind, rng):
    planted = monotone(rng, **MONOTONE[kind])
    # lines of ReLUs are close on these networks; ranges of tanh cost more
    shares = (0.5,) if kind == "tanh" else (0.5, 0.95)
    assert [decided(planted, share * planted.safe).status for share in shares] == ["proven"] * len(shares)
    assert decided(planted, (1 - JUST) * planted.safe).status != "falsified"
    behind = decided(planted, (1 + JUST) * planted.unsafe)
    assert behind.status == "falsified"
    assert_close(behind.counterexample.view_as(planted.X), planted.corner((1 + JUST) * planted.unsafe))


@pytest.mark.parametrize("kind", NEEDLES)
def test_a_flip_that_no_gradient_leads_to_is_never_excluded(kind, rng):
    planted = needle(rng, **NEEDLES[kind])
    inside, before = planted.corner((1 + JUST) * planted.unsafe), planted.corner((1 - JUST) * planted.safe)
    assert planted.margin(inside) < 0 < planted.margin(before)
    gradient = torch.func.grad(lambda X: planted.f(X)[0, 1])(planted.X)
    assert not gradient.any()
    assert decided(planted, (1 - JUST) * planted.safe).status == "proven"
    assert decided(planted, (1 + JUST) * planted.unsafe).status != "proven"


@pytest.mark.parametrize(("make", "kinds"), [(monotone, MONOTONE), (needle, NEEDLES)])
def test_a_ball_in_the_maximum_norm_ends_before_a_planted_flip(make, kinds, rng):
    for options in kinds.values():
        planted = make(rng, **options)
        found = radius(planted)
        assert 0.2 * planted.safe < found.certified < planted.unsafe
        assert found.attacked >= (1 - 1e-9) * planted.safe
