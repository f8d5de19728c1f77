"""The parts of a layer, each against what the module itself computes there."""

import itertools

import pytest
import torch
import transformers
from models.small_models import (
    CONFIGS,
    EVERY,
    QUICK,
    SMALL,
    build,
    constant_of,
    each,
    inputs,
    randomised,
    run,
    substituted,
    tolerance,
)
from oracles import constant
from torch.testing import assert_close

import howsmooth as hs

# Where the module holds the residual sum around attention, normed if the norm comes behind: what a part reads, or
# puts out. Some add attention and MLP to the stream in one go: then it is the stream and what a part puts out.
SUMS = {
    "albert": ("attention", "writes"),
    "bart": ("self_attn_layer_norm", "writes"),
    "bert": ("attention", "writes"),
    "bloom": ("post_attention_layernorm", "reads"),
    "bloom, six heads, the residual normed": ("post_attention_layernorm", "reads"),
    "camembert": ("attention", "writes"),
    "clip_text_model": ("layer_norm2", "reads"),
    "clip_vision_model": ("layer_norm2", "reads"),
    "deberta-v2": ("attention", "writes"),
    "deit": ("layernorm_after", "reads"),
    "distilbert": ("sa_layer_norm", "writes"),
    "electra": ("attention", "writes"),
    "falcon": ("self_attention.dense", "adds"),
    "falcon, groups and two norms": ("self_attention.dense", "adds"),
    "falcon, one part after another, six heads, alibi": ("post_attention_layernorm", "reads"),
    "gemma": ("post_attention_layernorm", "reads"),
    "gemma2": ("pre_feedforward_layernorm", "reads"),
    "gemma3_text": ("pre_feedforward_layernorm", "reads"),
    "gpt2": ("ln_2", "reads"),
    "gpt_neo": ("ln_2", "reads"),
    "gpt_neox, one part after another, no biases": ("post_attention_layernorm", "reads"),
    "gptj": ("attn.out_proj", "adds"),
    "granite": ("post_attention_layernorm", "reads"),
    "llama": ("post_attention_layernorm", "reads"),
    "mistral": ("post_attention_layernorm", "reads"),
    "mixtral": ("post_attention_layernorm", "reads"),
    "modernbert": ("mlp_norm", "reads"),
    "mpnet": ("attention", "writes"),
    "olmo2": ("mlp", "reads"),
    "olmo3": ("mlp", "reads"),
    "opt": ("final_layer_norm", "reads"),
    "opt, the norm behind": ("self_attn_layer_norm", "writes"),
    "phi": ("self_attn.dense", "adds"),
    "phi3": ("post_attention_layernorm", "reads"),
    "qwen2": ("post_attention_layernorm", "reads"),
    "qwen3": ("post_attention_layernorm", "reads"),
    "roberta": ("attention", "writes"),
    "t5": ("layer.0", "writes"),
    "vit": ("layernorm_after", "reads"),
    "xlm-roberta": ("attention", "writes"),
}
# Their norms stand in front of attention.
PRE_NORM = (
    *("clip_text_model", "clip_vision_model", "deit", "modernbert", "t5", "vit"),
    *("bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gptj", "granite", "llama"),
    *("mistral", "mixtral", "opt", "phi", "phi3", "qwen2", "qwen3"),
)


def sites_and(transformer, heard):
    return zip(transformer.layers, heard, strict=True)


@pytest.mark.parametrize("family", each(CONFIGS))
def test_the_heads_are_what_the_output_projection_reads(family, rng):
    transformer = build(family)
    found, heard = run(transformer, inputs(family, rng), [layer.projection_path for layer in transformer.layers])
    for layer, (read, _written) in sites_and(transformer, heard):
        f, X = found.at(layer.index, "heads")
        assert_close(f(X), read, **tolerance(family))


@pytest.mark.parametrize("family", each(CONFIGS))
def test_single_heads_add_up_to_the_modules_output_less_its_bias(family, rng):
    transformer = build(family)
    found, heard = run(transformer, inputs(family, rng), [layer.projection_path for layer in transformer.layers])
    for layer, (_read, written) in sites_and(transformer, heard):
        total = torch.zeros_like(written)
        for h in range(layer.attention.layout.heads):
            f, X = found.at(layer.index, f"head:{h}")
            total += f(X)
        bias = dict(transformer.module.named_modules())[layer.projection_path].bias
        assert_close(total if bias is None else total + bias, written, **tolerance(family))


@pytest.mark.parametrize("family", each(PRE_NORM))
def test_normed_attention_of_the_stream_is_the_modules_output(family, rng):
    transformer = build(family)
    found, heard = run(transformer, inputs(family, rng), [layer.projection_path for layer in transformer.layers])
    for layer, (_read, written) in sites_and(transformer, heard):
        f, X = found.at(layer.index, "normed")
        assert X is not found.attention[layer.index]
        assert_close(f(X), written, **tolerance(family))


@pytest.mark.parametrize("family", each(sorted(set(CONFIGS) - set(PRE_NORM))))
def test_where_the_norm_comes_behind_there_is_no_normed_map(family, rng):
    found = build(family).activations(inputs(family, rng))
    with pytest.raises(hs.errors.AssumptionError, match="behind attention"):
        found.at(0, "normed")


def test_every_family_has_a_residual_sum_to_compare_with():
    assert set(CONFIGS) == {family.split(",")[0] for family in SUMS}


@pytest.mark.parametrize("family", each(SUMS))
def test_the_residual_is_what_the_mlp_is_given(family, rng):
    transformer = build(family)
    part, side = SUMS[family]
    found, heard = run(transformer, inputs(family, rng), [f"{layer.block_path}.{part}" for layer in transformer.layers])
    for layer, (read, written) in sites_and(transformer, heard):
        f, X = found.at(layer.index, "residual")
        # some modules are given their tokens in one row after the other
        other = (read if side == "reads" else written).reshape(X.shape)
        assert_close(f(X), X + other if side == "adds" else other, **tolerance(family))


@pytest.mark.parametrize("family", each(EVERY))
def test_the_block_is_the_modules_own_at_its_input_and_elsewhere(family, rng):
    transformer = build(family)
    paths = [layer.block_path for layer in transformer.layers]
    tokens = inputs(family, rng)
    found, heard = run(transformer, tokens, paths)
    for layer, (_read, written) in sites_and(transformer, heard):
        f, X = found.at(layer.index, "block")
        assert_close(f(X), written, **tolerance(family))
        g = substituted(transformer, tokens, layer.block_path, turn=paths[: layer.index].count(layer.block_path))
        elsewhere = X + torch.randn(X.shape, dtype=X.dtype, generator=rng)
        assert_close(f(elsewhere), g(elsewhere), **tolerance(family))


# Both products of every family's block are compared with those of its module in the tests of whole models.
@pytest.mark.slow
@pytest.mark.parametrize("family", QUICK)
def test_the_constant_of_a_block_is_its_dense_jacobians(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, batch=1, length=3)
    f, X = transformer.activations(tokens).at(1, "block")
    estimate = hs.local_lipschitz(f, X, seed=rng)
    exact = constant_of(substituted(transformer, tokens, transformer.layers[1].block_path), X)
    slack = 1 + 1e-6  # some norms compute in float32
    assert estimate.lower.item() <= exact.item() * slack
    assert exact.item() <= estimate.upper.item() * slack
    assert_close(estimate.lower.squeeze(), exact, rtol=1e-3, atol=0)  # the default rtol of the measurement


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"),
    [
        *itertools.product(
            ("bert", "gemma2", "gpt2", "olmo2", "opt, the norm behind", "qwen3"),
            ("attention", "heads", "head:2", "residual"),
        ),
        *itertools.product(("gemma2", "gpt2", "qwen3"), ("normed",)),
    ],
)
def test_the_constant_of_a_part_is_its_dense_jacobians(family, name, rng):
    transformer = build(family)
    f, X = transformer.activations(inputs(family, rng, batch=1, length=5)).at(1, name)
    estimate = hs.local_lipschitz(f, X, seed=rng)
    assert_close(estimate.lower.squeeze(), constant(f, X), rtol=1e-3, atol=0)  # the measurement's own rtol


def test_layers_that_share_their_weights_are_measured_where_each_of_them_runs(rng):
    config = transformers.AlbertConfig(**SMALL | {"num_hidden_layers": 3}, embedding_size=12)
    transformer = hs.load(randomised(config, rng))
    found = transformer.activations(inputs("albert", rng))
    assert len({part.attention_path for part in transformer.layers}) == 1
    for layer in (0, 1):
        block, stream = found.at(layer, "block")
        assert_close(block(stream), found.blocks[layer + 1])


def test_a_measured_model_keeps_its_settings_and_its_hooks(rng):
    config = CONFIGS["gpt2"]()
    model = randomised(config, rng)
    transformer = hs.load(model)
    transformer.activations(inputs("gpt2", rng))
    assert model.config.use_cache is True
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())
