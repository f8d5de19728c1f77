"""torch's own layers, alone and in classifiers of the user's own, against the modules themselves."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import howsmooth as hs

D, HEADS, N = 8, 2, 5
CAUSAL = nn.Transformer.generate_square_subsequent_mask(N)


def randomised(module):
    """Draw every parameter: biases start at zero, and norms at one, which hides a forgotten one."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.eval()


def layer(**options):
    # float64 before the numbers are drawn, for buffers that other versions of torch may have
    return randomised(nn.TransformerEncoderLayer(D, HEADS, 12, **options).double())


LAYERS = {
    "post-norm": {"batch_first": True},
    "pre-norm, sequences first, GELU": {"norm_first": True, "activation": "gelu"},
    "without biases": {"batch_first": True, "bias": False, "activation": nn.SiLU()},
}


def tokens(rows=2):
    return torch.randn(rows, N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def run(module, X, *arguments, **named):
    """Run a module on (batch, n, d), whichever order it reads."""
    attention = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention))
    if attention.batch_first:
        return module(X, *arguments, **named)
    return module(X.transpose(0, 1), *arguments, **named).transpose(0, 1)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("mask", [None, CAUSAL.isinf()], ids=["unmasked", "causal"])
def test_an_encoder_is_a_chain_of_closed_forms_that_puts_out_what_the_module_does(options, mask):
    encoder = randomised(
        nn.TransformerEncoder(layer(**options), 2, norm=nn.LayerNorm(D).double(), enable_nested_tensor=False)
    )
    model, X = hs.load(encoder), tokens()
    found = model.activations(X) if mask is None else model.activations(X, mask=mask)
    f, Z = found.at(0, "model")
    assert isinstance(f, hs.maps.Chain)
    assert found.layers[1].attention.positions.causal == (mask is not None)
    with torch.no_grad():
        assert_close(f(Z), run(encoder, X, mask))
    for i in (0, 1):
        block, Z = found.at(i, "block")
        assert isinstance(block, hs.maps.Chain)
        with torch.no_grad():
            assert_close(block(Z), run(encoder.layers[i], Z, mask))


def test_one_layer_takes_its_mask_by_name_and_a_hint():
    module, X = layer(batch_first=True), tokens()
    f, Z = hs.load(module).activations(X, src_mask=CAUSAL, is_causal=True).at(0, "block")
    with torch.no_grad():
        assert_close(f(Z), module(X, CAUSAL))


@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bias": False}, {"add_zero_attn": True}], ids=str)
def test_attention_alone_is_read_with_whatever_mask_it_is_called(options):
    module = randomised(nn.MultiheadAttention(D, HEADS, **options).double())
    X, generator = tokens(), torch.Generator().manual_seed(2)
    mask = torch.randn(N, N, generator=generator, dtype=torch.float64)
    for named in ({}, {"attn_mask": CAUSAL.double()}, {"attn_mask": mask}):
        f, Z = hs.load(module).activations(X, **named).at(0)
        assert isinstance(f, hs.Attention)
        Y = X if module.batch_first else X.transpose(0, 1)
        with torch.no_grad():
            expected = module(Y, Y, Y, **named)[0]
        assert_close(f(Z), expected if module.batch_first else expected.transpose(0, 1))
    assert_close(hs.Attention.from_torch(module)(X), hs.load(module).layer(0).closed_form(X))


def test_padding_is_left_out():
    module, X = layer(batch_first=True), tokens()
    padding = torch.arange(N) < torch.tensor([[N], [3]])
    f, Z = hs.load(module).activations(X, padding=padding).at(0, "block")
    with torch.no_grad():
        expected = module(X, src_key_padding_mask=~padding)
    assert_close(f(Z)[padding], expected[padding])


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_local_constant_of_attention_needs_no_wrapper(batch_first):
    module = randomised(nn.MultiheadAttention(D, HEADS, batch_first=batch_first).double())
    measured = hs.local_lipschitz(module, tokens())
    exact = hs.local_lipschitz(hs.Attention.from_torch(module), tokens())
    assert_close(measured.lower, exact.lower, rtol=2e-3, atol=0)


@pytest.mark.untyped
def test_attention_that_is_no_map_of_one_sequence_is_refused():
    for module in (nn.MultiheadAttention(D, HEADS, kdim=4), nn.MultiheadAttention(D, HEADS, add_bias_kv=True)):
        with pytest.raises(hs.errors.AssumptionError, match="not self-attention"):
            hs.Attention.from_torch(module)
    with pytest.raises(hs.errors.DtypeError, match="reads models"):
        hs.Attention.from_torch(nn.Linear(2, 2))
    with pytest.raises(hs.errors.DtypeError, match="from_torch"):
        hs.bounds.smallest_upper(nn.MultiheadAttention(D, HEADS), n=3, radius=1.0)


class Classifier(nn.Module):
    """Embeddings, an encoder, a pooling and a head, as anybody would write them."""

    def __init__(self, *, pooling="mean", causal=False, batch_first=True, head=None, function=None):
        super().__init__()
        self.words, self.places = nn.Embedding(20, D), nn.Embedding(12, D)
        part = nn.TransformerEncoderLayer(D, HEADS, 12, batch_first=batch_first, norm_first=causal)
        self.encoder = nn.TransformerEncoder(part, 2, nn.LayerNorm(D), enable_nested_tensor=False)
        self.pooling, self.causal, self.function = pooling, causal, function
        self.head = nn.Linear(D, 3) if head is None else head
        randomised(self.double())

    def forward(self, ids):
        x = self.words(ids) * D**0.5 + self.places(torch.arange(ids.shape[1]))
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n, dtype=x.dtype) if self.causal else None
        x = run(self.encoder, x, mask)
        x = {"mean": x.mean(1), "first": x[:, 0], "last": x[:, -1], "largest": x.amax(1)}[self.pooling]
        return self.head(x if self.function is None else self.function(x))


SENTENCE = torch.tensor([3, 1, 4, 1, 5])
HEADS_OF = {
    "mean, linear": {},
    "last, causal, sequences first": {"pooling": "last", "causal": True, "batch_first": False},
    "first, two layers": {
        "pooling": "first",
        "head": nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Dropout(), nn.Linear(6, 2)),
    },
    "mean, a norm and a function": {"head": nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2)), "function": torch.tanh},
}


@pytest.mark.parametrize("options", HEADS_OF.values(), ids=HEADS_OF)
def test_a_classifier_of_torch_layers_is_read_to_its_logits(options):
    module = Classifier(**options)
    f, X = hs.load(module).activations(SENTENCE).at(0, "classes")
    assert isinstance(f, hs.maps.Chain)
    with torch.no_grad():
        assert_close(f(X)[:, 0], module(SENTENCE[None]))


def test_a_classifier_of_torch_layers_is_certified():
    found = hs.certify(Classifier(), SENTENCE[:3], word=1)
    assert found.radii[0].certified > 0
    assert found.verify(samples=20) > 0


def test_what_is_not_understood_is_said_with_what_works():
    module = Classifier(pooling="largest")
    model = hs.load(module)
    assert any("was not understood" in note and "hs.local_lipschitz" in note for note in model.notes)
    f, _X = model.activations(SENTENCE).at(1, "block")
    assert isinstance(f, hs.maps.Chain)
    with pytest.raises(hs.errors.AssumptionError, match=r"what hs\.verification\.read_module\(module, X\) reads"):
        hs.certify(module, SENTENCE)


def test_a_head_that_only_looks_linear_is_found_out():
    module = Classifier(function=lambda x: x if len(x) == 2 else 2 * x)
    assert isinstance(hs.load(module).ends.class_head, str)


class Block(nn.Module):
    """A block of one's own around torch's attention."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(D, HEADS, batch_first=True), nn.LayerNorm(D)

    def forward(self, x):
        h = self.norm(x)
        return x + self.attention(h, h, h, need_weights=False)[0]


def test_in_a_block_of_ones_own_attention_is_read_and_the_rest_differentiated():
    module = randomised(nn.Sequential(nn.Embedding(20, D), Block(), Block()).double())
    found = hs.load(module).activations(SENTENCE)
    f, X = found.at(1)
    assert isinstance(f, hs.Attention)
    block, Z = found.at(1, "block")
    with torch.no_grad():
        assert_close(block(Z), module[2](Z))
        assert_close(f(X), module[2](Z) - Z)
    assert "residual" not in found.layers[1].map_names or found.at(1, "residual")


def test_a_compiled_module_is_read_as_the_one_inside():
    module = layer(batch_first=True)
    assert hs.load(torch.compile(module, backend="eager")).name == hs.load(module).name


def test_a_module_without_attention_says_what_takes_it():
    with pytest.raises(hs.errors.UnsupportedModelError, match=r"hs.local_lipschitz\(module, X\)"):
        hs.load(nn.Linear(3, 3))
