import math

import pytest
import torch
from cases import layer
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.heads import combine_factors, heads_of, log, log_sum, output_norm, total_value
from howsmooth.theory.linalg.matrix_norms import matrix_norm, product_norm, triangular_factor
from howsmooth.theory.results import Side
from howsmooth.theory.worst_inputs.eigenvector import steepest_eigenvalue


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
    assert_close(math.exp(combine_factors(heads, map(math.log, factors))), expected)


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
        own = -best.gamma if best.first < 0 else 8 * best.gamma
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
        g = layer(gauss_from(rng), positions=hs.maps.Positions(causal=causal))
        witness = hs.inputs.equal_tokens(g, 6, 1.0)
        assert_close(witness.formula, float(constant(g, witness.tokens)))


def test_products_that_cancel_have_the_rounding_of_their_factors():
    half, other = torch.eye(4).double()[None] * 3, torch.eye(4).double()[None] * 5
    half[:, 2:], other[:, :2] = 0, 0
    f = hs.Attention(query=half, key=other, value=half, output=other.mT, scale=-2.0)
    (head,) = heads_of(f)
    eps = torch.finfo(torch.float64).eps
    assert head.norm_A == pytest.approx(8 * eps * 30.0, rel=1e-9, abs=0)
    assert head.norm_WV == pytest.approx(8 * eps * 15.0, rel=1e-9, abs=0)


def test_biases_have_the_scale_of_the_scores_and_their_products_are_widened():
    half, other = torch.eye(4).double()[None] * 3, torch.eye(4).double()[None] * 5
    half[:, 2:], other[:, :2] = 0, 0
    unseen = torch.tensor([[0.0, 0.0, 3.0, 4.0]]).double()
    biases = {"query_bias": unseen, "key_bias": unseen, "value_bias": torch.tensor([[3.0, 4.0, 0.0, 0.0]]).double()}
    (head,) = heads_of(hs.Attention(query=half, key=half, value=half, output=other, scale=-2.0, **biases))
    assert_close(head.query_bias, -2 * unseen[0])
    eps = torch.finfo(torch.float64).eps
    assert head.norm_Qb == pytest.approx(8 * eps * 6 * 5, rel=1e-9, abs=0)
    assert head.norm_Wb == pytest.approx(8 * eps * 5 * 5, rel=1e-9, abs=0)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_norms_of_matrices_of_any_size_and_sign_are_dense_norms(rng, size):
    for shape in ((3, 7), (7, 3), (1, 1), (4, 4)):
        x = -torch.rand(*shape, dtype=torch.float64, generator=rng)
        x[0, 0] = -1e-3
        exact = float(torch.linalg.matrix_norm(x, 2)) * size
        assert matrix_norm(x * size) == pytest.approx(exact, rel=1e-12, abs=0)
        r = triangular_factor(x)
        assert r.shape[1] == min(shape)
        assert_close(r @ r.mT, x @ x.mT)
    assert matrix_norm(torch.zeros(2, 3).double()) == 0.0
    assert matrix_norm(torch.full((2, 2), math.inf)) == math.inf


def test_logarithms_of_sums_hold_where_terms_leave_the_range_of_floats():
    assert log_sum((1000.0, 1000.0)) == pytest.approx(1000 + math.log(2))
    assert log_sum((-2000.0, -2001.0, -2003.0)) == pytest.approx(-2000 + math.log(1 + math.exp(-1) + math.exp(-3)))
    assert log_sum(()) == -math.inf
    assert log_sum((math.inf, 3.0)) == math.inf
    assert log(0.0) == -math.inf
    assert log(math.e) == pytest.approx(1.0)
    assert math.isnan(log(math.nan))


def test_concatenated_heads_combine_by_the_root_of_squares(rng):
    f = layer(gauss_from(rng))
    heads = heads_of(hs.Attention(query=f.query, key=f.key, value=f.value))
    factors = (2.0, 0.5, 1.0)
    exact = math.hypot(*(head.norm_V * g for head, g in zip(heads, factors, strict=True)))
    assert_close(math.exp(combine_factors(heads, map(math.log, factors))), exact)
    assert output_norm(heads) == 1.0


def test_heads_that_write_to_axes_of_their_own_combine_by_the_root_of_squares():
    part = torch.eye(6).double().reshape(3, 2, 6)
    heads = heads_of(hs.Attention(query=part, key=part, value=part, output=part.mT))
    assert_close(math.exp(combine_factors(heads, [math.log(2.0)] * 3)), 2 * math.sqrt(3))


def test_norms_of_matrices_are_not_below_the_truth():
    # of one token attention is x ↦ Vx, and its constant ‖V‖: a norm that is rounded down would be a false bound
    mpmath = pytest.importorskip("mpmath")
    rng = torch.Generator().manual_seed(0)
    for _draw in range(12):
        V = gauss_from(rng)(3, 3)
        f = hs.Attention.single_head(A=torch.zeros(3, 3, dtype=torch.float64), V=V)
        with mpmath.workdps(40):
            exact = max(mpmath.svd_r(mpmath.matrix(V.tolist()), compute_uv=False))
            (head,) = heads_of(f)
            assert mpmath.mpf(head.norm_V) >= exact
            (same,) = heads_of(hs.Attention.single_head(Q=V, K=V, V=V))
            assert min(mpmath.mpf(same.norm_Q), mpmath.mpf(same.norm_K)) >= exact
            mixed = heads_of(hs.Attention(query=V[None], key=V[None], value=V[None], output=V[None]))
            assert mpmath.mpf(output_norm(mixed)) >= exact
            for bound in hs.bounds.table(f, n=1, radius=1.0).bounds:
                assert bound.side is not Side.UPPER or mpmath.mpf(bound.value) >= exact
