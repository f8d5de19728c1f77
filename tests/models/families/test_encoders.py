"""Encoders and decoders, alone or together, with a head or without: the same layers are found in all of them."""

import pytest
import torch
import transformers
from models.small_models import CONFIGS, inputs, randomised, run, tolerance
from torch.testing import assert_close

import howsmooth as hs

TOWERS = {
    "bart": (transformers.BartModel, transformers.BartForConditionalGeneration, transformers.BartForCausalLM),
    "t5": (transformers.T5Model, transformers.T5ForConditionalGeneration, transformers.T5EncoderModel),
    "clip_text_model": (transformers.CLIPTextModelWithProjection,),
    "clip_vision_model": (transformers.CLIPVisionModelWithProjection,),
}
KINDS = [(family, kind) for family, kinds in TOWERS.items() for kind in kinds]


def random_model(family, kind, rng):
    return randomised(CONFIGS[family](), rng, build=kind)


def check_every_layer(family, module, rng):
    transformer = hs.load(module)
    found, heard = run(transformer, inputs(family, rng), [layer.projection_path for layer in transformer.layers])
    for layer, (_read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index)
        assert_close(f(X), written, **tolerance(family))
    return transformer


@pytest.mark.parametrize(("family", "kind"), KINDS, ids=lambda part: getattr(part, "__name__", part))
def test_a_head_or_a_tower_of_its_own_changes_nothing(family, kind, rng):
    transformer = check_every_layer(family, random_model(family, kind, rng), rng)
    assert transformer.notes == ()


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_of_an_encoder_and_a_decoder_the_encoder_is_measured(family, rng):
    transformer = hs.load(random_model(family, TOWERS[family][0], rng))
    assert len(transformer.layers) == 2  # the decoder has three
    assert not any(layer.attention.positions.causal for layer in transformer.layers)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_missing_flag_does_not_hide_that_there_are_an_encoder_and_a_decoder(family, rng):
    module = random_model(family, TOWERS[family][0], rng)
    module.config.is_encoder_decoder = False
    assert len(check_every_layer(family, module, rng).layers) == 2


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_decoder_that_stands_alone_is_causal(family, rng):
    transformer = check_every_layer(family, random_model(family, TOWERS[family][0], rng).decoder, rng)
    assert len(transformer.layers) == 3
    assert all(layer.attention.positions.causal for layer in transformer.layers)


def test_of_a_tower_of_text_and_one_of_pictures_the_text_is_measured(rng):
    parts = {"text_config": CONFIGS["clip_text_model"](), "vision_config": CONFIGS["clip_vision_model"]()}
    both = randomised(transformers.CLIPConfig(**parts), rng)
    transformer = check_every_layer("clip_text_model", both, rng)
    assert "two towers" in transformer.notes[0]
    assert all(layer.attention.positions.causal for layer in transformer.layers)
    assert transformer.digest == hs.load(both.text_model).digest
    pictures = check_every_layer("clip_vision_model", both.vision_model, rng)
    assert not any(layer.attention.positions.causal for layer in pictures.layers)


def test_the_scores_of_t5_depend_on_the_distance_as_far_as_anybody_looks(rng):
    transformer = hs.load(random_model("t5", transformers.T5EncoderModel, rng))
    X = torch.randn(300, 24, dtype=torch.float64, generator=rng)  # far beyond where its buckets end
    own = transformer.module.encoder.block[0].layer[0].SelfAttention
    expected, *_rest = own(X[None])
    assert_close(transformer.layers[0].attention(X), expected[0])


def test_the_first_layer_of_modernbert_reads_what_the_embeddings_have_normed(rng):
    found = hs.load(randomised(CONFIGS["modernbert"](), rng)).activations(inputs("modernbert", rng))
    f, stream = found.at(0, "normed")
    g, X = found.at(0, "attention")
    assert_close(stream, X, rtol=0, atol=0)
    assert_close(f(stream), g(X), rtol=0, atol=0)
