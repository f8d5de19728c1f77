"""Small models of every known family, and what their modules read and put out while they run."""

import functools
from contextlib import contextmanager

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

import howsmooth as hs

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 40,
}
PICTURE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}
# So that distances within nine tokens fall into every kind of bucket.
FEW_BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
FALCON = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 40,
}
# So that distances within nine tokens are near and far.
DISENTANGLED = {"relative_attention": True, "position_buckets": 4, "max_relative_positions": 8}
GROUPED = SMALL | {"num_key_value_heads": 2}
CONFIGS = {
    "albert": lambda: transformers.AlbertConfig(**SMALL, embedding_size=12, num_hidden_groups=2),
    "bart": lambda: transformers.BartConfig(
        d_model=24,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        vocab_size=50,
        max_position_embeddings=40,
    ),
    "bert": lambda: transformers.BertConfig(**SMALL),
    "bloom": lambda: transformers.BloomConfig(hidden_size=24, n_layer=2, n_head=4, vocab_size=50),
    "camembert": lambda: transformers.CamembertConfig(**SMALL),
    "clip_text_model": lambda: transformers.CLIPTextConfig(**SMALL),
    "clip_vision_model": lambda: transformers.CLIPVisionConfig(**PICTURE),
    "deberta-v2": lambda: transformers.DebertaV2Config(**SMALL, **DISENTANGLED, pos_att_type=["c2p", "p2c"]),
    "deit": lambda: transformers.DeiTConfig(**PICTURE),
    "distilbert": lambda: transformers.DistilBertConfig(
        dim=24, n_layers=2, n_heads=4, hidden_dim=32, vocab_size=50, max_position_embeddings=40
    ),
    "electra": lambda: transformers.ElectraConfig(**SMALL, embedding_size=24),
    "falcon": lambda: transformers.FalconConfig(**FALCON),
    "gemma": lambda: transformers.GemmaConfig(**GROUPED, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(
        **GROUPED, head_dim=8, sliding_window=5, query_pre_attn_scalar=10, attn_logit_softcapping=2.0
    ),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **GROUPED,
        head_dim=8,
        sliding_window=5,
        query_pre_attn_scalar=10,
        layer_types=["sliding_attention", "full_attention"],
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
    "gpt_neo": lambda: transformers.GPTNeoConfig(
        hidden_size=24,
        num_layers=2,
        num_heads=4,
        vocab_size=50,
        max_position_embeddings=40,
        window_size=5,
        attention_types=[[["global", "local"], 1]],
        bos_token_id=1,
        eos_token_id=1,
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SMALL),
    "gptj": lambda: transformers.GPTJConfig(
        n_embd=24, n_layer=2, n_head=4, rotary_dim=4, vocab_size=50, n_positions=40, bos_token_id=1, eos_token_id=1
    ),
    "granite": lambda: transformers.GraniteConfig(
        **GROUPED,
        attention_bias=True,
        attention_multiplier=0.3,
        residual_multiplier=0.22,
        embedding_multiplier=12.0,
    ),
    "llama": lambda: transformers.LlamaConfig(**GROUPED, attention_bias=True),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, head_dim=6, sliding_window=5),
    "mixtral": lambda: transformers.MixtralConfig(**GROUPED, head_dim=6, sliding_window=5, num_local_experts=4),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SMALL | {"num_hidden_layers": 4}, local_attention=6, pad_token_id=0
    ),
    "mpnet": lambda: transformers.MPNetConfig(**SMALL),
    "olmo2": lambda: transformers.Olmo2Config(**GROUPED, attention_bias=True),
    "olmo3": lambda: transformers.Olmo3Config(
        **GROUPED, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
    "opt": lambda: transformers.OPTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=32,
        vocab_size=50,
        max_position_embeddings=40,
        word_embed_proj_dim=24,
    ),
    "phi": lambda: transformers.PhiConfig(**GROUPED | {"hidden_size": 32}),
    "phi3": lambda: transformers.Phi3Config(**GROUPED, sliding_window=5, pad_token_id=0),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=8),
    "roberta": lambda: transformers.RobertaConfig(**SMALL),
    "t5": lambda: transformers.T5Config(
        d_model=24, d_kv=5, d_ff=32, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=50, **FEW_BUCKETS
    ),
    "vit": lambda: transformers.ViTConfig(**PICTURE),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SMALL),
}

YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 10}
LLAMAS = GROUPED | {"head_dim": 6}
# What a family's default configuration leaves out.
VARIANTS = {
    "albert, one set of weights for three layers": lambda: transformers.AlbertConfig(
        **SMALL | {"num_hidden_layers": 3}, embedding_size=12
    ),
    "albert, two layers in each group": lambda: transformers.AlbertConfig(
        **SMALL, embedding_size=12, num_hidden_groups=2, inner_group_num=2
    ),
    "bert as a decoder": lambda: transformers.BertConfig(**SMALL, is_decoder=True),
    "bloom, six heads, the residual normed": lambda: transformers.BloomConfig(
        hidden_size=24, n_layer=2, n_head=6, vocab_size=50, apply_residual_connection_post_layernorm=True
    ),
    "deberta-v2, as its third version": lambda: transformers.DebertaV2Config(
        **SMALL,
        relative_attention=True,
        position_buckets=6,
        pos_att_type="p2c|c2p",
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
    ),
    "deberta-v2, no buckets, one kind of meeting": lambda: transformers.DebertaV2Config(
        **SMALL, relative_attention=True, max_relative_positions=6, pos_att_type=["p2c"]
    ),
    "deberta-v2, no distances, narrow embeddings": lambda: transformers.DebertaV2Config(**SMALL, embedding_size=12),
    "falcon, groups and two norms": lambda: transformers.FalconConfig(
        **FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True
    ),
    "falcon, groups and one norm": lambda: transformers.FalconConfig(
        **FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, rope_parameters=YARN
    ),
    "falcon, one part after another, six heads, alibi": lambda: transformers.FalconConfig(
        **FALCON | {"num_attention_heads": 6}, multi_query=False, parallel_attn=False, alibi=True, bias=True
    ),
    "gemma3_text, both sides seen": lambda: transformers.Gemma3TextConfig(
        **GROUPED,
        head_dim=8,
        sliding_window=8,
        use_bidirectional_attention=True,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
        },
    ),
    "gpt2 without scale": lambda: transformers.GPT2Config(
        n_embd=24,
        n_layer=2,
        n_head=4,
        vocab_size=50,
        n_positions=40,
        bos_token_id=1,
        eos_token_id=1,
        scale_attn_weights=False,
    ),
    "gpt_neox, one part after another, no biases": lambda: transformers.GPTNeoXConfig(
        **SMALL, use_parallel_residual=False, attention_bias=False
    ),
    "gpt_neox, all of a head rotated": lambda: transformers.GPTNeoXConfig(
        **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}
    ),
    "gpt_neox, stretched by yarn": lambda: transformers.GPTNeoXConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "partial_rotary_factor": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 10,
        },
    ),
    "gpt_neox, stretched by yarn, half of a head rotated": lambda: transformers.GPTNeoXConfig(
        **SMALL | {"hidden_size": 32},
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "partial_rotary_factor": 0.5,
            "factor": 4.0,
            "original_max_position_embeddings": 10,
        },
    ),
    "llama 3's frequencies": lambda: transformers.LlamaConfig(
        **LLAMAS,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 20,
        },
    ),
    "llama, stretched by yarn": lambda: transformers.LlamaConfig(
        **LLAMAS,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 10,
        },
    ),
    "llama, every head its own keys": lambda: transformers.LlamaConfig(**SMALL),
    "mistral without a window": lambda: transformers.MistralConfig(**GROUPED, head_dim=6, sliding_window=None),
    "modernbert with biases, stretched by yarn": lambda: transformers.ModernBertConfig(
        **SMALL,
        local_attention=6,
        pad_token_id=0,
        attention_bias=True,
        norm_bias=True,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
        },
    ),
    "olmo2, every head its own keys, stretched by yarn": lambda: transformers.Olmo2Config(
        **SMALL, rope_parameters=YARN
    ),
    "opt, the norm behind": lambda: transformers.OPTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=32,
        vocab_size=50,
        max_position_embeddings=40,
        word_embed_proj_dim=16,
        do_layer_norm_before=False,
        enable_bias=False,
    ),
    "phi, norms on queries and keys, stretched by yarn": lambda: transformers.PhiConfig(
        **GROUPED | {"hidden_size": 32},
        qk_layernorm=True,
        rope_parameters=YARN | {"partial_rotary_factor": 0.5},
    ),
    "phi3, stretched by longrope, half of a head rotated": lambda: transformers.Phi3Config(
        **GROUPED | {"hidden_size": 32},
        pad_token_id=0,
        original_max_position_embeddings=20,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 100.0,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.5],
            "long_factor": [2.0, 3.0],
        },
    ),
    "qwen2 with a window in its second layer": lambda: transformers.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "roberta as a decoder": lambda: transformers.RobertaConfig(**SMALL, is_decoder=True),
}
EVERY = CONFIGS | VARIANTS
PICTURES = {"clip_vision_model", "deit", "vit"}
TEXT = sorted(set(EVERY) - PICTURES)
# Those that are tested while one works: norms in front and behind, masks, windows, grouped keys, rotations, distances.
QUICK = ("bert", "gemma2", "gpt2", "llama", "t5", "vit")


def each(families, quick=QUICK):
    """Families as parameters of a test, slow but for a few."""
    return [pytest.param(family, marks=() if family in quick else pytest.mark.slow) for family in families]


# Hugging Face computes rotary angles, root mean squares and some softmaxes in float32, whatever the numbers are.
SINGLE = (
    "bloom",
    "falcon",
    "gemma",
    "gpt_neo",
    "gptj",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "modernbert",
    "olmo",
    "phi",
    "qwen2",
    "qwen3",
    "t5",
)
# Hugging Face's own loop takes the softmax in float32; Gemma 2 has no other that caps scores, the others none at all.
EAGER = ("bloom", "deberta-v2", "gemma2", "gpt_neo", "gptj", "mpnet")


def tolerance(family):
    if family.startswith("gemma"):  # multiplies with its gains in float32 too
        return {"rtol": 1e-5, "atol": 3e-6}
    return {"rtol": 1e-5, "atol": 1e-6} if family.startswith(SINGLE) else {}


def randomised(config, rng, *, build=transformers.AutoModel.from_config):
    """Build a model with every parameter random."""
    model = build(config).double().eval()
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=rng)
    return model


@functools.cache
def build(family, **settings):
    """A small model, loaded once in a process: nobody may change it."""
    config = EVERY[family]()
    for name, setting in settings.items():
        setattr(config, name, setting)
    config.use_cache = False  # or a second call would see the keys of the first
    config._attn_implementation = "eager" if family.split(",")[0] in EAGER else "sdpa"
    return hs.load(randomised(config, torch.Generator().manual_seed(1)))


def inputs(family, rng, *, batch=2, length=9):
    """Tokens, or pixels."""
    if family in PICTURES:
        return torch.randn(batch, 3, 8, 8, dtype=torch.float64, generator=rng)
    return torch.randint(3, 50, (batch, length), generator=rng)


def first(output):
    """The hidden states among what a module puts out."""
    return output if isinstance(output, torch.Tensor) else output[0]


@contextmanager
def overheard(module, paths):
    """Keep what parts of a module read and put out while it runs: path → (inputs, outputs), one for each call."""
    heard = {path: ([], []) for path in paths}
    parts = dict(module.named_modules())

    def listener(path):
        def keep(_part, positional, named, output):
            read, written = heard[path]
            read.append(positional[0] if positional else named.get("hidden_states"))
            written.append(first(output))

        return keep

    hooks = [parts[path].register_forward_hook(listener(path), with_kwargs=True) for path in heard]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def run(transformer, tokens, paths, *, padding=None):
    """Run the model once; return the activations, and for every layer what the part at its path read and put out."""
    with overheard(transformer.module, paths) as heard:
        found = transformer.activations(tokens, padding=padding)
    turns = [(path, paths[:i].count(path)) for i, path in enumerate(paths)]  # layers may share their weights
    return found, [(heard[path][0][turn], heard[path][1][turn]) for path, turn in turns]


def own_attention(transformer, layer, call):
    """The module's own attention as a function of its hidden states."""
    modules = dict(transformer.module.named_modules())
    writes = modules[layer.projection_path]

    def attention(X):
        kept = []
        hook = writes.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
        try:
            named = call.named if call.positional else {**call.named, "hidden_states": X}
            given = (X, *call.positional[1:]) if call.positional else ()
            result = modules[layer.attention_path](*given, **named)
            if not kept:  # the output projection stands outside
                writes(result[0])
        finally:
            hook.remove()
        return kept[0]

    return attention


def substituted(transformer, tokens, path, turn=0, hear=None, side="writes"):
    """What the part at a path puts out, as a function of its hidden states: the model runs, and we swap them.

    With ``hear``, what the part at that path puts out, or reads.
    """
    parts = dict(transformer.module.named_modules())
    part, heard = parts[path], parts[hear or path]

    def output(X):
        kept = []

        def swap(_part, positional, named):
            if len(kept) != turn:
                return positional, named
            if positional:  # some modules are given the same tokens as query, key and value
                return tuple(X if given is positional[0] else given for given in positional), named
            return positional, named | {"hidden_states": X}

        hooks = [
            part.register_forward_pre_hook(swap, with_kwargs=True),
            heard.register_forward_hook(
                # a copy: some blocks add to what a part put out, in place
                lambda _part, inputs, output: kept.append((first(output) if side == "writes" else inputs[0]).clone())
            ),
        ]
        try:
            transformer.module(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return kept[turn]

    return output


def constant_of(f, X):
    """The dense norm of a function's Jacobian, all rows of the recorded graph at once: a pass forward, one back."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel's derivative takes one row at a time
        rows = torch.autograd.functional.jacobian(f, X, vectorize=True)
    return torch.linalg.matrix_norm(rows.reshape(-1, X.numel()), 2)
