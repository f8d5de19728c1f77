"""The search for perturbations that change a prediction: whatever it claims has been seen."""

import math

import pytest
import torch
from draws import gaussian

import howsmooth as hs
from howsmooth.certificates import flip_attack
from howsmooth.certificates.flip_attack import (
    SHARES,
    STARTS,
    STEPS,
    FlipSearch,
    random_sphere,
    smallest_flip,
    smallest_flips,
)


@pytest.fixture
def scripted(rng, monkeypatch):
    """Let margins be drawn; record where they were asked for, and what was said."""
    asked = []

    def margins(f, X, E, tokens, functionals):
        found = gaussian(rng, len(E)) + 1.5
        found[found < 0.2] = -1.0 - 0.01 * len(asked) if len(asked) % 4 == 0 else 0.0
        asked.append((E.clone(), found))
        return found, gaussian(rng, *E.shape)

    monkeypatch.setattr(flip_attack, "descent_direction", margins)
    return asked


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_the_smallest_flip_is_the_smallest_that_was_seen_and_so_is_the_margin(p, seed, scripted, rng):
    rng.manual_seed(seed)
    f, X, tokens = hs.maps.Dense(gaussian(rng, 2, 3)), gaussian(rng, 3, 3), torch.tensor([2, 0])
    found, margin = smallest_flip(
        f,
        X,
        gaussian(rng, 1, 2),
        tokens,
        p=p,
        between=(0.1, 10.0),
        within=4.0,
        generator=torch.Generator().manual_seed(seed),
    )
    *steps, (shorter, nearer) = scripted
    assert len(steps) == STEPS
    sizes = [torch.linalg.vector_norm(E.flatten(1), p, dim=1) for E, _margins in steps]
    torch.testing.assert_close(sizes[0], torch.logspace(-1, 1, STARTS, dtype=torch.float64).clamp_max(4.0))
    assert all(float(size.max()) <= 4 * (1 + 1e-12) for size in sizes)
    seen = [
        (float(r), E[k], float(m[k])) for (E, m), size in zip(steps, sizes, strict=True) for k, r in enumerate(size)
    ]
    best, at, _margin = min((each for each in seen if each[2] <= 0), key=lambda each: each[0])
    assert margin == min(m for _r, _E, m in seen)
    # a shorter one on the way to the origin
    shares = torch.linspace(0, 1, SHARES + 1, dtype=torch.float64)[1:, None, None]
    torch.testing.assert_close(shorter, shares * (X[tokens] + at) - X[tokens])
    lengths = torch.linalg.vector_norm(shorter.flatten(1), p, dim=1)[nearer <= 0].tolist()
    assert found == pytest.approx(min([best, *lengths]), rel=1e-12)


def test_where_nothing_flips_no_size_is_claimed(rng, monkeypatch):
    calls = []

    def margins(f, X, E, tokens, functionals):
        calls.append(len(E))
        return torch.full((len(E),), 1.0 + abs(len(calls) - 30), dtype=E.dtype), torch.zeros_like(E)

    monkeypatch.setattr(flip_attack, "descent_direction", margins)
    found = smallest_flip(
        hs.maps.Dense(gaussian(rng, 2, 3)), gaussian(rng, 1, 3), gaussian(rng, 1, 2), torch.tensor([0]), p=2.0,
        between=(0.1, 1.0), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found == (math.inf, 1.0)
    assert calls == [STARTS] * STEPS


def test_margins_and_gradients_are_those_of_the_perturbed_sentence(rng):
    f = hs.maps.Chain(hs.maps.MLP(up=gaussian(rng, 4, 3), down=gaussian(rng, 3, 4), activation="tanh"),
                 hs.maps.Pooling.mean(n=3, like=gaussian(rng, 1)), hs.maps.Dense(gaussian(rng, 3, 3)))  # fmt: skip
    X, E, tokens, m = gaussian(rng, 3, 3), gaussian(rng, 6, 2, 3), torch.tensor([2, 0]), gaussian(rng, 2, 3)
    margins, gradient = flip_attack.descent_direction(f, X, E, tokens, m)
    smallest = set()
    for k in range(6):

        def of(e, k=k):
            Z = X.index_add(0, tokens, e)
            return (f(Z)[0] @ m.mT).min()

        assert float(margins[k]) == pytest.approx(float(of(E[k])), rel=1e-12)
        torch.testing.assert_close(gradient[k], torch.autograd.functional.jacobian(of, E[k]))
        smallest.add(int((f(X.index_add(0, tokens, E[k]))[0] @ m.mT).argmin()))
    assert smallest == {0, 1}


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_random_perturbations_have_size_one_and_half_of_them_are_near_corners(p):
    E = random_sphere((400, 2, 3), p, torch.Generator().manual_seed(0)).flatten(1)
    torch.testing.assert_close(torch.linalg.vector_norm(E, p, dim=1), torch.ones(400, dtype=torch.float64))
    corners = (E.abs() > 0.999).sum(1) if p == math.inf else (E.abs() > 0.9).sum(1)
    near, others = (corners[start::2] == (6 if p == math.inf else 1) for start in (0, 1))
    assert float(others.double().mean()) < 0.2
    assert (float(near.double().mean()) > 0.6) == (p != 2.0)


def test_directions_of_gradients_have_length_one_and_none_has_none(rng):
    G = torch.stack((gaussian(rng, 2, 3), torch.zeros(2, 3, dtype=torch.float64), 1e-200 * gaussian(rng, 2, 3)))
    found = flip_attack.unit_directions(G)
    assert float(found[0].norm()) == pytest.approx(1, rel=1e-12)
    assert not bool(found[1].any())


def test_the_flip_of_a_linear_classifier_is_found_at_its_plane(rng):
    W, X = gaussian(rng, 2, 4), gaussian(rng, 1, 4)
    f = hs.maps.Dense(W)
    wins = int(f(X)[0].argmax())
    m = (W[wins] - W[1 - wins])[None]
    exact = float((m @ X[0]) / m.norm())
    functionals = torch.eye(2).double()[wins] - torch.eye(2).double()[1 - wins]
    for within, flips_at in ((math.inf, True), (0.5 * exact, False)):
        found, margin = smallest_flip(
            f, X, functionals[None], torch.tensor([0]), p=2.0, between=(0.1 * exact, 3 * exact), within=within,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        if flips_at:
            assert exact * (1 - 1e-12) <= found <= 1.03 * exact
        else:
            assert found == math.inf
            assert margin == pytest.approx(0.5 * float(m @ X[0]), rel=1e-2)


@pytest.mark.parametrize("numbers", [1, 2**20])
def test_searches_that_run_at_once_find_what_each_finds_by_itself(numbers, rng, monkeypatch):
    monkeypatch.setattr(flip_attack, "NUMBERS", numbers)
    f = hs.maps.Chain(hs.maps.MLP(up=gaussian(rng, 4, 3), down=gaussian(rng, 3, 4), activation="tanh"),
                 hs.maps.Pooling.mean(n=3, like=gaussian(rng, 1)), hs.maps.Dense(gaussian(rng, 2, 3)))  # fmt: skip
    X, groups = gaussian(rng, 3, 3), [torch.tensor(group) for group in ([0], [2, 1], [1], [0, 1, 2], [2])]
    logits = f(X)[0]
    m = (1.0 if logits[0] > logits[1] else -1.0) * torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    given = [((0.1, 10.0), 4.0 if i % 2 else 1e-9, i) for i in range(len(groups))]
    searches = [
        FlipSearch(tokens=tokens, between=ends, within=within, generator=torch.Generator().manual_seed(seed))
        for tokens, (ends, within, seed) in zip(groups, given, strict=True)
    ]
    alone = [
        smallest_flip(f, X, m, tokens, p=2.0, between=ends, within=within,
                      generator=torch.Generator().manual_seed(seed))
        for tokens, (ends, within, seed) in zip(groups, given, strict=True)
    ]  # fmt: skip
    for found, expected in zip(smallest_flips(f, X, m, searches, p=2.0), alone, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)
    assert any(size < math.inf for size, _margin in alone)
    assert alone[0][0] == math.inf
