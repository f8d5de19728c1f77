"""Models of families that are not known: their own attention modules are differentiated, and they say so."""

import pytest
import torch
import transformers
from models.families import constant_by_rows, first, randomised, run, substituted
from torch import nn
from torch.testing import assert_close

import howsmooth as hs

CODER_AND_DECODER = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 50,
    "max_position_embeddings": 40,
}
STRANGERS = {
    "bart": lambda: transformers.BartConfig(**CODER_AND_DECODER),
    "bloom": lambda: transformers.BloomConfig(hidden_size=24, n_layer=2, n_head=4, vocab_size=50),
    "falcon": lambda: transformers.FalconConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=50
    ),
    "gptj": lambda: transformers.GPTJConfig(
        n_embd=24, n_layer=2, n_head=4, vocab_size=50, n_positions=40, rotary_dim=4, bos_token_id=1, eos_token_id=1
    ),
    "t5": lambda: transformers.T5Config(d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4, vocab_size=50),
}


class Plain(nn.Module):
    """Somebody's own model: an embedding and torch's encoder."""

    def __init__(self, *, batch_first=True):
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        layer = nn.TransformerEncoderLayer(24, 4, dim_feedforward=32, batch_first=batch_first, dtype=torch.float64)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.encoder(self.embedding(tokens).double())


def tokens_for(rng, *, batch=2):
    return torch.randint(3, 50, (batch, 6), generator=rng)


def stranger(family, rng):
    config = STRANGERS[family]()
    config.use_cache = False  # or a second call would see the keys of the first
    return hs.load(randomised(config, rng))


def agrees(estimate, exact):
    # some of them take softmax or angles in float32
    assert estimate.lower.item() <= exact.item() * (1 + 1e-6)
    assert exact.item() <= estimate.upper.item() * (1 + 1e-6)
    assert_close(estimate.lower.squeeze(), exact, rtol=1e-3, atol=0)  # the measurement's own rtol


@pytest.mark.parametrize("family", STRANGERS)
def test_a_stranger_is_loaded_and_announced(family, rng):
    transformer = stranger(family, rng)
    assert len(transformer.sites) == 2
    (note,) = transformer.notes
    assert repr(family) in note
    assert "autograd" in note
    assert "by autograd" in repr(transformer)


@pytest.mark.parametrize("name", ["attention", "block"])
@pytest.mark.parametrize("family", STRANGERS)
def test_a_strangers_maps_put_out_what_its_modules_put_out(family, name, rng):
    transformer = stranger(family, rng)
    paths = [site.reads if name == "attention" else site.block for site in transformer.sites]
    tokens = tokens_for(rng)
    found, heard = run(transformer, tokens, paths)
    for site, path, (_read, written) in zip(transformer.sites, paths, heard, strict=True):
        f, X = found.at(site.layer, name)
        assert X.shape == (2, 6, 24)
        assert_close(f(X), written)
        elsewhere = X + torch.randn(X.shape, dtype=X.dtype, generator=rng)
        assert_close(f(elsewhere), substituted(transformer, tokens, path)(elsewhere))


@pytest.mark.parametrize("name", ["attention", "block"])
@pytest.mark.parametrize("family", STRANGERS)
def test_a_strangers_constant_is_its_dense_jacobians(family, name, rng):
    transformer = stranger(family, rng)
    tokens = tokens_for(rng, batch=1)
    f, X = transformer.activations(tokens).at(1, name)
    site = transformer.sites[1]
    g = substituted(transformer, tokens, site.reads if name == "attention" else site.block)
    agrees(hs.local_lipschitz(f, X, generator=rng), constant_by_rows(g, X))


@pytest.mark.parametrize("family", ["bart", "falcon", "t5"])
def test_a_stranger_is_padded_as_it_pads_itself(family, rng):
    transformer = stranger(family, rng)
    padding = torch.arange(6) < torch.tensor([6, 4])[:, None]
    tokens = tokens_for(rng)
    found = transformer.activations(tokens, padding=padding)
    alone = transformer.activations(tokens[1:, :4])
    f, X = found.at(1)
    g, Y = alone.at(1)
    assert_close(f(X)[1, :4], g(Y)[0], rtol=1e-6, atol=1e-7)  # some of them take angles in float32


@pytest.mark.parametrize("name", ["heads", "head:0", "normed", "residual"])
def test_a_stranger_has_no_other_maps(name, rng):
    transformer = stranger("bloom", rng)
    with pytest.raises(hs.errors.AssumptionError, match="only the maps 'attention' and 'block'"):
        transformer.activations(tokens_for(rng)).at(0, name)
    with pytest.raises(hs.errors.AssumptionError, match="only the maps 'attention' and 'block'"):
        transformer.sites[0].check(name)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_of_an_encoder_and_a_decoder_the_encoder_is_measured(family, rng):
    model = randomised(STRANGERS[family](), rng)
    transformer = hs.load(model)
    assert transformer.module is model.get_encoder()
    found = transformer.activations(tokens_for(rng))
    assert len(found.attention) == 2


def test_the_block_of_t5_holds_its_mlp(rng):
    transformer = stranger("t5", rng)
    found = transformer.activations(tokens_for(rng))
    block, X = found.at(0, "block")
    assert_close(block(X), found.blocks[1])


def test_a_plain_torch_encoder_is_measured(rng):
    model = Plain()
    transformer = hs.load(model)
    assert [site.block for site in transformer.sites] == ["encoder.layers.0", "encoder.layers.1"]
    assert "autograd" in transformer.notes[0]
    tokens = tokens_for(rng, batch=1)
    found = transformer.activations(tokens)
    block, stream = found.at(0, "block")
    assert_close(stream, model.embedding(tokens).detach().double())
    assert_close(block(stream), found.blocks[1])
    layer = model.encoder.layers[1]
    own = {"attention": lambda X: first(layer.self_attn(X, X, X)), "block": layer}
    for name, g in own.items():
        f, X = found.at(1, name)
        assert_close(f(X), g(X))
        assert_close(f(-X), g(-X))
        agrees(hs.local_lipschitz(f, X, generator=rng), constant_by_rows(g, X))


def test_a_module_without_attention_is_refused():
    with pytest.raises(hs.errors.UnsupportedModelError, match="no module that calls itself attention"):
        hs.load(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)))


def test_a_module_that_hides_its_attention_from_us_is_refused(rng):
    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)
            self.linear = nn.Linear(4, 4)

        def forward(self, tokens):
            return self.linear(torch.ones(*tokens.shape, 4))

    with pytest.raises(hs.errors.UnsupportedModelError, match="'attention' did not run"):
        hs.load(Silent()).activations(tokens_for(rng))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_stranger_that_puts_the_batch_behind_the_tokens_is_refused(batch, rng):
    config = transformers.XLNetConfig(d_model=24, n_layer=2, n_head=4, d_inner=32, vocab_size=50)
    transformer = hs.load(randomised(config, rng))
    f, X = transformer.activations(tokens_for(rng, batch=batch)).at(0)
    with pytest.raises(hs.errors.AssumptionError, match="mixes the batch axes"):
        hs.local_lipschitz(f, X)


def test_a_digest_tells_weights_apart():
    module = Plain()
    module.register_buffer("steps", torch.tensor(0))  # a number, not a list of numbers
    before = hs.load(module).digest
    assert hs.load(module).digest == before
    with torch.no_grad():
        module.encoder.layers[0].self_attn.out_proj.bias[3] = 1e-3
    assert hs.load(module).digest != before
