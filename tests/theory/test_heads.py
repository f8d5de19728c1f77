import math

import pytest
import torch
from cases import layer
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.eigenvalues import steepest_eigenvalue
from howsmooth.theory.heads import combined, heads_of, log_sum, output_norm, product_norm, total_value


def gauss_from(rng):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=rng)


@pytest.mark.parametrize("shapes", [((9, 4), (4, 7)), ((3, 5), (5, 8)), ((6, 5), (5, 2)), ((2, 2), (2, 2))], ids=str)
def test_the_norm_of_a_product_needs_only_its_factors(rng, shapes):
    a, b = (torch.randn(*shape, dtype=torch.float64, generator=rng) for shape in shapes)
    assert_close(product_norm(a, b), float(torch.linalg.matrix_norm(a @ b, 2)))


@pytest.mark.parametrize("groups", [3, 1])
@pytest.mark.parametrize("out", [5, 2])
def test_heads_carry_the_forms_of_the_theory(rng, groups, out):
    f = layer(gauss_from(rng), groups=groups, out=out)
    for h, head in enumerate(heads_of(f)):
        g = h // (3 // groups)
        A = f.score_scale * f.key[g].mT @ f.query[h]
        WV = f.output[h] @ f.value[g]
        assert_close(head.norm_A, float(torch.linalg.matrix_norm(A, 2)))
        assert_close(head.norm_WV, float(torch.linalg.matrix_norm(WV, 2)))
        assert_close(head.mixed.mT @ head.mixed, WV.mT @ WV)
        x = torch.randn(6, dtype=torch.float64, generator=rng)
        assert_close(head.form(x), A @ x)
        assert_close(head.adjoint(x), A.mT @ x)
    assert_close(total_value(heads_of(f)), sum(f.output[h] @ f.value[h // (3 // groups)] for h in range(3)))


def test_heads_combine_in_the_smaller_of_two_ways(rng):
    f = layer(gauss_from(rng))
    heads = heads_of(f)
    factors = (2.0, 0.5, 1.0)
    apart = sum(head.norm_WV * g for head, g in zip(heads, factors, strict=True))
    W = torch.cat(list(f.output), dim=-1)
    together = math.hypot(*(head.norm_V * g for head, g in zip(heads, factors, strict=True)))
    assert_close(output_norm(heads), float(torch.linalg.matrix_norm(W, 2)))
    expected = min(apart, together * output_norm(heads))
    assert_close(math.exp(combined(heads, map(math.log, factors))), expected)


def test_a_zero_head_adds_nothing():
    assert log_sum([-math.inf, -math.inf]) == -math.inf
    assert log_sum([0.0, -math.inf]) == 0.0
    zero = torch.zeros(2, 2, dtype=torch.float64)
    assert hs.bounds.sharp_upper(hs.Attention.single_head(A=zero, V=zero), n=3, radius=1.0).value == 0.0


@pytest.mark.parametrize("k", [2, 5, 9])
def test_the_eigenvalue_of_the_factors_is_that_of_the_form(rng, k):
    d = 5
    for _draw in range(20):
        query, key = (torch.randn(1, k, d, dtype=torch.float64, generator=rng) for _ in range(2))
        f = hs.Attention(query=query, key=key, value=torch.eye(d, dtype=torch.float64)[None])
        A = f.score_scale * key[0].mT @ query[0]
        values = torch.linalg.eigvals(A)
        real = values[values.imag.abs() < 1e-9].real
        best = steepest_eigenvalue(heads_of(f)[0], "nothing")
        assert_close(best.gamma, max(-float(real.min()), float(real.max()) / 8))
        own = -best.gamma if best.far < 0 else 8 * best.gamma
        assert_close(A @ best.direction, own * best.direction)
        assert_close(float(best.direction.norm()), 1.0)


def test_zero_is_an_eigenvalue_of_a_low_rank_form():
    turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    f = hs.Attention(query=turn[None, :2], key=torch.eye(3, dtype=torch.float64)[None, :2], value=turn[None], scale=1.0)
    best = steepest_eigenvalue(heads_of(f)[0], "nothing")
    assert best.gamma == 0.0
    assert_close(best.direction.abs(), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))


def test_equal_tokens_have_the_constant_of_the_summed_values(rng):
    for causal in (False, True):
        g = layer(gauss_from(rng), positions=hs.Positions(causal=causal))
        witness = hs.extremal.equal_tokens(g, 6, 1.0)
        assert_close(witness.formula, float(constant(g, witness.tokens)))
