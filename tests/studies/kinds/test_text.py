"""Constants at windows of a text against the same numbers by hand: the module's states, dense Jacobians, autograd."""

import pytest
import torch
from asked import windows
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.studies.kinds.text import TextAnswer
from howsmooth.studies.resources import Resources
from howsmooth.studies.settings import Solver
from howsmooth.studies.sweep.sweep import answered, batches, cells

LAYERS, LENGTHS, WINDOWS = (0, 1), (8, 12), 3


@pytest.fixture(scope="module")
def found(tiny, beginning):
    return hs.measure(
        tiny, text=beginning, layers=LAYERS, lengths=LENGTHS, sequences=WINDOWS, released=True, certificate=True
    )


@pytest.fixture(scope="module")
def states(tiny, beginning):
    """Return what enters each layer, by the model's own account of its hidden states."""

    def by_hand(length, special_tokens=False):
        tokens = tiny.windows(read_text(beginning), length=length, count=WINDOWS, special_tokens=special_tokens)
        with torch.no_grad():
            return tiny.module(tokens, output_hidden_states=True).hidden_states

    return by_hand


def dense(f, X):
    """Return the whole Jacobian, one row at a time: the modules' own kernels know no vmap."""
    return torch.autograd.functional.jacobian(f, X).reshape(-1, X.numel())


@pytest.mark.slow
def test_constants_are_those_of_each_window_by_itself(found, tiny, states):
    for length in LENGTHS:
        for record in found.at(length=length):
            X = states(length)[record.ask.layer][record.ask.window.index]
            alone = hs.local_lipschitz(tiny.layers[record.ask.layer].attention, X)
            # both brackets hold the same number
            assert record.answer.lower <= float(alone.upper)
            assert float(alone.lower) <= record.answer.upper


@pytest.mark.slow
def test_brackets_close_and_stay_below_the_certificate(found):
    for answer in (record.answer for record in found.records):
        assert 0 < answer.lower <= answer.upper <= answer.lower * (1 + 1e-3)
        assert answer.upper <= answer.local_upper * (1 + 1e-3)
        assert answer.status == "converged"
        assert 1 < answer.steps <= answer.products
        assert 0 < answer.typical < answer.upper


@pytest.mark.slow
def test_radius_and_reach_are_those_of_the_tokens(found, states):
    for record in found.records:
        norms = states(record.ask.length)[record.ask.layer][record.ask.window.index].norm(dim=-1)
        assert record.answer.mean_radius == pytest.approx(float(norms.square().mean().sqrt()), rel=1e-9)
        assert record.answer.reach == pytest.approx(float(norms.max()), rel=1e-9)
        assert record.answer.mean_radius < record.answer.reach


@pytest.mark.slow
def test_certificates_are_those_of_the_theory(found, tiny, states):
    for record in found.at(layer=1, length=8):
        X = states(8)[1][record.ask.window.index]
        bound = hs.bounds.local_upper(tiny.layers[1].attention, X, rows=False)  # the quick one, as sweeps have it
        assert record.answer.local_upper == pytest.approx(bound.value, rel=1e-4)


@pytest.mark.slow
def test_the_typical_gain_is_near_the_frobenius_norm(found, tiny, states):
    for record in found.at(layer=0, length=8):
        X = states(8)[0][record.ask.window.index]
        J = dense(tiny.layers[0].attention, X)
        true = float(J.norm() / J.shape[1] ** 0.5)
        assert record.answer.typical == pytest.approx(true, rel=0.1)
        assert record.answer.typical_low < true < record.answer.typical_high


@pytest.mark.slow
def test_the_released_quantity_is_that_of_autograd_through_the_module(found, tiny, states):
    for length in LENGTHS:
        for layer in LAYERS:
            module = tiny.module.encoder.layer[layer].attention
            X = states(length)[layer].clone().requires_grad_()
            Y = module.output.dense(module.self(X)[0])
            (Y * Y.detach()).sum().backward()  # Jᵀ f(X)
            expected = X.grad.flatten(1).norm(dim=1).sqrt()
            got = [record.answer.released_quantity for record in found.at(layer=layer, length=length)]
            assert_close(torch.tensor(got, dtype=torch.float64), expected)


@pytest.mark.slow
def test_shares_of_tokens_add_up(found):
    for record in found.records:
        for shares in (record.answer.sensitivity, record.answer.response):
            assert len(shares) == record.ask.length
            assert min(shares) >= 0
            assert sum(shares) == pytest.approx(1, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "part"),
    [
        *(("llama", part) for part in ("attention", "heads", "head:2", "normed", "residual", "block")),
        *(("bert", part) for part in ("attention", "heads", "head:0", "residual", "block")),
    ],
)
def test_every_map_is_measured_as_its_dense_jacobian_says(family, part, loaded, beginning):
    transformer = loaded(family)
    measured = hs.measure(
        transformer,
        text=beginning,
        layers=[0, 1] if family == "bert" else [1],
        lengths=[5],
        sequences=2,
        map=part,
        rtol=1e-6,
        confidence=1 - 1e-9,
        certificate=True,
    )
    cut = transformer.windows(read_text(beginning), length=5, count=2)
    assert len(measured.records) == (4 if family == "bert" else 2)
    for record in measured.records:
        f, X = transformer.activations(cut[record.ask.window.index][None]).at(record.ask.layer, part)
        truth, answer = float(torch.linalg.matrix_norm(dense(f, X), 2)), record.answer
        assert answer.lower == pytest.approx(truth, rel=2e-6)
        # Hugging Face takes the norms and angles of Llama in float32, whatever the model's numbers are
        slack = 1e-6 if family == "llama" else 1e-9
        assert answer.lower * (1 - slack) <= truth <= answer.upper * (1 + slack)
        certified = part in ("attention", "heads") or part.startswith("head:")
        assert (answer.local_upper is not None) == certified
        assert not certified or answer.local_upper >= truth
    bounded = [summary.any_input is not None for summary in measured.layers]
    # rotary positions are outside the theorem of the worst-case bound
    assert family == "llama" or bounded == [part not in ("residual", "block")] * 2


HEADS = ("head:0", "head:1", "head:2")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_all_heads_of_a_layer_take_one_iteration_and_give_what_each_gives_alone(family, loaded, beginning, digest):
    transformer = loaded(family)
    work = windows(
        transformer.name, digest, place=beginning, layers=(1,), maps=HEADS, count=2, solver=Solver(rtol=1e-6)
    )
    (batch,) = batches(work)
    (cell,) = cells(batch)
    together = answered(batch, cell, Resources([transformer]))
    assert [record.ask for record in together] == list(cell)
    assert len({record.answer.products for record in together}) == 1, "one iteration"
    spent = 0
    for head in HEADS:
        some = tuple(ask for ask in cell if ask.map == head)
        alone = answered(some, some, Resources([transformer]))
        spent += alone[0].answer.products
        for one, all_heads in zip(alone, (r for r in together if r.ask.map == head), strict=True):
            # both brackets hold the same number
            assert one.answer.lower <= all_heads.answer.upper
            assert all_heads.answer.lower <= one.answer.upper
            assert all_heads.answer.lower == pytest.approx(one.answer.lower, rel=1e-5)
            assert all_heads.answer.mean_radius == one.answer.mean_radius
            # four directions say little about a map of low rank
            assert one.answer.typical / 4 < all_heads.answer.typical < 4 * one.answer.typical
            # directions are known to the root of what values are known to
            shares = (torch.tensor(found.answer.sensitivity) for found in (all_heads, one))
            assert_close(*shares, rtol=0, atol=0.01)
    # as many products as the head that needs most, not as all of them
    assert together[0].answer.products < spent / 2


def test_some_heads_of_a_layer_are_measured_one_by_one(asks, resources, tiny):
    work = asks(maps=("head:0", "head:2"), count=2)
    (cell,) = cells(work)
    found = answered(work, cell, resources)
    for record in found:
        alone = tuple(ask for ask in work if ask.map == record.ask.map)
        again = answered(alone, alone, Resources([tiny]))
        assert record.answer in [other.answer for other in again]


def test_without_certificates_of_the_solver_the_constants_are_the_same(tiny, beginning, found):
    quick = hs.measure(tiny, text=beginning, layers=[0], lengths=[8], sequences=WINDOWS, certify=False)
    for fast, sure in zip(quick.records, found.at(layer=0, length=8), strict=True):
        assert fast.answer.lower == pytest.approx(sure.answer.lower, rel=2e-3)
        assert fast.answer.lower <= sure.answer.upper
        assert fast.answer.steps <= sure.answer.steps
        assert fast.answer.released_quantity is fast.answer.local_upper is None


def test_special_tokens_frame_every_window(tiny, beginning, states):
    measured = hs.measure(tiny, text=beginning, layers=[0], lengths=[8], sequences=WINDOWS, special_tokens=True)
    assert measured.tokens == ("[CLS]", "alice", "'", "s", "adventures", "in", "wonderland", "[SEP]")
    for record in measured.records:
        assert record.ask.window.special_tokens
        expected = states(8, special_tokens=True)[0][record.ask.window.index].square().sum(-1).mean().sqrt()
        assert record.answer.mean_radius == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.slow
def test_a_record_does_not_depend_on_what_is_measured_beside_it(tiny, beginning, found):
    alone = hs.measure(
        tiny, text=beginning, layers=[1], lengths=[12], sequences=WINDOWS, released=True, certificate=True
    )
    assert [r.answer for r in alone.records] == [r.answer for r in found.at(layer=1, length=12)]


def test_a_field_that_nobody_gave_has_its_default():
    assert TextAnswer(lower=1.0).upper is None
