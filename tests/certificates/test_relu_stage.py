"""Rectified units along lines and axes of any kind: never off by more than bounded, and a table for every word."""

import dataclasses

import pytest
import torch
from certificates.claims import signals
from certificates.random_classifiers import draw
from draws import gaussian, uniform

import howsmooth as hs
from howsmooth.certificates.image_norms import EUCLIDEAN, UnitBall
from howsmooth.certificates.radius_search import Proof, Rivals
from howsmooth.certificates.relu_stage import ReLUStage, line_error, relaxation_lines
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.certificates.sentence_certifier import SentenceCertifier
from howsmooth.certificates.stages import FirstOrder
from howsmooth.certificates.word_perturbation import WordPerturbation
from howsmooth.maps.mlp import MLP


def dense(y, slope, offset, s):
    t = torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None] * s
    t = torch.cat((t, -y.clamp(-s, s)[None]))
    return ((y + t).relu() - y.relu() - slope * t - offset).abs().amax(0)


def test_units_are_off_their_lines_by_what_sampling_finds(rng):
    y, slope, s = gaussian(rng, 500), uniform(rng, 500) * 1.4 - 0.2, 2 * uniform(rng, 500)
    offset = 0.3 * gaussian(rng, 500) * (uniform(rng, 500) < 0.8)
    found, expected = line_error(y, slope, offset, s), dense(y, slope, offset, s)
    assert bool((found >= expected).all())
    assert bool((found <= expected * 1.001 + 1e-12).all())


def test_straight_units_on_their_own_line_are_not_off_it(rng):
    y = torch.tensor([2.0, -2.0, 1.0, -1.0, 0.5], dtype=torch.float64)
    s = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    assert line_error(y, (y > 0).double(), 0 * y, s).tolist() == [0.0] * 5
    assert line_error(y, 0.5 * torch.ones(5).double(), 0 * y, s).min() > 0.2
    assert line_error(y, (y > 0).double(), 0 * y + 0.1, s).min() > 0.09


def stage_of(rng):
    f = MLP(
        up=gaussian(rng, 12, 5),
        down=gaussian(rng, 5, 12),
        up_bias=gaussian(rng, 12),
        activation="relu",
    )
    return f, gaussian(rng, 3, 5)


def test_lines_between_chords_and_kinks_leave_less_than_half_of_what_tangents_leave(rng):
    y, s = gaussian(rng, 500), 2 * uniform(rng, 500)
    slope, offset = relaxation_lines(y, s)
    tangents, chords = (line_error(y, each, 0 * y, s) for each in ((y > 0).double(), slope))
    bent = y.abs() < s
    torch.testing.assert_close(chords, tangents / 2, rtol=1e-9, atol=1e-12)
    expected = torch.where(bent, tangents * (s + y.abs()) / (4 * s), 0.0)
    torch.testing.assert_close(line_error(y, slope, offset, s), expected, rtol=1e-9, atol=1e-12)
    assert 100 < int(bent.sum()) < 400


def test_no_line_is_less_off_than_these(rng):
    y, s = gaussian(rng, 200), 2 * uniform(rng, 200)
    slope, offset = relaxation_lines(y, s)
    least = line_error(y, slope, offset, s)
    for _ in range(50):
        other = line_error(y, slope + 0.1 * gaussian(rng, 200), offset + 0.1 * gaussian(rng, 200), s)
        assert bool((other >= least * (1 - 1e-9)).all())


@pytest.mark.parametrize("wild", [False, True])
def test_the_remainder_lies_along_its_directions_whatever_lines_and_axes_are(rng, wild):
    f, X = stage_of(rng)
    plain, eps = ReLUStage(f, X), 0.3
    delta = gaussian(rng, 64, 3, 5)
    delta = eps * delta / delta.norm(dim=(-2, -1), keepdim=True)
    sizes = plain.propagate(delta[:, None], EUCLIDEAN)[0].amax(0)
    # as far as units move, or as far as they do not
    stage = ReLUStage(f, X, 2 * uniform(rng, 3, 12) if wild else plain.unit_ranges(sizes))
    assert float(stage.shift.abs().max()) > 0
    if wild:
        stage._axes = uniform(rng, 3, 12) + 0.01
    bounds = stage.remainder(sizes, FirstOrder(sizes, delta[:1, None], 1.0, EUCLIDEAN))
    (columns,) = stage.directions()
    R = f(X + delta) - f(X) - stage.shift - stage.propagate(delta[:, None], EUCLIDEAN)[1][:, 0]
    for i in range(3):
        # |B⁺R| is the shortest vector that B takes there
        shortest = torch.linalg.lstsq(columns[i, :, i].mT, R[:, i].mT).solution.norm(dim=0)
        assert float(shortest.max()) <= float(bounds[i]) * (1 + 1e-9)
    assert float(R.abs().max()) > 0


@pytest.fixture(scope="module")
def drawn():
    """A random network with ReLU units."""
    networks = (draw(seed) for seed in range(200) if seed % 10 != 9)  # without the trained ones
    return next(each for each in networks if "relu" in each.what and "squared" not in each.what)


@pytest.mark.slow
def test_margins_are_those_of_the_shifted_centre(drawn):
    rivals, table = Rivals.of(drawn.f(drawn.X)[0]), RemainderTable(drawn.f, drawn.X)
    reach = {
        place: torch.ones(len(drawn.X), 1).double()
        for place in Proof(table, rivals, drawn.tokens, EUCLIDEAN).unit_ranges(0)
    }
    shifted = table.with_unit_ranges(reach)
    (place, *_others) = reach
    centre = {i: y for i, _x, y in signals(shifted, drawn.X, centre=True)}
    assert float((centre[place] - {i: y for i, _x, y in signals(table, drawn.X, centre=True)}[place]).norm()) > 0
    torch.testing.assert_close(shifted.output, centre[-1])
    proof, lost = Proof(shifted, rivals, drawn.tokens, EUCLIDEAN), 1e-12 * shifted.output.abs().max()
    left = shifted.output @ rivals.functionals.mT - lost - proof.margins(0.0)
    # nothing moves, but lines are off by what they are off at the centre
    own = proof._word.remainders(0.0) @ shifted.transfer_to(rivals.functionals)
    torch.testing.assert_close(left[0], own)
    assert bool((proof.margins(0.0) <= rivals.margins + 2 * lost).all())


@pytest.mark.slow
def test_other_lines_prove_the_same_at_no_radius_and_more_at_theirs(drawn):
    f, X, tokens = drawn.f, drawn.X, drawn.tokens
    rivals, table = Rivals.of(f(X)[0]), RemainderTable(f, X)
    proof = Proof(table, rivals, tokens, UnitBall(drawn.p))
    radius = proof.radius()
    reach = proof.unit_ranges(radius)
    assert set(reach) == {place for place, stage in table.stages.items() if isinstance(stage, ReLUStage)}
    again = RemainderTable(f, X, unit_ranges=reach)
    way, same = (WordPerturbation(at, tokens, UnitBall(drawn.p), second_order=False) for at in (again, table))
    assert float(way.remainders(radius).sum()) < float(same.remainders(radius).sum())


@pytest.mark.slow
def test_a_table_for_a_word_proves_no_less_than_that_of_the_sentence(monkeypatch):
    model = hs.load("reviews")
    f, X = model.activations(torch.arange(2, 8)[None]).at(0, "classes")
    # the same network with rectified units
    f = _rectified(f)
    certifier, rng = SentenceCertifier(f, X[0]), torch.Generator().manual_seed(0)
    found = certifier.radius([2], p=2.0, seed=rng)
    monkeypatch.setattr("howsmooth.certificates.radius_search.ROUNDS", 0)
    monkeypatch.setattr("howsmooth.certificates.radius_search.SECOND_ORDER_ROUNDS", 0)
    before = certifier.radius([2], p=2.0, seed=rng)
    assert found.certified > 1.02 * before.certified > 0
    assert found.linear == before.linear
    assert found.certified <= found.attacked


def _rectified(f):
    """Replace every activation of MLPs."""
    if isinstance(f, MLP):
        return f if f.activation.name == "tanh" else dataclasses.replace(f, activation="relu")
    if isinstance(f, hs.maps.Residual):
        return hs.maps.Residual(_rectified(f.map))
    if isinstance(f, hs.maps.Chain):
        return hs.maps.Chain(*(_rectified(part) for part in f.maps))
    return f
