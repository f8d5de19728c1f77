"""Verdicts: networks on boxes, whose proofs are checked, and bounds that samples never exceed."""

import copy
import json
from functools import cache

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.check import check_proof
from howsmooth.check.balls import BallArray, ball
from howsmooth.check.boxes import STEPS, BoxModel, CheckedBentUnits, Leaves, _linear_step, check_verdict, covers
from howsmooth.check.checker import _checked
from howsmooth.check.outcomes import CannotCheck, Refuted
from howsmooth.errors import AssumptionError
from howsmooth.maps import MLP, Attention, Chain, LayerNorm, Residual
from howsmooth.maps.affine import Affine
from howsmooth.proof_files import steps_of
from howsmooth.verification import Property
from howsmooth.verification.proofs import verdict_claim
from howsmooth.verification.verdicts import _expanded, _Margins, _Network

N, D, INPUTS = 3, 4, 6


def gaussian(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64) / 2


@cache
def network(*, causal=False, patches=False):
    """Two layers; patches that do not overlap are symbols in blocks."""
    rng = torch.Generator().manual_seed(1)
    weight = gaussian(rng, N, D, 1, INPUTS)
    if patches:
        weight = weight * torch.eye(N, dtype=torch.float64).repeat_interleave(2, 1)[:, None, None]
    blocks = []
    for _ in range(2):
        blocks.append(Residual(Attention.random(heads=2, d=D, k=2, causal=causal, dtype=torch.float64, seed=rng)))
        mlp = MLP(up=gaussian(rng, 5, D), up_bias=gaussian(rng, 5), down=gaussian(rng, D, 5), activation="relu")
        blocks.append(Residual(mlp))
    last = Affine(weight=gaussian(rng, 1, 3, N, D), bias=gaussian(rng, 1, 3))
    return Chain(Affine(weight=weight, bias=gaussian(rng, N, D)), *blocks, last), gaussian(rng, INPUTS)


def tight(network, x, eps, level):
    """A property that lines alone do not prove: a part of what bent units take off the margin is missing."""
    A = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    box = Property(x - eps, x + eps, ((A, torch.zeros(1, dtype=torch.float64)),))
    margins = _Margins.of(_expanded(_Network.of(network, box), box, level), A, box.unsafe[0][1])
    taken = float(margins.units.abs().sum())
    assert taken > 0
    return Property(x - eps, x + eps, ((A, -margins.lower - 0.1 * taken),))


@cache
def claimed():
    """A claim of level 0 with several leaves: as large as one of another level, and cheaper."""
    f, x = network()
    wanted = tight(f, x, 0.04, 0)
    claim = verdict_claim(f, wanted, 0, 60)
    assert len(claim["unsafe"][0]["leaves"]) > 1
    return f, wanted, claim


@pytest.mark.parametrize("residual", [0, 1])
def test_what_tokens_are_known_up_to_is_part_of_what_is_beyond(residual, monkeypatch, rng):
    """Behind a step whose balls have radii, functionals reach as far as the signs of all entries of these allow."""
    loose, signs = 0.125, [-1.0, 1.0]

    def uncertain(model, step):
        value, linear, pull = _linear_step(model, step)
        return BallArray(value.mid, value.rad + loose), BallArray(linear.mid, linear.rad + loose), pull

    f = Affine(weight=gaussian(rng, 2, 2, 1, 3), bias=gaussian(rng, 2, 2))
    inner = Affine(weight=gaussian(rng, 2, 2, 2, 2), bias=gaussian(rng, 2, 2))
    steps = steps_of(Chain(f, Residual(inner) if residual else inner))
    lower, upper = -np.ones(3), np.ones(3)
    monkeypatch.setitem(STEPS, "affine", uncertain)
    model = BoxModel(steps, lower, upper, 0)
    assert not model.centre.rad.any()
    assert not model.linear.rad.any()
    functional = np.array([[[1.0, -2.0], [0.5, 0.0]]])
    below, above = model.beyond_linear(ball(functional), False)
    corners = np.stack(np.meshgrid(*[signs] * 3)).reshape(3, -1)
    coordinates = np.abs(f.weight.numpy().reshape(4, 3) @ corners).sum(0).max()
    # every coordinate of the image of the box at its largest at once is more than any input makes of them
    most = np.abs(f.weight.numpy()).sum()
    least = np.abs(functional).sum() * loose * (1 + coordinates)
    for found in (below, above):
        assert least <= found[0] <= np.abs(functional).sum() * loose * (1 + most) * (1 + 1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_a_verdict_is_checked(causal, tmp_path):
    f, x = network(causal=causal)
    wanted = tight(f, x, 0.04, 2)
    verdict = hs.verify(f, wanted)
    verdict.save(tmp_path / "proof.json", f, wanted)
    assert verdict.nodes > 0
    assert [outcome.status for outcome in check_proof(tmp_path / "proof.json", f)] == ["checked"]


def test_a_box_around_tokens_without_bent_units_is_checked(tmp_path):
    f, _x = network()
    rest = Chain(*f.maps[1:])
    X = gaussian(torch.Generator().manual_seed(3), N, D)
    robust = Property.robust(X, eps=1e-6, label=int(rest(X).argmax()), classes=3)
    hs.verify(rest, robust).save(tmp_path / "proof.json", rest, robust)
    assert [outcome.status for outcome in check_proof(tmp_path / "proof.json", rest)] == ["checked"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_is_beyond_the_linear_part_is_never_exceeded(level, causal):
    f, x = network(causal=causal, patches=level == 1)
    eps, rng = 0.1, torch.Generator().manual_seed(2)
    steps = steps_of(f)
    model = BoxModel(steps, (x - eps).numpy(), (x + eps).numpy(), level)
    functionals = ball(gaussian(rng, 6, 1, 3).numpy())
    below, above = model.beyond_linear(functionals, True)
    xi = torch.rand(200, INPUTS, generator=rng, dtype=torch.float64) * 2 - 1
    corners = xi.sign()
    y = np.concatenate([_coordinates(f, x, eps, part) for part in (xi, corners)])
    inputs = x + eps * torch.cat((xi, corners))
    eta = _symbols(f, model, inputs)
    linear = model.linear.mid @ np.concatenate((y, eta), 1).T  # 1, 3, samples
    beyond = f(inputs[:, None])[:, 0].numpy() - model.centre.mid - linear[0].T
    found = beyond @ functionals.mid[:, 0].T
    assert (found >= -below * (1 + 1e-9)).all()
    assert (found <= above * (1 + 1e-9)).all()
    assert (np.abs(found).max(0) > 1e-3 * above).all()  # bounds of something


def _coordinates(f, x, eps, xi):
    return (f.maps[0](x + eps * xi[:, None]) - f.maps[0](x[None])).flatten(1).numpy()


def _symbols(f, model, inputs):
    """The symbols of all bent units at some inputs, from their definition."""
    tokens, found, layer = inputs[:, None], [], 0
    for part in f.maps:
        if isinstance(part, Residual) and isinstance(part.map, MLP):
            unit = torch.nn.functional.linear(tokens, part.map.up, part.map.up_bias).flatten(1).numpy()
            bent = model.bent[layer]
            values = unit[:, bent.places]
            found.append((np.maximum(values, 0) - bent.slope * values) / bent.gap - 1)
            layer += 1
        tokens = part(tokens)
    eta = np.concatenate(found, 1)
    assert np.abs(eta).max() <= 1 + 1e-9
    return eta


def test_no_point_of_a_leaf_has_a_smaller_margin():
    f, wanted, claim = claimed()
    model = BoxModel(steps_of(f), np.array(claim["lower"]), np.array(claim["upper"]), claim["level"])
    units, leaves = CheckedBentUnits(model), claim["unsafe"][0]["leaves"]
    (A, b), rng = wanted.unsafe[0], torch.Generator().manual_seed(0)
    functional = ball(-A.numpy()[None])
    (below,) = model.beyond_linear(functional, True, sides=(1,))
    m0 = (functional * model.centre).reshape(-1).sum() + b.numpy()[0] - ball(below[0])
    linear = functional.reshape(1, -1) @ model.linear.reshape(3, -1)
    named = [tuple(x) for x in claim["units"]]
    parts = Leaves.of(leaves, named, units)
    base = model.symbols.size
    least = units.least(m0, model.symbols.on_symbols(linear), linear[:, base:], parts)
    assert (least > 0).all()
    inputs = wanted.lower + (wanted.upper - wanted.lower) * torch.rand(300, INPUTS, generator=rng, dtype=torch.float64)
    margins = (b - f(inputs[:, None])[:, 0] @ A[0]).numpy()
    eta = _symbols(f, model, inputs)
    signs = np.sign(np.where(eta > 1e9, 0, _units(f, model, inputs)))
    seen = 0
    for row, side in enumerate(parts.side):
        inside = ((signs == side) | (side == 0)).all(1)
        seen += int(inside.sum())
        assert (margins[inside] >= least[row]).all()
    assert seen == len(inputs)  # every input is in one leaf


def _units(f, model, inputs):
    tokens, found, layer = inputs[:, None], [], 0
    for part in f.maps:
        if isinstance(part, Residual) and isinstance(part.map, MLP):
            unit = torch.nn.functional.linear(tokens, part.map.up, part.map.up_bias).flatten(1).numpy()
            found.append(unit[:, model.bent[layer].places])
            layer += 1
        tokens = part(tokens)
    return np.concatenate(found, 1)


def test_leaves_cover_everything_or_are_refused():
    assert covers([{}])
    assert covers([{3: 1.0}, {3: -1.0, 5: 1.0}, {3: -1.0, 5: -1.0}])
    assert not covers([{3: 1.0}])
    assert not covers([])
    assert not covers([{3: 1.0}, {3: -1.0, 5: 1.0}])
    assert not covers([{3: 1.0}, {5: -1.0}])


def at_the_limit(steps, claim):
    """Lower the bar of a claim as far as it is checked, by bisection: any better claim then has nothing left."""
    low, high = claim["unsafe"][0]["b"][0] - 0.1, claim["unsafe"][0]["b"][0]
    for _ in range(25):
        middle = (low + high) / 2
        claim["unsafe"][0]["b"] = [middle]
        try:
            check_verdict(steps, claim)
            high = middle
        except Refuted:
            low = middle
    claim["unsafe"][0]["b"] = [high]
    return claim


def test_tampered_verdicts_do_not_claim_more():
    f, _wanted, claim = claimed()
    steps, rng = steps_of(f), np.random.default_rng(0)
    original = at_the_limit(steps, copy.deepcopy(claim))
    check_verdict(steps, original)
    count = 0
    for k in range(60):
        claim, share, way = copy.deepcopy(original), 10.0 ** rng.uniform(-6, -1), k % 6
        (unsafe,) = claim["unsafe"]
        leaves = unsafe["leaves"]
        leaf = leaves[rng.integers(len(leaves))]
        if way == 0:  # a larger box
            claim["upper"] = [x + share * abs(x) for x in claim["upper"]]
        elif way == 1:  # a lower bar
            unsafe["b"] = [unsafe["b"][0] - share]
        elif way == 2:  # a part is missing
            leaves.remove(leaf)
        elif way == 3:  # a part on the other side
            leaf["sides"][0][1] *= -1
        elif way == 4:  # multipliers and slopes that prove nothing
            leaf["sides"][0][2] = -1.0
            unsafe["b"] = [unsafe["b"][0] - share]
        else:
            leaf["alpha"] = [1 + share] * len(leaf["alpha"])
        with pytest.raises((Refuted, CannotCheck)):
            check_verdict(steps, claim)
        count += 1
    assert count == 60


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None, [], "1"])
def test_what_is_no_number_is_never_a_proof(bad):
    f, _wanted, claim = claimed()
    steps = steps_of(f)
    for change in (
        lambda claim: claim.update(level=bad),
        lambda claim: claim.update(lower=bad),
        lambda claim: claim["upper"].__setitem__(0, bad),
        lambda claim: claim.update(unsafe=bad),
        lambda claim: claim["unsafe"][0].update(A=bad),
        lambda claim: claim["unsafe"][0]["b"].__setitem__(0, bad),
        lambda claim: claim["unsafe"][0].update(row=bad),
        lambda claim: claim["unsafe"][0].update(leaves=bad),
        lambda claim: claim["unsafe"][0]["leaves"][0].update(alpha=bad),
        lambda claim: claim["unsafe"][0]["leaves"][0]["sides"][0].__setitem__(2, bad),
        lambda claim: claim["unsafe"][0]["leaves"][0]["sides"][0].__setitem__(0, bad),
        lambda claim: claim["units"].__setitem__(0, bad),
    ):
        changed = copy.deepcopy(claim)
        change(changed)
        changed = json.loads(json.dumps(changed))  # as it would be read from a file
        outcome = _checked(steps, changed, {})
        assert outcome.status in ("cannot check", "refuted")


@pytest.mark.parametrize(
    ("step", "name"), [(0, "weight"), (1, "key"), (1, "output"), (2, "up"), (4, "down"), (5, "bias")]
)
def test_weights_that_are_no_numbers_prove_nothing(step, name):
    f, _wanted, claim = claimed()
    steps = copy.deepcopy(steps_of(f))
    steps[step].arrays[name][:] = np.nan
    with np.errstate(all="ignore"), pytest.raises(Exception):  # noqa: B017, PT011
        check_verdict(steps, claim)


def test_what_files_do_not_know_is_refused(tmp_path):
    f, x = network()
    unknown = Property.robust(x, eps=1.0, label=int(f(x[None]).argmax()), classes=3)
    verdict = hs.verify(f, unknown, timeout=1)
    if verdict.status == "unknown":
        with pytest.raises(AssumptionError, match="unknown"):
            verdict.save(tmp_path / "proof.json", f, unknown)
    norm = LayerNorm(gain=torch.ones(D, dtype=torch.float64), bias=torch.zeros(D, dtype=torch.float64), eps=1e-5)
    g = Chain(f.maps[0], norm, *f.maps[1:])
    wanted = Property.robust(x, eps=1e-5, label=int(g(x[None]).argmax()), classes=3)
    with pytest.raises(AssumptionError, match="no norms"):
        hs.verify(g, wanted).save(tmp_path / "proof.json", g, wanted)
