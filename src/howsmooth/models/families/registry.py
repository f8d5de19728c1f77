"""The families of transformers with a reader: model type in the configuration → module and function of the reader."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a backbone needs torch, the names of families do not
    from howsmooth.models.parts.ends import Backbone

FAMILIES = {
    "albert": "bert_like:albert",
    "bart": "encoder_decoder:bart",
    "bert": "bert_like:bert",
    "bloom": "gpt_like:bloom",
    "camembert": "bert_like:bert",
    "clip_text_model": "vision:clip_text",
    "clip_vision_model": "vision:clip_vision",
    "deberta-v2": "bert_like:deberta_v2",
    "deit": "vision:vit",
    "distilbert": "bert_like:distilbert",
    "electra": "bert_like:bert",
    "falcon": "gpt_like:falcon",
    "gemma": "llama_like:gemma",
    "gemma2": "llama_like:gemma2",
    "gemma3_text": "llama_like:gemma3",
    "gpt2": "gpt_like:gpt2",
    "gpt_neo": "gpt_like:gpt_neo",
    "gpt_neox": "gpt_like:gpt_neox",
    "gptj": "gpt_like:gptj",
    "granite": "llama_like:granite",
    "llama": "llama_like:llama",
    "mistral": "llama_like:llama",
    "mixtral": "llama_like:mixtral",
    "modernbert": "bert_like:modernbert",
    "mpnet": "bert_like:mpnet",
    "olmo2": "llama_like:olmo2",
    "olmo3": "llama_like:olmo2",
    "opt": "gpt_like:opt",
    "phi": "gpt_like:phi",
    "phi3": "llama_like:phi3",
    "qwen2": "llama_like:llama",
    "qwen3": "llama_like:qwen3",
    "roberta": "bert_like:bert",
    "t5": "encoder_decoder:t5",
    "vit": "vision:vit",
    "xlm-roberta": "bert_like:bert",
}
# These read pictures; all others read text.
PICTURES = ("clip_vision_model", "deit", "vit")
# Families without a reader that tests compare with their modules; others are traced, or refused, in the same way.
TRIED = (
    *("biogpt", "codegen", "cohere", "ctrl", "data2vec-text", "deberta", "ernie", "esm", "exaone4", "glm4"),
    *("gpt_bigcode", "mbart", "megatron-bert", "mpt", "mt5", "nemotron", "olmo", "openai-gpt", "pegasus", "rembert"),
    *("roformer", "stablelm", "starcoder2", "xlm"),
)
# Their modules apply is_causal = False in a configuration for some kernels, windows or lengths only.
ONE_SIDED = ("clip_text_model", "gemma3_text", "gpt_neo")


def reader(model_type: str) -> "Callable[[Any], Backbone] | None":
    """Return the function that reads models of a type, or ``None``."""
    if model_type not in FAMILIES:
        return None
    module, function = FAMILIES[model_type].split(":")
    return getattr(importlib.import_module(f"howsmooth.models.families.{module}"), function)
