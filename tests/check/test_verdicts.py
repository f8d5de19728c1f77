"""Verdicts: networks on boxes, whose proofs are checked, and bounds that samples never exceed."""

import copy
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.check import check_proof
from howsmooth.check.balls import BallArray, ball
from howsmooth.check.box_models import BoxModel
from howsmooth.check.box_steps import STAGES, AttentionOnBox, LinearOnBox, ReLUsOnBox
from howsmooth.check.box_symbols import Symbols
from howsmooth.check.boxes import Leaf, check_verdict, covers, lower_bounds
from howsmooth.check.checker import _Asked, _checked
from howsmooth.errors import AssumptionError
from howsmooth.maps import MLP, Attention, Chain, Dense, LayerNorm, Pooling, Residual
from howsmooth.maps.affine import Affine
from howsmooth.proof_files import steps_of, write_proof
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


def model_of(f, x, eps, level, units=()):
    """The Taylor model of a network on the box around an input."""
    return BoxModel(steps_of(f), (x - eps).numpy().ravel(), (x + eps).numpy().ravel(), list(units), level)


@pytest.mark.parametrize("residual", [0, 1])
def test_what_tokens_are_known_up_to_is_part_of_what_is_beyond(residual, monkeypatch, rng):
    """Behind a step whose balls have radii, functionals reach as far as the signs of all entries of these allow."""
    loose, signs = 0.125, [-1.0, 1.0]

    class Uncertain(LinearOnBox):
        def __init__(self, step, model):
            super().__init__(step, model)
            self.value = BallArray(self.value.mid, self.value.rad + loose)
            self.slope = BallArray(self.slope.mid, self.slope.rad + loose)

    f = Affine(weight=gaussian(rng, 2, 2, 1, 3), bias=gaussian(rng, 2, 2))
    inner = Affine(weight=gaussian(rng, 2, 2, 2, 2), bias=gaussian(rng, 2, 2))
    monkeypatch.setitem(STAGES, "affine", Uncertain)
    model = BoxModel(steps_of(Chain(f, Residual(inner) if residual else inner)), -np.ones(3), np.ones(3), [], 0)
    functional = np.array([[[1.0, -2.0], [0.5, 0.0]]])
    found = model.by_ranges(ball(functional))[0]
    corners = np.stack(np.meshgrid(*[signs] * 3)).reshape(3, -1)
    coordinates = np.abs(f.weight.numpy().reshape(4, 3) @ corners).sum(0).max()
    # every coordinate of the image of the box at its largest at once is more than any input makes of them
    most = np.abs(f.weight.numpy()).sum()
    least = np.abs(functional).sum() * loose * (1 + coordinates)
    assert least <= found <= np.abs(functional).sum() * loose * (1 + most) * (1 + 1e-9)


@pytest.mark.parametrize("apart", [False, True])
def test_forms_are_bounded_closely_on_the_box(apart, rng):
    """No corner exceeds a bound, and no bound exceeds π/2 times what the semidefinite relaxation may lose."""
    numbers = np.random.default_rng(4)
    U = numbers.standard_normal((4, 6))
    if apart:
        U[:2, 3:] = U[2:, :3] = 0
    symbols = Symbols(U, np.array([0, 0, 1, 1]))
    assert len(symbols.blocks) == 1 + apart
    symbols.add(np.array([0.5, 0.0]))
    corners = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 7)).reshape(7, -1)
    s = np.concatenate([U @ corners[:6], 0.5 * corners[6:], np.zeros((1, corners.shape[1]))])
    for _ in range(20):
        F, G = numbers.standard_normal((2, 6, 3))
        values = ((F.T @ s) * (G.T @ s)).sum(0)
        above, below = symbols.form_ranges([(F, G), (F[:4] * 0, G[:4])])
        assert values.max() <= above <= np.abs(values).max() * 4
        assert -values.min() <= below <= np.abs(values).max() * 4
        square = symbols.form_ranges([(F[:, :1], F[:, :1])])
        exact = symbols.ranges(ball(F[:, 0])) ** 2  # weights of the page attain it
        assert exact * (1 - 1e-9) <= square[0] <= exact * (1 + 1e-6)
        assert square[1] <= 1e-9 * exact
    assert symbols.form_ranges([(F * 0, G)])[0] == pytest.approx(0, abs=1e-200)
    broken = F.copy()
    broken[0, 0] = np.nan
    assert not symbols.form_ranges([(broken, G)])[0] < np.inf


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_exponentials_are_beyond_their_orders_is_never_exceeded(level):
    r"""Of every row: :math:`e^b/Z-1-b`, and, up to a constant, :math:`e^b/Z-1-b-\frac12b^2`."""
    f, x = network()
    stage = next(s for s in model_of(f, x, 0.3, level).stages if isinstance(s, AttentionOnBox))
    beta = stage.beta1 + stage.beta2
    signs = np.stack(np.meshgrid(*[[-1.0, -0.5, 0.0, 0.5, 1.0]] * N)).reshape(N, -1)
    for h, i in np.ndindex(beta.shape[:2]):
        P, b = stage.at.P.mid[h, i], signs.T * beta[h, i]
        b = b - (P * b).sum(-1, keepdims=True)
        inside = (np.abs(b) <= beta[h, i]).all(1)
        b = b[inside]
        assert len(b) > 5
        weights = np.exp(b) / (P * np.exp(b)).sum(-1, keepdims=True)
        assert (np.abs(weights - 1 - b) <= stage.second[h, i] * (1 + 1e-12)).all()
        constant = 1 - 1 / (P * np.exp(b)).sum(-1, keepdims=True)
        third = weights - 1 - b - b**2 / 2 + constant
        assert (np.abs(third) <= stage.third[h, i] * (1 + 1e-12)).all()
        assert np.abs(third).max() > 0.05 * stage.third[h, i].max()


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


def test_pooling_dense_layers_and_residual_connections_around_several_steps_are_checked(tmp_path):
    f, x = network()
    rng = torch.Generator().manual_seed(5)
    both = Residual(Chain(f.maps[1].map, f.maps[2].map))
    last = Chain(Pooling(weights=torch.full((N,), 1 / N, dtype=torch.float64)), Dense(weight=gaussian(rng, 3, D)))
    g = Chain(f.maps[0], both, f.maps[3], last)
    robust = Property.robust(x, eps=0.01, label=int(g(x[None]).argmax()), classes=3)
    hs.verify(g, robust).save(tmp_path / "proof.json", g, robust)
    assert [outcome.status for outcome in check_proof(tmp_path / "proof.json", g)] == ["checked"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_is_beyond_the_linear_part_is_never_exceeded(level, causal):
    f, x = network(causal=causal, patches=level == 1)
    eps, rng = 0.1, torch.Generator().manual_seed(2)
    model = model_of(f, x, eps, level)
    assert len(model.symbols.blocks) == (N if level == 1 else 1)
    functionals = ball(gaussian(rng, 6, 1, 3).numpy())
    above, below = model.by_forms(functionals)
    xi = torch.rand(200, INPUTS, generator=rng, dtype=torch.float64) * 2 - 1
    inputs = x + eps * torch.cat((xi, xi.sign()))
    linear = np.tensordot(_symbols(f, x, model, inputs), model.slopes[-1], 1)
    beyond = f(inputs[:, None]).numpy() - model.centres[-1] - linear
    found = np.tensordot(beyond, functionals.mid, ((1, 2), (1, 2)))
    assert (found >= -below * (1 + 1e-9)).all()
    assert (found <= above * (1 + 1e-9)).all()
    assert (np.abs(found) <= model.by_ranges(functionals)).all()
    assert (np.abs(found).max(0) > 1e-3 * above).all()  # bounds of something


def _units(f, model, inputs):
    """The hidden units that have symbols at some inputs, MLP after MLP."""
    stages = iter(stage for stage in model.stages if isinstance(stage, ReLUsOnBox))
    tokens, found = inputs[:, None], []
    for part in f.maps:
        if isinstance(part, Residual) and isinstance(part.map, MLP):
            unit = torch.nn.functional.linear(tokens, part.map.up, part.map.up_bias).flatten(1).numpy()
            found.append(unit[:, next(stages).places])
        tokens = part(tokens)
    return found


def _symbols(f, x, model, inputs):
    """All symbols at some inputs, from their definition."""
    found = [(f.maps[0](inputs[:, None]) - f.maps[0](x[None, None])).flatten(1).numpy()]
    stages = [stage for stage in model.stages if isinstance(stage, ReLUsOnBox)]
    for stage, values in zip(stages, _units(f, model, inputs), strict=True):
        eta = np.maximum(values, 0) - stage.sigma * values - stage.half
        assert (np.abs(eta) <= stage.half * (1 + 1e-9)).all()
        found.append(eta)
    return np.concatenate(found, 1)


def test_no_point_of_a_leaf_has_a_smaller_margin():
    f, wanted, claim = claimed()
    units = [tuple(x) for x in claim["units"]]
    model = model_of(f, (wanted.lower + wanted.upper) / 2, (wanted.upper - wanted.lower) / 2, claim["level"], units)
    leaves = [Leaf.of(leaf, len(units)) for leaf in claim["unsafe"][0]["leaves"]]
    (A, b), rng = wanted.unsafe[0], torch.Generator().manual_seed(0)
    functional = ball(-A.numpy()[None])
    _above, below = model.by_forms(functional)
    constant = (functional * model.centres[-1]).reshape(-1).sum() + b.numpy() - ball(below)
    least = lower_bounds(model, ball(model.slopes[-1][:, 0]) @ -A[0].numpy(), constant, leaves)
    assert (least > 0).all()
    inputs = wanted.lower + (wanted.upper - wanted.lower) * torch.rand(300, INPUTS, generator=rng, dtype=torch.float64)
    margins = (b - f(inputs[:, None])[:, 0] @ A[0]).numpy()
    stages = [stage for stage in model.stages if isinstance(stage, ReLUsOnBox)]
    values = dict[tuple[int, int], np.ndarray]()
    for mlp, (stage, found) in enumerate(zip(stages, _units(f, model, inputs), strict=True)):
        values.update({(mlp, int(place)): column for place, column in zip(stage.places, found.T, strict=True)})
    seen = 0
    for leaf, bound in zip(leaves, least, strict=True):
        inside = np.all([values[units[k]] * side > 0 for k, side in leaf.sides.items()], axis=0)
        seen += int(inside.sum())
        assert (margins[inside] >= bound).all()
    assert seen == len(inputs)  # every input is in one leaf


def test_leaves_cover_everything_or_are_refused():
    assert covers([{}])
    assert covers([{3: 1}, {3: -1, 5: 1}, {3: -1, 5: -1}])
    assert covers([{3: 1, 5: 1}, {3: 1, 5: -1}, {3: -1, 5: 1}, {3: -1, 5: -1}])
    assert not covers([{3: 1}])
    assert not covers([])
    assert not covers([{3: 1}, {3: -1, 5: 1}])
    assert not covers([{3: 1}, {5: -1}])


def test_tampered_verdicts_do_not_claim_more(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks" / "experiments")
    from tampered_verdicts import MORE, NONE, SAME, at_the_limit, status, tampered

    f, _wanted, claim = claimed()
    write_proof(tmp_path / "proof.json", f, [claim])
    original = at_the_limit(json.loads((tmp_path / "proof.json").read_text()), f)
    assert status(original, f) == "checked"
    found = {MORE: [], NONE: [], SAME: []}
    changed = tampered(original, np.random.default_rng(0))
    for _ in range(160):
        kind, _change, proof = next(changed)
        found[kind].append(status(proof, f))
    assert "checked" not in found[MORE] + found[NONE]
    assert "checked" in found[SAME]
    assert min(map(len, found.values())) > 20


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
        outcome = _checked(steps, changed, _Asked())
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
