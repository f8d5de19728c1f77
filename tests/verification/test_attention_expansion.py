"""Attention in a Taylor model: orders by autograd, ranges and remainders against their sums, term by term."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import entered, gaussian, network

import howsmooth as hs
from howsmooth.verification.attention_expansion import AttentionExpansion, Heads
from howsmooth.verification.taylor_model import Forms


def expanded(rng, *, before=0, eps=0.05, forms=False, all_forms=False):
    """An expansion of attention, the model behind it, and the one before it."""
    f = network(rng, layers=1 + before, n=3)
    blocks = [block.map for block in f.maps[1 : 2 + 2 * before]]
    blocks[-1] = dataclasses.replace(blocks[-1], scale=-0.7)
    before, _enters = entered(f, eps, blocks[:-1], gaussian(rng, 6))
    stage = AttentionExpansion(blocks[-1], before, forms=forms, all_forms=all_forms)
    return blocks[-1], stage, before.then(stage), before


def pulled(stage, model, functional, *, forms):
    sums = Forms(model.symbols, 1, model.derivative.shape[-1] if forms else None, functional)
    return stage.pull_back(functional[None], sums), sums


def test_masks_and_biases_of_scores_are_part_of_the_weights(rng):
    f, _stage, _model, entering = expanded(rng)
    mask = gaussian(rng, 3, 3)
    mask[0, 1] = -torch.inf
    f = dataclasses.replace(f, positions=hs.maps.Positions(mask=mask))
    stage = AttentionExpansion(f, entering, forms=False, all_forms=False)
    expected = torch.softmax(stage.heads.scale * stage.q @ stage.k.mT + mask, -1)
    assert_close(stage.P, expected)
    assert stage.hidden.sum().item() == len(f.query)


def test_the_linear_part_is_the_derivative_and_the_form_half_of_the_second(rng):
    attention, stage, model, entering = expanded(rng)
    centre, derivative = entering.centre, entering.derivative
    functional = gaussian(rng, *centre.shape)

    def value(y):
        tokens = centre + derivative @ y
        return (functional * attention(tokens)).sum()

    origin = torch.zeros(derivative.shape[-1]).double()
    slope, curvature = (getattr(torch.autograd.functional, name)(value, origin) for name in ("jacobian", "hessian"))
    before, sums = pulled(stage, model, functional, forms=True)
    assert_close(torch.einsum("nd,ndr->r", functional, model.derivative), slope)
    assert_close(torch.einsum("nd,ndr->r", before[0], derivative), slope)
    assert_close((sums.matrices[0] + sums.matrices[0].mT) / 2, curvature / 2)
    assert_close(model.centre, attention(centre))


def test_the_second_order_of_two_layers_is_that_of_their_composition(rng):
    f = network(rng, layers=2)
    x = gaussian(rng, 6)
    model, enters = entered(f, 1e-6, [block.map for block in f.maps[1:-1]], x)
    assert model.derivative.shape[-1] == model.symbols.coordinates  # nothing bends
    functional = gaussian(rng, *model.centre.shape)
    sums = Forms(model.symbols, 1, model.derivative.shape[-1], functional)
    back = functional[None]
    for stage in reversed(model.stages):
        back = stage.pull_back(back, sums)

    def value(y):
        tokens = enters(y)
        for block in f.maps[1:-1]:
            tokens = block(tokens)
        return (functional * tokens).sum()

    curvature = torch.autograd.functional.hessian(value, torch.zeros(model.symbols.coordinates).double())
    assert_close((sums.matrices[0] + sums.matrices[0].mT) / 2, curvature / 2)


def centred_scores(attention, stage, tokens):
    """The changes of all scores, less their means under the weights of the centre."""
    q, k = (
        torch.einsum("hed,nd->hne", w, tokens) + b[:, None]
        for w, b in zip(stage.heads.weights[:2], stage.heads.biases[:2], strict=True)
    )
    change = stage.heads.scale * (q @ k.mT - stage.q @ stage.k.mT)
    return change - (stage.P * change).sum(-1, keepdim=True)


def test_scores_of_linear_tokens_are_a_linear_function_and_a_form(rng):
    attention, stage, model, entering = expanded(rng, forms=True)
    centre, derivative, size = entering.centre, entering.derivative, entering.derivative.shape[-1]

    def scores(y):
        return centred_scores(attention, stage, centre + derivative @ y).flatten()

    origin = torch.zeros(size).double()
    assert_close(torch.autograd.functional.jacobian(scores, origin), stage.db.flatten(0, 2))
    assert_close(stage.alpha1.flatten(), model.symbols.linear_range(stage.db.flatten(0, 2)))
    halves = [
        torch.autograd.functional.hessian(lambda y, c=c: scores(y)[c], origin) / 2 for c in range(stage.P.numel())
    ]
    assert_close(stage.alpha2.flatten(), torch.maximum(*model.symbols.quadratic_range(torch.stack(halves))))


def places(stage):
    h, n, _n = stage.P.shape
    return itertools.product(range(h), range(n), range(n))


@pytest.mark.parametrize("before", [0, 1])
def test_products_of_ranges_are_those_of_queries_and_keys(rng, before):
    _attention, stage, _model, _entering = expanded(rng, before=before)
    scale = abs(stage.heads.scale)
    assert bool((stage.k2 > 0).all() & (stage.q2 > 0).all()) == bool(before)
    for h, i, j in places(stage):
        q1, q2, k1, k2 = stage.q1[h, i], stage.q2[h, i], stage.k1[h, j], stage.k2[h, j]
        first, every = scale * q1 @ k1, scale * (q1 + q2) @ (k1 + k2)
        assert_close(stage.products[h, i, j], first)
        assert_close(stage.products_beyond[h, i, j], every - first, atol=1e-14, rtol=1e-10)


@pytest.mark.parametrize("forms", [False, True])
def test_projections_go_beyond_their_linear_parts_as_functionals_of_the_tokens_do(rng, forms):
    _attention, stage, _model, model = expanded(rng, before=1, all_forms=forms)
    for found, linear, moved, weight in zip(
        (stage.q2, stage.k2, stage.v2),
        (stage.q1, stage.k1, stage.v1),
        (stage.dq, stage.dk, stage.dv),
        stage.heads.weights,
        strict=True,
    ):
        for h, i, e in itertools.product(*map(range, found.shape)):
            functional = torch.zeros_like(model.centre)
            functional[i] = weight[h, e]
            assert_close(found[h, i, e], model.beyond_linear(functional[None], forms=forms).size[0])
            there = torch.einsum("nd,ndr->r", functional, model.derivative)
            assert_close(moved[h, i, e], there)
            assert_close(linear[h, i, e], model.symbols.linear_range(there))


def test_scores_beyond_their_linear_parts_add_what_tokens_do_and_all_products(rng):
    _attention, stage, _model, model = expanded(rng, before=1)
    _h, n, _n = stage.P.shape
    for head, i, j in places(stage):
        weights = torch.zeros(n).double()
        weights[j] = 1
        weights -= stage.P[head, i]
        functional = torch.zeros_like(model.centre)
        on_query, on_keys = stage.heads.weights[0][head], stage.heads.weights[1][head]
        functional[i] += stage.heads.scale * (weights @ stage.k[head]) @ on_query
        functional += stage.heads.scale * weights[:, None] * (stage.q[head, i] @ on_keys)
        tokens = model.beyond_linear(functional[None], forms=False).size[0]
        products = weights.abs() @ (stage.products + stage.products_beyond)[head, i]
        assert_close(stage.alpha2[head, i, j], tokens + products)


@pytest.mark.parametrize(("before", "eps"), [(0, 0.3), (1, 0.02)])
def test_ranges_and_remainders_are_the_sums_that_the_expansion_says(rng, before, eps):
    _attention, stage, model, _entering = expanded(rng, before=before, eps=eps)
    functional = gaussian(rng, *model.centre.shape)
    _before, sums = pulled(stage, model, functional, forms=False)
    second = remainder = 0.0
    for h, i, j in places(stage):
        on_head = functional[i] @ stage.heads.output[h]
        p, a1, a2 = (float(x[h, i, j]) for x in (stage.P, stage.alpha1, stage.alpha2))
        alpha = a1 + a2
        e2 = [math.expm1(a) - a for a in (stage.alpha1 + stage.alpha2)[h, i].tolist()]
        zeta = sum(w * e for w, e in zip(stage.P[h, i].tolist(), e2, strict=True))
        share = zeta / (1 + zeta)
        e3 = e2[j] - alpha**2 / 2
        height = abs(float(on_head @ (stage.v[h, j] - stage.o[h, i])))
        moved, beyond = float(on_head.abs() @ stage.v1[h, j]), float(on_head.abs() @ stage.v2[h, j])
        second += p * (height * (a1**2 / 2 + float(stage.products[h, i, j])) + a1 * moved)
        # b² is that of linear parts and the rest, whose range is a₁ and a₂
        squares = (alpha**2 - a1**2) / 2
        exponential = e3 + share * (alpha + alpha**2 / 2)
        remainder += p * height * (float(stage.products_beyond[h, i, j]) + squares + exponential)
        remainder += p * (alpha * (moved + beyond) - a1 * moved)
        remainder += p * (e2[j] + share * (1 + alpha)) * (moved + beyond)
    assert sums.products.item() == pytest.approx(second, rel=1e-10)
    assert sums.remainder.item() == pytest.approx(remainder, rel=1e-8)


@pytest.mark.parametrize(("before", "eps"), [(0, 0.3), (1, 0.02)])
def test_beside_forms_remainders_have_ranges_of_whole_functions(rng, before, eps):
    _attention, stage, model, _entering = expanded(rng, before=before, eps=eps, forms=True)
    functional = gaussian(rng, *model.centre.shape)
    _before, loose = pulled(stage, model, functional, forms=False)
    _before, sums = pulled(stage, model, functional, forms=True)
    range_of, remainder, saved = model.symbols.linear_range, 0.0, 0.0
    alpha = stage.alpha1 + stage.alpha2
    e2 = torch.expm1(alpha) - alpha
    for h, i in itertools.product(*map(range, stage.P.shape[:2])):
        on_head, P, share = functional[i] @ stage.heads.output[h], stage.P[h, i], stage.share[h, i]
        weights = P * ((stage.v[h] - stage.o[h, i]) @ on_head)
        a1, a2, a = stage.alpha1[h, i], stage.alpha2[h, i], alpha[h, i]
        changes = torch.einsum("v,jvr->jr", on_head, stage.dv[h])
        moved, beyond = range_of(changes), stage.v2[h] @ on_head.abs()
        exponential = e2[h, i] - a**2 / 2 + share * (a2 + a**2 / 2)
        squares = (a**2 - a1**2) / 2
        remainder += weights.abs() @ (stage.products_beyond[h, i] + squares + exponential)
        remainder += P @ (a * (moved + beyond) - a1 * moved + (e2[h, i] + share * a) * (moved + beyond))
        remainder += share * (range_of(weights @ stage.db[h, i]) + range_of(P @ changes) + P @ beyond)
        saved += float((P * moved).sum() - range_of(P @ changes))
    assert sums.remainder.item() == pytest.approx(float(remainder), rel=1e-8)
    assert sums.remainder.item() < 0.9 * loose.remainder.item()
    assert saved > 0


@pytest.mark.parametrize("eps", [0.01, 0.3])
def test_the_partition_function_grows_by_no_more_than_its_form(rng, eps):
    attention, stage, model, entering = expanded(rng, eps=eps, forms=True)
    U, alpha = model.symbols.generators, stage.alpha1 + stage.alpha2
    loose = (stage.P * (torch.expm1(alpha) - alpha)).sum(-1)
    assert bool((stage.share <= loose / (1 + loose) * (1 + 1e-12)).all())
    assert bool((stage.share < 0.95 * loose / (1 + loose)).any())
    for _draw in range(200):
        y = torch.einsum("bcs,bs->bc", U, gaussian(rng, U.shape[0], U.shape[2]).sign()).flatten()
        b = centred_scores(attention, stage, entering.centre + entering.derivative @ y)
        Z = (stage.P * b.exp()).sum(-1)
        assert bool((stage.share >= 1 - 1 / Z).all())


@pytest.mark.parametrize(("before", "eps"), [(0, 1e-6), (1, 1e-6), (1, 0.02)])
def test_the_partition_function_is_bounded_by_a_form_and_what_is_beyond_it(rng, before, eps):
    _attention, stage, _model, model = expanded(rng, before=before, eps=eps)
    alpha = stage.alpha1 + stage.alpha2
    found = stage._partition_function(model, alpha, torch.expm1(alpha) - alpha)
    assert bool((stage.alpha2 > 0).all()) or not before
    for h, i in itertools.product(*map(range, stage.P.shape[:2])):
        P, db = stage.P[h, i], stage.db[h, i]
        form = torch.einsum("j,jr,js->rs", P, db, db)
        first = math.sqrt(float(model.symbols.quadratic_range(form[None])[1]))
        beyond = math.sqrt(float(P @ stage.alpha2[h, i].square()))
        # of small changes a quotient of rounding errors is no slope: e₂(a)/a² ≤ ½e^a
        slopes = [(math.expm1(a) - a) / a**2 if a > 1e-3 else 0.5 + math.expm1(a) for a in alpha[h, i].tolist()]
        assert float(found[h, i]) == pytest.approx(max(slopes) * (first + beyond) ** 2, rel=1e-9, abs=0)


def test_ranges_of_whole_functions_are_widened_and_never_above_the_sums(rng, monkeypatch):
    monkeypatch.setattr("howsmooth.verification.attention_expansion.RANGE_SHARE", 0.01)
    _attention, stage, model, _entering = expanded(rng, before=1)
    functional = gaussian(rng, 1, *model.centre.shape)
    on_heads = torch.einsum("fno,hov->fhnv", functional, stage.heads.output)
    weights = stage.P * gaussian(rng, *stage.P.shape)
    h, n, _n = stage.P.shape
    shapes = ((1, h, n, n), (1, h, n), (1, h, n))
    large, none = ([torch.full(shape, size).double() for shape in shapes] for size in (1e3, 0.0))
    found = stage._closer_ranges(on_heads, weights[None], model.symbols, tuple(large))
    exact = [torch.zeros(shape).double() for shape in shapes]
    for head, i in itertools.product(range(h), range(n)):
        changes = torch.einsum("v,jvr->jr", on_heads[0, head, i], stage.dv[head])
        P = stage.P[head, i]
        functions = (changes, weights[head, i] @ stage.db[head, i], P @ changes)
        for part, function in zip(exact, functions, strict=True):
            part[0, head, i] = model.symbols.coefficients(function).abs().sum(-1)
    for one, other in zip(found, exact, strict=True):
        assert_close(one, 1.01 * other + 0.01 * 1e3)
    for one in stage._closer_ranges(on_heads, weights[None], model.symbols, tuple(none)):
        assert not one.any()


def test_positions_that_turn_scores_are_refused(rng):
    parts = {name: gaussian(rng, 2, 2, 4) for name in ("query", "key", "value")}
    Heads.of(hs.Attention(**parts))
    with pytest.raises(hs.errors.AssumptionError, match="plain softmax attention; this one has rotary"):
        Heads.of(hs.Attention(**parts, positions=hs.maps.Positions(rotary=hs.maps.Rotary())))


@pytest.mark.parametrize("forms", [False, True])
def test_changes_beyond_floats_leave_an_infinite_remainder(rng, forms):
    _attention, stage, model, entering = expanded(rng)
    stage.alpha1[0, 0, 0] = 1e3
    stage._remainder_factors(entering, forms)
    _before, sums = pulled(stage, model, gaussian(rng, *model.centre.shape), forms=forms)
    assert sums.remainder.item() == math.inf


def test_heads_that_share_keys_and_have_no_biases_or_outputs_are_read_as_all_others(rng):
    f = hs.Attention(query=gaussian(rng, 4, 2, 3), key=gaussian(rng, 2, 2, 3), value=gaussian(rng, 2, 5, 3))
    heads, X = Heads.of(f), gaussian(rng, 6, 3)
    q, k, v = (torch.einsum("hed,nd->hne", w, X) + b[:, None] for w, b in zip(heads.weights, heads.biases, strict=True))
    mixed = torch.softmax(heads.scale * q @ k.mT, -1) @ v
    assert_close(torch.einsum("hov,hnv->no", heads.output, mixed) + heads.output_bias, f(X))
