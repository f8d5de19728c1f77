"""Every family against the Hugging Face module itself, with every parameter random: biases start at zero and hide."""

import pytest
import torch
import transformers
from models.small_models import CONFIGS, EVERY, TEXT, build, each, inputs, own_attention, run, tolerance
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.models.families.registry import FAMILIES, ONE_SIDED

# They see both sides whatever their configuration says.
ENCODERS = (
    *("albert", "bart", "bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta"),
    *("t5", "xlm-roberta"),
)


def test_every_known_family_is_tested():
    assert set(CONFIGS) == set(FAMILIES)


def products(g, X, E, G):
    """A function's value and its products with a perturbation and a cotangent, by autograd."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no forward mode
        value, tangent = torch.func.jvp(g, (X,), (E,))
        leaf = X.clone().requires_grad_()
        (pulled,) = torch.autograd.grad(g(leaf), leaf, G)
    return value, tangent, pulled


@pytest.mark.parametrize("family", each(EVERY, quick=CONFIGS))
def test_our_map_is_the_module_and_so_is_its_derivative(family, rng):
    transformer = build(family)
    found, heard = run(transformer, inputs(family, rng), [layer.projection_path for layer in transformer.layers])
    assert len(transformer.layers) >= 2
    for layer, (_read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index)
        assert_close(f(X), written, **tolerance(family))
        E = torch.randn(X.shape, dtype=torch.float64, generator=rng)
        G = torch.randn(written.shape, dtype=torch.float64, generator=rng)
        g = own_attention(transformer, layer, found.attention_calls[layer.index])
        value, tangent, pulled = products(g, X, E, G)
        assert_close(value, written)
        J = f.jacobian(X)
        assert_close(J.jvp(E), tangent, **tolerance(family))
        assert_close(J.vjp(G), pulled, **tolerance(family))


@pytest.mark.parametrize("family", each(TEXT))
def test_padding_is_seen_by_nobody_as_in_the_module(family, rng):
    transformer = build(family)
    # Gemma's own loop, in float64, puts out NaN at a token whose window holds padding only
    real = [9, 8, 6] if family == "gemma2" else [9, 6, 2]
    padding = torch.arange(9) < torch.tensor(real)[:, None]
    tokens = inputs(family, rng, batch=3)
    found, heard = run(transformer, tokens, [layer.projection_path for layer in transformer.layers], padding=padding)
    for layer, (_read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index)
        assert_close(f(X)[padding], written[padding], **tolerance(family))
        E = torch.randn(X.shape, dtype=torch.float64, generator=rng)
        # what comes out at padded tokens is nobody's business
        G = torch.randn(written.shape, dtype=torch.float64, generator=rng) * padding[..., None]
        g = own_attention(transformer, layer, found.attention_calls[layer.index])
        _value, tangent, pulled = products(g, X, E, G)
        J = f.jacobian(X)
        assert_close(J.jvp(E)[padding], tangent[padding], **tolerance(family))
        assert_close(J.vjp(G), pulled, **tolerance(family))
        assert J.vjp(G)[~padding].abs().max() == 0


DECODERS = [family for family in TEXT if "decoder" in family or not family.startswith((*ONE_SIDED, *ENCODERS))]


@pytest.mark.parametrize("family", each(DECODERS))
def test_a_decoder_that_is_told_to_see_both_sides_does(family, rng):
    transformer = build(family, is_causal=False)
    found, heard = run(transformer, inputs(family, rng), [layer.projection_path for layer in transformer.layers])
    for layer, (_read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index)
        assert_close(f(X), written, **tolerance(family))


@pytest.mark.parametrize("family", ONE_SIDED)
def test_where_the_module_heeds_that_in_part_only_the_model_is_refused(family):
    with pytest.raises(hs.errors.UnsupportedModelError, match="is_causal = False") as caught:
        build(family, is_causal=False)
    assert caught.value.field == "model"


@pytest.mark.parametrize("family", each(TEXT))
def test_real_tokens_cannot_tell_that_there_is_padding(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, batch=1)
    padding = torch.arange(9)[None] < 6
    padded, bare = transformer.activations(tokens, padding=padding), transformer.activations(tokens[:, :6])
    f, X = padded.at(1)
    g, Y = bare.at(1)
    assert_close(X[:, :6], Y, **tolerance(family))
    assert_close(f(X)[:, :6], g(Y), **tolerance(family))


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "mistral"])
def test_padding_may_stand_in_front(family, rng):
    transformer = build(family)
    padding = torch.arange(9) >= torch.tensor([0, 7])[:, None]
    tokens = inputs(family, rng)
    found, heard = run(transformer, tokens, [layer.projection_path for layer in transformer.layers], padding=padding)
    for layer, (_read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index)
        assert_close(f(X)[padding], written[padding], **tolerance(family))


@pytest.mark.parametrize("family", each(CONFIGS))
def test_activations_are_what_attention_reads_and_what_the_block_reads(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, length=7)
    found, heard = run(transformer, tokens, [layer.block_path for layer in transformer.layers])
    for layer, (read, _written) in zip(transformer.layers, heard, strict=True):
        X, stream = found.attention[layer.index], found.blocks[layer.index]
        assert_close(stream, read, rtol=0, atol=0)
        # some norms compute in float32
        assert_close(stream if layer.pre_norm is None else layer.pre_norm(stream), X, rtol=1e-5, atol=1e-6)


def test_a_model_with_a_head_is_read_without_it():
    config = CONFIGS["gpt2"]()
    with_head = transformers.GPT2LMHeadModel(config)
    assert len(hs.load(with_head).layers) == 2


@pytest.mark.slow
def test_random_models_have_the_familys_shape():
    transformer = hs.load("random:electra", dtype=torch.float64)  # the smallest
    assert len(transformer.layers) == 12
    assert transformer.layers[0].attention.d == 256
    assert any("random" in note for note in transformer.notes)


def test_a_folder_is_loaded(tmp_path, rng):
    model = build("bert").module
    model.save_pretrained(tmp_path / "model")
    again = hs.load(str(tmp_path / "model"), dtype=torch.float64)
    X = torch.randn(5, 24, dtype=torch.float64, generator=rng)
    assert_close(again.layers[1].attention(X), hs.load(model).layers[1].attention(X))
