"""What a proof adds up: margins, first and second orders, and remainders stage after stage."""

import math
import time

import pytest
import torch
from draws import gaussian

import howsmooth as hs
from howsmooth.certificates import certify, radius_search
from howsmooth.certificates.certify import Certificate
from howsmooth.certificates.flip_attack import random_sphere
from howsmooth.certificates.image_norms import EUCLIDEAN, UnitBall
from howsmooth.certificates.radius_search import LARGEST_RADIUS, Proof, Rivals, second_order_affordable
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.certificates.sentence_certifier import Radius, SentenceCertifier
from howsmooth.certificates.stages import FirstOrder, SmoothStage
from howsmooth.certificates.word_perturbation import WordPerturbation, _outward, times_square
from howsmooth.errors import AssumptionError
from howsmooth.rounding import CHAIN_FACTOR, CHAIN_FLOOR


def network(rng, activation="tanh", norm=True):
    """Return a small classifier: a norm, a feed-forward part beside a residual, attention, and a read-out."""
    weights = {name: gaussian(rng, 1, 3, 3) for name in ("query", "key", "value")}
    parts = [
        hs.maps.Residual(hs.maps.MLP(up=gaussian(rng, 4, 3), down=gaussian(rng, 3, 4) / 2, activation=activation)),
        hs.Attention(**weights, output=gaussian(rng, 1, 3, 3) / 2),
        hs.maps.MLP(up=gaussian(rng, 4, 3), down=gaussian(rng, 3, 4) / 2, activation=activation),
    ]
    first = [hs.maps.LayerNorm(gain=gaussian(rng, 3), eps=0.1)] if norm else []
    X = gaussian(rng, 2, 3)
    return hs.maps.Chain(*first, *parts, hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(gaussian(rng, 3, 3))), X


def test_margins_are_lowered_by_what_the_largest_logit_may_have_lost():
    logits = torch.tensor([1.0, 3.0, -5.0], dtype=torch.float64)
    rivals = Rivals.of(logits)
    assert rivals.functionals.tolist() == [[-1, 1, 0], [0, 1, -1]]
    assert rivals.margins.tolist() == pytest.approx([2 - 5 * CHAIN_FLOOR, 8 - 5 * CHAIN_FLOOR], abs=1e-14)
    other = torch.tensor([0.0, 2.0, -9.0], dtype=torch.float64)
    assert rivals.margins_at(other).tolist() == pytest.approx([2 - 9 * CHAIN_FLOOR, 11 - 9 * CHAIN_FLOOR], abs=1e-14)
    assert Rivals.of(logits, [2, 1]).functionals.tolist() == [[0, 1, -1]]


def test_sizes_are_widened_by_a_share_of_themselves_and_of_the_largest():
    found = _outward(torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)).tolist()
    assert found[0] == pytest.approx(4 * CHAIN_FLOOR, rel=1e-12, abs=0)
    assert found[1:] == pytest.approx(
        [CHAIN_FACTOR + 4 * CHAIN_FLOOR, 4 * CHAIN_FACTOR + 4 * CHAIN_FLOOR], rel=1e-15, abs=0
    )


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_first_orders_at_the_output_are_dual_norms_of_gradients(p, rng):
    f, X = network(rng, norm=p != 2.0)
    m, dual = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]).double(), {1.0: math.inf, 2.0: 2.0}.get(p, 1.0)
    for curved in (False, True):
        first, second = WordPerturbation(
            RemainderTable(f, X), torch.tensor([1]), UnitBall(p), second_order=curved
        ).at_output(m)
        for k in range(2):
            slope = torch.autograd.functional.jacobian(lambda x, k=k: f(torch.stack((X[0], x)))[0] @ m[k], X[1])
            assert float(first[k]) == pytest.approx(
                CHAIN_FACTOR * float(torch.linalg.vector_norm(slope, dual)), rel=1e-12
            )
        assert bool(second.any()) == curved


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("curved", [True, False])
def test_remainders_follow_one_from_another(curved, norm, activation, rng):
    f, X = network(rng, activation, norm)
    table, tokens, eps = RemainderTable(f, X), torch.tensor([1]), 0.05
    way = WordPerturbation(table, tokens, EUCLIDEAN, second_order=curved)
    assert way._turns == norm
    found, reach = torch.zeros(0, dtype=torch.float64), {}
    for place, stage in table.stages.items():
        if place not in way._first:
            own = stage.turning_remainder(eps, tokens, second_order=curved)
        else:
            later = found @ table.transfer[place] if place in table.transfer else torch.zeros_like(way._first[place])
            later = later + eps**2 * way._second[place] if place in way._second else later
            one, rest = _outward(eps * way._first[place]), _outward(later)
            if stage.name == "mlp" and activation == "relu":
                reach[place] = (one + rest).view(2, 4)
            if curved and isinstance(stage, SmoothStage):
                inside = way._forms.get(place)
                own = stage.third_order_remainder(one, rest, None if inside is None else _outward(eps**2 * inside))
            else:
                own = stage.remainder(one + rest, FirstOrder(way._first[place], way._columns[place], eps, EUCLIDEAN))
        found = torch.cat((found, CHAIN_FACTOR * own))
    torch.testing.assert_close(way.remainders(eps), found, rtol=1e-12, atol=0)
    assert way.unit_ranges(eps).keys() == reach.keys()
    for place, sizes in way.unit_ranges(eps).items():
        torch.testing.assert_close(sizes, reach[place], rtol=1e-12, atol=0)
    assert (len(reach) == 2) == (activation == "relu")


def test_what_is_left_of_a_margin_is_what_first_second_and_remainders_leave(rng):
    f, X = network(rng)
    table, rivals, eps = RemainderTable(f, X), Rivals.of(f(X)[0]), 0.03
    tokens = torch.tensor([1])
    proof = Proof(table, rivals, tokens, EUCLIDEAN)
    way = WordPerturbation(table, tokens, EUCLIDEAN, second_order=True)
    first, second = way.at_output(rivals.functionals)
    left = rivals.margins - eps * first - eps**2 * second - way.remainders(eps) @ table.transfer_to(rivals.functionals)
    torch.testing.assert_close(proof.margins(eps), left, rtol=1e-12, atol=1e-14)
    assert proof.linear == pytest.approx(min((rivals.margins / first).tolist()), rel=1e-12)
    assert proof.margins(1e100).tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("winner", [0, 1, 2])
def test_the_first_order_ends_where_the_first_margin_is_used_up(winner):
    # whichever rival is nearest
    W = torch.tensor([[2.0, 0.0], [0.0, 1.5], [0.5, 0.5]], dtype=torch.float64).roll(winner, 0)
    X = torch.tensor([[1.0, 0.2]], dtype=torch.float64)
    f = hs.maps.Dense(W)
    rivals = Rivals.of(f(X)[0])
    exact = min(float(m) / float((g @ W).norm()) for m, g in zip(rivals.margins, rivals.functionals, strict=True))
    assert Proof(RemainderTable(f, X), rivals, torch.tensor([0]), EUCLIDEAN).linear == pytest.approx(exact, rel=1e-8)


def test_the_radius_is_the_largest_that_holds(rng):
    f, X = network(rng)
    rivals, table = Rivals.of(f(X)[0]), RemainderTable(f, X)
    for tokens in (torch.tensor([0]), torch.tensor([0, 1])):
        proof = Proof(table, rivals, tokens, EUCLIDEAN)
        for near in (None, 0.0, 1e-9, proof.radius(), 1e9):  # wherever the search begins
            found = proof.radius(near)
            assert found > 0
            assert proof.holds(found)
            assert not proof.holds(found * (1 + 2.2e-4))


def test_few_radii_are_tried(rng, monkeypatch):
    f, X = network(rng)
    proof = Proof(RemainderTable(f, X), Rivals.of(f(X)[0]), torch.tensor([0]), EUCLIDEAN)
    tried, used = [], Proof.used
    monkeypatch.setattr(Proof, "used", lambda self, eps: tried.append(eps) or used(self, eps))
    radius = proof.radius()
    assert len(tried) <= 16
    tried.clear()
    assert proof.radius(1.3 * radius) == pytest.approx(radius, rel=2.2e-4)
    assert len(tried) <= 10


def test_no_share_of_a_margin_that_is_negative_is_left(rng):
    f, X = network(rng)
    rivals = Rivals.of(f(X)[0])
    proof = Proof(RemainderTable(f, X), rivals, torch.tensor([0]), EUCLIDEAN)
    assert 0 <= proof.used(1e-12) < 1
    proof._margins = -rivals.margins
    assert proof.used(0.0) == math.inf
    assert not proof.holds(0.0)


def test_a_word_that_no_margin_depends_on_may_go_as_far_as_is_looked():
    X = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    f = hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(torch.eye(2, dtype=torch.float64)))
    proof = Proof(RemainderTable(f, X), Rivals.of(f(X)[0]), torch.tensor([1]), EUCLIDEAN)
    assert proof.linear == math.inf
    assert proof.radius() == pytest.approx(5 * LARGEST_RADIUS, rel=1e-12)


def test_a_margin_of_zero_is_not_held():
    X = torch.zeros(1, 2, dtype=torch.float64)
    f = hs.maps.Dense(torch.eye(2, dtype=torch.float64))
    proof = Proof(RemainderTable(f, X), Rivals.of(f(X)[0]), torch.tensor([0]), EUCLIDEAN)
    assert proof.margins(0.0).tolist() == [0.0]
    assert not proof.holds(0.0)
    assert proof.radius() == 0.0


def test_second_orders_are_exact_up_to_so_many_numbers(monkeypatch, rng):
    X = gaussian(rng, 3, 4)
    table = RemainderTable(hs.maps.Chain(hs.maps.Pooling.first(n=3, like=X), hs.maps.Dense(gaussian(rng, 2, 4))), X)
    # 8 coordinates move, 36 pairs of them, each a column of 3 times 4
    for limit, said in ((36 * 12, True), (36 * 12 - 1, False)):
        monkeypatch.setattr(radius_search, "SECOND_ORDER_NUMBERS", limit)
        assert second_order_affordable(table, torch.tensor([0, 2])) is said


def certified(radii, metric="total"):
    """Return a linear classifier with two rivals, and a certificate that says what it is told."""
    W = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    f, X = hs.maps.Dense(W), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    told = tuple(Radius(tokens=(0,), certified=r, attacked=9.0, linear=9.0, slack=None, seconds=0.0) for r in radii)
    return Certificate(
        radii=told, predicted=0, rivals=Rivals.of(f(X)[0]), metric=metric, seconds=0.0, classifier=f,
        embeddings=X,
    )  # fmt: skip


def test_verifying_finds_what_contradicts_a_certificate_and_returns_the_smallest_margin():
    # margins 3 and 1 at the centre; the second one falls by √10 for every unit
    assert certified(()).verify() == pytest.approx(1.0, abs=1e-9)
    assert certified((0.0,)).verify() == pytest.approx(1.0, abs=1e-9)
    assert certified((0.3, 0.1)).verify(samples=2) == pytest.approx(1 - 0.3 * math.sqrt(10), rel=2e-2)
    assert certified((0.1, 0.3)).verify(samples=2) == pytest.approx(1 - 0.3 * math.sqrt(10), rel=2e-2)
    with pytest.raises(AssumptionError, match="inside the ball"):
        certified((0.1, 0.33)).verify(samples=2)


@pytest.mark.parametrize(("metric", "p"), [("sum", 1.0), ("total", 2.0)])
def test_samples_lie_on_the_surface_of_the_ball_and_are_as_many_as_asked(metric, p, monkeypatch):
    monkeypatch.setattr(certify, "BATCH", 5)
    found = certified((0.2,), metric)
    f, X, functionals = found.classifier, found.embeddings, found.rivals.functionals
    mine, theirs = (torch.Generator().manual_seed(3) for _ in range(2))
    expected = []
    for count in (5, 5, 2):
        margins = [f(X + 0.2 * e)[0] @ functionals.mT for e in random_sphere((count, 1, 2), p, mine)]
        expected.append(float(torch.stack(margins).min()))
    assert found._sampled(found.radii[0], 12, theirs) == pytest.approx(expected, rel=1e-12)


def test_rounding_in_a_module_may_change_a_margin_by_the_root_of_two(monkeypatch):
    found = certified((0.2,))
    assert found._rounding_error() == 0.0
    monkeypatch.setattr(certify, "rounding", lambda *_asked: (None, torch.tensor(3.0)))
    object.__setattr__(found, "module", lambda X: X)
    assert found._rounding_error() == pytest.approx(3 * math.sqrt(2), rel=1e-12)


def test_seconds_are_those_that_have_passed(rng):
    f, X = network(rng)
    began = time.perf_counter()
    found = hs.certify(f, X, word=0)
    passed = time.perf_counter() - began
    assert 0 < found.radii[0].seconds <= found.seconds <= passed
    certifier = SentenceCertifier(f, X)
    assert certifier.seconds == 0
    assert certifier.table is certifier.table
    assert 0 < certifier.seconds <= time.perf_counter() - began - passed


def test_slack_is_named_where_something_is_proven(rng):
    f, X = network(rng)
    certifier, generator = SentenceCertifier(f, X), torch.Generator().manual_seed(0)
    found = certifier.radius([0], p=2.0, seed=generator)
    assert found.certified > 0
    assert found.slack in certifier.table.groups
    beyond_floats = hs.maps.MLP(up=1e200 * gaussian(rng, 3, 3), down=1e200 * gaussian(rng, 3, 3))
    nothing = SentenceCertifier(hs.maps.Chain(*f.maps[:-1], beyond_floats), X).radius([0], p=2.0, seed=generator)
    assert (nothing.certified, nothing.slack) == (0, None)


def test_radii_whose_squares_are_no_floats_are_proven_where_nothing_is_of_second_order():
    # the margin is used up at 1e160/√2, where a square would overflow
    X = torch.tensor([[1e160, 0.0]], dtype=torch.float64)
    f = hs.maps.Dense(torch.eye(2, dtype=torch.float64))
    proof = Proof(RemainderTable(f, X), Rivals.of(f(X)[0]), torch.tensor([0]), EUCLIDEAN)
    assert proof.radius() == pytest.approx(1e160 / math.sqrt(2), rel=2e-3)


def test_squares_of_radii_multiply_norms_and_are_infinite_where_they_overflow(rng):
    norms = torch.tensor([0.0, 3.0, 1e-300], dtype=torch.float64)
    assert times_square(2.0, norms).tolist() == [0.0, 12.0, 4e-300]
    assert times_square(1e153, norms).tolist() == pytest.approx([0.0, 3e306, 1e6], rel=1e-12)
    assert times_square(1e155, norms).tolist() == [0.0, math.inf, math.inf]
    f, X = network(rng)
    proof = Proof(RemainderTable(f, X), Rivals.of(f(X)[0]), torch.tensor([1]), EUCLIDEAN)
    assert proof.margins(1e200).tolist() == [-math.inf, -math.inf]


def test_slack_is_the_group_that_takes_most_of_any_margin(rng, monkeypatch):
    f, X = network(rng)
    proof = Proof(RemainderTable(f, X), Rivals.of(f(X)[0]), torch.tensor([1]), EUCLIDEAN, second_order=False)
    groups = proof.table.groups
    proof._transfer = torch.zeros(len(groups), 2, dtype=torch.float64)
    proof._transfer[0, 0], proof._transfer[3, 1] = 1.0, 2.0
    monkeypatch.setattr(proof._word, "remainders", lambda eps: torch.ones(len(groups), dtype=torch.float64))
    assert proof.slack(0.1) == groups[3]
