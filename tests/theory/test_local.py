import math

import pytest
import torch
from cases import CASES, layer
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.local import local_uppers, softmax_slope
from howsmooth.theory.views import views


def is_one_attention(case) -> bool:
    """Theorems are about one attention map and one sequence."""
    f, X = case.build(torch.Generator().manual_seed(0))
    return isinstance(f, hs.Attention) and f.query.ndim == 3 and f(X).ndim == 2


PLAIN = [case for case in CASES if is_one_attention(case)]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_the_local_certificate_holds_for_every_feature(case, rng):
    f, X = case.build(rng)
    for scale in (0.1, 0.5, 1.0, 2.0):
        truth = float(constant(f, scale * X))
        upper = hs.bounds.local_upper(f, scale * X).value
        assert truth <= upper * (1 + 1e-10)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_both_sides_of_the_scores_are_those_of_autograd(case, rng):
    f, X = case.build(rng)
    n = X.shape[0]
    for h, view in enumerate(views(f, X)):
        by_query = torch.func.jacrev(lambda Y, h=h: _scores(f.head(h), Y, X))(X)
        by_key = torch.func.jacrev(lambda Z, h=h: _scores(f.head(h), X, Z))(X)
        query_side, pull = torch.linalg.matrix_norm(view.query_side(), ord=2), view.key_pull()
        for i in range(n):
            centred = view.y - view.mean[i]
            V_C_A = torch.einsum("j,jv,jd->vd", view.P[i], centred, by_query[i, :, i])
            assert_close(torch.linalg.matrix_norm(V_C_A, 2), query_side[i])
            assert_close(by_key[i].diagonal(dim1=0, dim2=1).norm(dim=0), pull[i])


def _scores(alone, Y, Z):
    """Scores of one head without its masks: queries from the tokens Y, keys from the tokens Z."""
    queries, _ = alone._attend(Y, memory=0)
    keys, _ = alone._attend(Z, memory=0)
    S = queries.q[0, 0] @ keys.k[0].mT
    return S if alone.softcap is None else alone.softcap * torch.tanh(S / alone.softcap)


def test_the_softmax_slope_bounds_its_derivative(rng):
    for n in (2, 3, 10):
        for temperature in (0.1, 1.0, 10.0):
            p = torch.softmax(temperature * torch.randn(500, n, dtype=torch.float64, generator=rng), dim=-1)
            exact = torch.linalg.eigvalsh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])[:, -1]
            for row, value in zip(p, exact, strict=True):
                assert float(value) <= softmax_slope(row[None]) + 4e-16  # what the oracle loses in 1 − p
    for n in (2, 5):
        assert_close(softmax_slope(torch.full((1, n), 1 / n, dtype=torch.float64)), 1 / n)


@pytest.mark.parametrize("causal", [False, True])
def test_the_bound_from_the_attention_map_holds(rng, causal):
    for _draw in range(4):
        f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), positions=hs.Positions(causal=causal))
        X = torch.randn(7, 6, dtype=torch.float64, generator=rng)
        for scale in (0.1, 1.0, 3.0):
            assert float(constant(f, scale * X)) <= hs.bounds.attention_map_upper(f, scale * X).value * (1 + 1e-10)


def test_the_certificate_follows_from_the_statement_when_values_are_tokens(rng):
    A = torch.randn(4, 4, dtype=torch.float64, generator=rng)
    X = torch.randn(6, 4, dtype=torch.float64, generator=rng)
    f = hs.Attention.single_head(A=A, V=torch.eye(4, dtype=torch.float64))
    P = torch.softmax(X @ A.mT @ X.mT, dim=-1)
    m = P @ X
    second, third = 0.0, 0.0
    for i in range(6):
        centred = X - m[i]
        C = centred.mT @ (P[i][:, None] * centred)
        second = max(second, float(torch.linalg.matrix_norm(C @ A, 2)))
        D = centred.mT @ (P[i].square()[:, None] * centred)
        third += float((A @ X[i]).square().sum() * torch.linalg.eigvalsh(D)[-1])
    expected = float(torch.linalg.matrix_norm(P, 2)) + second + math.sqrt(third)
    # norms and eigenvalues are bounded, not computed: never below the statement, and hardly above it
    assert expected <= hs.bounds.local_upper(f, X).value <= 1.005 * expected


def test_a_batch_of_inputs_has_the_certificates_of_each(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng))
    X = torch.randn(3, 7, 6, dtype=torch.float64, generator=rng)
    assert_close(local_uppers(f, X), [hs.bounds.local_upper(f, x).value for x in X])


@pytest.mark.parametrize("causal", [False, True])
def test_the_norm_of_the_weights_is_bounded_closely(rng, causal):
    for steep in (0.0, 0.5, 3.0):
        A = steep * torch.randn(4, 4, dtype=torch.float64, generator=rng)
        X = torch.randn(40, 4, dtype=torch.float64, generator=rng)
        (view,) = views(hs.Attention.single_head(A=A, V=torch.eye(4, dtype=torch.float64), causal=causal), X)
        exact = float(torch.linalg.matrix_norm(view.P, 2))
        assert exact * (1 - 1e-12) <= view.norm_P() <= 1.05 * exact
