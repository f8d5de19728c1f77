"""Taylor models of random networks: no input of the box is outside of what they say."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close
from verification.fuzz import ROUNDING, attack
from verification.small_networks import entered, gaussian, network, outputs, smooth_network

import howsmooth as hs
from howsmooth.maps.activations import Pointwise
from howsmooth.verification.attention_expansion import AttentionExpansion
from howsmooth.verification.network_expansion import LinearStage
from howsmooth.verification.properties import Property
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.taylor_model import Forms
from howsmooth.verification.verdicts import _expanded, _Margins, _Network

LEVELS = (0, 1, 2)


def around(rng, f, eps):
    """A box of this size, points of it (corners and inner ones), and the property that class 0 is never beaten."""
    x = gaussian(rng, f.maps[0].weight.shape[-1])
    wanted = Property.robust(x, eps=eps, label=0, classes=3)
    corner = torch.randint(0, 2, (300, len(x)), generator=rng).double() * 2 - 1
    inner = corner * torch.rand(300, 1, generator=rng).double()
    return wanted, x + eps * torch.cat([corner, inner])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("eps", [1e-4, 0.02, 0.3, 3.0])
def test_no_input_of_the_box_has_a_smaller_margin(rng, eps, level):
    for layers, shared in ((1, False), (2, False), (2, True), (3, False)):
        f = network(rng, layers=layers, shared_inputs=shared)
        wanted, points = around(rng, f, eps)
        stages = _Network.of(f, wanted)
        model = _expanded(stages, wanted, level)
        rows = torch.cat([A for A, _b in wanted.unsafe])
        margins = _Margins.of(model, rows, torch.zeros(len(rows), dtype=torch.float64))
        found = -(outputs(f, points) @ rows.mT)
        assert (margins.lower <= found.amin(0)).all()


def test_scores_that_overflow_hide_nothing():
    rng = torch.Generator().manual_seed(89)
    f, x = network(rng, layers=3), gaussian(rng, 6)
    wanted = Property.robust(x, eps=0.3 * (torch.arange(6) > 1), label=0, classes=3)
    rows = torch.cat([A for A, _b in wanted.unsafe])
    model = _expanded(_Network.of(f, wanted), wanted, 2)
    assert (_Margins.of(model, rows, torch.zeros(2).double()).lower == -torch.inf).all()


@pytest.mark.parametrize("seed", [3, 8, 19, 164])
def test_no_attacked_point_of_a_box_contradicts_what_is_proven(seed):
    found = attack(seed, points=40)
    assert found.worst >= -ROUNDING, found.what
    assert 0 < found.used <= 1 + 1e-9
    assert found.planted != "proven"


@pytest.mark.parametrize(
    ("part", "share", "seed"),
    [("remainder", 0.5, 3), ("second_order", 0.5, 18), ("units", 0.5, 113), ("pixels", 0.99, 9)],
)
def test_attacks_contradict_a_bound_that_is_too_small(part, share, seed, monkeypatch):
    of = _Margins.of

    def broken(*model):
        margins = of(*model)
        return dataclasses.replace(margins, **{part: share * getattr(margins, part)})

    monkeypatch.setattr(_Margins, "of", broken)
    assert attack(seed, points=100).worst < -1e-9


@pytest.mark.parametrize("eps", [1e-4, 0.02, 0.1, 0.5])
def test_norms_smooth_activations_and_masks(rng, eps):
    """Every token moves, or one alone; bounds hold at corners and inside, and are not far from what is met there."""
    lost = []
    for activation, norm, before, causal in (
        ("gelu", hs.maps.LayerNorm, True, True),
        ("gelu_tanh", hs.maps.RMSNorm, True, False),
        ("silu", hs.maps.LayerNorm, False, False),
        ("relu", hs.maps.LayerNorm, False, True),
    ):
        f = smooth_network(rng, activation=activation, norm=norm, before=before, causal=causal)
        x = gaussian(rng, 3, 4)
        moving = torch.tensor([[1.0], [0.0], [1.0 if before else 0.0]]).double()
        wanted = Property.robust(x, eps=eps * moving, label=0, classes=3)
        corner = torch.randint(0, 2, (400, 3, 4), generator=rng).double() * 2 - 1
        points = x + eps * moving * torch.cat([corner, corner * torch.rand(400, 1, 1, generator=rng).double()])
        rows = torch.cat([A for A, _b in wanted.unsafe])
        zero = torch.zeros(len(rows), dtype=torch.float64)
        found = -(f(points)[:, 0] @ rows.mT)
        middle = -(f(x)[0] @ rows.mT)
        for level in LEVELS:
            margins = _Margins.of(_expanded(_Network.of(f, wanted), wanted, level), rows, zero)
            assert (margins.lower <= found.amin(0)).all()
        lost.append(float(((middle - margins.lower) / (middle - found.amin(0))).max()))
    assert eps > 0.02 or max(lost) < 3


@pytest.mark.parametrize(("activation", "norm"), [("gelu", hs.maps.LayerNorm), ("tanh", hs.maps.RMSNorm)])
@pytest.mark.parametrize("before", [True, False])
def test_second_orders_are_half_the_hessian(rng, activation, norm, before):
    f = smooth_network(rng, activation=activation, norm=norm, before=before, causal=True)
    x = gaussian(rng, 3, 4)
    wanted = Property.robust(x, eps=1e-3, label=0, classes=3)
    model = _expanded(_Network.of(f, wanted), wanted, 1)
    functional = gaussian(rng, 3)
    forms = Forms(model.symbols, 1, model.derivative.shape[-1], x)
    pulled = functional[None, None]
    for stage in reversed(model.stages):
        pulled = stage.pull_back(pulled, forms)

    def value(tokens):
        return f(tokens)[0] @ functional

    torch.testing.assert_close(pulled[0], torch.func.grad(value)(x), rtol=1e-9, atol=1e-9)
    hessian = torch.func.hessian(value)(x).reshape(12, 12)
    torch.testing.assert_close((forms.matrices + forms.matrices.mT)[0], hessian, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["norm", "activation", "attention"])
def test_what_one_stage_leaves_over_is_of_third_order(rng, kind):
    block = smooth_network(rng).maps[0 if kind != "activation" else 1].map
    stage = {"norm": block.maps[0], "activation": Pointwise(activation="gelu", dtype=torch.float64)}
    f = hs.maps.Chain(
        stage.get(kind, block.maps[1]),
        hs.maps.Pooling.first(n=3, like=gaussian(rng, 4)),
        hs.maps.Dense(gaussian(rng, 3, 4)),
    )
    x = gaussian(rng, 3, 4)
    left = []
    for eps in (1e-2, 1e-3):
        wanted = Property.robust(x, eps=eps, label=0, classes=3)
        rows = torch.cat([A for A, _b in wanted.unsafe])
        left.append(_Margins.of(_expanded(_Network.of(f, wanted), wanted, 1), rows, torch.zeros(2).double()).remainder)
    # of fourth order or third: nothing of second order is left
    assert (left[0] / left[1] > 900).all()


@pytest.mark.parametrize("level", LEVELS)
def test_hidden_units_scores_and_weights_stay_in_their_ranges(rng, level):
    f = network(rng, layers=2)
    wanted, points = around(rng, f, 0.1)
    model = _expanded(_Network.of(f, wanted), wanted, level)
    tokens = f.maps[0](points.unsqueeze(-2))
    for behind, block in zip(model.stages[:-1], f.maps[1:-1], strict=True):
        stage = next(part for part in behind.parts if not isinstance(part, LinearStage))
        if isinstance(stage, ReLURelaxation):
            y = tokens @ block.map.up.mT + block.map.up_bias
            assert (stage.lower <= y.amin(0) + 1e-9).all()
            assert (y.amax(0) - 1e-9 <= stage.upper).all()
            assert not ((y > 0).any(0) & (y < 0).any(0) & ~stage.bent).any()
        else:
            assert isinstance(stage, AttentionExpansion)
            q, k = (
                torch.einsum("hed,bnd->bhne", w, tokens) + b[:, None]
                for w, b in zip(stage.heads.weights[:2], stage.heads.biases[:2], strict=True)
            )
            a = stage.heads.scale * (q @ k.mT - stage.q @ stage.k.mT)
            b = a - (stage.P * a).sum(-1, keepdim=True)
            # the truth is computed here as a difference of scores, which leaves 1e-12 of them in a saturated row
            assert (b.abs().amax(0) <= (stage.alpha1 + stage.alpha2) * (1 + 1e-9) + 1e-10).all()
        tokens = block(tokens)


def test_the_bound_is_of_third_order_where_nothing_bends(rng):
    f = network(rng, layers=1)
    x = gaussian(rng, 6)
    losses = []
    for eps in (1e-2, 1e-3):
        wanted = Property.robust(x, eps=eps, label=0, classes=3)
        stages = _Network.of(f, wanted)
        model = _expanded(stages, wanted, 2)
        assert model.derivative.shape[-1] == model.symbols.coordinates  # no unit bends
        rows = torch.cat([A for A, _b in wanted.unsafe])
        losses.append(_Margins.of(model, rows, torch.zeros(2).double()))
    for a, b in zip(losses[0].second_order, losses[1].second_order, strict=True):
        assert a / b == pytest.approx(100, rel=1e-3)
    # in one layer, what enters attention is linear: nothing of second order is left over
    assert losses[0].remainder.max() / losses[1].remainder.max() == pytest.approx(1000, rel=0.05)


def test_closer_levels_are_closer(rng):
    f = network(rng, layers=2, n=4, inputs=9)
    wanted, _points = around(rng, f, 0.03)
    stages = _Network.of(f, wanted)
    rows = torch.cat([A for A, _b in wanted.unsafe])
    lowers = []
    for level in LEVELS:
        model = _expanded(stages, wanted, level)
        lowers.append(_Margins.of(model, rows, torch.zeros(2).double()).lower.min().item())
    assert lowers[0] < lowers[1]
    assert lowers[0] < lowers[2]


def test_what_has_no_expansion_is_refused(rng):
    f = network(rng, layers=1)
    wanted, _points = around(rng, f, 0.1)
    capped = hs.maps.Residual(dataclasses.replace(f.maps[1].map, softcap=3.0))
    with pytest.raises(hs.errors.AssumptionError, match="plain softmax attention"):
        _expanded(_Network.of(hs.maps.Chain(f.maps[0], capped, *f.maps[2:]), wanted), wanted, 0)
    squared = hs.maps.Residual(dataclasses.replace(f.maps[2].map, activation="relu_squared"))
    with pytest.raises(hs.errors.AssumptionError, match="relu_squared"):
        _expanded(_Network.of(hs.maps.Chain(*f.maps[:2], squared, f.maps[-1]), wanted), wanted, 0)
    with pytest.raises(hs.errors.ShapeError, match="one row for each token"):
        _Network.of(f.maps[1], wanted)


@pytest.mark.parametrize(("forms", "count"), [(True, 40), (False, 600)])
def test_many_functionals_are_bounded_as_each_of_them_is(rng, forms, count):
    f = network(rng, layers=1)
    model, _enters = entered(f, 0.1, [block.map for block in f.maps[1:-1]], gaussian(rng, 6))
    functionals = gaussian(rng, count, *model.centre.shape)
    added = gaussian(rng, count).abs()

    def start(part, sums):
        sums.remainder += added[part]

    found = model.beyond_linear(functionals, forms=forms, start=start)
    for k in (0, 1, 31, 32, 33, 511, 512, 599):
        if k < count:
            alone = model.beyond_linear(functionals[[k]], forms=forms)
            for name in ("below", "above"):
                assert_close(getattr(found, name)[k], getattr(alone, name)[0])
            assert_close(found.remainder[k], alone.remainder[0] + added[k])
            larger = max(alone.below.item(), alone.above.item())
            assert_close(found.size[k].item(), larger + found.remainder[k].item())
    assert len(model.beyond_linear(functionals[:0], forms=forms).remainder) == 0


def test_margins_are_what_changes_leave_of_the_centre(rng, monkeypatch):
    monkeypatch.setattr("howsmooth.verification.verdicts.MARGIN_SHARE", 0.01)  # for rounding errors
    f = network(rng, layers=1)
    wanted, _points = around(rng, f, 0.3)
    model, readout = _expanded(_Network.of(f, wanted), wanted, 1), f.maps[-1]
    before = model.stages[-1].entered
    rows, bounds = gaussian(rng, 4, 3), gaussian(rng, 4)
    found = _Margins.of(model, rows, bounds)
    for k in range(4):
        parts = model.beyond_linear(-rows[k][None, None], forms=True)
        linear = -rows[k] @ model.derivative[0]
        assert_close(model.centre, readout(before))
        value = bounds[k] - rows[k] @ model.centre[0]
        pixels, units = model.symbols.pixels(linear), linear[model.symbols.coordinates :]
        assert len(units) > 0
        summands = sum(rows[k, o] * readout.weight[0, o] for o in range(3)) * before
        sizes = summands.abs().sum() + rows[k].abs() @ model.centre[0].abs() + bounds[k].abs()
        centre = value - 0.01 * (sizes + linear.abs().sum() + parts.below[0] + parts.remainder[0])
        beyond = 1.01 * (parts.below[0] + parts.remainder[0])
        assert_close(found.lower[k], centre - 1.01 * (pixels.abs().sum() + units.abs().sum()) - beyond)
        objective = found.objective(k)
        for one, other in ((objective.centre, centre - beyond), (objective.pixels, pixels), (objective.units, units)):
            assert_close(one, other)
        told = (centre, pixels.abs().sum(), units.abs().sum(), 1.01 * parts.below[0], 1.01 * parts.remainder[0])
        assert list(found.uses(k).values()) == pytest.approx([float(x) for x in told])


def test_a_box_is_widened_by_the_rounding_of_its_middle(rng):
    embedding = network(rng, layers=0).maps[0]
    f = hs.maps.Chain(embedding, hs.maps.Pooling.first(n=3, like=embedding.bias), hs.maps.Dense(torch.eye(4).double()))
    x = gaussian(rng, 6)
    wanted = Property(x - 0.25, x + 0.75, Property.robust(x, eps=1.0, label=0, classes=4).unsafe)
    model = _expanded(_Network.of(f, wanted), wanted, 0)
    middle = x + 0.25
    assert_close(model.centre, f(middle[None]))
    tokens = embedding.weight[:1, :, 0].abs()
    assert_close(model.symbols.linear_range(model.derivative), tokens @ (0 * x + 0.5))
    # a box that floats hardly resolve is one of four more units in the last place
    unit, tiny = torch.finfo(torch.float64).eps, 2 * torch.finfo(torch.float64).eps * x.abs()
    small = Property(x - tiny, x + tiny, wanted.unsafe)
    model, half = _expanded(_Network.of(f, small), small, 0), (small.upper - small.lower) / 2
    middle = (small.upper + small.lower) / 2
    widened = half + 4 * unit * (middle.abs() + half)
    assert_close(model.symbols.linear_range(model.derivative), tokens @ widened, rtol=1e-9, atol=0)


def test_inputs_that_stay_where_they_are_have_no_symbols(rng):
    f = smooth_network(rng)
    x, moves = gaussian(rng, 3, 4), torch.zeros(3, 4).double()
    moves[1] = 0.01
    wanted = Property.robust(x, eps=moves, label=0, classes=3)
    model = _expanded(_Network.of(f, wanted), wanted, 0)
    assert model.symbols.coordinates == 4
    stay = Property.robust(x, eps=0.0, label=0, classes=3)
    point = _expanded(_Network.of(f, stay), stay, 2)
    assert not point.derivative.any()
    lower = _Margins.of(point, -torch.eye(3).double(), torch.zeros(3).double()).lower
    assert_close(lower, f(x)[0])
