"""Taylor models of random networks: no input of the box is outside of what they say."""

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import entered, gaussian, network, outputs

import howsmooth as hs
from howsmooth.verification.attention_expansion import AttentionExpansion
from howsmooth.verification.properties import Property
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.verdicts import _expanded, _Margins, _Stages

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
        stages = _Stages.of(f, wanted)
        model = _expanded(stages, wanted, level)
        rows = torch.cat([A for A, _b in wanted.unsafe])
        margins = _Margins.of(model, stages.readout, rows, torch.zeros(len(rows), dtype=torch.float64))
        found = -(outputs(f, points) @ rows.mT)
        assert (margins.lower <= found.amin(0)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_hidden_units_scores_and_weights_stay_in_their_ranges(rng, level):
    f = network(rng, layers=2)
    wanted, points = around(rng, f, 0.1)
    model = _expanded(_Stages.of(f, wanted), wanted, level)
    tokens = f.maps[0](points.unsqueeze(-2))
    for stage, block in zip(model.stages, f.maps[1:-1], strict=True):
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
        stages = _Stages.of(f, wanted)
        model = _expanded(stages, wanted, 2)
        assert not model.stages[-1].bent.any()
        rows = torch.cat([A for A, _b in wanted.unsafe])
        losses.append(_Margins.of(model, stages.readout, rows, torch.zeros(2).double()))
    for a, b in zip(losses[0].second_order, losses[1].second_order, strict=True):
        assert a / b == pytest.approx(100, rel=1e-3)
    # in one layer, what enters attention is linear: nothing of second order is left over
    assert losses[0].remainder.max() / losses[1].remainder.max() == pytest.approx(1000, rel=0.05)


def test_closer_levels_are_closer(rng):
    f = network(rng, layers=2, n=4, inputs=9)
    wanted, _points = around(rng, f, 0.03)
    stages = _Stages.of(f, wanted)
    rows = torch.cat([A for A, _b in wanted.unsafe])
    lowers = []
    for level in LEVELS:
        model = _expanded(stages, wanted, level)
        lowers.append(_Margins.of(model, stages.readout, rows, torch.zeros(2).double()).lower.min().item())
    assert lowers[0] < lowers[1]
    assert lowers[0] < lowers[2]


def test_what_has_no_expansion_is_refused(rng):
    f = network(rng, layers=1)
    wanted, _points = around(rng, f, 0.1)
    attention = f.maps[1].map
    for changes in ({"softcap": 3.0}, {"positions": hs.maps.Positions(causal=True)}):
        import dataclasses

        other = hs.maps.Chain(f.maps[0], hs.maps.Residual(dataclasses.replace(attention, **changes)), *f.maps[2:])
        with pytest.raises(hs.errors.AssumptionError, match="plain softmax attention"):
            _expanded(_Stages.of(other, wanted), wanted, 0)
    with pytest.raises(hs.errors.AssumptionError, match="begins and ends with an Affine"):
        _Stages.of(attention, wanted)


@pytest.mark.parametrize(("forms", "count"), [(True, 40), (False, 600)])
def test_many_functionals_are_bounded_as_each_of_them_is(rng, forms, count):
    f = network(rng, layers=1)
    model, _enters = entered(f, 0.1, [block.map for block in f.maps[1:-1]], gaussian(rng, 6))
    functionals = gaussian(rng, count, *model.centre.shape)
    added = gaussian(rng, count).abs()

    def start(part, sums):
        sums.remainder += added[part]

    found = model.range(functionals, forms=forms, start=start)
    for k in (0, 1, 31, 32, 33, 511, 512, 599):
        if k < count:
            alone = model.range(functionals[[k]], forms=forms)
            for name in ("linear", "below", "above"):
                assert_close(getattr(found, name)[k], getattr(alone, name)[0])
            assert_close(found.remainder[k], alone.remainder[0] + added[k])
            larger = max(alone.below.item(), alone.above.item())
            assert_close(found.beyond_linear[k].item(), larger + found.remainder[k].item())
    assert len(model.range(functionals[:0], forms=forms).remainder) == 0


def test_margins_are_what_changes_leave_of_the_centre(rng, monkeypatch):
    monkeypatch.setattr("howsmooth.verification.verdicts.ALLOWANCE", 0.01)  # for rounding errors
    f = network(rng, layers=1)
    wanted, _points = around(rng, f, 0.3)
    stages = _Stages.of(f, wanted)
    model, readout = _expanded(stages, wanted, 1), f.maps[-1]
    rows, bounds = gaussian(rng, 4, 3), gaussian(rng, 4)
    found = _Margins.of(model, readout, rows, bounds)
    for k in range(4):
        functional = -sum(rows[k, o] * readout.weight[0, o] for o in range(3))
        parts = model.range(functional[None], forms=True)
        value = bounds[k] - rows[k] @ readout(model.centre)[0]
        pixels, units = model.symbols.pixels(parts.linear)[0], parts.linear[0, model.symbols.coordinates :]
        assert len(units) > 0
        sizes = (functional * model.centre).abs().sum() + (rows[k] * readout.bias[0]).abs().sum() + bounds[k].abs()
        centre = value - 0.01 * (sizes + parts.linear.abs().sum() + parts.below[0] + parts.remainder[0])
        beyond = 1.01 * (parts.below[0] + parts.remainder[0])
        assert_close(found.lower[k], centre - 1.01 * (pixels.abs().sum() + units.abs().sum()) - beyond)
        objective = found.objective(k)
        for one, other in ((objective.centre, centre - beyond), (objective.pixels, pixels), (objective.units, units)):
            assert_close(one, other)
        told = (centre, pixels.abs().sum(), units.abs().sum(), 1.01 * parts.below[0], 1.01 * parts.remainder[0])
        assert list(found.uses(k).values()) == pytest.approx([float(x) for x in told])


def test_a_box_is_widened_by_the_rounding_of_its_middle(rng):
    f = network(rng, layers=0)
    x = gaussian(rng, 6)
    wanted = Property(x - 0.25, x + 0.75, Property.robust(x, eps=1.0, label=0, classes=3).unsafe)
    model = _expanded(_Stages.of(f, wanted), wanted, 0)
    middle, point = x + 0.25, Property(x, x, wanted.unsafe)
    assert_close(model.centre, f.maps[0](middle[None]))
    tokens = f.maps[0].weight[:, :, 0].abs()
    every = torch.eye(12, dtype=torch.float64).unflatten(1, (3, 4))
    assert_close(model.symbols.linear_range(model.range(every, forms=False).linear), (tokens @ (0 * x + 0.5)).flatten())
    # a point is a box of four units in the last place
    model, unit = _expanded(_Stages.of(f, point), point, 0), torch.finfo(torch.float64).eps
    widths = model.symbols.linear_range(model.range(every, forms=False).linear)
    assert_close(widths, (tokens @ (4 * unit * x.abs())).flatten(), rtol=1e-9, atol=0)
