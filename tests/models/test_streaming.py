"""Models whose blocks come from their files: the same numbers as in memory, each block read once, clear refusals."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5Model,
)

import howsmooth as hs
from howsmooth.errors import AssumptionError, NonFiniteError, UnsupportedModelError
from howsmooth.models.loading import pretrained

SMALL = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 61,
    "num_hidden_layers": 3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
TOKENS = torch.arange(14).reshape(2, 7) * 3


def _saved(folder, module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.bfloat16().save_pretrained(folder, max_shard_size="8KB")  # several files with an index
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    module = LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=1))
    return _saved(tmp_path_factory.mktemp("llama"), module)


@pytest.fixture(scope="module")
def both(llama):
    return hs.load(llama, streamed=False), hs.load(llama, streamed=True)


def _equal(plain, streamed, layer, name):
    (f, X), (g, Y) = plain.at(layer, name), streamed.at(layer, name)
    torch.testing.assert_close(Y, X, rtol=0, atol=0)
    ours, theirs = (hs.local_lipschitz(h, Z, seed=0) for h, Z in ((g, Y), (f, X)))
    torch.testing.assert_close(ours.lower, theirs.lower, rtol=1e-6, atol=0)


def test_maps_and_weights_are_those_of_the_model_in_memory(both):
    plain, streamed = both
    assert "streamed" in repr(streamed)
    assert streamed.digest == plain.digest
    assert next(streamed.module.layers[1].parameters()).is_meta
    there, here = plain.activations(TOKENS), streamed.activations(TOKENS)
    for layer, name in ((0, "attention"), (2, "block"), (1, "mlp"), (1, "from:1")):
        _equal(there, here, layer, name)
    padding = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    there, here = (model.activations(TOKENS, padding=padding) for model in both)
    for name in ("attention", "network"):
        _equal(there, here, 0, name)
    (f, X), (g, Y) = there.per_head(2), here.per_head(2)
    assert torch.equal(f(X), g(Y))
    assert torch.equal(plain.embed(TOKENS), streamed.embed(TOKENS))
    assert torch.equal(plain.layer(1).closed_form.value, streamed.layer(1).closed_form.value)


def test_batches_go_through_every_block_together(llama):
    streamed = hs.load(llama, streamed=True)
    batches = [streamed.activations(TOKENS[:, :n]) for n in (3, 5, 7)]
    for layer in range(3):
        for found in batches:
            found.at(layer, "block")
    assert streamed.stream.reads == 3
    batches[1].at(0)
    assert streamed.stream.reads == 4  # one that goes back begins anew


@pytest.mark.parametrize(
    "module",
    [
        lambda: BertModel(BertConfig(**{**SMALL, "pad_token_id": 0})),
        lambda: AlbertModel(AlbertConfig(**{**SMALL, "pad_token_id": 0}, embedding_size=8)),  # layers share a block
        lambda: Gemma3ForCausalLM(  # tied embeddings that are scaled, and layers that are called differently
            Gemma3TextConfig(
                **SMALL,
                num_key_value_heads=1,
                head_dim=8,
                sliding_window=3,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            )
        ),
    ],
    ids=["bert", "albert", "gemma3"],
)
def test_families(module, tmp_path):
    folder = _saved(tmp_path, module())
    plain, streamed = (hs.load(folder, streamed=how).activations(TOKENS) for how in (False, True))
    for layer, name in ((1, "attention"), (2, "block"), (0, "network")):
        _equal(plain, streamed, layer, name)


def test_measure_streams_and_resumes(llama, tmp_path, monkeypatch):
    settings = {"token_ids": [list(range(6)), list(range(9))], "layers": [0, 2], "per_head": True, "rtol": 0.01}
    there = hs.measure(str(llama), streamed=False, **settings)
    here = hs.measure(str(llama), streamed=True, out=tmp_path, **settings)
    assert [record.answer for record in here.records] == [record.answer for record in there.records]
    assert [layer.ladder.bounds for layer in here.layers] == [layer.ladder.bounds for layer in there.layers]
    assert any("block by block" in note for note in here.notes)

    def unread(*_arguments):
        raise AssertionError("a block was read")

    monkeypatch.setattr("howsmooth.models.loading.weight_files.WeightFiles.fill", unread)
    again = hs.measure(str(llama), streamed=True, out=tmp_path, **settings)
    assert [record.answer for record in again.records] == [record.answer for record in here.records]


def test_what_exceeds_a_third_of_free_memory_is_streamed(llama, monkeypatch):
    module = hs.load(llama).module
    each = module.config.dtype.itemsize  # headers of files are counted too
    count = sum(file.stat().st_size for file in llama.glob("*.safetensors")) // each
    assert sum(p.numel() for p in module.parameters()) <= count
    for free, streamed in ((13 * count, False), (11 * count, True)):
        monkeypatch.setattr(pretrained, "available_memory", lambda free=free: free)
        assert (hs.load(llama).stream is not None) == streamed


def test_refusals(llama, both, tmp_path):
    with pytest.raises(UnsupportedModelError, match="in no file"):
        hs.load("random:gpt2", streamed=True)
    with pytest.raises(UnsupportedModelError, match="module in memory"):
        hs.load(both[0].module, streamed=True)
    with pytest.raises(UnsupportedModelError, match=r"all weights .* in memory"):
        hs.budget(both[1], TOKENS, schemes=["int8"])
    with pytest.raises(AssumptionError, match="streamed, and its head"):
        both[1].activations(TOKENS).at(0, "logits")
    encoder = T5Model(T5Config(vocab_size=61, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2))
    _saved(tmp_path, encoder)
    with pytest.raises(UnsupportedModelError, match="cannot be streamed"):
        hs.load(tmp_path, streamed=True)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"), UnsupportedModelError, "hold no"),
        (lambda weights: weights["model.layers.1.mlp.up_proj.weight"].fill_(torch.nan), NonFiniteError, "mlp.up_proj"),
        (lambda weights: weights.update({"model.norm.weight": torch.ones(3)}), UnsupportedModelError, "the shape"),
        (lambda weights: weights.update({"model.norm.weight": torch.ones(16).int()}), UnsupportedModelError, "I32"),
    ],
)
def test_damaged_weights(llama, tmp_path, change, error, said):
    weights = {}
    for file in sorted(llama.glob("*.safetensors")):
        weights |= load_file(file)
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    with pytest.raises(error, match=said):
        hs.load(tmp_path, streamed=True).activations(TOKENS).at(1, "block")
