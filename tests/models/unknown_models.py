"""Small models of families that have no reader of their own, and where their modules hold what we look for."""

import functools

import torch
import transformers
from models.small_models import GROUPED, SMALL, randomised

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
SAME_ENDS = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
OLD = {"n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 40} | SAME_ENDS
UNKNOWN = {
    "biogpt": lambda: transformers.BioGptConfig(**SMALL),
    "codegen": lambda: transformers.CodeGenConfig(**OLD, rotary_dim=4),
    "cohere": lambda: transformers.CohereConfig(**GROUPED, **SAME_ENDS),
    "ctrl": lambda: transformers.CTRLConfig(**OLD, dff=32),
    "data2vec-text": lambda: transformers.Data2VecTextConfig(**SMALL),
    "deberta": lambda: transformers.DebertaConfig(**SMALL, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "ernie": lambda: transformers.ErnieConfig(**SMALL),
    "esm": lambda: transformers.EsmConfig(**SMALL, pad_token_id=0, position_embedding_type="absolute"),
    "exaone4": lambda: transformers.Exaone4Config(**GROUPED, **SAME_ENDS, sliding_window=5, sliding_window_pattern=2),
    "glm4": lambda: transformers.Glm4Config(**GROUPED, **SAME_ENDS, head_dim=6),
    "gpt_bigcode": lambda: transformers.GPTBigCodeConfig(**OLD),
    "mbart": lambda: transformers.MBartConfig(**CODER_AND_DECODER),
    "megatron-bert": lambda: transformers.MegatronBertConfig(**SMALL),
    "mpt": lambda: transformers.MptConfig(d_model=24, n_heads=4, n_layers=2, vocab_size=50, max_seq_len=40),
    "mt5": lambda: transformers.MT5Config(d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4, vocab_size=50),
    "nemotron": lambda: transformers.NemotronConfig(**GROUPED, **SAME_ENDS),
    "olmo": lambda: transformers.OlmoConfig(**GROUPED, **SAME_ENDS),
    "openai-gpt": lambda: transformers.OpenAIGPTConfig(**OLD),
    "pegasus": lambda: transformers.PegasusConfig(**CODER_AND_DECODER),
    "rembert": lambda: transformers.RemBertConfig(**SMALL, input_embedding_size=12),
    "roformer": lambda: transformers.RoFormerConfig(**SMALL),
    "stablelm": lambda: transformers.StableLmConfig(**GROUPED),
    "starcoder2": lambda: transformers.Starcoder2Config(**GROUPED, **SAME_ENDS),
    "xlm": lambda: transformers.XLMConfig(
        emb_dim=24, n_layers=2, n_heads=4, n_words=50, max_position_embeddings=40, pad_index=0
    ),
}
# What their attention puts out, by the module of the block that puts it out.
ATTENTION = {
    "biogpt": "self_attn.out_proj",
    "codegen": "attn.out_proj",
    "ctrl": "multi_head_attention.dense",
    "gpt_bigcode": "attn.c_proj",
    "mbart": "self_attn.out_proj",
    "mpt": "attn.out_proj",
    "mt5": "layer.0.SelfAttention.o",
    "openai-gpt": "attn.c_proj",
    "pegasus": "self_attn.out_proj",
    "xlm": "out_lin",
    **dict.fromkeys(("cohere", "exaone4", "glm4", "nemotron", "olmo", "stablelm", "starcoder2"), "self_attn.o_proj"),
    **dict.fromkeys(
        ("data2vec-text", "deberta", "ernie", "esm", "megatron-bert", "rembert", "roformer"), "attention.output.dense"
    ),
}
# Where they hold the residual sum, as in the tests of families that are known.
SUMS = {
    "biogpt": ("final_layer_norm", "reads"),
    "codegen": ("attn.out_proj", "adds"),
    "cohere": ("self_attn.o_proj", "adds"),
    "ctrl": ("layernorm2", "reads"),
    "exaone4": ("mlp", "reads"),
    "gpt_bigcode": ("ln_2", "reads"),
    "mbart": ("final_layer_norm", "reads"),
    "mpt": ("norm_2", "reads"),
    "mt5": ("layer.0", "writes"),
    "openai-gpt": ("ln_1", "writes"),
    "pegasus": ("final_layer_norm", "reads"),
    **dict.fromkeys(("glm4", "nemotron", "olmo", "stablelm", "starcoder2"), ("post_attention_layernorm", "reads")),
    **dict.fromkeys(
        ("data2vec-text", "deberta", "ernie", "esm", "megatron-bert", "rembert", "roformer"), ("attention", "writes")
    ),
}
# Keys and values, or all three, come out of one matrix, so that no head can be told from the others.
FUSED = ("codegen", "ctrl", "deberta", "gpt_bigcode", "mpt", "openai-gpt")
WHOLE = tuple(SUMS)  # those with a block


def unloaded(family, rng):
    config = UNKNOWN[family]()
    config.use_cache = False  # or a second call would see the keys of the first
    return randomised(config, rng)


@functools.cache
def unknown_model(family):
    """A small model, loaded once in a process: nobody may change it."""
    return hs.load(unloaded(family, torch.Generator().manual_seed(1)))


def attention_path(family, layer):
    return f"{layer.block_path}.{ATTENTION[family]}"
