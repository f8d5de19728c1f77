"""Verdicts: known answers, counterexamples that are replayed, refusals."""

import itertools
import math
import types

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import gaussian, network, outputs, smooth_network

import howsmooth as hs
from howsmooth.maps.affine import Affine
from howsmooth.rounding import BOX_UNITS, MARGIN_SHARE
from howsmooth.verification import Property, Verdict, verdicts, verify
from howsmooth.verification.branch_and_bound import SplitOutcome
from howsmooth.verification.taylor_model import NEVER, Deadline
from howsmooth.verification.verdicts import _cost_of_forms, _expanded, _falsify, _Margins, _Network, _prove


def attacked(f, x, eps, label, rng):
    """The least margin that steps along signs of gradients find."""
    xi = torch.randint(-1, 2, (32, len(x)), generator=rng).double()
    for step in range(30):
        xi.requires_grad_()
        y = outputs(f, x + eps * xi)
        margins = y[:, [label]] - y
        worst = margins + 1e9 * torch.nn.functional.one_hot(torch.tensor(label), 3)
        (gradient,) = torch.autograd.grad(worst.amin(1).sum(), xi)
        xi = (xi.detach() - 2 * (1 - step / 30) ** 2 * gradient.sign()).clamp(-1, 1)
    y = outputs(f, x + eps * xi)
    return float((y[:, [label]] - y + 1e9 * torch.nn.functional.one_hot(torch.tensor(label), 3)).min())


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_is_proven_can_be_attacked_and_what_is_falsified_is_unsafe(seed):
    rng = torch.Generator().manual_seed(seed)
    f = network(rng, layers=1 + seed % 2)
    x = gaussian(rng, 6)
    label = int(outputs(f, x).argmax())
    verdicts = []
    for eps in (0.001, 0.05, 3.0):
        wanted = Property.robust(x, eps=eps, label=label, classes=3)
        verdict = verify(f, wanted, timeout=2)
        verdicts.append(verdict.status)
        least = attacked(f, x, eps, label, rng)
        if verdict.status == "proven":
            assert least > 0
            assert (verdict.margins > 0).all()
        if verdict.status == "falsified":
            assert (wanted.lower <= verdict.counterexample).all()
            assert (verdict.counterexample <= wanted.upper).all()
            assert int(outputs(f, verdict.counterexample).argmax()) != label
    assert verdicts[0] == "proven"
    order = ["proven", "unknown", "falsified"]
    assert verdicts == sorted(verdicts, key=order.index)


@pytest.mark.parametrize("inside", [True, False])
def test_a_planted_counterexample_just_inside_is_found_and_just_outside_the_box_is_safe(rng, inside):
    """A margin that is 1 − |x|₁ up to a constant block: the nearest unsafe point of the box is a corner at ε = 1/6."""
    silent = network(rng, layers=1)
    weight = torch.zeros(3, 4, 1, 6).double()
    for k in range(6):
        weight[k // 3 + 1, k % 3, 0, k] = 1.0
    readout = torch.zeros(1, 2, 3, 4).double()
    readout[0, 1, 1, :3] = readout[0, 1, 2, :3] = 1.0
    blocks = [hs.maps.Residual(_scaled(block.map, 1e-9)) for block in silent.maps[1:-1]]
    f = hs.maps.Chain(
        Affine(weight=weight, bias=torch.zeros(3, 4).double()),
        *blocks,
        Affine(weight=readout, bias=torch.tensor([[1.0, 0.0]]).double()),
    )
    eps = (1 / 6) * (1 + (1e-4 if inside else -1e-4))
    wanted = Property.robust(torch.zeros(6).double(), eps=eps, label=0, classes=2)
    assert verify(f, wanted, timeout=20).status == ("falsified" if inside else "proven")


def sigmoid_attention(scale, threshold):
    r"""Two tokens, (0, 0) and (x, 1): the first one sees the value 1 with the weight σ(sx), which must stay below."""
    one = torch.ones(1, 1).double()
    attention = hs.Attention(
        query=0 * one.expand(1, 1, 2),
        query_bias=one,
        key=torch.tensor([[[1.0, 0.0]]]).double(),
        value=torch.tensor([[[0.0, 1.0]]]).double(),
        output=one[None],
        scale=scale,
    )
    readout = hs.maps.Dense(torch.tensor([[0.0], [1.0]]).double(), torch.tensor([threshold, 0.0]).double())
    return attention, (hs.maps.Pooling.first(n=2, like=one), readout)


@pytest.mark.parametrize("scale", [1.0, -3.0])
@pytest.mark.parametrize("change", [0.01, 0.1])
def test_one_weight_of_an_attention_is_a_logistic_function_whose_threshold_is_known(scale, change):
    nearest = change / abs(scale)
    attention, behind = sigmoid_attention(scale, 1 / (1 + math.exp(-change)))
    embedding = Affine(
        weight=torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double()[:, :, None, None],
        bias=torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double(),
    )
    f = hs.maps.Chain(embedding, attention, *behind)
    for eps, expected in ((0.98 * nearest, "proven"), (1.0001 * nearest, "falsified")):
        assert verify(f, Property.robust(torch.zeros(1).double(), eps=eps, label=0, classes=2)).status == expected


@pytest.mark.parametrize("n", [2, 5])
def test_attention_that_sees_all_tokens_alike_is_a_mean_with_a_known_radius(n, rng):
    d = 3
    zero, direction = torch.zeros(1, 2, d).double(), gaussian(rng, d)
    attention = hs.Attention(query=zero, key=gaussian(rng, 1, 2, d), value=torch.eye(d).double()[None])
    X = gaussian(rng, n, d)
    margin = direction @ X.mean(0)
    direction = direction * margin.sign()
    readout = hs.maps.Dense(torch.stack((direction, 0 * direction)))
    f = hs.maps.Chain(attention, hs.maps.Pooling.first(n=n, like=X), readout)
    radius = float(margin.abs() / direction.abs().sum())  # every coordinate of every token moves by as much
    for share, expected in ((1 - 1e-6, "proven"), (1 + 1e-6, "falsified")):
        assert verify(f, Property.robust(X, eps=share * radius, label=0, classes=2)).status == expected


def _scaled(f, size):
    import dataclasses

    if isinstance(f, hs.maps.MLP):
        return dataclasses.replace(f, down=size * f.down, down_bias=size * f.down_bias)
    return dataclasses.replace(f, output=size * f.output, output_bias=size * f.output_bias)


def test_of_an_unsafe_set_one_inequality_that_fails_is_enough(rng):
    f = network(rng, layers=1)
    x = gaussian(rng, 6)
    y = outputs(f, x)
    A = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]).double()
    impossible = (A, torch.stack([y[0] - 5, y[1] + 5]))
    verdict = verify(f, Property(x - 0.01, x + 0.01, (impossible,)), timeout=20)
    assert verdict.status == "proven"
    assert verdict.margins.item() > 4
    possible = (A, torch.stack([y[0] - 5, y[1] - 5]))
    assert verify(f, Property(x - 0.01, x + 0.01, (possible,)), timeout=20).status == "falsified"


def test_infinite_numbers_prove_nothing(rng):
    f = network(rng, layers=1)
    x = gaussian(rng, 6)
    wanted = Property.robust(x, eps=1e200, label=0, classes=3)
    found = verify(f, wanted, timeout=5)
    assert found.status != "proven"
    far = Property.robust(x, eps=1e3, label=int(outputs(f, x).argmax()), classes=3)
    assert _prove(_Network.of(f, far), far, None, 0.0, Deadline.after(5)).margins.max() == -math.inf


def test_what_does_not_fit_is_refused_in_one_sentence(rng):
    f = network(rng, layers=1)
    wanted = Property.robust(gaussian(rng, 5), eps=0.1, label=0, classes=3)
    with pytest.raises(hs.errors.ShapeError, match="6 inputs, the property bounds 5"):
        verify(f, wanted)
    tokens = hs.maps.Chain(*f.maps[1:])
    with pytest.raises(hs.errors.ShapeError, match=r"must be \(n, d\).*got \(6,\)"):
        verify(tokens, Property.robust(gaussian(rng, 6), eps=0.1, label=0, classes=3))
    with pytest.raises(hs.errors.ShapeError, match="one row, as behind pooling; got 3"):
        verify(hs.maps.Chain(*f.maps[:-1]), Property.robust(gaussian(rng, 6), eps=0.1, label=0, classes=4))
    with pytest.raises(hs.errors.ShapeError, match="3 outputs"):
        verify(f, Property.robust(gaussian(rng, 6), eps=0.1, label=0, classes=4))
    with pytest.raises(hs.errors.AssumptionError, match="float64"):
        verify(f.to(torch.float32), Property.robust(gaussian(rng, 6), eps=0.1, label=0, classes=3))
    with pytest.raises(hs.errors.AssumptionError, match="positive number of seconds"):
        verify(f, wanted, timeout=0)
    with pytest.raises(hs.errors.FieldError, match="lower bound"):
        Property(torch.ones(2), torch.zeros(2), wanted.unsafe)


def test_a_box_is_expanded_a_little_larger_than_rounding_and_inputs_that_stay_have_no_symbol(rng):
    f, x = network(rng, layers=1), 100 * gaussian(rng, 6)
    half = torch.tensor([0.5, 1e-3, 0.0, 2.0, 0.0, 1.0]).double()
    wanted = Property(x - half, x + half, ((torch.ones(1, 3).double(), torch.zeros(1).double()),))
    model = _expanded(_Network.of(f, wanted), wanted, 0)
    weight = f.maps[0].weight[..., 0, :]  # n, d, inputs
    middle, half = (wanted.upper + wanted.lower) / 2, (wanted.upper - wanted.lower) / 2
    room = BOX_UNITS * torch.finfo(torch.float64).eps * (middle.abs() + half)
    wider = torch.where(half > 0, half + room, 0.0)
    reach, expected = model.symbols.generators.abs().sum(-1), (weight.abs() * wider).sum(-1)
    assert_close(reach[reach > 0].sort().values, expected[expected > 0].sort().values, rtol=1e-14, atol=0)


@pytest.mark.untyped
def test_whoever_gives_a_model_is_told_where_its_map_is(rng):
    wanted = Property.robust(gaussian(rng, 3, 64), eps=0.1, label=0, classes=2)
    with pytest.raises(hs.errors.AssumptionError, match=r"got Transformer.*\.classifier"):
        verify(hs.load("reviews"), wanted)


def test_a_verdict_says_what_it_is():
    verdict = Verdict("unknown", torch.zeros(1), None, None, 1.5)
    assert repr(verdict) == "Verdict(unknown: neither a proof nor a counterexample was found, 1.5 s)"


@pytest.mark.parametrize("linear_end", [True, False])
def test_margins_are_what_models_say_less_all_that_rounding_may_add(rng, linear_end):
    """Every part by its formula; allowances for rounding errors stand out where what they are shares of is large."""
    f, x = network(rng, layers=1), gaussian(rng, 6)
    if not linear_end:
        f = hs.maps.Chain(*f.maps, hs.maps.Residual(hs.maps.Dense(gaussian(rng, 3, 3))))
    rows, bounds = gaussian(rng, 4, 3), gaussian(rng, 4)
    wanted = Property(x - 0.3, x + 0.3, ((rows, bounds),))
    model = _expanded(_Network.of(f, wanted), wanted, 1)
    found, base = _Margins.of(model, rows, bounds), model.symbols.coordinates
    linear = -torch.einsum("fo,or->fr", rows, model.derivative[0])
    beyond = model.beyond_linear(-rows[:, None], forms=True)
    assert_close(found.units, linear[:, base:])
    assert found.units.abs().min() > 1e-3
    assert_close(found.pixels, model.symbols.pixels(linear))
    for mine, theirs in ((found.second_order, beyond.below), (found.remainder, beyond.remainder)):
        assert (theirs > 1e-6).all()
        assert_close((mine / theirs - 1) / MARGIN_SHARE, torch.ones(4).double(), rtol=1e-5, atol=0)
    size = torch.einsum("fo,o->f", rows.abs(), model.centre[0].abs()) + bounds.abs() + linear.abs().sum(1)
    if linear_end:
        readout = f.maps[-1].weight[0]  # 3, n, d
        size += torch.einsum(
            "fnd,nd->f", torch.einsum("fo,ond->fnd", rows, readout).abs(), model.stages[-1].entered.abs()
        )
    size += beyond.below + beyond.remainder
    exact = bounds - rows @ model.centre[0]
    assert_close((exact - found.centre) / (MARGIN_SHARE * size), torch.ones(4).double(), rtol=1e-5, atol=0)
    moves = found.pixels.abs().sum(1) + found.units.abs().sum(1)
    rest = found.centre - found.second_order - found.remainder
    assert_close((rest - found.lower) / moves - 1, torch.full((4,), MARGIN_SHARE).double(), rtol=1e-5, atol=0)
    for row in range(4):
        objective = found.objective(row)
        assert_close(objective.centre, rest[row])
        assert_close(torch.cat((objective.pixels, objective.units)), torch.cat((found.pixels[row], found.units[row])))
        parts = (found.centre, found.pixels.abs().sum(1), found.units.abs().sum(1), found.second_order, found.remainder)
        assert list(found.uses(row).values()) == [float(part[row]) for part in parts]


class Ticks:
    """A clock that goes on by one second whenever it is read."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_a_deadline_ends_the_attack_and_every_expansion(rng):
    f, x = smooth_network(rng), gaussian(rng, 3, 4)
    wanted = Property.robust(x, eps=0.02, label=int(f(x).argmax()), classes=3)
    whole = Ticks()
    found = verify(f, wanted, timeout=1e6, clock=whole)
    assert found.status == "unknown"
    assert found.level == 2
    assert not found.margins.isnan().any()
    for share in (0.1, 0.5, 0.9):
        clock = Ticks()
        earlier = verify(f, wanted, timeout=share * whole.now, clock=clock)
        assert earlier.status == "unknown"
        assert share * whole.now < clock.now <= share * whole.now + 5  # it is read a few times more
        assert earlier.seconds <= clock.now


def test_without_any_bound_margins_are_no_numbers(rng):
    f, x = smooth_network(rng), gaussian(rng, 3, 4)
    found = verify(f, Property.robust(x, eps=1e-3, label=int(f(x).argmax()), classes=3), timeout=1.0, clock=Ticks())
    assert found.status == "unknown"
    assert found.margins.isnan().all()
    assert found.uses is None
    far = Property.robust(x, eps=3.0, label=int(f(x).argmax()), classes=3)
    assert verify(f, far, timeout=1.0, clock=Ticks()).status == "unknown"
    assert verify(f, far).status == "falsified"


@pytest.mark.parametrize("level", [1.0, -1.0])
def test_the_corner_of_a_box_is_found_where_it_alone_is_unsafe(rng, level):
    """A margin that is linear in many inputs, at a corner just inside of an unsafe set of two inequalities."""
    weight, x = gaussian(rng, 300), gaussian(rng, 300)
    half = 0.01 * torch.rand(300, generator=rng).double()
    highest = float(weight @ x + weight.abs() @ half)
    embedding = Affine(
        weight=torch.stack((0 * weight, weight))[None, :, None], bias=torch.tensor([[level, level - highest]]).double()
    )
    f = hs.maps.Chain(embedding, hs.maps.Dense(torch.eye(2).double()))
    share = 1e-9 * float(weight.abs() @ half)
    both = (torch.eye(2).double(), torch.tensor([level - 5, level - share]).double())
    found = verify(f, Property(x - half, x + half, (both,)))
    assert found.status == "falsified"
    assert ((x - half <= found.counterexample) & (found.counterexample <= x + half)).all()
    assert_close(found.outputs, f(found.counterexample[None])[0])
    assert found.outputs[1] >= level - share
    beyond = (torch.eye(2).double(), torch.tensor([level - 5, level + 1e-6]).double())
    assert verify(f, Property(x - half, x + half, (beyond,))).status == "proven"


def attacked_points(rng, outputs, offsets):
    """All inputs that the search runs, one for each of the sets {y: y₀ ≥ b} at every step, and the box."""
    lower, half = gaussian(rng, 5), torch.rand(5, generator=rng).double()
    row, found = torch.tensor([[1.0]]).double(), []

    def run(x):
        found.append(x.detach().clone())
        return outputs(x)

    sets = tuple((row, torch.tensor([b]).double()) for b in offsets)
    network, wanted = types.SimpleNamespace(outputs=run), Property(lower, lower + 2 * half, sets)
    assert _falsify(network, wanted, None, NEVER)[0] is None
    return found, lower + half, half


@pytest.mark.untyped
def test_an_attack_goes_along_signs_of_gradients_with_steps_that_shrink(rng):
    weight = gaussian(rng, 5)

    def outputs(x):
        return (weight * torch.sin(4 * x)).sum(-1, keepdim=True)

    points, centre, half = attacked_points(rng, outputs, (30.0, 30.0))
    assert_close(points[0], centre.expand(2, 5))
    assert_close((points[20] - centre).abs(), half.expand(2, 5))  # the next start is a corner
    for place, (now, then) in enumerate(itertools.pairwise(points)):
        step = place % 20
        if step < 19:
            slope = weight * torch.cos(4 * now)  # of the same sign as the derivative
            moved = (now - centre) / half + 2 * (1 - step / 20) ** 2 * slope.sign()
            assert_close(then, centre + half * moved.clamp(-1, 1))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("distances", "starts"), [((1.0, 0.4), 4), ((0.4, 1.0), 4), ((1.0, 0.6), 2), ((0.6, 1.0), 2), ((1.0,), 2)]
)
def test_attacks_that_stay_far_from_every_set_end_early(rng, distances, starts):
    points, _centre, _half = attacked_points(rng, lambda x: 1e-9 * x.sum(-1, keepdim=True), distances)
    assert len(points) == 20 * starts


def test_seconds_are_those_of_the_clock(rng):
    f, x = smooth_network(rng), gaussian(rng, 3, 4)
    for eps, status in ((1e-4, "proven"), (3.0, "falsified")):
        clock = Ticks()
        found = verify(f, Property.robust(x, eps=eps, label=int(f(x).argmax()), classes=3), timeout=1e4, clock=clock)
        assert (found.status, found.seconds) == (status, clock.now - 1)


class Scripted:
    """What stands in for margins and for splitting: numbers for every level, and a record of what was asked."""

    def __init__(self, monkeypatch, sets, lowers, outcomes=None):
        self.lowers, self.outcomes, self.split, self.levels, self.told = lowers, outcomes or [], [], [], []
        self.wanted = Property(
            torch.zeros(1).double(),
            torch.ones(1).double(),
            tuple((torch.zeros(size, 1).double(), torch.zeros(size).double()) for size in sets),
        )
        symbols = types.SimpleNamespace(coordinates=2)
        model = types.SimpleNamespace(
            derivative=torch.zeros(1, 1, 2 + bool(outcomes)).double(), symbols=symbols, execution=None
        )

        def expanded(_network, _wanted, level, _deadline, _read=None):
            self.levels.append(level)
            return model

        def margins(_model, _rows, _bounds):
            lower = torch.tensor(self.lowers[self.levels[-1]]).double()
            return types.SimpleNamespace(lower=lower, objective=int, uses=lambda row: {"row": self.told.append(row)})

        def split(_units, row, deadline):
            self.split.append((self.levels[-1], row, deadline.at))
            return SplitOutcome(*self.outcomes.pop(0))

        for name, value in (("_expanded", expanded), ("split", split), ("_cost_of_forms", lambda *_: 0.0)):
            monkeypatch.setattr(verdicts, name, value)
        monkeypatch.setattr(verdicts._Margins, "of", margins)
        monkeypatch.setattr(verdicts.BentUnits, "of", lambda _model: None if outcomes is None else object())

    def run(self, timeout=1e6):
        clock = Ticks()
        return _prove(None, self.wanted, None, clock(), Deadline.after(timeout, clock))


@pytest.mark.untyped
def test_levels_go_on_until_every_set_is_excluded_once(monkeypatch):
    # what one level proves stays proven; of each set one row is enough
    script = Scripted(monkeypatch, (1, 2), [[1.0, -1.0, -4.0], [-2.0, -1.0, -3.0], [-5.0, -2.0, 3.0]])
    found = script.run()
    assert (found.status, found.level, found.nodes) == ("proven", 2, 0)
    assert found.margins.tolist() == [1.0, 3.0]
    assert script.levels == [0, 1, 2]
    assert script.told == [2, 2, 0]
    # zero is not positive
    script = Scripted(monkeypatch, (1, 1), [[0.0, 1.0]] * 3)
    found = script.run()
    assert (found.status, script.levels, found.margins.tolist()) == ("unknown", [0, 1, 2], [0.0, 1.0])
    script = Scripted(monkeypatch, (2,), [[-1.0, 2.0]] * 3)
    found = script.run()
    assert (found.status, script.levels, found.margins.tolist()) == ("proven", [0], [2.0])
    # where forms are too dear there is one level
    script = Scripted(monkeypatch, (1,), [[-1.0]] * 3)
    monkeypatch.setattr(verdicts, "_cost_of_forms", lambda *_: 1e12)
    assert (script.run().status, script.levels) == ("unknown", [0])


@pytest.mark.untyped
def test_rows_are_split_from_the_least_one_on_and_not_at_the_first_level(monkeypatch):
    lowers = [[-1.0, -2.0, 3.0, -9.0]] * 3
    outcomes = [(True, 0.125, 5), (False, -0.5, 7), (True, 0.25, 2)]
    script = Scripted(monkeypatch, (1, 1, 2), lowers, list(outcomes))
    found = script.run()
    assert (found.status, found.nodes, found.level) == ("proven", 14, 2)
    assert found.margins.tolist() == [0.25, 0.125, 3.0]
    # level 1 may split for as long as it took to expand, the last level for all the time that is left
    (one, row, until), (two, other, same), (three, again, end) = script.split
    assert [(one, row), (two, other), (three, again)] == [(1, 1), (1, 0), (2, 0)]
    assert until == same
    # four ticks behind that of the deadline the level begins, one later it is expanded, another one is for splitting
    assert until == end - 1e6 + 6
    script = Scripted(monkeypatch, (1, 1, 2), lowers, list(outcomes))
    assert script.run(timeout=4.5).status == "unknown"
    assert all(at == 6.5 for _level, _row, at in script.split)
    # zero is not positive: such a row is split too
    script = Scripted(monkeypatch, (1,), [[0.0]] * 3, [(True, 0.5, 3)])
    found = script.run()
    assert (found.status, found.nodes, found.margins.tolist()) == ("proven", 3, [0.5])
    # what splitting finds may be less than what is known
    script = Scripted(monkeypatch, (1,), [[-1.0]] * 3, [(False, -7.0, 1), (False, -6.0, 1)])
    assert script.run().margins.tolist() == [-1.0]


@pytest.mark.untyped
def test_the_cost_of_forms_is_the_cube_of_their_size_for_every_score(rng):
    f = network(rng, layers=3, heads=2)
    model = types.SimpleNamespace(derivative=torch.zeros(1, 1, 11))
    wanted = Property.robust(gaussian(rng, 6), eps=0.1, label=0, classes=3)
    assert _cost_of_forms(_Network.of(f, wanted), model) == 3 * 2 * 3**2 * 11**3
