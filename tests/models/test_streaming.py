"""Models whose blocks come from their files: the same numbers as in memory, each block read once, clear refusals."""

import gguf
import numpy as np
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


LLAMA = {
    **dict.fromkeys(["attn_norm.weight", "ffn_norm.weight"], (32,)),
    **dict.fromkeys(["attn_q.weight", "attn_output.weight"], (32, 32)),
    **dict.fromkeys(["attn_k.weight", "attn_v.weight"], (16, 32)),
    **dict.fromkeys(["ffn_gate.weight", "ffn_up.weight"], (64, 32)),
    "ffn_down.weight": (32, 64),
}
GPT2 = {
    **{f"{norm}.{what}": (32,) for norm in ("attn_norm", "ffn_norm") for what in ("weight", "bias")},
    **{"attn_qkv.weight": (96, 32), "attn_qkv.bias": (96,), "attn_output.weight": (32, 32), "attn_output.bias": (32,)},
    **{"ffn_up.weight": (128, 32), "ffn_up.bias": (128,), "ffn_down.weight": (32, 128), "ffn_down.bias": (32,)},
}
ENDS = {
    "llama": {"token_embd.weight": (40, 32), "output_norm.weight": (32,)},
    "untied": {"token_embd.weight": (40, 32), "output_norm.weight": (32,), "output.weight": (40, 32)},
    "gpt2": {
        "token_embd.weight": (40, 32),
        "position_embd.weight": (1024, 32),
        "output_norm.weight": (32,),
        "output_norm.bias": (32,),
    },
}


def _gguf(path, kind, without=()):
    """Write a little model of two blocks, its matrices in eight bits."""
    architecture = "gpt2" if kind == "gpt2" else "llama"
    writer, rng = gguf.GGUFWriter(str(path), architecture), np.random.default_rng(0)
    sizes = {"block_count": 2, "context_length": 24, "embedding_length": 32, "feed_forward_length": 64, "head_count": 2}
    if architecture == "llama":
        sizes |= {"head_count_kv": 1, "rope_dimension_count": 16, "vocab_size": 40, "layer_norm_rms_eps": 1e-5}
    else:
        sizes |= {"layer_norm_eps": 1e-5}
    for name, value in (sizes | {"bos_token_id": 26, "eos_token_id": 27}).items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([chr(97 + i) for i in range(26)] + ["<s>", "</s>", "ab", "cd"] + [f"t{i}" for i in range(10)])
    writer.add_token_types([1] * 40)
    writer.add_token_merges(["a b", "c d"])
    parts = GPT2 if kind == "gpt2" else LLAMA
    shapes = ENDS[kind] | {f"blk.{i}.{name}": shape for i in range(2) for name, shape in parts.items()}
    for name, shape in shapes.items():
        if name in without:
            continue
        x = rng.standard_normal(shape).astype(np.float32) / 3
        if len(shape) == 1:
            writer.add_tensor(name, x)
        else:
            eight = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(x, eight), raw_dtype=eight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ENDS)
def test_gguf_files_are_dequantised_tensor_by_tensor(kind, tmp_path):
    path = _gguf(tmp_path / "model.gguf", kind)
    plain, streamed = (hs.load(path, streamed=how) for how in (False, True))
    assert streamed.digest == plain.digest
    assert next(streamed.module.parameters()).device.type == "meta"
    there, here = plain.activations(TOKENS % 40), streamed.activations(TOKENS % 40)
    for layer, name in ((0, "attention"), (1, "block"), (0, "model")):
        _equal(there, here, layer, name)
    assert "the weights of the GGUF file are dequantised" in streamed.notes


def test_gguf_files_that_lack_a_tensor_are_refused(tmp_path, monkeypatch):
    path = _gguf(tmp_path / "model.gguf", "llama", without=["blk.1.ffn_up.weight"])
    with pytest.raises(UnsupportedModelError, match=r"'layers.1.mlp.up_proj.weight' is no single tensor"):
        hs.load(path, streamed=True)
    monkeypatch.setitem(ENDS["gpt2"], "position_embd.weight", (24, 32))
    path = _gguf(tmp_path / "model.gguf", "gpt2")
    with pytest.raises(UnsupportedModelError, match=r"'position_embd.weight' has the shape \(24, 32\), but its header"):
        hs.load(path, streamed=True)


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
    there = hs.measure(str(llama), streamed=False, out=tmp_path / "there", **settings)
    here = hs.measure(str(llama), streamed=True, out=tmp_path / "here", **settings)
    # batches are put together in other ways where blocks come one by one, so that sums are rounded differently
    compared = hs.compare(tmp_path / "there", tmp_path / "here")
    assert [row.ratio.value for row in compared.rows] == pytest.approx([1.0] * 2, rel=1e-6)
    answers = [[(record.answer.lower, record.answer.upper) for record in found.records] for found in (here, there)]
    assert answers[0] == [pytest.approx(ends, rel=1e-6) for ends in answers[1]]
    for ours, theirs in zip(here.layers, there.layers, strict=True):
        values, expected = ([bound.value for bound in layer.ladder.bounds] for layer in (ours, theirs))
        assert values == pytest.approx(expected, rel=1e-6)
    assert any("block by block" in note for note in here.notes)

    def unread(*_arguments):
        raise AssertionError("a block was read")

    monkeypatch.setattr("howsmooth.models.loading.weight_files.WeightFiles.fill", unread)
    again = hs.measure(str(llama), streamed=True, out=tmp_path / "here", **settings)
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
        hs.tokens.invert(both[1], both[1].embed(TOKENS))
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
