import itertools
import math

import pytest
import torch
from oracles import constant, dense_jacobian
from torch.testing import assert_close

import howsmooth as hs

ONE = torch.ones(1, 1, dtype=torch.float64)


def weighted_constant(f: hs.Attention, mu: hs.Measure) -> float:
    """The norm of D^½ J D^-½ by dense algebra."""
    J = dense_jacobian(f.on(mu), mu.points)
    out, d = J.shape[0] // len(mu), mu.d
    scale = mu.weights.sqrt()
    return float(torch.linalg.matrix_norm(scale.repeat_interleave(out)[:, None] * J / scale.repeat_interleave(d), 2))


def random_attention(rng, heads, causal) -> hs.Attention:
    def gauss(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    return hs.Attention(
        query=1.5 * gauss(heads, 2, 3),
        key=gauss(heads, 2, 3),
        value=gauss(heads, 2, 3),
        output=gauss(heads, 3, 2),
        query_bias=gauss(heads, 2),
        positions=hs.Positions(causal=causal),
    )


def random_measure(rng, n, causal, equal) -> hs.Measure:
    weights = torch.ones(n) if equal else torch.rand(n, generator=rng) + 0.2
    places = torch.tensor([0.0, 0.5, 0.5, 1.0, 1.0])[:n].double() if causal else None
    return hs.Measure(torch.randn(n, 3, dtype=torch.float64, generator=rng), (weights / weights.sum()).double(), places)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("equal", [True, False])
def test_the_formula_is_the_constant_of_the_split_measure(rng, heads, causal, k, equal):
    for _draw in range(3):
        f, mu = random_attention(rng, heads, causal), random_measure(rng, 4, causal, equal)
        found = hs.splitting(f, mu, rtol=1e-9, generator=rng)
        assert_close(found.move, weighted_constant(f, mu))
        assert_close(found.value, weighted_constant(f, mu.split(k)))
        assert found.value == max(found.move, found.split)
        assert found.splits == (found.split > found.move)


@pytest.mark.parametrize("k", [2, 3])
def test_without_weights_it_is_the_duplicated_sequence(rng, k):
    f, X = random_attention(rng, 2, False), torch.randn(4, 3, dtype=torch.float64, generator=rng)
    found = hs.splitting(f, hs.Measure(X), rtol=1e-9, generator=rng)
    assert_close(found.value, float(constant(f, X.repeat_interleave(k, 0))))


def test_one_duplicate_of_the_best_atom_is_enough(rng):
    f = hs.Attention.single_head(A=-ONE, V=ONE)
    mu = hs.Measure(torch.tensor([[-5.3], [-0.5]], dtype=torch.float64))
    found = hs.splitting(f, mu, rtol=1e-9)
    assert found.splits
    assert found.decided
    assert_close(weighted_constant(f, mu.split(found.atom, 2)), found.value)


def test_values_of_the_notes():
    f = hs.Attention.single_head(A=-ONE, V=ONE)
    mu = hs.Measure(torch.tensor([[-5.3], [-0.5]], dtype=torch.float64))
    found = hs.splitting(f, mu)
    assert found.split == pytest.approx(1.7569, abs=5e-5)
    assert found.move == pytest.approx(1.1978, abs=5e-5)
    attack = hs.split_attack(f, mu, eps=1e-3)
    assert attack.split_ratio == pytest.approx(1.757, abs=5e-4)
    assert attack.move_ratio == pytest.approx(1.196, abs=5e-3)
    assert attack.splits
    # the weighted example: the plain Euclidean norm is another number
    nu = hs.Measure(mu.points, torch.tensor([0.3, 0.7], dtype=torch.float64))
    assert_close(hs.splitting(f, nu, rtol=1e-9).move, weighted_constant(f, nu))
    assert abs(weighted_constant(f, nu) - float(constant(f.on(nu), nu.points))) > 0.01


def test_true_ratios_tend_to_the_formula_linearly():
    f = hs.Attention.single_head(A=-ONE, V=ONE)
    mu = hs.Measure(torch.tensor([[-5.3], [-0.5]], dtype=torch.float64))
    found = hs.splitting(f, mu, rtol=1e-9)
    errors = []
    for eps in (1e-2, 1e-3, 1e-4):
        attack = hs.split_attack(f, mu, eps=eps)
        errors.append((abs(attack.split_ratio - found.split), abs(attack.move_ratio - found.move)))
    for coarse, fine in itertools.pairwise(errors):
        assert fine[0] <= coarse[0] / 5 + 1e-8
        assert fine[1] <= coarse[1] / 5 + 1e-8


def test_merging_equal_atoms_does_not_change_the_constants(rng):
    for causal in (False, True):
        f, mu = random_attention(rng, 2, causal), random_measure(rng, 4, causal, False)
        split = mu.split(3)
        merged = hs.splitting(f, split.merge(), rtol=1e-9)
        assert_close(merged.value, hs.splitting(f, split, rtol=1e-9).value)
        assert_close(merged.move, hs.splitting(f, mu, rtol=1e-9).move)


def test_masked_attacks_keep_positions(rng):
    f, mu = random_attention(rng, 2, True), random_measure(rng, 5, True, False)
    attack = hs.split_attack(f, mu, eps=1e-5, generator=rng)
    assert math.isfinite(attack.split_ratio)
    assert attack.split_ratio == pytest.approx(attack.splitting.split, rel=1e-3)
    assert attack.move_ratio == pytest.approx(attack.splitting.move, rel=1e-3)


def test_the_cesaro_operator_breaks_the_unmasked_bound():
    """Equal tokens, masked: the constant tends to 2, above (1 + 3c)e^{2c} for small c."""
    identity = torch.eye(2, dtype=torch.float64)
    f = hs.Attention.single_head(A=0.01 * identity, V=identity, causal=True)
    mu = hs.Measure.from_sequence(torch.zeros(200, 2, dtype=torch.float64), causal=True)
    constant_there = float(hs.local_lipschitz(f, mu).lower)
    unmasked = hs.bounds.mean_field_upper(hs.Attention.single_head(A=0.01 * identity, V=identity), radius=1.0)
    assert constant_there > 1.6 > unmasked.value
    assert constant_there <= hs.bounds.masked_mean_field_upper(f, radius=1.0).value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_atoms_that_see_nothing_else_do_not_split(rng, dtype):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=dtype, generator=rng)
    alone = hs.Measure(5 * torch.randn(1, 6, dtype=dtype, generator=rng), None, torch.ones(1, dtype=dtype))
    equal = hs.Measure.from_sequence(5 * torch.randn(1, 6, dtype=dtype, generator=rng).expand(4, 6), causal=True)
    for mu in (alone, equal):
        found = hs.splitting(f, mu, rtol=1e-3)
        assert found.split <= 1e-5 * found.move
        assert not found.splits
