"""Errors of caches, activations and kernels against the model run with them, and recipes of weights."""

import copy
import dataclasses
import json
import re

import pytest
import torch
import yaml
from torch.func import functional_call
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.budgets import export
from howsmooth.budgets.effects import elsewhere
from howsmooth.budgets.recipes import KEEP, RecipeChoice


@pytest.mark.parametrize("label", ["kv:int3", "kv-channel:int3", "residual:int4", "kernel:fp8", "embeddings:int3:g8"])
def test_errors_on_the_way_cost_what_they_do_when_they_are_put_in(label, gpt2, windows):
    found = hs.budget(gpt2, windows[:2], schemes=[label], passes=24)
    names = found.names(label)
    truth = found.measured(*({name: label} for name in names), factor=1e-2) / 1e-4
    predicted = torch.tensor([each.kl for each in found.effects], dtype=torch.float64)
    large = truth > 0.01 * truth.max()  # the rest is rounding
    assert_close(predicted[large], truth[large], rtol=0.8, atol=0)
    everything = float(found.measured(dict.fromkeys(names, label), factor=1e-2)) / 1e-4
    assert_close(found.together().kl, everything, rtol=0.8, atol=0)


def put_in_by_hand(module, label):
    """Round with plain hooks what a scheme names: heads of the cache, outputs of blocks, or of modules."""
    place, _, rest = label.partition(":")
    rounded = hs.budgets.scheme(rest).rounded
    width, heads = 24, 4

    def cache(_part, _inputs, output):
        query, *sides = output.split(width, dim=-1)
        sides = [side.unflatten(-1, (heads, -1)).transpose(1, 2) for side in sides]  # windows, heads, tokens, numbers
        if place == "kv-channel":
            sides = [torch.stack([rounded(x.mT, "").mT for x in side.flatten(0, 1)]).view_as(side) for side in sides]
        else:
            sides = [rounded(side, "") for side in sides]
        return torch.cat([query, *(side.transpose(1, 2).flatten(-2) for side in sides)], dim=-1)

    def first(_part, _inputs, output):
        return rounded(output, "") if isinstance(output, torch.Tensor) else (rounded(output[0], ""), *output[1:])

    leaves = [part for path, part in module.named_modules() if path and not any(part.children())]
    parts = {
        "kv": [block.attn.c_attn for block in module.transformer.h],
        "residual": list(module.transformer.h),
        "kernel": [part for part in leaves if not isinstance(part, torch.nn.Dropout)],
    }[place.removesuffix("-channel")]
    return [part.register_forward_hook(cache if place.startswith("kv") else first) for part in parts]


@pytest.mark.parametrize("label", ["kv:int3", "kv-channel:int3", "residual:int4", "kernel:bf16"])
def test_the_truth_is_the_model_with_plain_hooks_that_round(label, gpt2, windows):
    found = hs.budget(gpt2, windows, schemes=[label], passes=1)
    p = gpt2.with_head(windows).logits.log_softmax(-1)
    hooks = put_in_by_hand(gpt2.with_head, label)
    # one window after the other, as budgets run them: a scale may be one for all that a module puts out
    q = torch.cat([gpt2.with_head(window[None]).logits for window in windows]).log_softmax(-1)
    for hook in hooks:
        hook.remove()
    truth = (p.exp() * (p - q)).sum(-1).detach()
    assert truth.mean() > 1e-7
    assert_close(found.by_token(dict.fromkeys(found.names(label), label)), truth, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("label", ["kv:int3", "residual:int4"])
def test_what_second_order_leaves_out_of_errors_on_the_way_shrinks_with_them(label, gpt2, windows):
    found = hs.budget(gpt2, windows[:1], schemes=[label], passes=1)
    # one at a time: those behind others would round displaced numbers, and jump
    recipes = [{name: label} for name in found.names(label)]
    costs = {t: found.measured(*recipes, factor=t) / t**2 for t in (0.3, 0.03, 0.003)}
    large = costs[0.3] > 0.1 * costs[0.3].max()
    off = [float((costs[t] / costs[0.003] - 1)[large].abs().max()) for t in (0.3, 0.03)]
    assert 0 < off[1] < 0.3 * off[0]  # in proportion to the error, or faster


def test_modules_that_pass_their_input_on_round_nothing_anew(gpt2, windows):
    found = hs.budget(gpt2, windows[:1], schemes=["kernel:bf16"], passes=1)
    modules = dict(gpt2.with_head.named_modules())
    kinds = {type(modules[name]).__name__ for name in found.names("kernel:bf16")}
    assert {"Conv1D", "LayerNorm", "Linear", "Embedding"} <= kinds
    assert "Dropout" in {type(part).__name__ for part in modules.values()}
    assert not kinds & {"Dropout", "Identity"}


def test_heads_of_the_cache_have_names_and_those_of_a_group_are_one(llama, windows):
    found = hs.budget(llama, windows[:1], schemes=["kv:int4"], passes=1)
    expected = [f"cache.{layer}.{what}.{head}" for layer in (0, 1) for what in ("key", "value") for head in (0, 1)]
    assert sorted(found.names("kv:int4")) == sorted(expected)
    assert {(each.layer, each.kind) for each in found.effects} == {(i, k) for i in (0, 1) for k in ("key", "value")}


def test_an_encoder_moves_its_embedding(minilm):
    tokens = torch.tensor([[101, 2023, 2003, 102], [101, 7592, 2088, 102]])
    found = hs.budget(minilm, tokens, schemes=["int4:g64"], passes=16)
    assert found.cost == "1 − cosine"
    recipe = dict.fromkeys(found.names("int4:g64"), "int4:g64")
    assert_close(found.together().kl, float(found.measured(recipe)), rtol=0.5, atol=0)


def test_another_checkpoint_is_a_scheme(gpt2, windows, tmp_path):
    other = copy.deepcopy(gpt2.with_head)
    generator = torch.Generator().manual_seed(1)
    for parameter in other.parameters():
        parameter.data += 1e-3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    other.save_pretrained(tmp_path / "other")
    label = f"against:{tmp_path / 'other'}"
    found = hs.budget(gpt2, windows, schemes=[label], passes=24)
    recipe = dict.fromkeys(found.names(label), label)
    weights = {name: p for name, p in other.named_parameters() if name in recipe}
    p = gpt2.with_head(windows).logits.log_softmax(-1)
    q = functional_call(gpt2.with_head, weights, (windows,)).logits.log_softmax(-1)
    truth = float((p.exp() * (p - q)).sum(-1).mean().detach())
    assert_close(float(found.measured(recipe)), truth, rtol=1e-4, atol=0)
    assert_close(found.together().kl, truth, rtol=0.6, atol=0)
    with pytest.raises(hs.errors.ShapeError, match=r"has the shape \(24, 24\) here and .* the same model"):
        hs.budgets.scheme(label).error(torch.zeros(24, 24), "transformer.h.0.attn.c_attn.weight")


@pytest.fixture(scope="session")
def choices(gpt2, windows):
    return hs.budget(gpt2, windows, schemes=["int2", "int4", "int8"], passes=8)


def test_recipes_are_no_larger_than_asked_and_beat_uniform_ones(choices):
    found = choices.recipe(size=0.3)
    assert found.size <= 0.3
    assert found.bits == 16 * found.size
    uniform = dict.fromkeys(choices.names("int4"), "int4")
    assert found.measured < float(choices.measured(uniform))
    assert found.predicted.kl < choices.together(uniform).kl
    assert found.fresh.kl > 0
    other = choices.recipe(size=0.3, held_out=choices.places.subject.tokens[:2])  # fewer windows, a wider interval
    assert (other.fresh.low, other.fresh.high) == elsewhere(found.fresh, windows=3, others=2)
    smallest = choices.recipe(kl=found.predicted.kl * 1.5)
    assert smallest.predicted.kl <= found.predicted.kl * 2
    for words, settings in {
        "size must be at least 0.1": {"size": 0.1},
        "give one of size and kl": {},
        "positive number": {"size": -1.0},
    }.items():
        with pytest.raises(hs.errors.AssumptionError, match=words):
            choices.recipe(**settings)


def test_what_is_computed_has_no_size_and_no_part_in_recipes(choices, gpt2, windows):
    schemes = ["int2", "int4", "int8", "kernel:bf16", "residual:int8"]
    found = hs.budget(gpt2, windows, schemes=schemes, passes=8)
    recipe, alone = found.recipe(size=0.3), choices.recipe(size=0.3)
    assert (recipe.schemes, recipe.size) == (alone.schemes, alone.size)
    assert recipe.measured == pytest.approx(alone.measured)
    assert set(found.recipe(kl=1e-9).schemes) == set(alone.schemes)
    found = hs.budget(gpt2, windows, schemes=schemes[3:], passes=2)
    with pytest.raises(
        hs.errors.AssumptionError, match=r"only computed values, .*kernel:bf16, residual:int8.* int4:g64"
    ):
        found.recipe(size=0.5)


def test_a_recipe_is_the_best_of_those_between_the_estimates_and_the_uniform_rule(choices):
    products = choices.products
    choice = RecipeChoice.of(products.errors, products.values, products.positions)
    for size in (0.2, 0.3, 0.4):
        bits = size * float(choice.bits[:, -1].sum())
        some = choice.candidates(bits=bits)
        assert torch.equal(some[0], choice.within(bits=bits))
        assert torch.equal(some[-1], choice.by_rule("uniform", bits=bits))
        assert len({tuple(each.tolist()) for each in some}) > 1
        costs = [float(choices.measured(choice.rounded(each))) for each in some]
        found = choices.recipe(size=size)
        assert found.measured == min(costs)
        assert found.schemes == choice.named(some[costs.index(min(costs))])
    # what was read from a run has no model to run
    alone = dataclasses.replace(choices, places=None).recipe(size=0.3)
    assert (alone.schemes, alone.measured) == (choice.named(choice.within(bits=0.3 / 0.4 * bits)), None)


def test_rules_of_thumb_choose_what_they_say_at_the_same_size(choices):
    size = choices.recipe(size=0.3).size
    every = choices.names("int4")
    four = sum(e.bits * e.numbers for e in choices.products.errors if e.scheme == "int4")
    whole = sum(16 * e.numbers for e in choices.products.errors if e.scheme == "int4")
    uniform = choices.recipe(size=four / whole + 1e-9, rule="uniform")
    assert uniform.schemes == dict.fromkeys(every, "int4")
    between = choices.recipe(size=size, rule="uniform")
    assert set(between.schemes.values()) == {"int4", "int8"}
    assert between.size <= size
    squares = {e.key: e.squared for e in choices.products.errors}

    def squared(recipe):
        return sum(squares.get(item, 0.0) for item in recipe.schemes.items())

    assert squared(choices.recipe(size=size, rule="weight error")) < squared(between)
    # both layers are among the first and last two
    assert choices.recipe(size=size, rule="first and last layers").schemes == between.schemes
    for words, settings in {
        "there is no rule 'unform'; did you mean uniform": {"size": 0.3, "rule": "unform"},
        "give size": {"kl": 1.0, "rule": "uniform"},
    }.items():
        with pytest.raises(hs.errors.AssumptionError, match=words):
            choices.recipe(**settings)


def test_the_first_and_last_two_layers_have_two_bits_more():
    errors = [
        hs.budgets.places.Error(name=f"layers.{m}.w", scheme=f"int{b}", numbers=100, bits=b, squared=1.0)
        for m in range(8)
        for b in (2.0, 4.0, 6.0)
    ]
    choice = RecipeChoice.of(errors, torch.ones(1, 4, len(errors), dtype=torch.float64), 1)
    found = choice.named(choice.by_rule("first and last layers", bits=8 * 300.0))
    assert list(found.values()) == ["int4.0"] * 2 + ["int2.0"] * 4 + ["int4.0"] * 2


def test_small_choices_are_the_best_of_all(rng):
    """Every recipe of four matrices and two schemes: the one that is found is within a few percent of the best."""
    errors = [
        hs.budgets.places.Error(name=str(m), scheme=s, numbers=100 * (m + 1), bits=b, squared=4.0**-b)
        for m in range(4)
        for s, b in (("a", 3.0), ("b", 5.0))
    ]
    scales = torch.tensor([1.0, 0.2, 3.0, 0.5, 2.0, 0.3, 0.6, 0.1], dtype=torch.float64)
    values = scales * torch.randn(1, 500, 8, generator=rng, dtype=torch.float64)
    choice = RecipeChoice.of(errors, values, 1)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    for bits in (3500.0, 5000.0, 8000.0):
        best = min(choice.cost(chosen) for chosen in every if choice.total_bits(chosen) <= bits)
        found = choice.within(bits=bits)
        assert choice.total_bits(found) <= bits
        assert choice.cost(found) <= 1.3 * best
    assert choice.named(choice.within(kl=1e9)) == dict.fromkeys("0123", "a")
    assert set(choice.named(choice.within(kl=0.0)).values()) == {KEEP}


def test_a_choice_does_not_exploit_the_noise_of_few_draws(rng):
    """Errors without interactions: a recipe by 16 draws costs on fresh ones about what the best would."""
    schemes = {"a": (3.0, 1.0), "b": (5.0, 0.25)}
    errors = [
        hs.budgets.places.Error(name=str(m), scheme=s, numbers=100, bits=bits, squared=1.0)
        for m in range(60)
        for s, (bits, _scale) in schemes.items()
    ]
    levels = torch.exp(torch.randn(60, 1, generator=rng, dtype=torch.float64))
    scales = (levels * torch.tensor([scale for _bits, scale in schemes.values()], dtype=torch.float64)).flatten()
    few, fresh, many = (
        RecipeChoice.of(errors, scales * torch.randn(1, draws, 120, generator=rng, dtype=torch.float64), 1)
        for draws in (16, 4000, 4000)
    )
    chosen, best = (choice.within(bits=60 * 400.0) for choice in (few, many))
    assert fresh.cost(chosen) < 1.5 * fresh.cost(best)


def test_recipes_are_written_as_other_tools_read_them(llama, windows):
    found = hs.budget(llama, windows, schemes=["int4:g8", "int8", "fp8"], passes=2).recipe(size=0.6)
    found = hs.budgets.Recipe(
        schemes=found.schemes | {"model.layers.1.mlp.down_proj.weight": KEEP},
        bits=9,
        size=0.6,
        predicted=found.predicted,
    )
    modifier = yaml.safe_load(export(found, "llm-compressor"))["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    patterns = {scheme: [] for scheme in found.rounded.values()}
    for group in modifier["config_groups"].values():
        weights = group["weights"]
        name = "fp8" if weights["type"] == "float" else "int4:g8" if weights["strategy"] == "group" else "int8"
        assert weights["num_bits"] == (4 if name == "int4:g8" else 8)
        patterns[name] = group["targets"]
    for name, scheme in found.rounded.items():
        hits = [s for s, found_patterns in patterns.items() for p in found_patterns if matches(p, name)]
        assert hits == [scheme]
    assert any(matches(pattern, "model.layers.1.mlp.down_proj.weight") for pattern in modifier["ignore"][1:])
    half = dataclasses.replace(found, schemes=dict.fromkeys(found.schemes, "bf16"))
    assert export(half, "llm-compressor").count('"re:') == len(found.schemes)
    assert "group_0" not in export(half, "llm-compressor")
    assert "--tensor-type blk.1.ffn_down=f16\n" in export(found, "gguf")
    assert export(found, "gguf").count("--tensor-type blk.") == 14
    skipped = json.loads(export(found, "transformers"))
    assert "model.layers.1.mlp.down_proj" in skipped["modules_to_not_convert"]
    assert json.loads(export(found))["schemes"] == found.schemes
    with pytest.raises(hs.errors.AssumptionError, match="rounds no cache"):
        export(found, "vllm")
    with pytest.raises(hs.errors.AssumptionError, match="there is no export 'gguff'; did you mean gguf"):
        export(found, "gguff")
    cache = hs.budgets.Recipe(
        schemes={"cache.0.key.0": KEEP, "cache.1.key.0": "kv:fp8"}, bits=9, size=0.6, predicted=found.predicted
    )
    assert export(cache, "vllm") == "--kv-cache-dtype-skip-layers 0\n"


def matches(pattern, name):
    return re.match(pattern.removeprefix("re:"), name.removesuffix(".weight")) is not None


def test_what_is_rounded_while_it_is_computed_takes_no_room_in_a_recipe():
    error = hs.budgets.places.Error
    weights = [error(name=f"w{k}", scheme="int4:g64", numbers=100, bits=4.25, squared=1.0) for k in range(3)]
    kernel = {"scheme": "kernel:bf16", "place": "kernel", "numbers": 10_000, "bits": 16.0, "squared": 1.0}
    kernels = [error(name=f"module{k}", **kernel) for k in range(3)]
    values = torch.ones(1, 4, 6, dtype=torch.float64)
    choice = RecipeChoice.of([*weights, *kernels], values, 1)
    assert choice.names == ("w0", "w1", "w2")
    assert choice.total_bits(choice.within(bits=0.5 * float(choice.bits[:, -1].sum()))) <= 0.5 * 300 * 16
    with pytest.raises(hs.errors.AssumptionError, match="only computed values, which take no space"):
        RecipeChoice.of(kernels, values[..., 3:], 1)
