"""Allowances for rounding errors at an input: each is what its statement says, and enters where it should."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian, uniform
from theory.example_layers import LAYERS, random_layer

import howsmooth as hs
from howsmooth.theory.at_input import head_at_input, layer_errors, local
from howsmooth.theory.at_input import row_certificate as by_rows
from howsmooth.theory.at_input.head_at_input import HeadErrorBounds, heads_at_input
from howsmooth.theory.at_input.layer_errors import LayerErrorBounds, outputs
from howsmooth.theory.at_input.local import _combined, _from_the_map, _query_and_key, _three_terms, softmax_slope
from howsmooth.theory.at_input.row_certificate import RowCertificate
from howsmooth.theory.heads import heads_of
from howsmooth.theory.linalg.eigenvalue_bounds import largest_eigenvalues, largest_norms
from howsmooth.theory.linalg.matrix_norms import MOST, NOTHING, UNIT, norm_upper


def norm(x):
    return torch.linalg.matrix_norm(x, 2).item()


@pytest.mark.parametrize("unit", [UNIT, 1e-3])  # products of two errors are seen with a coarse unit alone
@pytest.mark.parametrize("kind", ["plain", "soft cap", "norms", "masked"])
def test_rounding_errors_of_a_head_are_bounded_as_stated(rng, kind, unit, monkeypatch):
    n, d, k, U = 6, 4, 3, unit / 2
    monkeypatch.setattr(head_at_input, "UNIT", unit)
    options = {
        "plain": {},
        "soft cap": {"softcap": 0.5},
        "norms": {
            "query_norm": hs.maps.RMSNorm(gain=1 + uniform(rng, k), eps=1e-6),
            "key_norm": hs.maps.RMSNorm(gain=1 + uniform(rng, k), eps=1e-6),
        },
        "masked": {"positions": hs.maps.Positions(causal=True)},
    }[kind]
    biases = {"query_bias": 3 * gaussian(rng, 1, k), "key_bias": 5 * gaussian(rng, 1, k)}
    f = random_layer(rng, heads=1, d=d, k=k, **biases, **options)
    for size in (0.1, 30.0):
        X = size * gaussian(rng, n, d)
        (view,) = heads_at_input(f, X)
        head, r, length = view.head, view.errors, X.norm(dim=-1)
        # a norm divides by the length of what enters it, and its gain stretches
        stretch = [torch.ones(n).double()] * 2
        if kind == "norms":
            entering = (X @ f.query[0].mT + f.query_bias[0], X @ f.key[0].mT + f.key_bias[0])
            stretch = [
                g.gain.abs().max() / (z.square().mean(-1) + g.eps).sqrt()
                for g, z in zip((f.query_norm, f.key_norm), entering, strict=True)
            ]
            assert torch.allclose(r.query_slope, stretch[0], rtol=1e-9, atol=0)
            assert r.key_slope == pytest.approx(stretch[1].max().item(), rel=1e-9, abs=0)
        query, key = (
            s * (d + 8) * U * (length * W.norm() + b.norm()) + 16 * k * U * z.norm(dim=-1)
            for s, W, b, z in (
                (stretch[0], head.Q, head.query_bias, view.q),
                (stretch[1], head.K, head.key_bias, view.k),
            )
        )
        S = view.q @ view.k.mT
        S = S if kind != "soft cap" else 0.5 * torch.tanh(S / 0.5)
        scores = torch.zeros(n).double()
        for i in range(n):
            for j in range(n):
                if kind == "masked" and j > i:
                    continue
                q, y = view.q[i].norm(), view.k[j].norm()
                each = y * query[i] + q * key[j] + query[i] * key[j] + (k + 8) * U * q * y + 8 * U * S[i, j].abs()
                scores[i] = max(scores[i], each)
        steeper = 3.0 if kind == "soft cap" else 1.0
        assert torch.allclose(r.query, query, rtol=1e-9, atol=0)
        assert r.key == pytest.approx(key.max().item(), rel=1e-9, abs=0)
        assert torch.allclose(r.scores, steeper * scores + (n + 16) * U, rtol=1e-9, atol=0)
        assert r.value == pytest.approx(((d + 8) * U * length.max() * head.V.norm()).item(), rel=1e-9, abs=0)


def rounding(n, scores=0.0, query=0.0, key=0.0, value=0.0, query_slope=1.0, key_slope=1.0):
    every = torch.linspace(0.5, 1.0, n, dtype=torch.float64)  # the largest comes last
    return HeadErrorBounds(
        scores=scores * every,
        query=query * every,
        key=key,
        value=value,
        query_slope=query_slope * every,
        key_slope=key_slope,
    )


def test_weights_are_wrong_by_twice_the_error_of_scores():
    for scores in (1e-10, 0.3, 1e6):
        r = rounding(2, scores=scores)
        assert r.growth[-1].item() == pytest.approx(MOST if scores > 300 else math.exp(2 * scores))
        assert r.change[-1].item() == pytest.approx(MOST if scores > 300 else math.expm1(2 * scores), rel=1e-9, abs=0)


def test_norms_are_widened_by_their_rounding(rng):
    x = gaussian(rng, 5, 9)
    assert norm(x) * (1 + 50 * UNIT) <= norm_upper(x) <= norm(x) * (1 + 1e-9)


ERRORS = {
    "none": {},
    "scores": {"scores": 0.02},
    "queries": {"query": 0.3},
    "keys": {"key": 0.2},
    "values": {"value": 0.1},
    "slopes": {"query_slope": 3.0, "key_slope": 2.0},
    "all": {"scores": 0.02, "query": 0.3, "key": 0.2, "value": 0.1, "query_slope": 3.0, "key_slope": 2.0},
    "hopeless": {"scores": 1e4, "query": 1e4, "key": 0.2, "value": 0.1},
}


def test_errors_enter_the_second_and_the_third_term_as_stated(rng, monkeypatch):
    f, n = random_layer(rng, heads=1, d=4, k=3), 12
    (seen,) = heads_at_input(f, gaussian(rng, n, 4))
    for errors in ERRORS.values():
        assert_stated(dataclasses.replace(seen, errors=rounding(n, **errors)))
    monkeypatch.setattr(local, "norm_upper", lambda x: 3 * norm(x))  # every norm is widened
    assert_stated(dataclasses.replace(seen, errors=rounding(n, **ERRORS["all"])))


def assert_stated(view):
    n, r, head = len(view.P), view.errors, view.head
    k = view.k - view.k.mean(0)
    keys, pull = k.norm(dim=-1).max().item(), view.score_gradients().amax(-1)
    for mixed in (False, True):
        W = head.reduced_W if mixed else torch.eye(head.V.shape[0]).double()
        wrong, stretch = (r.value * local.norm_upper(W), local.norm_upper(W)) if mixed else (r.value, 1.0)
        side, (moment, lost) = W.mT @ view.query_side(), view.key_side()
        moment, lost = W.mT @ moment @ W, lost * stretch**2
        reach = ((view.y - view.y.mean(0)) @ W).norm(dim=-1).max().item()
        far, wide = reach + 2 * wrong, keys + 2 * r.key
        second, squares = 0.0, 0.0
        for i in range(n):
            c, e = r.change[i].item(), r.growth[i].item()
            slope = r.query_slope[i].item() * local.norm_upper(head.reduced_Q)
            both = (c + (8 * n + 64) * UNIT) * far * wide + 4 * (wrong * wide + r.key * far)
            second = max(second, min(largest_norms(side[i]).item() + slope * both, slope * far * wide))
            lost_pull = r.query[i].item() * r.key_slope * local.norm_upper(head.reduced_K)
            p = (1 + 64 * n * UNIT) * pull[i].item() + lost_pull
            by_key = math.sqrt(largest_eigenvalues(moment[i]).item() + lost[i].item())
            by_key = e * (by_key + 2 * far * (2 * c * p + lost_pull) + 4 * wrong * p)
            squares += min(by_key, 2 * far * p) ** 2
        exact = second + (1 + n * UNIT) * math.sqrt(squares)
        seen = view.mixed() if mixed else view
        assert _query_and_key(seen, side, moment, lost, pull, wrong) == pytest.approx(exact, rel=1.5e-15)
        norm_V = head.norm_WV if mixed else view.value_norm
        assert _three_terms(view)[mixed] == pytest.approx(norm_V * view.norm_P() + exact, rel=4e-15)


def test_what_the_moment_of_values_lost_is_stretched_as_squares_are(rng, monkeypatch):
    (view,) = heads_at_input(random_layer(rng, heads=1, d=4, k=3), gaussian(rng, 5, 4))
    view = dataclasses.replace(view, errors=rounding(5))
    moment, _lost = view.key_side()
    lost = 1 + uniform(rng, 5)
    monkeypatch.setattr(type(view), "key_side", lambda self: (moment, lost))
    W, pull = view.head.reduced_W, view.score_gradients().amax(-1)
    both = _query_and_key(
        view.mixed(), W.mT @ view.query_side(), W.mT @ moment @ W, lost * norm_upper(W) ** 2, pull, 0.0
    )
    assert _three_terms(view)[1] == pytest.approx(view.head.norm_WV * view.norm_P() + both, rel=1e-12)


def test_heads_are_combined_in_the_smaller_one_of_two_ways(rng):
    f = LAYERS["mixed heads"](rng)
    heads = heads_of(f)
    seen, whole = heads_at_input(f, gaussian(rng, 4, f.d)), norm(torch.cat(list(f.output), -1))
    for alone, mixed in ((1.0, 100.0), (100.0, 1.0)):
        exact = min(3 * mixed, math.sqrt(3) * alone * whole)
        assert _combined(f, seen, lambda _view, a=alone, m=mixed: (a, m), heads) == pytest.approx(exact)
    bare = dataclasses.replace(f, output=None)
    assert _combined(bare, seen, lambda _view: (1.0, 0.1), heads) == pytest.approx(math.sqrt(3))


def test_errors_enter_the_bound_from_the_attention_map_as_stated(rng, monkeypatch):
    (view,) = heads_at_input(random_layer(rng, heads=1, d=4, k=3), gaussian(rng, 5, 4))
    for errors in ERRORS.values():
        assert_stated_from_the_map(dataclasses.replace(view, errors=rounding(5, **errors)))
    monkeypatch.setattr(local, "norm_upper", lambda x: 3 * norm(x))
    assert_stated_from_the_map(dataclasses.replace(view, errors=rounding(5, **ERRORS["all"] | {"scores": 0.0})))


def assert_stated_from_the_map(view):
    n, r, head = len(view.P), view.errors, view.head
    steep = local.norm_upper((view.k - view.k.mean(0)) @ head.Q) + local.norm_upper(view.q @ head.K)
    steep += math.sqrt(n) * (2 * r.key * local.norm_upper(head.Q) + r.query.max().item() * local.norm_upper(head.K))
    growth = r.growth.max().item()
    slope = min(0.5, growth * softmax_slope(view.P) * growth)
    for found, seen, wrong in zip(
        _from_the_map(view), (view, view.mixed()), (r.value, r.value * local.norm_upper(head.reduced_W)), strict=True
    ):
        spread = local.norm_upper(seen.y - seen.y.mean(0)) + 2 * math.sqrt(n) * wrong
        assert found == pytest.approx(seen.value_norm * view.norm_P() + slope * spread * steep, rel=2e-15)


def test_weights_too_small_to_be_kept_count_where_rows_are_one_hot(rng):
    f = random_layer(rng, heads=1, d=4, k=3)
    (view,) = heads_at_input(dataclasses.replace(f, query=1e145 * f.query), gaussian(rng, 5, 4))
    view = dataclasses.replace(view, errors=rounding(5))
    assert softmax_slope(view.P) == 0.0
    assert _from_the_map(view)[0] > 10 * view.value_norm * view.norm_P()


def test_the_norm_of_weights_grows_with_their_error_and_never_above_the_root_of_their_number(rng, monkeypatch):
    (view,) = heads_at_input(random_layer(rng, heads=1, d=4), gaussian(rng, 5, 4))
    plain = dataclasses.replace(view, errors=rounding(5)).norm_P()
    assert norm(view.P) * (1 + 10 * UNIT) <= plain <= norm(view.P) * (1 + 1e-6)
    assert dataclasses.replace(view, errors=rounding(5, scores=0.05)).norm_P() == pytest.approx(
        plain * math.exp(0.1), rel=1e-12
    )
    assert dataclasses.replace(view, errors=rounding(5, scores=9.0)).norm_P() == math.sqrt(5)
    monkeypatch.setattr(head_at_input, "UNIT", 1e-3)  # sums of five products, four times
    assert dataclasses.replace(view, errors=rounding(5)).norm_P() == pytest.approx(1.02 * plain, rel=1e-9)


def test_the_reach_of_values_and_keys_is_from_their_middle_and_under_a_soft_cap_from_zero(rng):
    X = gaussian(rng, 5, 4) + 7
    for cap in (None, 2.0):
        f = random_layer(rng, heads=1, d=4, softcap=cap, key_bias=gaussian(rng, 1, 2))
        (view,) = heads_at_input(f, X)
        assert view.value_radius == pytest.approx((view.y - view.y.mean(0)).norm(dim=-1).max().item())
        middle = view.k.mean(0) if cap is None else torch.zeros(2).double()
        assert view.key_radius == pytest.approx((view.k - middle).norm(dim=-1).max().item())


def test_the_moment_of_values_has_its_rounding_beside_it(rng, monkeypatch):
    (view,) = heads_at_input(random_layer(rng, heads=1, d=4), gaussian(rng, 5, 4))
    moment, lost = view.key_side()
    w = (view.P * view.score_gradients()).square()
    far = view.y - view.y.mean(0)
    exact = torch.einsum("ij,ijv,iju->ivu", w, view.y - view.mean[:, None], view.y - view.mean[:, None])
    assert torch.allclose(moment, exact, rtol=1e-9, atol=1e-12)
    stated = (16 + 5) * UNIT * w.sum(1) * far.square().sum(1).max()
    assert torch.allclose(lost, stated, rtol=1e-9, atol=0)
    # one-hot weights: squares below all floats were called zero, and the allowance stays
    (view,) = heads_at_input(random_layer(rng, heads=1, d=4), 1e5 * gaussian(rng, 5, 4))
    for steep in (1.0, 1e145):
        pull = steep * torch.linspace(1, 2, 25).double().view(5, 5)
        monkeypatch.setattr(type(view), "score_gradients", lambda self, pull=pull: pull)
        silent = dataclasses.replace(view, P=torch.zeros(5, 5).double())
        most = (view.y - view.y.mean(0)).square().sum(1).max()
        stated = 4 * 5 * (NOTHING + (NOTHING * pull.amax(1)).square()) * most
        assert torch.allclose(silent.key_side()[1], stated, rtol=1e-9, atol=0)


def test_weights_that_nobody_sees_do_not_loosen_the_norm(rng):
    hidden = hs.maps.Positions(padding=torch.arange(8) < 5)
    (view,) = heads_at_input(random_layer(rng, heads=1, d=4, positions=hidden), 2 * gaussian(rng, 8, 4))
    assert norm(view.P) <= view.norm_P() <= 1.001 * norm(view.P)


def some_errors(rng, heads=2, n=3, **zero):
    def one():
        return uniform(rng, heads) + 0.5

    def many():
        return uniform(rng, heads, n) + 0.5

    made = {name: many() for name in ("weight_change", "gradient", "gradient_error")}
    made |= {
        name: one()
        for name in ("value_radius", "value_error", "key_radius", "key_error", "product_error", "P_norm", "WV_norm")
    }
    return LayerErrorBounds(**(made | zero))


def test_what_may_be_wrong_in_each_term_is_as_stated(rng):
    heads, n = 2, 3
    errors = some_errors(rng)
    weights = 0.0
    for h in range(heads):
        share = max(errors.weight_change[h].tolist())
        weights += (share * errors.P_norm[h] * errors.WV_norm[h] + errors.product_error[h] * errors.P_norm[h]).item()
    assert weights <= errors.value_term() <= weights * (1 + 1e-9)
    second, most_second = errors.query_term()
    third, most_third = errors.key_term()
    for i in range(n):
        row = sum(
            (errors.weight_change[h, i] * errors.WV_norm[h] + errors.product_error[h]).item() for h in range(heads)
        )
        assert row <= errors.value_rows()[i].item() <= row * (1 + 1e-9)
        lost, whole = 0.0, 0.0
        for h in range(heads):
            both = errors.value_radius[h] * errors.key_radius[h]
            whole += both.item()
            cross = errors.value_error[h] * errors.key_radius[h] + errors.key_error[h] * errors.value_radius[h]
            lost += (errors.weight_change[h, i] * both + 4 * cross).item()
        assert lost <= second[i].item() <= lost * (1 + 1e-9)
        assert most_second[i].item() == pytest.approx(whole)
        lost, whole = 0.0, 0.0
        for h in range(heads):
            moved = 2 * errors.weight_change[h, i] * errors.value_radius[h] + 4 * errors.value_error[h]
            lost += (moved * errors.gradient[h, i] + errors.value_radius[h] * errors.gradient_error[h, i]).item()
            whole += (errors.value_radius[h] * errors.gradient[h, i]).item()
        assert lost <= third[i].item() <= lost * (1 + 1e-9)
        assert most_third[i].item() == pytest.approx(whole)
    # sums are rounded even where no weight is wrong
    exact = dataclasses.replace(
        errors,
        weight_change=0 * errors.weight_change,
        product_error=0 * errors.product_error,
        value_error=0 * errors.value_error,
    )
    exact = dataclasses.replace(exact, key_error=0 * errors.key_error, gradient_error=0 * errors.gradient_error)
    sizes = (exact.P_norm * exact.WV_norm).sum().item(), (exact.value_radius * exact.key_radius).sum().item()
    assert exact.value_term() >= 50 * n * UNIT * sizes[0]
    assert bool((exact.value_rows() >= 50 * n * UNIT * exact.WV_norm.sum()).all())
    assert bool((exact.query_term()[0] >= 50 * UNIT * sizes[1]).all())
    assert bool((exact.key_term()[0] >= 50 * UNIT * (exact.value_radius[:, None] * exact.gradient).sum(0)).all())


@pytest.mark.parametrize("kind", ["mixed heads", "concatenated heads"])
def test_errors_of_all_heads_are_gathered_as_stated(rng, kind, monkeypatch):
    # with a coarse unit everything shows: sums, norms, and weights that were called zero
    unit, nothing = 1e-3, 1e-2
    monkeypatch.setattr(layer_errors, "UNIT", unit)
    monkeypatch.setattr(layer_errors, "NOTHING", nothing)
    monkeypatch.setattr(layer_errors, "norm_upper", lambda x: 3 * norm(x))
    f = LAYERS[kind](rng)
    f = dataclasses.replace(f, query_bias=gaussian(rng, 3, f.layout.k))
    n = 5
    errors = ERRORS["all"] | {"query_slope": 1.0, "key_slope": 1.0}
    seen = [
        dataclasses.replace(view, errors=rounding(n, **errors)) for view in heads_at_input(f, gaussian(rng, n, f.d))
    ]
    errors = LayerErrorBounds.of(seen)
    for h, (view, W) in enumerate(zip(seen, outputs(seen), strict=True)):
        r, head = view.errors, view.head
        K, Q, stretch = head.K.norm().item(), 3 * norm(head.Q), 3 * norm(W)
        off = r.query * K + 2 * len(head.K) * unit * view.q.norm(dim=-1) * K
        lost = sum(head.V.shape) * unit * W.norm().item() * head.V.norm().item()
        reach = (view.y - view.y.mean(0)).norm(dim=-1).max().item()
        keys = (view.k - view.k.mean(0)).norm(dim=-1).max().item()
        assert torch.allclose(errors.weight_change[h], r.change + n * nothing * r.growth, rtol=1e-12, atol=0)
        assert torch.allclose(errors.gradient_error[h], off, rtol=1e-9, atol=0)
        assert torch.allclose(
            errors.gradient[h], (1 + 64 * unit) * (view.q @ head.K).norm(dim=-1) + off, rtol=1e-9, atol=0
        )
        for found, exact in (
            (errors.value_radius[h], stretch * (reach + 2 * r.value)),
            (errors.value_error[h], stretch * r.value),
            (errors.key_radius[h], Q * (keys + 2 * r.key)),
            (errors.key_error[h], Q * r.key),
            (errors.product_error[h], lost),
            (errors.P_norm[h], view.norm_P()),
            (errors.WV_norm[h], (1 + 8 * sum(head.V.shape) * unit) * norm(W @ head.V) + lost),
        ):
            assert found.item() == pytest.approx(exact, rel=1e-9, abs=0)


def rows_with(rng, changes=None):
    f = LAYERS["mixed heads"](rng)
    seen = heads_at_input(f, gaussian(rng, 5, f.d))
    rows = RowCertificate.of(seen)
    return seen, rows if changes is None else dataclasses.replace(
        rows, errors=dataclasses.replace(rows.errors, **changes)
    )


def test_rows_add_their_allowances_and_none_is_more_than_the_most_it_can_be(rng, monkeypatch):
    seen, rows = rows_with(rng)
    squares = uniform(rng, 5)
    monkeypatch.setattr(by_rows, "row_norms_squared", lambda _views, beaten: squares)
    for size in (1e-3, 1.0, 1e6):
        errors = rows.errors
        wrong = {
            name: size * (0.5 + uniform(rng, *getattr(errors, name).shape))
            for name in ("weight_change", "product_error", "value_error")
        }
        changed = dataclasses.replace(rows, errors=dataclasses.replace(errors, **wrong))
        first, (third, most) = changed.errors.value_rows(), changed.errors.key_term()
        each = torch.minimum(squares.sqrt() + first + third, errors.WV_norm.sum() + most)
        found = changed.by_rows(seen)
        assert each.norm().item() * (1 + 40 * UNIT) <= found <= each.norm().item() * (1 + 1e-9)
    squares = torch.zeros(5).double()
    calm = {name: 0 * getattr(rows.errors, name) for name in ("WV_norm", "gradient", "gradient_error")}
    silent = dataclasses.replace(rows, errors=dataclasses.replace(rows.errors, **calm))
    assert silent.by_rows(seen) >= math.sqrt(5) * NOTHING * rows.errors.value_radius.sum().item()


def test_blocks_are_weights_times_distances_times_pulls_each_with_its_allowance(rng, monkeypatch):
    seen, rows = rows_with(rng)
    given = []
    monkeypatch.setattr(by_rows, "nonnegative_norm", lambda N: given.append(N) or norm(N))
    for size in (0.0, 1e-3, 0.4, 50.0):
        errors = rows.errors
        wrong = {
            name: size * (0.5 + uniform(rng, *getattr(errors, name).shape)) for name in ("weight_change", "value_error")
        }
        changed = dataclasses.replace(rows, errors=dataclasses.replace(errors, **wrong))
        blocks = torch.zeros(5, 5).double()
        for h, view in enumerate(seen):
            y, reach = view.y @ view.head.W.mT, errors.value_radius[h].item()
            for i in range(5):
                c = wrong["weight_change"][h, i].item()
                for j in range(5):
                    far = (y[j] - view.P[i] @ y).norm().item() + 4 * wrong["value_error"][h].item() + c * reach
                    far = min(far, 2 * reach)
                    blocks[i, j] += min(view.P[i, j].item() + c, 1.0) * far * errors.gradient[h, i].item()
        assert changed.by_blocks(seen) == pytest.approx(changed.value_term() + norm(blocks), rel=1e-9, abs=0)
        assert torch.allclose(given[-1], blocks, rtol=1e-9, atol=0)
        assert size > 0 or bool((given[-1] >= blocks * (1 + 100 * UNIT)).all())


def test_the_first_term_is_the_smaller_one_of_heads_apart_and_of_what_they_share(rng):
    _seen, rows = rows_with(rng)
    for size in (1e-3, 0.1):
        lost = size * (0.5 + uniform(rng, 3))
        changed = dataclasses.replace(rows, errors=dataclasses.replace(rows.errors, product_error=lost))
        apart = (rows.errors.P_norm * rows.errors.WV_norm).sum().item()
        mean = rows.P.mean(0)
        beside = torch.cat(list(rows.B), 1)
        shared = norm(mean) * norm(rows.B.sum(0))
        others = (norm(beside) + 2 * lost.sum().item()) * norm((rows.P - mean).flatten(0, 1))
        exact = min(apart, shared + others + changed.errors.value_term())
        assert exact <= changed.value_term() <= exact * (1 + 1e-9)
    # heads that look alike share everything; heads of opposite values share nothing
    alike = dataclasses.replace(rows, P=rows.P[:1].expand(3, -1, -1))
    assert alike.value_term() == pytest.approx(
        min(
            (rows.errors.P_norm * rows.errors.WV_norm).sum().item(),
            norm(rows.P[0]) * norm(rows.B.sum(0)) + rows.errors.value_term(),
        ),
        rel=1e-9,
    )
    far = dataclasses.replace(rows, errors=dataclasses.replace(rows.errors, WV_norm=1e-3 * rows.errors.WV_norm))
    assert far.value_term() == pytest.approx((far.errors.P_norm * far.errors.WV_norm).sum().item(), rel=1e-12)


def test_the_certificate_adds_the_largest_second_term_and_the_smaller_way_of_the_others(rng, monkeypatch):
    seen, _rows = rows_with(rng)
    second, lost, most = (1 + uniform(rng, 5) for _part in range(3))
    others = {"by_blocks": 7.0, "by_rows": 5.0}
    monkeypatch.setattr(by_rows, "query_term_norms", lambda _views: second)
    monkeypatch.setattr(LayerErrorBounds, "query_term", lambda self: (lost, most))
    for name in others:
        monkeypatch.setattr(RowCertificate, name, lambda self, _views, name=name, **_beaten: others[name])
    for least in (lost, 0.2 * most):
        most = 4 * least
        exact = max(min(s + one, m) for s, one, m in zip(second.tolist(), lost.tolist(), most.tolist(), strict=True))
        for others["by_blocks"], others["by_rows"] in ((7.0, 5.0), (3.0, 5.0), (math.nan, 5.0), (3.0, math.nan)):
            smaller = min(x for x in others.values() if not math.isnan(x))
            assert by_rows.rows_upper(seen) == pytest.approx(exact + smaller)
    others["by_blocks"] = others["by_rows"] = math.nan
    assert by_rows.rows_upper(seen) == math.inf


def test_norms_inside_the_first_term_are_widened(rng, monkeypatch):
    monkeypatch.setattr(by_rows, "norm_upper", lambda x: 3 * norm(x))
    _seen, rows = rows_with(rng)
    rows = dataclasses.replace(rows, errors=dataclasses.replace(rows.errors, WV_norm=1e3 * rows.errors.WV_norm))
    mean = rows.P.mean(0)
    for calm in (rows, dataclasses.replace(rows, P=mean.expand(3, -1, -1)), dataclasses.replace(rows, B=0 * rows.B)):
        errors = dataclasses.replace(
            calm.errors, weight_change=0 * calm.errors.weight_change, product_error=0 * calm.errors.product_error
        )
        calm = dataclasses.replace(calm, errors=errors)
        shared = 3 * norm(calm.P.mean(0)) * 3 * norm(calm.B.sum(0))
        apart = 3 * norm(calm.side_by_side) * 3 * norm((calm.P - calm.P.mean(0)).flatten(0, 1))
        weights = 64 * 5 * UNIT * (errors.P_norm * errors.WV_norm).sum().item()
        assert calm.value_term() == pytest.approx(shared + apart + weights, rel=4e-15)


def test_rows_of_the_second_term_have_the_squares_of_their_entries_and_their_rounding(rng, monkeypatch):
    seen, given, unit = rows_with(rng)[0], {}, 1e-3
    monkeypatch.setattr(by_rows, "UNIT", unit)

    def eigenvalues(_times, _start, *, trace, error, steps):
        given[steps] = trace, error
        return trace

    monkeypatch.setattr(by_rows, "deflated_eigenvalues", eigenvalues)
    W, Q = outputs(seen), [view.head.Q for view in seen]
    C = [view.covariance() for view in seen]
    found, (trace, error) = by_rows.query_term_norms(seen), given[1]
    sums = sum(c.shape[1] + c.shape[2] for c in C) + sum(torch.cat(W, 1).shape) + sum(torch.cat(Q).shape)
    for i in range(5):
        row = sum(w @ c[i] @ q for w, c, q in zip(W, C, Q, strict=True))
        sizes = [sum(x.square().sum().item() for x in parts) for parts in ([c[i] for c in C], W, Q)]
        assert error[i].item() == pytest.approx(8 * sums * unit * math.prod(sizes), rel=1e-9)
        assert trace[i].item() == pytest.approx(row.square().sum().item() + error[i].item(), rel=1e-9)
        assert found[i].item() == pytest.approx(trace[i].item() ** 0.5)
