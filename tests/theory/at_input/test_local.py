import dataclasses
import math

import pytest
import torch
from cases import CASES, SINGLE, UNCOVERED, D, N, layer
from draws import gaussian, number
from oracles import constant
from theory.example_layers import ROUNDING, form
from theory.perturbed_inputs import constants, norms, small_layer, weights_of
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.local import _query_and_key, _three_terms, local_uppers, softmax_slope


def is_one_attention(case) -> bool:
    """Theorems are about one attention map and one sequence."""
    f, X = case.build(torch.Generator().manual_seed(0))
    return isinstance(f, hs.Attention) and f.query.ndim == 3 and f(X).ndim == 2


PLAIN = [case for case in CASES if is_one_attention(case) and case not in UNCOVERED]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_the_local_certificate_holds_for_every_feature(case, rng):
    f, X = case.build(rng)
    for scale in (0.1, 2.0):
        truth = float(constant(f, scale * X))
        upper = hs.bounds.local_upper(f, scale * X).value
        assert truth <= upper * (1 + 1e-10)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_both_sides_of_the_scores_are_those_of_autograd(case, rng):
    f, X = case.build(rng)
    n = X.shape[0]
    for h, view in enumerate(heads_at_input(f, X)):
        by_query = torch.func.jacrev(lambda Y, h=h: _scores(f.head(h), Y, X))(X)
        by_key = torch.func.jacrev(lambda Z, h=h: _scores(f.head(h), X, Z))(X)
        query_side, pull = torch.linalg.matrix_norm(view.query_side(), ord=2), view.score_gradients()
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
            p = torch.softmax(temperature * torch.randn(100, n, dtype=torch.float64, generator=rng), dim=-1)
            exact = torch.linalg.eigvalsh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])[:, -1]
            for row, value in zip(p, exact, strict=True):
                assert float(value) <= softmax_slope(row[None]) + 4e-16  # what the oracle loses in 1 − p
    for n in (2, 5):
        assert_close(softmax_slope(torch.full((1, n), 1 / n, dtype=torch.float64)), 1 / n)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_the_bound_from_the_attention_map_holds(rng, causal):
    for _draw in range(2):
        f = layer(
            lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), positions=hs.maps.Positions(causal=causal)
        )
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
        (view,) = heads_at_input(hs.Attention.single_head(A=A, V=torch.eye(4, dtype=torch.float64), causal=causal), X)
        exact = float(torch.linalg.matrix_norm(view.P, 2))
        assert exact * (1 - 1e-12) <= view.norm_P() <= 1.05 * exact


def families(rng, n, d):
    """Inputs of every kind: Gaussian of four scales, clustered, few distinct, equal, on a line, one far token."""
    G = gaussian(rng, n, d)
    kinds = gaussian(rng, 2, d)[torch.randint(2, (n,), generator=rng)]
    far = 0.1 * G.clone()
    far[0] = 10 * gaussian(rng, d)
    line = gaussian(rng, n, 1) * gaussian(rng, 1, d)
    return [
        0.05 * G,
        0.5 * G,
        2 * G,
        10 * G,
        G[:1] + 0.01 * gaussian(rng, n, d),
        3 * kinds,
        G[:1].repeat(n, 1),
        line,
        far,
    ]


# the local bound covers all of them; a bound from the attention map alone need not
FOREIGN_TO_THE_MAP = ("soft cap", "norm", "rotary", "frequencies", "everything")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local_upper", "attention_map_upper"])
@pytest.mark.parametrize(
    "case", [case for case in SINGLE if "grouped" not in case.name or case.name.startswith("causal window")], ids=str
)
def test_bounds_at_one_input_hold_for_masks_biases_rotary_and_heads(rng, case, name):
    f, X = case.build(rng)
    if name == "attention_map_upper" and any(word in case.name for word in FOREIGN_TO_THE_MAP):
        with pytest.raises(AssumptionError, match="use local_upper"):
            hs.bounds.attention_map_upper(f, X)
        return
    inputs = torch.stack([X, *families(rng, N, D)[3:9:5]])
    for Z, truth in zip(inputs, constants(f, inputs).tolist(), strict=True):
        assert truth <= getattr(hs.bounds, name)(f, Z).value * ROUNDING


# one-hot weights: what is left of the third term is rounding, and no symmetric matrix any more
@pytest.mark.parametrize("seed", [326, 344, 440, 456, 465, 490, 522, 537, 1728, 1945])
def test_rounding_does_not_make_the_local_bound_vanish(seed):
    rng = torch.Generator().manual_seed(seed)
    (case,) = (case for case in SINGLE if case.name == "one narrow head")
    f, _X = case.build(rng)
    X = 10 * gaussian(rng, N, D)
    assert constant(f, X).item() <= hs.bounds.local_upper(f, X).value * ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [1, 4])
def test_bounds_at_one_input_hold_for_heads_of_every_kind(rng, d, causal):
    G = gaussian(rng, d, d)
    forms = [G, -torch.eye(d).double(), torch.linalg.qr(G)[0], torch.triu(G, 1), G[:1].mT @ G[:1]]
    for A, n in zip(forms, (6, 2, 5, 8, 1), strict=True):
        f, inputs = form(A, gaussian(rng, 3, d), causal=causal), torch.stack(families(rng, n, d))
        for Z, truth in zip(inputs, constants(f, inputs).tolist(), strict=True):
            assert truth <= hs.bounds.local_upper(f, Z).value * ROUNDING
            assert truth <= hs.bounds.attention_map_upper(f, Z).value * ROUNDING


def certificate(f, X):
    """docs/theory, at one input, term by term."""
    A, V, P = weights_of(f, X)
    covariances, thirds = [], []
    for i in range(len(X)):
        centred = X - P[i] @ X
        covariances.append(norms((P[i, :, None] * centred).mT @ centred @ A))
        spread = torch.linalg.eigvalsh((P[i, :, None] ** 2 * centred).mT @ centred)[-1].clamp(min=0)
        thirds.append((A @ X[i]).square().sum() * spread)
    return norms(V) * (norms(P) + max(covariances) + torch.stack(thirds).sum().sqrt())


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_local_bound_is_at_most_its_formula_and_at_most_the_bound_of_the_ball(rng, causal):
    for Z in families(rng, 9, 4):
        f = form(gaussian(rng, 4, 4), gaussian(rng, 3, 4), causal=causal)
        value = hs.bounds.local_upper(f, Z).value
        # norms inside the formula may be replaced by close upper bounds that need no iteration
        assert value <= certificate(f, Z).item() * 1.001
        radius = Z.norm(dim=-1).max().item()
        assert value <= hs.bounds.sharp_upper(f, n=9, radius=radius).value * 1.001


@pytest.mark.slow
def test_bounds_at_one_input_hold_for_long_sequences_and_wide_layers(rng):
    f = hs.Attention.random(heads=4, d=64, dtype=torch.float64, seed=rng)
    for scale in (0.3, 3.0):
        X = scale * gaussian(rng, 200, 64)
        lower = hs.local_lipschitz(f, X, seed=rng).lower.item()
        assert lower <= hs.bounds.local_upper(f, X).value
        assert lower <= hs.bounds.attention_map_upper(f, X).value


def test_the_local_bound_is_exact_where_all_tokens_are_equal(rng):
    for causal in (False, True):
        f = form(gaussian(rng, 4, 4), gaussian(rng, 3, 4), causal=causal)
        X = gaussian(rng, 1, 4).repeat(6, 1)
        assert_close(number(hs.bounds.local_upper(f, X).value), constant(f, X))


@pytest.mark.parametrize("name", ["local_upper", "attention_map_upper"])
def test_bounds_at_one_input_change_with_the_constant_only(rng, name):
    bound = getattr(hs.bounds, name)
    f, X = small_layer(rng, d=4), gaussian(rng, 6, 4)
    value = number(bound(f, X).value)
    U = torch.linalg.qr(gaussian(rng, 4, 4))[0]
    turned = dataclasses.replace(f, query=f.query @ U.mT, key=f.key @ U.mT, value=f.value @ U.mT)
    assert_close(number(bound(turned, X @ U.mT).value), value)
    assert_close(number(bound(dataclasses.replace(f, value=-2 * f.value), X).value), 2 * value)
    assert_close(number(bound(dataclasses.replace(f, query=f.query / 9), 3 * X).value), value)
    assert_close(number(bound(f, X[torch.randperm(6, generator=rng)]).value), value)


@pytest.mark.parametrize("name", ["local_upper", "attention_map_upper"])
def test_bounds_at_one_input_are_deterministic_upper_bounds(rng, name):
    f, X = small_layer(rng), gaussian(rng, 5, 3)
    bound = getattr(hs.bounds, name)(f, X)
    assert bound.value == getattr(hs.bounds, name)(f, X).value
    assert bound.side.name == "UPPER"
    assert bound.name == name
    assert bound.confidence == 1.0
    assert_close(bound.log_value, math.log(bound.value))


def test_the_local_bound_is_far_below_the_bound_of_the_ball_at_typical_inputs(rng):
    f = hs.Attention.random(heads=1, d=16, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 64, 16)
    ball = hs.bounds.sharp_upper(f, n=64, radius=X.norm(dim=-1).max().item()).value
    assert hs.bounds.local_upper(f, X).value < ball / 3


def test_the_smaller_one_of_two_certificates_is_returned(rng, monkeypatch):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng))
    # entries of at most one: the units in which certificates are computed are those of the map
    f = dataclasses.replace(f, value=f.value / f.value.abs().max(), output=f.output / f.output.abs().max())
    X = gaussian(rng, 5, 6)
    apart = hs.bounds.local_upper(f, X, rows=False).value
    for share in (1e-3, 0.5, 0.9, 1.1, 1e3):
        monkeypatch.setattr("howsmooth.theory.at_input.local.rows_upper", lambda _views, share=share: share * apart)
        assert hs.bounds.local_upper(f, X).value == pytest.approx(min(share, 1) * apart)


def test_scores_whose_slopes_depend_on_the_key_count_by_the_steepest(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), softcap=1.5).head(0)
    X = gaussian(rng, 5, 6)
    (view,) = heads_at_input(f, X)
    alone, _mixed = _three_terms(view)
    pull = view.score_gradients().max(-1).values
    first = view.value_norm * view.norm_P()
    assert alone == pytest.approx(
        first + _query_and_key(view, view.query_side(), *view.key_side(), pull, view.errors.value), rel=1e-12
    )
    rough = dataclasses.replace(view.errors, scores=view.errors.scores + 0.3)
    rough = dataclasses.replace(view, errors=rough)
    alone, _mixed = _three_terms(rough)
    stated = _query_and_key(rough, view.query_side(), *view.key_side(), pull, rough.errors.value)
    assert alone == pytest.approx(view.value_norm * rough.norm_P() + stated, rel=1e-12)
