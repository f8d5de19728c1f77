"""Every family against the Hugging Face module itself, with every parameter random: biases start at zero and hide."""

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.models.registry import FAMILIES

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 40,
}
GROUPED = SMALL | {"num_key_value_heads": 2}
CONFIGS = {
    "albert": lambda: transformers.AlbertConfig(**SMALL, embedding_size=12, num_hidden_groups=2),
    "bert": lambda: transformers.BertConfig(**SMALL),
    "distilbert": lambda: transformers.DistilBertConfig(
        dim=24, n_layers=2, n_heads=4, hidden_dim=32, vocab_size=50, max_position_embeddings=40
    ),
    "electra": lambda: transformers.ElectraConfig(**SMALL, embedding_size=24),
    "gemma2": lambda: transformers.Gemma2Config(
        **GROUPED, head_dim=8, sliding_window=5, query_pre_attn_scalar=10, attn_logit_softcapping=2.0
    ),
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=24,
        n_layer=2,
        n_head=4,
        vocab_size=50,
        n_positions=40,
        bos_token_id=1,
        eos_token_id=1,
        scale_attn_by_inverse_layer_idx=True,
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SMALL),
    "llama": lambda: transformers.LlamaConfig(**GROUPED, attention_bias=True),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, head_dim=6, sliding_window=5),
    "mpnet": lambda: transformers.MPNetConfig(**SMALL),
    "opt": lambda: transformers.OPTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=32,
        vocab_size=50,
        max_position_embeddings=40,
        word_embed_proj_dim=24,
    ),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=8),
    "roberta": lambda: transformers.RobertaConfig(**SMALL),
    "vit": lambda: transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=8, patch_size=4
    ),
}
# Hugging Face computes rotary angles in float32, whatever the model's numbers are.
ROTARY = {"gemma2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"}


def tolerance(family):
    return {"rtol": 1e-5, "atol": 1e-6} if family in ROTARY else {}


def build(family, rng):
    config = CONFIGS[family]()
    config.use_cache = False  # or a second call would see the keys of the first
    # Hugging Face's own loop takes the softmax in float32; Gemma has no other that caps scores, MPNet none at all
    config._attn_implementation = "eager" if family in ("gemma2", "mpnet") else "sdpa"
    model = transformers.AutoModel.from_config(config).double()
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=rng)
    return hs.load(model)


def run(transformer, family, rng, length=9):
    """Run the model and keep, for every layer, the call of attention and what it put out."""
    calls, outputs = {}, {}
    modules = dict(transformer.module.named_modules())
    hooks = []
    for site in transformer.sites:

        def keep_call(_module, positional, named, layer=site.layer):
            calls[layer] = (positional, named)

        def keep_output(_module, _inputs, output, layer=site.layer):
            outputs[layer] = output

        hooks.append(modules[site.reads].register_forward_pre_hook(keep_call, with_kwargs=True))
        hooks.append(modules[site.writes].register_forward_hook(keep_output))
    with torch.no_grad():
        if family == "vit":
            transformer.module(pixel_values=torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=rng))
        else:
            transformer.module(input_ids=torch.randint(3, 50, (2, length), generator=rng))
    for hook in hooks:
        hook.remove()
    return calls, outputs


def own_attention(transformer, site, call):
    """The module's own attention as a function of its hidden states."""
    modules = dict(transformer.module.named_modules())
    reads, writes = modules[site.reads], modules[site.writes]
    positional, named = call

    def attention(X):
        kept = []
        hook = writes.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
        try:
            given = (X, *positional[1:]) if positional else ()
            result = reads(*given, **(named if positional else named | {"hidden_states": X}))
            if not kept:  # the output projection stands outside
                writes(result[0])
        finally:
            hook.remove()
        return kept[0]

    return attention


def test_every_known_family_is_tested():
    assert set(CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize("family", CONFIGS)
def test_our_map_is_the_module_and_so_is_its_derivative(family, rng):
    transformer = build(family, rng)
    calls, outputs = run(transformer, family, rng)
    assert len(transformer.sites) == 2
    for site in transformer.sites:
        positional, named = calls[site.layer]
        X = positional[0] if positional else named["hidden_states"]
        assert_close(site.attention(X), outputs[site.layer], **tolerance(family))
        g = own_attention(transformer, site, calls[site.layer])
        E = torch.randn(X.shape, dtype=torch.float64, generator=rng)
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no forward mode
            value, tangent = torch.func.jvp(g, (X,), (E,))
        J = site.attention.jacobian(X)
        assert_close(J.jvp(E), tangent, **tolerance(family))
        G = torch.randn(value.shape, dtype=torch.float64, generator=rng)
        leaf = X.clone().requires_grad_()
        (pulled,) = torch.autograd.grad(g(leaf), leaf, G)
        assert_close(J.vjp(G), pulled, **tolerance(family))


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - {"vit"}))
def test_activations_are_what_attention_reads(family, rng):
    transformer = build(family, rng)
    tokens = torch.randint(3, 50, (2, 7), generator=rng)
    found = transformer.activations(tokens)
    assert len(found.attention) == len(found.blocks) == 2
    for site, X, stream in zip(transformer.sites, found.attention, found.blocks, strict=True):
        assert X.shape == stream.shape == (2, 7, 24)
        if site.before is not None:
            assert_close(site.before(stream), X, rtol=1e-5, atol=1e-6)  # some norms compute in float32
        else:
            assert_close(stream, X)
        assert site.map("heads")(X).shape[-1] == site.attention.layout.heads * site.attention.layout.v
        assert_close(site.map("head:1")(X), site.attention.head(1)(X))
        assert site.map("residual")(stream).shape == stream.shape


def test_a_model_with_a_head_is_read_without_it(rng):
    config = CONFIGS["gpt2"]()
    with_head = transformers.GPT2LMHeadModel(config)
    assert len(hs.load(with_head).sites) == 2


def test_random_models_have_the_familys_shape():
    transformer = hs.load("random:distilbert", dtype=torch.float64)
    assert len(transformer.sites) == 6
    assert transformer.sites[0].attention.d == 768


def test_a_folder_is_loaded(tmp_path, rng):
    model = build("bert", rng).module
    model.save_pretrained(tmp_path / "model")
    again = hs.load(str(tmp_path / "model"), dtype=torch.float64)
    X = torch.randn(5, 24, dtype=torch.float64, generator=rng)
    assert_close(again.sites[1].attention(X), hs.load(model).sites[1].attention(X))
