"""Budgets against the Fisher metric written down, and against the model run with the errors in it."""

import dataclasses
import math

import pytest
import torch
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.budgets import scheme
from howsmooth.budgets.effects import effect, elsewhere
from howsmooth.budgets.subject import Subject
from howsmooth.budgets.worst_errors import worst_cost


@pytest.fixture(scope="session")
def rounded(llama, windows):
    return hs.budget(llama, windows, schemes=["int4:g8", "int8"], passes=6, seed=5)


def image(model, tokens, deltas):
    """Return the logits of a model, and their derivative along errors of its parameters, densely."""
    weights = dict(model.with_head.named_parameters())

    def logits(*changed):
        return functional_call(model.with_head, dict(zip(deltas, changed, strict=True)), (tokens,)).logits

    with sdpa_kernel(SDPBackend.MATH):  # others have no forward derivative
        z, dz = jvp(logits, tuple(weights[name].detach() for name in deltas), tuple(deltas.values()))
    return z.detach(), dz.detach()


def errors(model, names, name_of_scheme):
    weights = dict(model.with_head.named_parameters())
    transposed = "gpt2" in model.with_head.config.model_type

    def one(name):
        W = weights[name].detach()
        return scheme(name_of_scheme).error(W.T).T if transposed else scheme(name_of_scheme).error(W)

    return {name: one(name) for name in names}


def exact(model, tokens, deltas):
    """Return the mean over positions of half the variance of the change of the logits: all classes, no draws."""
    z, dz = image(model, tokens, deltas)
    p = z.softmax(-1)
    return float(((p * dz**2).sum(-1) - (p * dz).sum(-1) ** 2).mean() / 2)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_product_is_that_of_the_cotangent_with_the_dense_derivative(family, windows, request):
    model = request.getfixturevalue(family)
    found = hs.budget(model, windows, schemes=["int4:g8"], passes=2, seed=5)
    assert len(found.effects) == {"llama": 14, "gpt2": 8}[family]
    subject = Subject.of(model, windows)
    for window in range(len(windows)):
        generator = torch.Generator().manual_seed(5 * 1_000_003 + window)
        draws = [subject.cotangent(subject.outputs(window).detach(), generator) for _ in range(2)]
        for i, each in [*enumerate(found.effects)][window::3]:
            _z, dz = image(model, windows[window][None], errors(model, [each.name], "int4:g8"))
            expected = torch.stack([(u * dz[0]).sum() for u in draws])
            # LlamaRMSNorm computes in float32, whatever the dtype
            assert_close(found.products.values[window, :, i], expected, rtol=1e-5, atol=1e-7)


def test_cotangents_have_the_metric_as_their_second_moment(llama, windows):
    subject = Subject.of(llama, windows)
    z = torch.tensor([2.0, 0.5, 0.0, -1.0], dtype=torch.float64)
    p = z.softmax(-1)
    # four signs have sixteen values: their mean is the expectation
    every = torch.cartesian_prod(*[torch.tensor([0, 1])] * 4)
    patched = iter(every[:, None])
    randint = torch.randint
    torch.randint = lambda *_args, **_settings: next(patched)
    try:
        u = torch.cat([subject.cotangent(z[None], torch.Generator()) for _ in every])
    finally:
        torch.randint = randint
    assert_close(u.T @ u / len(u), p.diag() - torch.outer(p, p))


def test_intervals_cover_the_truth_as_often_as_they_say(llama, windows):
    subject = Subject.of(llama, windows)
    everything = errors(llama, [e.name for e in hs.budget(llama, windows, schemes=["int3"], passes=1).effects], "int3")
    z, dz = image(llama, windows, everything)
    truth = exact(llama, windows, everything)
    generator = torch.Generator().manual_seed(11)
    for passes in (2, 8):
        u = subject.cotangent(z.expand(1600, passes, *z.shape), generator)
        values = (u * dz).sum((-1, -2)).transpose(1, 2)
        intervals = [effect("", "", draws, z.shape[1]) for draws in values]
        covered = sum(each.low <= truth <= each.high for each in intervals) / 1600
        assert 0.93 <= covered <= 0.97
        mean = sum(each.kl for each in intervals) / 1600
        assert_close(mean, truth, rtol=5 / math.sqrt(1600 * passes * 3 / 2), atol=0)


def test_intervals_for_other_windows_cover_their_means(rng):
    """Windows that differ by a factor, as those of a text do, and draws that add to it."""
    covered = 0
    for _trial in range(400):
        levels = torch.exp(0.5 * torch.randn(12, 1, generator=rng, dtype=torch.float64))
        values = levels.sqrt() * torch.randn(12, 16, generator=rng, dtype=torch.float64)
        low, high = elsewhere(effect("", "", values[:6], 1), windows=6, others=6)
        covered += low <= float(levels[6:].mean() / 2) <= high
    assert 0.92 <= covered / 400 <= 0.99
    assert elsewhere(effect("", "", values[:1], 1), windows=1, others=6) == (0.0, math.inf)


def test_many_passes_come_to_the_exact_form_alone_and_together(llama, windows):
    found = hs.budget(llama, windows, schemes=["int4:g8"], passes=60, seed=2)
    names = found.names("int4:g8")
    for each in [*found.effects, found.together(), found.together(names[:4])]:
        chosen = [each.name] if each.name in names else names if each.name.startswith("14") else names[:4]
        assert_close(each.kl, exact(llama, windows, errors(llama, chosen, "int4:g8")), rtol=0.4, atol=0)
        assert each.low < each.kl < each.high


def test_errors_that_interact_do_not_add_up_and_those_of_two_schemes_may_be_mixed(rounded):
    first, second = rounded.names("int8")[:2]
    table = {e.key: rounded.products.values[..., i] for i, e in enumerate(rounded.products.errors)}
    mixed = rounded.together({first: "int4:g8", second: "int8"})
    expected = effect("", "", table[first, "int4:g8"] + table[second, "int8"], 7)
    assert (mixed.kl, mixed.low, mixed.high) == (expected.kl, expected.low, expected.high)
    assert mixed.kl != effect("", "", table[first, "int4:g8"], 7).kl + effect("", "", table[second, "int8"], 7).kl


def test_groups_are_the_errors_that_a_layer_a_kind_or_a_head_has_together(rounded, llama, windows):
    layers, kinds = rounded.grouped("layer", "int8"), rounded.grouped("kind", "int8")
    assert [each.name for each in layers] == ["0", "1"]
    assert len(kinds) == 7
    inside = [name for name in rounded.names("int8") if ".layers.1." in name]
    assert layers[1].kl == rounded.together(inside, "int8").kl
    both = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)]
    assert {each.name: each.kl for each in kinds}["mlp.down_proj"] == rounded.together(both, "int8").kl
    cache = hs.budget(llama, windows, schemes=["kv:int4"], passes=1)
    heads = {each.name: each.kl for each in cache.grouped("head")}
    assert heads["1.0"] == cache.together(["cache.1.key.0", "cache.1.value.0"]).kl
    assert [each.name for each in cache.grouped("kind")] == ["key", "value"]
    with pytest.raises(hs.errors.AssumptionError, match="rounds has no head; take a scheme such as kv:int4"):
        rounded.grouped("head", "int8")
    with pytest.raises(hs.errors.AssumptionError, match="there is no grouping 'layers'; did you mean layer"):
        rounded.grouped("layers", "int8")


def test_the_truth_is_the_model_with_rounded_weights(llama, gpt2, windows):
    for model in (llama, gpt2):
        found = hs.budget(model, windows, schemes=["int4:g8"], passes=1)
        names = found.names("int4:g8")[1:3]
        deltas = errors(model, names, "int4:g8")
        weights = dict(model.with_head.named_parameters())
        changed = {name: weights[name] + delta for name, delta in deltas.items()}
        p = model.with_head(windows).logits.log_softmax(-1)
        q = functional_call(model.with_head, changed, (windows,)).logits.log_softmax(-1)
        truth = (p.exp() * (p - q)).sum(-1).mean().detach()
        assert_close(found.measured(dict.fromkeys(names, "int4:g8"))[0], truth)
        by_token = found.by_token(dict.fromkeys(names, "int4:g8"))
        assert_close(by_token, (p.exp() * (p - q)).sum(-1).detach())


def test_margins_are_those_of_the_word_that_wins_without_errors(llama, windows):
    found = hs.budget(llama, windows, schemes=["int2"], passes=1)
    recipe = dict.fromkeys(found.names("int2"), "int2")
    outcome = found.outcome(recipe)
    weights = dict(llama.with_head.named_parameters())
    changed = {name: weights[name] + delta for name, delta in errors(llama, recipe, "int2").items()}
    base, other = llama.with_head(windows).logits, functional_call(llama.with_head, changed, (windows,)).logits
    assert outcome.flips == int((base.argmax(-1) != other.argmax(-1)).sum()) > 0
    for window, position in ((0, 0), (2, 6)):
        z, q = base[window, position], other[window, position]
        first, second = z.argsort(descending=True)[:2]
        assert_close(outcome.before[window, position], (z[first] - z[second]).detach())
        assert_close(outcome.after[window, position], (q[first] - q[q != q[first]].max()).detach())


@pytest.mark.slow
def test_the_worst_error_of_a_size_is_the_top_of_the_dense_metric(llama, windows):
    found = hs.budget(llama, windows[:1], schemes=["int4:g8"], passes=1)
    each = next(e for e in found.products.errors if e.name.endswith("0.self_attn.k_proj.weight"))
    delta = errors(llama, [each.name], "int4:g8")[each.name]
    assert_close(each.squared, float(delta.square().sum()))
    basis = torch.eye(delta.numel(), dtype=torch.float64).reshape(-1, *delta.shape)
    z, columns = llama.with_head(windows[:1]).logits[0].detach(), []
    for E in basis:
        columns.append(image(llama, windows[:1], {each.name: E})[1][0])
    J, p = torch.stack(columns, -1), z.softmax(-1)
    F = torch.einsum("tvi,tv,tvj->ij", J, p, J) - torch.einsum("ti,tj->ij", *[torch.einsum("tv,tvi->ti", p, J)] * 2)
    top = float(torch.linalg.eigvalsh(F)[-1]) * each.squared / (2 * len(z))
    worst = worst_cost(found.places.subject, each.name, each.squared)
    assert worst.low <= top * (1 + 1e-6)
    assert worst.high >= top * (1 - 1e-6)
    assert worst.low >= 0.75 * top
    assert worst_cost(found.places.subject, "cache.0.key.0", 1.0) is None
    first, *_others = found.verify(1, worst=True)
    assert first.worst.high >= first.predicted.kl


def test_what_second_order_leaves_out_shrinks_with_the_error(gpt2, windows):
    found = hs.budget(gpt2, windows, schemes=["int2"], passes=1)
    names = found.names("int2")
    exactly = exact(gpt2, windows, errors(gpt2, names, "int2"))
    recipe = dict.fromkeys(names, "int2")
    off = [abs(float(found.measured(recipe, factor=t)) / t**2 / exactly - 1) for t in (0.1, 0.01)]
    assert off[1] < 0.2 * off[0] < 0.1


def test_the_worst_and_some_others_are_verified(rounded):
    found = rounded.verify(2, "int8")
    ranked = sorted((each for each in rounded.effects if each.scheme == "int8"), key=lambda each: -each.kl)
    assert [each.predicted for each in found[:2]] == ranked[:2]
    assert len({each.predicted.name for each in found}) == 4
    assert all(each.second_order for each in found[:2])
    assert_close(found[0].measured, float(rounded.measured({ranked[0].name: "int8"})))
    assert not hs.budgets.Verified(predicted=ranked[0], measured=1.3, at_half=1.0).second_order


def test_embeddings_whose_head_is_no_module_are_refused(llama, windows):
    with pytest.raises(hs.errors.UnsupportedModelError, match="without the module of its output head"):
        hs.budget(dataclasses.replace(llama, with_head=None), windows, schemes=["embeddings:int8"])


def test_draws_at_a_window_depend_on_neither_other_windows_nor_other_schemes(llama, windows, rounded):
    alone = hs.budget(llama, windows[:2], schemes=["int8"], passes=6, seed=5)
    assert_close(alone.products.values, rounded.products.values[:2, :, 1::2])
    assert not torch.equal(
        hs.budget(llama, windows[:2], schemes=["int8"], passes=6).products.values, alone.products.values
    )


def test_parameters_are_left_as_they_were(llama, windows):
    before = {name: (p.clone(), p.requires_grad) for name, p in llama.with_head.named_parameters()}
    found = hs.budget(llama, windows, schemes=["int2", "embeddings:int2"], passes=1)
    found.measured(dict.fromkeys(found.names("int2"), "int2"))
    for name, parameter in llama.with_head.named_parameters():
        assert torch.equal(parameter, before[name][0])
        assert parameter.requires_grad == before[name][1]
        assert parameter.grad is None


def test_names_are_those_of_parameters_and_know_their_layer_and_kind(rounded, llama):
    names = {name for name, p in llama.with_head.named_parameters() if ".layers." in name and p.ndim == 2}
    assert set(rounded.names("int8")) == names
    first = rounded.effects[0]
    assert (first.name, first.layer, first.kind) == ("model.layers.0.self_attn.q_proj.weight", 0, "self_attn.q_proj")


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("tokens", "settings", "words"),
    [
        (None, {"schemes": "int4"}, "schemes must be a list"),
        (None, {"schemes": []}, "schemes must be a list"),
        (None, {"schemes": ["int44"]}, "there is no scheme 'int44'.*did you mean int4"),
        (None, {"schemes": ["int4:g0"]}, "'int4:g0': options are"),
        (None, {"passes": 0}, "passes must be at least 1, got 0"),
        (torch.zeros(4, dtype=torch.long), {}, r"tokens must be windows \(b, n\)"),
        (3, {}, "token ids must be a sequence, got a number"),
        (None, {"schemes": ["prune:2"]}, "prune:0.5 removes"),
        (None, {"schemes": ["mine.py:f"]}, "there is no file 'mine.py'"),
    ],
)
def test_bad_input_is_refused_in_one_line(tokens, settings, words, llama, windows):
    with pytest.raises(hs.errors.HowsmoothError, match=words) as refusal:
        hs.budget(llama, windows if tokens is None else tokens, **{"schemes": ["int4"]} | settings)
    assert "\n" not in str(refusal.value)


def test_a_forward_pass_without_a_backward_one_is_refused(llama, windows, monkeypatch):
    monkeypatch.setattr(llama.with_head, "forward", torch.no_grad()(llama.with_head.forward))
    with pytest.raises(hs.errors.UnsupportedModelError, match=r"cannot be differentiated: .* dequantised"):
        hs.budget(llama, windows, schemes=["int4"], passes=1)


def test_names_and_schemes_that_are_not_there_are_refused(rounded):
    with pytest.raises(hs.errors.AssumptionError, match=r"did you mean model\.layers\.0\.self_attn\.q_proj"):
        rounded.together(["model.layers.0.self_attn.q_prj.weight"], "int8")
    with pytest.raises(hs.errors.AssumptionError, match="scheme must be one of int4:g8, int8, got None"):
        rounded.together()
