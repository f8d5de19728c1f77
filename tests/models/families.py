"""Small models of every known family, and what their modules read and put out while they run."""

from contextlib import contextmanager

import torch
import transformers

import howsmooth as hs

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
    "qwen2 with a window in its second layer": lambda: transformers.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "roberta as a decoder": lambda: transformers.RobertaConfig(**SMALL, is_decoder=True),
}
EVERY = CONFIGS | VARIANTS
TEXT = sorted(set(EVERY) - {"vit"})
# Hugging Face computes rotary angles and root mean squares in float32, whatever the model's numbers are.
SINGLE = ("gemma2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3")


def tolerance(family):
    return {"rtol": 1e-5, "atol": 1e-6} if family.startswith(SINGLE) else {}


def randomised(config, rng):
    """Build a model with every parameter random."""
    model = transformers.AutoModel.from_config(config).double()
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=rng)
    return model


def build(family, rng):
    config = EVERY[family]()
    config.use_cache = False  # or a second call would see the keys of the first
    # Hugging Face's own loop takes the softmax in float32; Gemma has no other that caps scores, MPNet none at all
    config._attn_implementation = "eager" if family in ("gemma2", "mpnet") else "sdpa"
    return hs.load(randomised(config, rng))


def inputs(family, rng, *, batch=2, length=9):
    """Tokens, or pixels."""
    if family == "vit":
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


def own_attention(transformer, site, call):
    """The module's own attention as a function of its hidden states."""
    modules = dict(transformer.module.named_modules())
    writes = modules[site.writes]

    def attention(X):
        kept = []
        hook = writes.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
        try:
            named = call.named if call.positional else {**call.named, "hidden_states": X}
            given = (X, *call.positional[1:]) if call.positional else ()
            result = modules[site.reads](*given, **named)
            if not kept:  # the output projection stands outside
                writes(result[0])
        finally:
            hook.remove()
        return kept[0]

    return attention


def substituted(transformer, tokens, path, turn=0):
    """What the part at a path puts out, as a function of its hidden states: the model runs, and we swap them."""
    part = dict(transformer.module.named_modules())[path]

    def output(X):
        kept = []

        def swap(_part, positional, named):
            if len(kept) != turn:
                return positional, named
            if positional:
                return (X, *positional[1:]), named
            return positional, named | {"hidden_states": X}

        hooks = [
            part.register_forward_pre_hook(swap, with_kwargs=True),
            part.register_forward_hook(lambda _part, _inputs, output: kept.append(first(output))),
        ]
        try:
            transformer.module(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return kept[turn]

    return output


def constant_by_rows(f, X):
    """The dense norm of a function's Jacobian, one row at a time: some modules hold what torch.func does not take."""
    rows = torch.autograd.functional.jacobian(f, X)
    return torch.linalg.matrix_norm(rows.reshape(-1, X.numel()), 2)
