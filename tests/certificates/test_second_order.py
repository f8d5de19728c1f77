"""Exact second orders, what is left beyond them, and terms that only special inputs need."""

import dataclasses
import math

import mpmath
import pytest
import torch
from draws import gaussian
from networks import classifier

import howsmooth as hs
from howsmooth.certificates.attention_stage import AttentionStage
from howsmooth.certificates.image_norms import EUCLIDEAN, SquaredBall, UnitBall, packed_pairs
from howsmooth.certificates.mlp_stage import GatedStage, SmoothMLPStage, require_known
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.propagation import Apply, StackMove, pick_early, picked_row
from howsmooth.certificates.radius_search import Proof, Rivals
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.certificates.stages import FirstOrder
from howsmooth.certificates.word_perturbation import WordPerturbation
from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import entrywise


def attention(rng, **others):
    weights = {name: gaussian(rng, 2, 2, 4) for name in ("query", "key", "value")}
    return hs.Attention(**weights, output=gaussian(rng, 2, 4, 2), query_bias=gaussian(rng, 2, 2), **others)


STAGES = {
    "attention": lambda rng: (attention(rng), AttentionStage),
    "masked": lambda rng: (attention(rng, positions=hs.maps.Positions(causal=True)), AttentionStage),
    "layer norm": lambda rng: (hs.maps.LayerNorm(gain=gaussian(rng, 4), bias=gaussian(rng, 4), eps=0.1), NormStage),
    "rms norm": lambda rng: (hs.maps.RMSNorm(gain=gaussian(rng, 4), eps=1e-6), NormStage),
    "mlp": lambda rng: (
        hs.maps.MLP(up=gaussian(rng, 6, 4), down=gaussian(rng, 4, 6), activation="gelu"),
        SmoothMLPStage,
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_second_orders_are_those_of_autograd(name, rng):
    f, kind = STAGES[name](rng)
    X, columns = gaussian(rng, 3, 4), gaussian(rng, 3, 3, 4)
    found = kind(f, X).second_order(columns[None])[0]

    def along(xi):
        return f(X + torch.einsum("r,rnd->nd", xi, columns))

    zero = torch.zeros(3, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian
    flat = [hessian(lambda xi, k=k: along(xi).flatten()[k], zero) for k in range(12)]
    a, b, times = packed_pairs(3)
    expected = torch.stack([0.5 * h[a, b] * times for h in flat], dim=-1).view(-1, 3, 4)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", [*STAGES, "gated"])
def test_what_leaves_a_stage_is_what_its_derivative_says(name, rng):
    gated = hs.maps.GatedMLP(gate=gaussian(rng, 6, 4), up=gaussian(rng, 6, 4), down=gaussian(rng, 4, 6))
    f, kind = STAGES[name](rng) if name in STAGES else (gated, GatedStage)
    X, columns = gaussian(rng, 3, 4), gaussian(rng, 2, 3, 3, 4)
    _sizes, pushed = kind(f, X).propagate(columns, EUCLIDEAN)
    expected = torch.stack([f.jacobian(X).jvp(column) for column in columns.flatten(0, 1)])
    torch.testing.assert_close(pushed.flatten(0, 1), expected)


@pytest.mark.parametrize("name", STAGES)
def test_what_is_left_beyond_the_second_order_stays_within_its_bound(name, rng):
    shares = []
    for eps in (0.01, 0.1, 0.5, 3.0):
        f, kind = STAGES[name](rng)
        X = gaussian(rng, 3, 4)
        stage, columns, others = kind(f, X), gaussian(rng, 2, 3, 4), 0.3 * gaussian(rng, 1, 3, 4)
        one, rest = (
            eps * stage.image_norms(columns[None], EUCLIDEAN)[0],
            eps**2 * stage.image_norms(others[None], EUCLIDEAN)[0],
        )
        inside = stage.score_forms(eps * columns[None], SquaredBall())
        every, directions = (
            [stage.third_order_remainder(one, rest), stage.third_order_remainder(one, rest, inside)],
            stage.directions(),
        )
        assert bool((every[1] <= every[0] * (1 + 1e-12)).all())
        second, (a, b, times) = stage.second_order(columns[None])[0], packed_pairs(2)
        for _ in range(8):
            xi = gaussian(rng, 2)
            xi = eps * xi / xi.norm()
            delta = torch.einsum("r,rnd->nd", xi, columns)
            known = torch.einsum("p,pnd->nd", times * xi[a] * xi[b], second)
            delta = delta + eps**2 * others[0]
            R = f(X + delta) - f(X) - f.jacobian(X).jvp(delta) - known
            along = torch.cat([(bundle * R).sum((-2, -1)).norm(dim=1) for bundle in directions])
            shares += [float(((R * R).sum() - 1e-13 * R.norm()) / (bounds @ along)) for bounds in every]
    assert 0.05 < max(shares) <= 1


def test_scores_that_meet_are_no_larger_than_their_forms(rng):
    f, X, columns = attention(rng), gaussian(rng, 3, 4), gaussian(rng, 2, 3, 4)
    stage = AttentionStage(f, X)
    found = stage.score_forms(columns[None], SquaredBall())
    q, k = (columns @ f_.mT for f_ in (f.query.flatten(0, 1), f.key.flatten(0, 1)))
    xi = gaussian(rng, 2000, 2)
    xi = xi / xi.norm(dim=1, keepdim=True)
    dq, dk = (torch.einsum("sr,rnk->snk", xi, x).unflatten(-1, (2, 2)).transpose(1, 2) for x in (q, k))
    met = f.score_scale * dq @ dk.mT
    met = met - (stage._P * met).sum(-1, keepdim=True)
    share = met.abs().amax(0) / found
    assert float(share.min()) > 0.8
    assert float(share.max()) <= 1 + 1e-9


def tilted(scores, values, counts):
    """Attention to tokens whose scores move apart while their values stay."""
    first, second = torch.eye(2, dtype=torch.float64)
    f = hs.Attention(
        query=0 * first[None, None], key=first[None, None], value=second[None, None], scale=1.0,
        query_bias=torch.ones(1, 1, dtype=torch.float64),
    )  # fmt: skip
    X = torch.tensor(values, dtype=torch.float64)[:, None] * second + counts[:, None] * first
    return f, X, (torch.tensor(scores, dtype=torch.float64)[:, None] * first)[None]


CASES = {
    # weights are shared by more: the sum of weights grows by tokens whose values are the mean, and takes from others
    "shared": ((0.05, -0.05, 1.0, -1.0), (1.0, -1.0, 0.0, 0.0), torch.zeros(4)),
    # squares of scores do so too, where scores themselves cancel
    "balanced": ((0.1, -0.1, 0.0, 0.0, 4.0, -4.0), (1.0, 1.0, -1.0, -1.0, 0.0, 0.0), torch.zeros(6)),
    # a rare token far away whose score grows: third powers of scores count
    "rare": ((0.0, 1.0), (0.0, 1.0), torch.tensor([8.0, 0.0])),
}


@pytest.mark.parametrize("case", CASES)
def test_terms_that_few_inputs_need_are_needed(case):
    scores, values, counts = CASES[case]
    f, X, columns = tilted(scores, values, counts.double())
    stage, zero = AttentionStage(f, X), torch.zeros(1, dtype=torch.float64)
    sizes = stage.image_norms(columns[None], EUCLIDEAN)[0]
    for eps in (0.3, 0.7):
        R = f(X + eps * columns[0]) - f(X) - f.jacobian(X).jvp(eps * columns[0])
        all_of_it = stage.remainder(eps * sizes, FirstOrder(sizes, columns[None], eps, EUCLIDEAN))
        beyond = stage.third_order_remainder(eps * sizes, zero.expand_as(sizes))
        known = eps**2 * stage.second_order(columns[None])[0, 0]
        assert 0.05 < float((R[0].abs() / all_of_it[0]).max()) <= 1
        assert 0.05 < float(((R - known)[0].abs() / beyond[0]).max()) <= 1


def pairs_of_moves():
    """Return attentions where a word's own move meets another one that is as long: in scores, keys or values."""
    f, X, columns = tilted((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 1.0), torch.zeros(4).double())
    first, second = torch.eye(2, dtype=torch.float64)
    meeting = hs.Attention(query=first[None, None], key=first[None, None], value=second[None, None], scale=1.0)
    own, other = torch.stack((first, 0 * first))[None], torch.stack((0 * first, first))[None]
    g, Y, tilt = tilted((0.0, 1.0), (0.0, 0.0), torch.zeros(2).double())
    return {
        "scores": (f, X, columns, columns),
        "keys": (meeting, torch.stack((0 * first, second)), own, other),
        "values": (g, Y, tilt, torch.stack((0 * first, second))[None]),
    }


@pytest.mark.parametrize("case", ["scores", "keys", "values"])
def test_what_a_word_does_meets_what_else_has_happened(case):
    f, X, own, other = pairs_of_moves()[case]
    stage, eps = AttentionStage(f, X), 0.01
    one, rest = (eps * stage.image_norms(columns[None], EUCLIDEAN)[0] for columns in (own, other))
    delta = eps * (own + other)[0]
    known = eps**2 * stage.second_order(own[None])[0, 0]
    R = f(X + delta) - f(X) - f.jacobian(X).jvp(delta) - known
    assert 0.2 < float(R[0].norm() / (stage.third_order_remainder(one, rest)[0])) <= 1


@pytest.mark.parametrize("moves", [("across", "across"), ("along", "across"), ("across", "along")])
def test_what_a_word_does_meets_what_else_has_happened_in_a_norm(moves):
    f, eps = hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64), eps=0.0), 0.01
    X = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    stage, step = NormStage(f, X), {"along": X, "across": X.flip(1)}
    own, other = (step[name][None] for name in moves)
    one, rest = (eps * stage.image_norms(columns[None], EUCLIDEAN)[0] for columns in (own, other))
    delta = eps * (own + other)[0]
    R = f(X + delta) - f(X) - f.jacobian(X).jvp(delta) - eps**2 * stage.second_order(own[None])[0, 0]
    along, across = R[0].abs() / 2**0.5
    bounds = (1 + 1e-9) * stage.third_order_remainder(one, rest)  # as in a proof
    assert float(along) <= float(bounds[0])
    assert float(across) <= float(bounds[1])
    assert max(float(along / bounds[0]), float(across / bounds[1])) > 0.5


@pytest.mark.parametrize("u", [-0.9, -0.6, -0.1, 0.0, 0.1, 0.6])
@pytest.mark.parametrize("w", [0.01, 0.3, 1.0, 3.0])
def test_remainders_of_a_norm_are_within_their_bounds_in_every_direction(u, w):
    f = hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64), eps=0.0)
    X, columns = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([[[u, w]]], dtype=torch.float64)
    stage = NormStage(f, X)
    sizes = stage.image_norms(columns[None], EUCLIDEAN)[0]
    R = f(X + columns[0]) - f(X) - f.jacobian(X).jvp(columns[0])
    beyond = R - stage.second_order(columns[None])[0, 0]
    for truth, bounds in (
        (R, stage.remainder(sizes, FirstOrder(sizes, columns[None], 1.0, EUCLIDEAN))),
        (beyond, stage.third_order_remainder(sizes, torch.zeros_like(sizes))),
    ):
        assert bool((truth[0].abs() / 2**0.5 <= (1 + 1e-9) * bounds + 1e-15).all())  # as in a proof


def test_a_token_that_turns_before_a_norm_leaves_what_its_second_order_leaves():
    f, X = hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64), eps=0.0), torch.tensor([[2.0, 0.0]]).double()
    for eps in (0.1, 1.0, 1.9):
        found = NormStage(f, X).turning_remainder(eps, torch.tensor([0]), second_order=True).tolist()
        assert found == pytest.approx([1 - 0.5 * (eps / 2) ** 2 - math.sqrt(1 - (eps / 2) ** 2), 0.0], rel=1e-9)


def test_what_a_word_does_meets_what_else_has_happened_in_an_mlp():
    one = torch.ones(1, 1, dtype=torch.float64)
    f, X, eps = hs.maps.MLP(up=one, down=one, activation="tanh"), 0.7 * one, 0.01
    stage, columns = SmoothMLPStage(f, X), one[None]
    sizes = eps * stage.image_norms(columns[None], EUCLIDEAN)[0]
    R = f(X + 2 * eps) - f(X) - f.jacobian(X).jvp(2 * eps * one) - eps**2 * stage.second_order(columns[None])[0, 0]
    assert 0.9 < float(R.abs() / stage.third_order_remainder(sizes, sizes)) <= 1


@pytest.mark.parametrize("step", [-10.0, -3.0, -0.3, 0.3, 3.0, 10.0])
def test_neurons_that_move_far_are_not_taken_for_their_second_order(step):
    # where tanh bends most
    one = torch.ones(1, 1, dtype=torch.float64)
    f, X, columns = hs.maps.MLP(up=one, down=one, activation="tanh"), 0.6585 * one, step * one[None]
    stage = SmoothMLPStage(f, X)
    sizes = stage.image_norms(columns[None], EUCLIDEAN)[0]
    R = f(X + step) - f(X) - f.jacobian(X).jvp(step * one) - stage.second_order(columns[None])[0, 0]
    assert float(R.abs()) <= float(stage.third_order_remainder(sizes, torch.zeros_like(sizes)))


def test_a_gate_that_bends_counts_as_much_as_what_it_opens():
    one, none = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    f = hs.maps.GatedMLP(gate=one, up=none, up_bias=9 * one[0], down=one, activation="silu")
    stage, columns, eps = GatedStage(f, none), one[None], 0.1
    sizes = stage.image_norms(columns[None], EUCLIDEAN)[0]
    R = f(none + eps) - f(none) - f.jacobian(none).jvp(eps * one)
    assert 0.5 < float(R.abs() / stage.remainder(eps * sizes, FirstOrder(sizes, columns[None], eps, EUCLIDEAN))) <= 1


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_no_quadratic_image_is_larger_than_its_size(p, rng):
    H = gaussian(rng, 5, 3, 4, 4)
    H = H + H.mT
    ball = SquaredBall(p)
    a, b, times = packed_pairs(4)
    columns = (H[..., a, b] * times).movedim(-1, 0)[None]
    numbers, vectors = ball.scalar_norms(columns)[0], ball.vector_norms(columns)[0]
    xi = gaussian(rng, 2000, 4)
    xi = torch.cat((xi, torch.eye(4, dtype=xi.dtype), xi.sign()))
    xi = xi / torch.linalg.vector_norm(xi, p, dim=1, keepdim=True)
    values = torch.einsum("kmab,ia,ib->ikm", H, xi, xi)
    assert bool((values.abs().amax(0) <= numbers).all())
    assert bool((values.norm(dim=-1).amax(0) <= vectors).all())
    assert float((values.abs().amax(0) / numbers).max()) > 0.5


@pytest.mark.parametrize("tokens", [[1], [3, 0]], ids=str)
@pytest.mark.parametrize("turning", [False, True])
def test_second_orders_of_whole_networks_are_those_of_autograd(tokens, turning, rng):
    f, X, moved = classifier(rng, layers=1, before=not turning), gaussian(rng, 5, 8), torch.tensor(tokens)
    entrance = WordPerturbation(RemainderTable(f, X), moved, UnitBall(2.0), second_order=True)
    functional = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    first, squares = NormStage(f.maps[0], X).turning(moved) if turning else (None, None)

    def margin(e):
        if not turning:
            return f(X.index_add(0, moved, e.view(-1, 8)))[0] @ functional
        bent = torch.einsum("k,knd->nd", e.view(-1, 8).square().sum(-1), squares[0])
        return hs.maps.Chain(*f.maps[1:])(f.maps[0](X) + torch.einsum("r,rnd->nd", e, first[0]) + bent)[0] @ functional

    hessian = 0.5 * torch.autograd.functional.hessian(margin, torch.zeros(8 * len(tokens), dtype=torch.float64))
    _first, second = entrance.at_output(functional[None])
    assert float(torch.linalg.matrix_norm(hessian, 2)) <= float(second[0])
    assert float(second[0]) == pytest.approx(float(torch.linalg.matrix_norm(hessian, 2)), rel=1e-3)


def test_a_word_before_a_norm_may_as_well_turn(rng):
    # all directions of c + e, for e in a ball, are within an angle of c: what is proven holds for every one
    f, X = hs.maps.LayerNorm(gain=1 + 0.1 * gaussian(rng, 6), eps=0.2), gaussian(rng, 2, 6)
    stage, token = NormStage(f, X), torch.tensor([1])
    bundle, _squares = stage.turning(token)
    shares = []
    for eps in (0.1, 1.0, 1.9):
        (along,) = stage.turning_remainder(eps, token, second_order=False)[1:2]
        E = gaussian(rng, 300, 6)
        E = eps * E / E.norm(dim=1, keepdim=True)
        Y = f(torch.stack((X[0].expand(300, 6), X[1] + E), dim=1))[:, 1] - f(X)[1]
        H = torch.cat((Y, gaussian(rng, 300, 6)))
        allowed = eps * (H @ bundle[0, :, 1].mT).norm(dim=1) + along * (H @ (stage._gain * stage._unit[1])).abs()
        shares.append(float(((H @ Y.mT).abs().amax(1) / allowed).max()))
    assert 0.9 < max(shares) <= 1
    assert bool(torch.isinf(stage.turning_remainder(100.0, token, second_order=True)).any())


@pytest.mark.parametrize("centred", [True, False])
def test_remainders_of_norms_are_not_lost_in_rounding(centred, rng):
    mpmath.mp.dps = 60
    f = (hs.maps.LayerNorm if centred else hs.maps.RMSNorm)(gain=torch.ones(3, dtype=torch.float64), eps=0.0)
    X = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    stage, columns = NormStage(f, X), gaussian(rng, 1, 1, 3)
    sizes = stage.image_norms(columns[None], EUCLIDEAN)[0]
    for eps in (1e-12, 1e-9, 1e-6, 1e-3, 0.1):
        along, across = stage.remainder(eps * sizes, FirstOrder(sizes, columns[None], eps, EUCLIDEAN)).tolist()
        c = [mpmath.mpf(float(x)) for x in X[0]]
        e = [mpmath.mpf(eps) * mpmath.mpf(float(x)) for x in columns[0, 0]]
        if centred:
            c, e = ([x - sum(y) / 3 for x in y] for y in (c, e))
        N = mpmath.sqrt(sum(x * x for x in c))
        u = sum(x * y for x, y in zip(c, e, strict=True)) / N**2
        w2 = sum(y * y for y in e) / N**2 - u * u
        rho = mpmath.sqrt((1 + u) ** 2 + w2)
        margin = 1 + mpmath.mpf(1e-9)
        assert abs((1 + u) / rho - 1) <= mpmath.mpf(along) * margin
        assert mpmath.sqrt(w2) * abs(1 / rho - 1) <= mpmath.mpf(across) * margin


def test_sizes_of_first_orders_hold_in_exact_arithmetic(rng):
    # a network of one norm and a linear read-out, small enough for fifty digits
    mpmath.mp.dps = 50
    W = gaussian(rng, 2, 3)
    for scale in (1e-6, 1.0, 1e6):
        X = scale * gaussian(rng, 1, 3)
        f = hs.maps.Chain(hs.maps.LayerNorm(gain=torch.ones(3, dtype=torch.float64), eps=0.0), hs.maps.Dense(W))
        (radius,) = hs.certify(f, X).radii
        wins = int(f(X)[0].argmax())
        g = [mpmath.mpf(float(W[wins, i])) - mpmath.mpf(float(W[1 - wins, i])) for i in range(3)]
        g = [x - sum(g) / 3 for x in g]
        c = [mpmath.mpf(float(x)) for x in X[0]]
        c = [x - sum(c) / 3 for x in c]
        # the margin is zero on the plane g ⟂ c: how far that is, exactly
        exact = sum(x * y for x, y in zip(g, c, strict=True)) / mpmath.sqrt(sum(x * x for x in g))
        assert 0 < radius.certified <= exact
        assert radius.certified > 0.3 * float(exact)


def test_activations_without_a_known_curvature_are_refused(rng):
    mish = entrywise(torch.nn.functional.mish, "mish")
    f, X = classifier(rng), gaussian(rng, 5, 8)
    maps = [dataclasses.replace(part, activation=mish) if isinstance(part, hs.maps.MLP) else part for part in f.maps]
    with pytest.raises(AssumptionError, match="curvature is known"):
        hs.certify(hs.maps.Chain(*maps), X)
    assert require_known("gelu").name == "gelu"


def test_exact_second_orders_leave_less_on_most_words(rng):
    better = 0
    for word in range(3):
        f, X = classifier(rng, layers=2), gaussian(rng, 5, 8)
        table, tokens = RemainderTable(f, X), torch.tensor([word])
        ways = [WordPerturbation(table, tokens, EUCLIDEAN, second_order=curved) for curved in (False, True)]
        eps = 0.02
        functional = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
        slack = []
        for way in ways:
            _first, second = way.at_output(functional)
            slack.append(float(eps**2 * second[0] + (way.remainders(eps) @ table.transfer_to(functional))[0]))
        better += slack[1] < slack[0]
    assert better >= 2


@pytest.mark.parametrize("before", [True, False])
def test_tables_in_single_precision_are_wider_but_hardly(before, rng):
    f, X = classifier(rng, layers=2, before=before), gaussian(rng, 5, 8)
    exact, wide = (RemainderTable(f, X, single=single) for single in (False, True))
    functional = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    pairs = [(exact.transfer[place], wide.transfer[place]) for place in exact.transfer]
    for sizes, wider in [*pairs, (exact.transfer_to(functional), wide.transfer_to(functional))]:
        assert bool((sizes <= wider).all())
        assert bool((wider <= 1.01 * sizes + 1e-4 * sizes.amax(1, keepdim=True) + 1e-16).all())


@pytest.mark.parametrize("seed", range(4))
def test_tables_in_single_precision_are_widened_by_what_cancels_in_them(seed, rng):
    # a norm takes out what all coordinates have in common: here that is nearly all of the remainder before it
    rng.manual_seed(seed)
    mlp = hs.maps.MLP(up=gaussian(rng, 12, 8), down=gaussian(rng, 8, 12) + 1e4 * gaussian(rng, 1, 12))
    mlp = dataclasses.replace(mlp, down_bias=gaussian(rng, 8))
    X = torch.zeros(1, 8, dtype=torch.float64)
    norm = hs.maps.LayerNorm(gain=torch.ones(8, dtype=torch.float64))
    f = hs.maps.Chain(mlp, norm, hs.maps.Pooling.first(n=1, like=X), hs.maps.Dense(gaussian(rng, 2, 8)))
    exact, wide = (RemainderTable(f, X, single=single) for single in (False, True))
    functional = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    assert bool((exact.transfer[1] <= wide.transfer[1]).all())
    assert bool((exact.transfer_to(functional) <= wide.transfer_to(functional)).all())
    assert bool((wide.transfer[1] <= 2 * exact.transfer[1]).all())


def sparse(rng, *shape):
    """Return numbers of several sizes, half of them zero."""
    return gaussian(rng, *shape) * 10 ** gaussian(rng, *shape) * (torch.rand(shape, generator=rng) < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("centre", [0.0, 1.0])
def test_no_few_moves_of_queries_keys_and_values_take_attention_beyond_its_bounds(centre, rng):
    # one number each for scores and values: every term is alone in some draw
    first, second = torch.eye(2, dtype=torch.float64)
    shares = []
    for _ in range(70):
        bias = hs.maps.Positions(position_bias=3 * gaussian(rng, 1, 4))
        f = hs.Attention(
            query=first[None, None], key=first[None, None], value=second[None, None], scale=1.0, positions=bias
        )
        X = torch.cat((centre * gaussian(rng, 4, 1), sparse(rng, 4, 1)), dim=1)
        stage, own, other = AttentionStage(f, X), sparse(rng, 1, 4, 2), sparse(rng, 1, 4, 2)
        one, rest = (stage.image_norms(columns[None], EUCLIDEAN)[0] for columns in (own, other))
        delta = (own + other)[0]
        R = f(X + delta) - f(X) - f.jacobian(X).jvp(delta)
        beyond = R - stage.second_order(own[None])[0, 0]
        rounding = 1e-13 * (1 + X.abs().max() + delta.abs().max()) ** 2
        for truth, bounds in (
            (R, stage.remainder(one + rest, FirstOrder(one, own[None], 1.0, EUCLIDEAN))),
            (beyond, stage.third_order_remainder(one, rest)),
        ):
            shares.append(float(((truth[:, 0].abs() - rounding) / bounds.clamp_min(1e-300)).max()))
    assert 0.9 < max(shares) <= 1 + 1e-9


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_an_attention_that_nothing_reads_change_no_margin(causal, p, rng):
    f, X = pick_early(classifier(rng, layers=2, causal=causal)), gaussian(rng, 5, 8)
    every, read, rivals = RemainderTable(f, X, every_row=True), RemainderTable(f, X), Rivals.of(f(X)[0])
    assert [group for group in every.groups if group in read.groups] == read.groups
    assert len(every.groups) == len(read.groups) + 4
    for second_order in (False, True):
        one, other = (
            Proof(table, rivals, torch.tensor([1]), UnitBall(p), second_order=second_order) for table in (every, read)
        )
        for eps in (1e-3, 0.02, 0.1):
            torch.testing.assert_close(one.margins(eps), other.margins(eps), rtol=1e-9, atol=1e-12)


def test_a_row_is_the_only_one_that_is_read_where_a_pooling_picks_it_behind_sums():
    weights = torch.tensor([0.0, 1.0, 0.0])
    picked, mean = Apply(hs.maps.Pooling(weights=weights)), Apply(hs.maps.Pooling.mean(n=3))
    assert picked_row([picked]) == 1
    assert picked_row([StackMove.ADD, StackMove.ADD, picked]) == 1
    assert picked_row([StackMove.ADD, mean]) is None
    assert picked_row([StackMove.DUPLICATE, picked]) is None
    assert picked_row([StackMove.SWAP, picked]) is None
    assert picked_row([Apply(hs.maps.Dense(torch.eye(2))), picked]) is None
    assert picked_row([]) is None
