"""Rotary positions: forms of every distance against dense matrices, bounds against ascent, pairs that tie."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.ball_inputs import ascended, constants, inputs, jacobians, plain
from theory.example_layers import random_layer

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.theory.ball.rotary_forms import LONGEST, RotaryDistances, distances, gram_factor, largest_forms
from howsmooth.theory.heads import heads_of
from howsmooth.theory.worst_inputs import tied_layer
from howsmooth.theory.worst_inputs.tied_layer import NUMBERS, RotaryTiedProblem, pairs_in_ball, rotary_tied_pairs

ROTARIES = {
    "halves": hs.maps.Rotary(base=3.0),
    "interleaved": hs.maps.Rotary(base=7.0, interleaved=True),
    "partial": hs.maps.Rotary(base=5.0, dim=2),
}


def turn(rotary, k, delta):
    """The rotation by a distance, as a matrix."""
    dim = rotary.dim or k
    theta = torch.eye(k, dtype=torch.float64)
    for m in range(dim // 2):
        a, b = (2 * m, 2 * m + 1) if rotary.interleaved else (m, m + dim // 2)
        angle = delta * rotary.base ** (-2 * m / dim)
        theta[a, a], theta[a, b], theta[b, a], theta[b, b] = (
            math.cos(angle),
            -math.sin(angle),
            math.sin(angle),
            math.cos(angle),
        )
    return theta


def forms(head, rotary, reach):
    return [head.K.mT @ turn(rotary, len(head.K), delta) @ head.Q for delta in reach]


@pytest.mark.parametrize("rotary", ROTARIES.values(), ids=ROTARIES)
def test_forms_of_all_distances_are_those_of_the_scores(rng, rotary):
    f = random_layer(rng, heads=1, d=5, k=4, positions=hs.maps.Positions(rotary=rotary))
    (head,) = heads_of(f)
    X = gaussian(rng, 6, 5)
    for i, j in ((0, 5), (5, 0), (2, 2)):
        q, k = X[i] @ head.Q.mT, X[j] @ head.K.mT
        score = (turn(rotary, 4, i) @ q) @ (turn(rotary, 4, j) @ k)
        (A,) = forms(head, rotary, [i - j])
        assert float(X[j] @ A @ X[i]) == pytest.approx(float(score), rel=1e-9)


@pytest.mark.parametrize("reach", [range(7), range(-4, 9), range(300)], ids=str)
@pytest.mark.parametrize("rotary", ROTARIES.values(), ids=ROTARIES)
def test_what_is_gathered_over_distances_is_the_dense_sum(rng, rotary, reach):
    f = random_layer(
        rng, heads=1, d=5, k=4, key_bias=gaussian(rng, 1, 4), positions=hs.maps.Positions(causal=True, rotary=rotary)
    )
    (head,) = heads_of(f)
    dense = forms(head, rotary, reach)
    factor, lost = gram_factor(head.Q, head.K, rotary, reach)
    total = sum(A @ A.mT for A in dense)
    torch.testing.assert_close(factor.mT @ factor, total, rtol=1e-10, atol=1e-10)
    assert 0 < lost < 1e-9 * float(total.norm())
    form, shift = largest_forms(head, rotary, reach)
    largest = max(float(torch.linalg.matrix_norm(A, 2)) for A in dense)
    bias = max(float((head.key_bias @ turn(rotary, 4, delta) @ head.Q).norm()) for delta in reach)
    assert largest <= form * head.norm_Q * head.norm_K <= largest * (1 + 1e-9)
    assert bias <= shift * head.norm_Q * float(head.key_bias.norm()) <= bias * (1 + 1e-9)
    assert RotaryDistances(rotary=rotary, groups=[reach]).query_gradient(head, 2.0) >= 2.0 * largest + bias - 1e-9


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("n", [1, 2, 5, 23])
def test_every_token_meets_the_distances_of_one_range(rng, n, window, causal):
    f = random_layer(rng, positions=hs.maps.Positions(causal=causal, window=window, rotary=hs.maps.Rotary()))
    ranges = distances(f, n)
    for j in range(n):
        seen = {i - j for i in range(n) if (i >= j or not causal) and (window is None or abs(i - j) < window)}
        assert any(seen <= set(reach) for reach in ranges)
    assert all(len(reach) <= 1.5 * n + 1 for reach in ranges)


LAYERS = {
    "one head": {"heads": 1},
    "causal": {"positions": hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(base=3.0))},
    "window": {"positions": hs.maps.Positions(window=2, rotary=hs.maps.Rotary(base=2.0))},
    "partial": {"positions": hs.maps.Positions(rotary=hs.maps.Rotary(base=2.0, dim=2))},
    "interleaved": {"positions": hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(interleaved=True))},
    "grouped": {"heads": 4, "groups": 2},
    "concatenated": {"mixed": False},
    "soft cap": {"softcap": 3.0},
    "negative scale": {"scale": -2.0},
}


def layer(rng, name, **more):
    options = {"d": 5, "k": 4, "positions": hs.maps.Positions(rotary=hs.maps.Rotary(base=3.0))} | LAYERS[name] | more
    return random_layer(rng, **options)


@pytest.mark.slow
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_no_input_exceeds_the_bound_over_distances(rng, name, biased):
    f = layer(rng, name)
    if biased:
        query = 3 * gaussian(rng, f.layout.heads, 4)
        f = dataclasses.replace(f, query_bias=query, key_bias=3 * gaussian(rng, f.layout.groups, 4))
    for n, radius in ((5, 0.5), (4, 4.0)):
        upper = hs.bounds.sharp_upper(f, n=n, radius=radius).value
        found = constants(f, ascended(f, inputs(rng, f, 2, n, radius), radius, steps=4))
        assert found.max().item() <= upper


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e6, 1e20, 1e100, 1e160])
def test_bounds_of_any_size_are_numbers_or_infinite(rng, scale):
    f = layer(rng, "causal")
    f = dataclasses.replace(f, query=scale * f.query, key=scale * f.key)
    upper = hs.bounds.sharp_upper(f, n=6, radius=2.0)
    assert upper.value > 0
    found = hs.local_lipschitz(f, inputs(rng, f, 1, 6, 2.0), seed=rng).lower.max().item() if scale < 1e50 else 0.0
    assert found <= upper.value


def test_slow_rotations_do_not_bring_back_what_cancels(rng):
    f = layer(rng, "one head", k=4, d=5)
    slow = hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(frequencies=torch.full((2,), 1e-9)))
    still = dataclasses.replace(f, positions=hs.maps.Positions(causal=True))
    turned = hs.bounds.sharp_upper(dataclasses.replace(f, positions=slow), n=32, radius=3.0).value
    assert turned == pytest.approx(hs.bounds.sharp_upper(still, n=32, radius=3.0).value, rel=1e-6)


def test_positions_given_one_by_one_and_long_sequences_have_norms_instead(rng):
    f = layer(rng, "causal")
    given = hs.maps.Positions(
        causal=True, rotary=hs.maps.Rotary(base=3.0, positions=torch.tensor([0, 3, 4, 9, 11, 12]))
    )
    assert distances(dataclasses.replace(f, positions=given), 6) == []
    assert distances(f, LONGEST + 1) == []
    assert (
        hs.bounds.sharp_upper(dataclasses.replace(f, positions=given), n=6, radius=2.0).value
        >= hs.bounds.sharp_upper(f, n=6, radius=2.0).value
    )


def wide_layer(rng, *, heads=2, **more):
    return random_layer(rng, heads=heads, d=24, k=4, **more)


POSITIONS = {
    "causal": hs.maps.Positions(causal=True, rotary=hs.maps.Rotary()),
    "unmasked": hs.maps.Positions(rotary=hs.maps.Rotary(base=100.0)),
    "interleaved": hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(interleaved=True)),
    "given": hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(positions=torch.arange(12) * 2 + 3)),
}


@pytest.mark.parametrize("name", ["causal", "unmasked", "given"])
def test_every_point_of_the_search_stands_for_tokens_in_the_ball_that_see_the_pair_tie(rng, name, monkeypatch):
    n, radius, k = 6, 3.0, 4
    positions = POSITIONS[name]
    rotary = positions.rotary
    known = torch.arange(n) if rotary.positions is None else rotary.positions[:n]
    rotary = dataclasses.replace(rotary, positions=None if rotary.positions is None else known)
    f = random_layer(rng, heads=2, d=10, k=k, positions=dataclasses.replace(positions, rotary=rotary))
    f = dataclasses.replace(f, query_bias=0.3 * gaussian(rng, 2, k), key_bias=gaussian(rng, 2, k))
    problem = RotaryTiedProblem(f, n, radius)
    first = 2 if name == "unmasked" else 0
    assert problem.pair == [first, first + 1]
    assert problem.others == [i for i in range(n) if i not in problem.pair]
    for head in problem.heads:
        seen = forms(head, rotary, [int(known[i] - known[first]) for i in problem.others])
        factor = problem.form_factors[head]
        torch.testing.assert_close(factor.mT @ factor, sum(A @ A.mT for A in seen))
    point = gaussian(rng, n + 2, 10)
    point[-4] *= 0.1
    X, E = problem.tokens(point)
    pair = point[-4:-2] * radius / point[-4:-2].norm(dim=-1, keepdim=True).clamp_min(1.0)
    torch.testing.assert_close(X[problem.pair], pair)
    torch.testing.assert_close(X[problem.others].norm(dim=-1), torch.full((n - 2,), radius).double())
    torch.testing.assert_close(E[problem.pair], point[-2:] / point[-2:].norm())
    assert not E[problem.others].any()
    for head in problem.heads:
        q, keys = X @ head.Q.mT + head.query_bias, X @ head.K.mT + head.key_bias
        q, keys = (
            torch.stack([turn(rotary, k, int(place)) @ row for place, row in zip(known, x, strict=True)])
            for x in (q, keys)
        )
        one, other = (keys @ q.mT)[problem.pair][:, problem.others]
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    # several points at a time are several points
    points = gaussian(rng, 5, n + 2, 10)
    for found, single in zip(problem.tokens(points), zip(*map(problem.tokens, points), strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(single), rtol=0, atol=1e-9)
    tried = [problem.built(x.numpy()).log_value for x in points]
    for numbers in (1, NUMBERS):
        monkeypatch.setattr(tied_layer, "NUMBERS", numbers)
        pair, best = problem.best([x.numpy() for x in points])
        assert pair.log_value == max(tried)
        assert (best == points[tried.index(max(tried))].numpy()).all()
    # where biases are so large that no token of the ball ties, all stay in it
    far = RotaryTiedProblem(dataclasses.replace(f, query_bias=1e3 * f.query_bias), n, radius)
    assert float(far.tokens(point)[0].norm(dim=-1).max()) <= radius * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
def test_the_pair_ties_in_every_head_for_every_other_token(rng, positions, biased):
    n, radius = 12, 6.0
    f = wide_layer(rng, positions=positions)
    if biased:
        f = dataclasses.replace(f, query_bias=gaussian(rng, 2, 4), key_bias=gaussian(rng, 2, 4))
    problem = RotaryTiedProblem(f, n, radius)
    places = positions.rotary.positions
    places = torch.arange(n) if places is None else places
    for pair in rotary_tied_pairs(f, n, radius):
        assert float(pair.X.norm(dim=-1).max()) <= radius * (1 + 1e-12)
        assert float(pair.E.norm()) == pytest.approx(1.0)
        for head in problem.heads:
            q, k = pair.X @ head.Q.mT + head.query_bias, pair.X @ head.K.mT + head.key_bias
            q, k = (
                torch.stack([turn(positions.rotary, 4, int(p)) @ row for p, row in zip(places, x, strict=True)])
                for x in (q, k)
            )
            first, second = (k @ q.mT)[problem.pair][:, problem.others]
            torch.testing.assert_close(first, second, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "unmasked", "interleaved"])
def test_pairs_prove_no_more_than_the_dense_constant_and_come_near_the_bound(rng, name):
    n, radius = 12, 12.0
    f = wide_layer(rng, heads=1, positions=POSITIONS[name])
    upper = hs.bounds.sharp_upper(f, n=n, radius=radius).value
    pairs = rotary_tied_pairs(f, n, radius)
    best = max(pairs, key=lambda pair: pair.log_value)
    if name == "causal":
        torch.testing.assert_close(f(best.X), plain(f, best.X))
        response = jacobians(f, best.X[None])[0] @ best.E.flatten()
        assert float(response.norm()) == pytest.approx(math.exp(best.log_value), rel=1e-9)
        assert float(response.norm()) <= constants(f, best.X[None]).item() * (1 + 1e-12)
    assert math.exp(best.log_value) <= upper
    assert upper <= 2.5 * math.exp(best.log_value)


@pytest.mark.slow
@pytest.mark.parametrize("name", POSITIONS)
def test_long_sequences_find_the_best_head_among_few_tokens(rng, name, monkeypatch):
    n, radius = 12, 8.0
    f = wide_layer(rng, positions=POSITIONS[name])
    (whole,) = pairs_in_ball(f, n, radius)
    assert whole.log_value == max(pair.log_value for pair in rotary_tied_pairs(f, n, radius))
    built, build = [], RotaryTiedProblem.built
    monkeypatch.setattr(RotaryTiedProblem, "built", lambda *given: built.append(given[0].n) or build(*given))
    monkeypatch.setattr(tied_layer, "SCREENED", 8)
    (screened,) = pairs_in_ball(f, n, radius)
    if POSITIONS[name].rotary.positions is None:
        assert built == [8] * 3 * len(f.query) + [n, n]
    assert whole.log_value - 0.05 <= screened.log_value <= whole.log_value + 1e-9
    monkeypatch.setattr(tied_layer, "CLIMBING", 8)
    (found,) = pairs_in_ball(f, n, radius)
    assert whole.log_value - 0.3 <= found.log_value <= screened.log_value
    response = f.to(torch.float64).jacobian(found.X).jvp(found.E)
    assert float(response.norm()) == pytest.approx(math.exp(found.log_value), rel=1e-9)
    assert math.exp(found.log_value) <= hs.bounds.sharp_upper(f, n=n, radius=radius).value


@pytest.mark.slow
def test_rotary_layers_have_brackets_and_all_lower_bounds_agree(rng):
    n, radius = 16, 8.0
    f = wide_layer(rng, positions=POSITIONS["causal"])
    found = hs.bracket(f, n=n, radius=radius)
    assert found.lower.name == "tied_pair"
    assert 1 <= found.ratio <= 4
    proven = hs.bounds.sharp_lower(f, n=n, radius=radius).value
    assert proven <= hs.inputs.tied_pair(f, n, radius).value * (1 + 1e-3)
    on_sphere = hs.inputs.tied_pair_on_sphere(f, n, radius)
    torch.testing.assert_close(on_sphere.tokens.norm(dim=-1), torch.full((n,), radius).double(), rtol=1e-9, atol=0)
    assert len(hs.inputs.tied_pairs(f, n, radius)) >= 2
    with pytest.raises(AssumptionError, match="rotary"):
        hs.inputs.tied_pair_on_image(f, n, hs.maps.LayerNorm(gain=torch.ones(24).double(), bias=None))


@pytest.mark.parametrize("change", ["query", "value"])
def test_layers_without_scores_or_values_have_no_pair(rng, change):
    f = wide_layer(rng, positions=POSITIONS["causal"])
    f = dataclasses.replace(f, **{change: 0 * getattr(f, change)})
    with pytest.raises(AssumptionError, match="equal_tokens"):
        hs.bounds.sharp_lower(f, n=6, radius=2.0)
    assert hs.bracket(f, n=6, radius=2.0).lower.name == "equal_tokens"


def test_one_dimension_has_no_pair(rng):
    f = random_layer(rng, heads=1, d=1, k=2, positions=POSITIONS["causal"])
    with pytest.raises(AssumptionError, match="two dimensions"):
        hs.inputs.tied_pair(f, 5, 2.0)


@pytest.mark.parametrize("reach", [[range(7)], [range(-4, 3), range(-1, 9)], [range(-1, 9), range(-4, 3)]], ids=str)
def test_slopes_of_scores_over_distances_are_those_of_the_statement(rng, reach):
    rotary = ROTARIES["halves"]
    biases = {"query_bias": 2 * gaussian(rng, 1, 4), "key_bias": 3 * gaussian(rng, 1, 4)}
    f = random_layer(rng, heads=1, d=5, k=4, **biases, positions=hs.maps.Positions(rotary=rotary))
    (head,) = heads_of(f)
    turns, R = RotaryDistances(rotary=rotary, groups=reach), 1.7
    key, form, shift = [], [], []
    for group in reach:
        dense = forms(head, rotary, group)
        whole = sum(A @ A.mT for A in dense)
        tilted = [head.query_bias @ turn(rotary, 4, delta).mT @ head.K for delta in group]
        root = math.sqrt(torch.linalg.matrix_norm(whole, 2).item())
        key.append(R * root + torch.linalg.matrix_norm(torch.stack(tilted), 2).item())
        form += [torch.linalg.matrix_norm(A, 2).item() for A in dense]
        shift += [(head.key_bias @ turn(rotary, 4, delta) @ head.Q).norm().item() for delta in group]
    assert max(key) <= turns.key_gradient(head, R) <= max(key) * (1 + 1e-9)
    assert R * max(form) + max(shift) <= turns.query_gradient(head, R) <= (R * max(form) + max(shift)) * (1 + 1e-9)
    assert turns.query_gradient(head, 2 * R) == pytest.approx(
        2 * R * max(form) + max(shift)
    )  # once more, from what is known


def test_forms_that_vanish_keep_what_rounding_may_have_hidden():
    eye, zero = torch.eye(4).double(), torch.zeros(4).double()
    for query, key in ((0 * eye, eye), (eye, 0 * eye)):
        head = heads_of(hs.Attention(query=query[None], key=key[None], value=eye[None]))[0]
        form, shift = largest_forms(head, ROTARIES["partial"], range(5))
        assert 1e-15 <= form <= 1e-12
        assert 1e-15 <= shift <= 1e-12
        assert zero.norm() == 0
    _factor, lost = gram_factor(eye, eye, ROTARIES["halves"], range(9))
    eps = torch.finfo(torch.float64).eps
    assert lost == pytest.approx(4 * (9 + 8) * eps * 3.0 * 2.0 * 2.0, rel=1e-9, abs=0)


def test_distances_of_unmasked_layers_are_those_of_four_groups_of_columns(rng):
    f = random_layer(rng, k=4, positions=hs.maps.Positions(rotary=hs.maps.Rotary()))
    assert distances(f, 8) == [range(-1, 8), range(-3, 6), range(-5, 4), range(-7, 2)]
    window = random_layer(rng, k=4, positions=hs.maps.Positions(rotary=hs.maps.Rotary(), window=3))
    assert distances(window, 8) == [range(-1, 3), range(-2, 3), range(-2, 3), range(-2, 2)]
    causal = random_layer(rng, k=4, positions=hs.maps.Positions(rotary=hs.maps.Rotary(), window=3, causal=True))
    assert distances(causal, 8) == [range(3)]
    assert distances(causal, 2) == [range(2)]
    assert distances(f, LONGEST) != []


def test_distances_in_chunks_count_by_the_largest_of_all():
    line = torch.tensor([[1.0], [0.0]]).double()[None]
    f = hs.Attention(query=line, key=line, value=line, key_bias=line[:, :, 0], scale=1.0)
    (head,) = heads_of(f)
    slow = hs.maps.Rotary(frequencies=torch.tensor([4e-3], dtype=torch.float64))
    for reach in (range(300), range(-299, 1), range(100, 400)):
        form, shift = largest_forms(head, slow, reach)
        exact = max(abs(math.cos(4e-3 * delta)) for delta in reach)
        assert exact <= form <= exact * (1 + 1e-5)
        assert exact <= shift <= exact * (1 + 1e-5)
        assert form <= 1.0
        assert shift <= 1.0


def test_slopes_of_keys_that_queries_never_meet_keep_their_rounding():
    # coordinates that no rotation touches: queries have one, keys another
    query, key = torch.zeros(2, 1, 4, 4).double()
    query[0, 2, 0], key[0, 3, 1] = 3.0, 5.0
    f = hs.Attention(query=query, key=key, value=key, scale=1.0)
    turns = RotaryDistances(rotary=hs.maps.Rotary(base=5.0, dim=2), groups=[range(9)])
    lost = 4 * (9 + 8) * torch.finfo(torch.float64).eps * 3.0
    assert turns.key_gradient(heads_of(f)[0], 2.0) == pytest.approx(2.0 * 15.0 * lost, rel=1e-9, abs=0)
