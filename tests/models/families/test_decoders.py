"""What decoders have that no other family has, and what of it is refused."""

import pytest
import torch
import transformers
from models.small_models import EVERY, FALCON, GROUPED, build, inputs, randomised, run, tolerance
from torch.testing import assert_close

import howsmooth as hs

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "reach"),
    [
        (EVERY["phi3, stretched by longrope, half of a head rotated"], 20),
        (lambda: transformers.LlamaConfig(**GROUPED | {"max_position_embeddings": 12}, rope_parameters=DYNAMIC), 11),
    ],
    ids=["longrope", "dynamic"],
)
def test_sequences_for_which_a_model_changes_its_frequencies_are_refused(config, reach, rng):
    module = randomised(config(), rng)
    module(inputs("phi3", rng, length=25))  # the module keeps the frequencies of what it has seen last
    transformer = hs.load(module)
    tokens = inputs("phi3", rng, length=reach)
    f, X = transformer.activations(tokens).at(1, "normed")
    written = transformer.module.layers[1].self_attn.o_proj
    kept = []
    hook = written.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
    transformer.module(tokens)
    hook.remove()
    assert_close(f(X), kept[0], rtol=1e-5, atol=1e-6)  # angles and norms are float32
    f, X = transformer.activations(inputs("phi3", rng, length=reach + 1)).at(1)
    with pytest.raises(hs.errors.AssumptionError, match=f"meant for {reach} tokens"):
        f(X)


@pytest.mark.parametrize("family", ["gemma", "gemma2"])
def test_where_the_module_sees_both_sides_without_padding_only_the_model_is_refused(family, rng):
    config = EVERY[family]()
    config.use_bidirectional_attention = True
    with pytest.raises(hs.errors.UnsupportedModelError, match="use_bidirectional_attention") as caught:
        hs.load(randomised(config, rng))
    assert caught.value.field == "model"


FRONT, BETWEEN = [0, 1, 2], [3, 4, 8]


@pytest.mark.parametrize(
    ("family", "hidden"),
    [
        ("bloom", BETWEEN),  # in float64 its module puts out NaN at a token that sees padding only
        ("bloom, six heads, the residual normed", BETWEEN),
        ("falcon, one part after another, six heads, alibi", BETWEEN),
        ("falcon, one part after another, six heads, alibi", FRONT),
    ],
)
def test_alibi_counts_real_tokens_only(family, hidden, rng):
    transformer = build(family)
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, hidden] = False
    found, heard = run(
        transformer, inputs(family, rng), [layer.projection_path for layer in transformer.layers], padding=padding
    )
    for layer, (_read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index)
        assert_close(f(X)[padding], written[padding], **tolerance(family))


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_falcon_adds_alibi_as_often_as_its_kernel_does(kernel, rng):
    config = transformers.FalconConfig(**FALCON, alibi=True)
    config._attn_implementation = kernel
    transformer = hs.load(randomised(config, rng))
    found, heard = run(transformer, inputs("falcon", rng), [part.block_path for part in transformer.layers])
    for layer, (_read, written) in enumerate(heard):
        f, X = found.at(layer, "block")
        assert_close(f(X), written)


def test_far_away_alibi_of_falcon_is_rounded_as_the_module_rounds_it(rng):
    config = transformers.FalconConfig(**FALCON | {"max_position_embeddings": 600}, alibi=True)
    transformer = hs.load(randomised(config, rng))
    layer = transformer.layer(1)
    found, [(_read, written)] = run(transformer, inputs("falcon", rng, batch=1, length=600), [layer.projection_path])
    f, X = found.at(1)
    assert_close(f(X), written, **tolerance("falcon"))
