"""Models of families that are not known: their own modules are differentiated, whose parts are found or refused."""

import pytest
import torch
import transformers
from models.small_models import SMALL, constant_of, each, first, randomised, run, substituted
from models.unknown_models import ATTENTION, FUSED, SUMS, UNKNOWN, WHOLE, attention_path, unknown_model, unloaded
from torch import nn
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.models.families.registry import TRIED
from howsmooth.spectral.autograd import linearise

# Those that are tested while one works: fused and not, norms in front and behind, a decoder and two encoders.
FEW = ("codegen", "mt5", "roformer", "stablelm")


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


def agrees(estimate, exact):
    # some of them take softmax or angles in float32
    assert estimate.lower.item() <= exact.item() * (1 + 1e-6)
    assert exact.item() <= estimate.upper.item() * (1 + 1e-6)
    assert_close(estimate.lower.squeeze(), exact, rtol=1e-3, atol=0)  # the measurement's own rtol


def test_every_unknown_family_says_where_its_attention_is():
    assert set(ATTENTION) == set(UNKNOWN) == set(TRIED)


@pytest.mark.slow
@pytest.mark.parametrize("family", each(UNKNOWN, quick=FEW))
def test_attention_of_an_unknown_family_has_its_output_projection(family, rng):
    transformer = unknown_model(family)
    assert len(transformer.layers) == 2
    (note,) = transformer.notes
    assert repr(family) in note
    assert "autograd" in note
    found, heard = run(transformer, tokens_for(rng), [attention_path(family, layer) for layer in transformer.layers])
    for layer, (read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index)
        assert X.shape == (2, 6, 24)
        assert_close(f(X), written)
        heads, X = found.at(layer.index, "heads")
        assert_close(heads(X), read)


@pytest.mark.slow
@pytest.mark.parametrize("family", each(WHOLE, quick=FEW))
def test_the_residual_of_an_unknown_family_is_what_its_mlp_is_given(family, rng):
    transformer = unknown_model(family)
    part, side = SUMS[family]
    found, heard = run(transformer, tokens_for(rng), [f"{layer.block_path}.{part}" for layer in transformer.layers])
    for layer, (read, written) in zip(transformer.layers, heard, strict=True):
        f, X = found.at(layer.index, "residual")
        other = (read if side == "reads" else written).reshape(X.shape)
        assert_close(f(X), X + other if side == "adds" else other)


@pytest.mark.parametrize("family", each(WHOLE, quick=FEW))
def test_the_maps_of_an_unknown_family_are_its_modules_elsewhere_too(family, rng):
    transformer = unknown_model(family)
    tokens, layer = tokens_for(rng), transformer.layers[1]
    found = transformer.activations(tokens)
    block, X = found.at(1, "block")
    elsewhere = X + torch.randn(X.shape, dtype=X.dtype, generator=rng)
    assert_close(block(elsewhere), substituted(transformer, tokens, layer.block_path)(elsewhere))
    f, X = found.at(1)
    elsewhere = X + torch.randn(X.shape, dtype=X.dtype, generator=rng)
    _found, [(_read, written)] = run(transformer, tokens, [attention_path(family, layer)])
    swapped = substituted(transformer, tokens, layer.attention_path, hear=attention_path(family, layer))
    assert_close(swapped(X), written)
    assert_close(f(elsewhere), swapped(elsewhere))


@pytest.mark.parametrize("family", each(sorted(set(UNKNOWN) - set(FUSED)), quick=FEW))
def test_the_heads_of_an_unknown_family_add_up_to_its_attention_less_the_bias(family, rng):
    transformer = unknown_model(family)
    found, [(_read, written)] = run(transformer, tokens_for(rng), [attention_path(family, transformer.layers[1])])
    heads = [f(X) for f, X in (found.at(1, f"head:{h}") for h in range(4))]
    bias = dict(transformer.module.named_modules())[attention_path(family, transformer.layers[1])].bias
    assert_close(sum(heads) if bias is None else sum(heads) + bias, written)
    with pytest.raises(hs.errors.AssumptionError, match="heads 0 to 3, got head:4"):
        found.at(1, "head:4")


@pytest.mark.parametrize("family", each(FUSED, quick=FEW))
def test_heads_that_cannot_be_told_apart_are_refused(family, rng):
    transformer = unknown_model(family)
    for ask in (transformer.layers[0].check, lambda name: transformer.activations(tokens_for(rng)).at(0, name)):
        with pytest.raises(hs.errors.AssumptionError, match="which columns of the output projection") as caught:
            ask("head:0")
        assert caught.value.field == "map"


def test_one_head_is_one_head(rng):
    transformer = hs.load(unloaded("stablelm", rng))
    found = transformer.activations(tokens_for(rng))
    f, X = found.at(1, "head:2")
    before = f(X)
    own = transformer.module.layers[1].self_attn
    with torch.no_grad():
        own.q_proj.weight[:12] += 1.0  # the queries of heads 0 and 1
        own.q_proj.weight[18:] += 1.0  # and of head 3
    assert_close(f(X), before)
    with torch.no_grad():
        own.q_proj.weight[12:18] += 1.0
    assert not torch.allclose(f(X), before)


@pytest.mark.slow
def test_the_same_weights_have_the_same_constants_in_a_family_that_is_known_and_one_that_is_not(rng):
    known = randomised(transformers.RobertaConfig(**SMALL), rng)
    other = transformers.Data2VecTextModel(transformers.Data2VecTextConfig(**SMALL)).double()
    other.load_state_dict(known.state_dict())
    tokens = tokens_for(rng)
    pair = [hs.load(model).activations(tokens) for model in (known, other)]
    for name in ("attention", "heads", "head:1", "residual", "block"):
        (f, X), (g, Y) = (found.at(1, name) for found in pair)
        J, K, E = linearise(f, X), linearise(g, Y), torch.randn(X.shape, dtype=X.dtype, generator=rng)
        assert_close(J.jvp(E), K.jvp(E))
        assert_close(J.vjp(f(X)), K.vjp(f(X)))
    one, two = (hs.local_lipschitz(*found.at(1), rtol=1e-6).lower for found in pair)
    assert_close(one, two, rtol=2e-6, atol=0)  # the measurement's own rtol


# The other families: in the tests of folders, where every constant is that of a dense Jacobian.
@pytest.mark.slow
@pytest.mark.parametrize("family", FEW)
def test_the_constants_of_an_unknown_family_are_those_of_its_dense_jacobians(family, rng):
    transformer = unknown_model(family)
    tokens = tokens_for(rng, batch=1)[:, :3]  # every number that comes out is a pass through the model
    found, layer = transformer.activations(tokens), transformer.layers[1]
    attention = substituted(transformer, tokens, layer.attention_path, hear=attention_path(family, layer))
    for name, g in {"attention": attention, "block": substituted(transformer, tokens, layer.block_path)}.items():
        f, X = found.at(1, name)
        agrees(hs.local_lipschitz(f, X, seed=rng), constant_of(g, X))


@pytest.mark.slow
@pytest.mark.parametrize("family", each(["mbart", "mt5", "exaone4", "roformer"], quick=("mbart",)))
def test_an_unknown_family_is_padded_as_it_pads_itself(family, rng):
    transformer = unknown_model(family)
    padding = torch.arange(6) < torch.tensor([6, 4])[:, None]
    tokens = tokens_for(rng)
    found = transformer.activations(tokens, padding=padding)
    alone = transformer.activations(tokens[1:, :4])
    for name in ("attention", "heads", "head:1", "residual", "block"):
        f, X = found.at(1, name)
        g, Y = alone.at(1, name)
        J, K, E = linearise(f, X), linearise(g, Y), torch.randn(X.shape, dtype=X.dtype, generator=rng)
        moved = J.jvp(E)
        pairs = [(f(X), g(Y)), (moved, K.jvp(E[1:, :4])), (J.vjp(moved), K.vjp(moved[1:, :4]))]
        for padded, bare in pairs:  # the value, and both products in a random direction
            size = float(bare.detach().abs().max())
            assert_close(padded[1, :4], bare[0], rtol=1e-6, atol=1e-7 * max(1.0, size))  # some take angles in float32
            assert padded[1, 4:].abs().max() == 0


def test_where_the_norm_comes_behind_an_unknown_family_has_no_normed_map(rng):
    transformer = unknown_model("exaone4")
    with pytest.raises(hs.errors.AssumptionError, match="behind attention"):
        transformer.layers[0].check("normed")
    found, [(_read, written)] = run(unknown_model("stablelm"), tokens_for(rng), ["layers.1.self_attn.o_proj"])
    f, X = found.at(1, "normed")
    assert_close(f(X), written)


def test_an_unknown_family_without_a_block_says_so(rng):
    transformer = unknown_model("xlm")
    for name in ("residual", "normed", "block"):
        with pytest.raises(hs.errors.AssumptionError, match="no module is a block"):
            transformer.layers[0].check(name)
        with pytest.raises(hs.errors.AssumptionError, match="no module is a block"):
            transformer.activations(tokens_for(rng)).at(0, name)


def test_the_heads_of_an_unknown_family_have_no_closed_form(rng):
    transformer = unknown_model("olmo")
    with pytest.raises(hs.errors.AssumptionError, match="no closed form"):
        transformer.layers[0].map("heads")
    with pytest.raises(hs.errors.AssumptionError, match="no closed form"):
        transformer.activations(tokens_for(rng)).per_head(0)


REFUSED = {
    "mobilebert": (
        lambda: transformers.MobileBertConfig(**SMALL, embedding_size=24, intra_bottleneck_size=12),
        "its output projection is not known",
    ),
    "squeezebert": (lambda: transformers.SqueezeBertConfig(**SMALL, embedding_size=24), r"shape \(2, 24, 6\)"),
    "longformer": (lambda: transformers.LongformerConfig(**SMALL, attention_window=4), r"shape \(2, 8, 24\)"),
    "xlnet": (
        lambda: transformers.XLNetConfig(d_model=24, n_layer=2, n_head=4, d_inner=32, vocab_size=50),
        r"shape \(6, 2, 24\)",
    ),
}


@pytest.mark.parametrize("family", each(REFUSED, quick=("xlnet",)))
def test_an_unknown_family_whose_attention_is_not_understood_is_refused_before_it_is_measured(family, rng):
    config, words = REFUSED[family]
    transformer = hs.load(randomised(config(), rng))
    for name in ("attention", "heads", "head:0", "residual", "normed"):
        with pytest.raises(hs.errors.AssumptionError, match=words) as caught:
            transformer.layers[0].check(name)
        assert caught.value.field == "map"


def test_attention_whose_output_goes_nowhere_is_refused(rng):
    class Lonely(nn.Module):
        """Attention without a residual: nothing says what is projection and what is not."""

        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 24)
            self.layers = nn.ModuleList([nn.MultiheadAttention(24, 4, batch_first=True)])

        def forward(self, tokens):
            X = self.embedding(tokens)
            return self.layers[0](X, X, X)[0]

    with pytest.raises(hs.errors.AssumptionError, match="its output projection is not known"):
        hs.load(Lonely()).activations(tokens_for(rng)).at(0, "residual")


def test_an_unknown_family_that_cannot_be_tried_at_load_is_understood_at_its_first_inputs(rng):
    class Projected(nn.Module):
        """Reads vectors, not numbers of tokens."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 24, dtype=torch.float64)
            layer = nn.TransformerEncoderLayer(24, 4, dim_feedforward=32, batch_first=True, dtype=torch.float64)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, vectors):
            return self.encoder(self.linear(vectors))

    transformer = hs.load(Projected())
    transformer.layers[0].check("attention")  # nobody knows better yet
    found = transformer.activations(torch.randn(2, 6, 5, dtype=torch.float64, generator=rng))
    layer = transformer.module.encoder.layers[1]
    f, X = found.at(1)
    assert_close(f(X), first(layer.self_attn(X, X, X)))
    g, Y = found.at(1, "residual")
    assert_close(g(Y), layer.norm1(Y + first(layer.self_attn(Y, Y, Y))))
    heads, X = found.at(1, "heads")
    assert_close(layer.self_attn.out_proj(heads(X)), f(X))


@pytest.mark.parametrize("family", each(["mbart", "mt5"], quick=FEW))
def test_of_an_encoder_and_a_decoder_the_encoder_is_measured(family, rng):
    model = randomised(UNKNOWN[family](), rng)
    transformer = hs.load(model)
    assert transformer.module is model.get_encoder()
    found = transformer.activations(tokens_for(rng))
    assert len(found.attention) == 2


def test_the_block_of_mt5_holds_its_mlp(rng):
    transformer = unknown_model("mt5")
    found = transformer.activations(tokens_for(rng))
    block, X = found.at(0, "block")
    assert_close(block(X), found.blocks[1])


def test_a_plain_torch_encoder_is_measured(rng):
    model = Plain()
    transformer = hs.load(model)
    assert [part.block_path for part in transformer.layers] == ["encoder.layers.0", "encoder.layers.1"]
    assert any("read exactly" in note for note in transformer.notes)
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
        agrees(hs.local_lipschitz(f, X, seed=rng), constant_of(g, X))


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


def test_a_digest_tells_weights_apart():
    module = Plain()
    module.register_buffer("steps", torch.tensor(0))  # a number, not a list of numbers
    before = hs.load(module).digest
    assert hs.load(module).digest == before
    with torch.no_grad():
        module.encoder.layers[0].self_attn.out_proj.bias[3] = 1e-3
    assert hs.load(module).digest != before
