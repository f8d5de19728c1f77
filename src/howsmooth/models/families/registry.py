"""The families of transformers with a reader: model type in the configuration → module and function of the reader."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a backbone needs torch, the names of families do not
    from howsmooth.models.parts.ends import Backbone

FAMILIES = {
    "albert": "encoders:albert",
    "bart": "encoders:bart",
    "bert": "encoders:bert",
    "bloom": "decoders:bloom",
    "camembert": "encoders:bert",
    "clip_text_model": "encoders:clip_text",
    "clip_vision_model": "encoders:clip_vision",
    "deberta-v2": "encoders:deberta_v2",
    "deit": "encoders:vit",
    "distilbert": "encoders:distilbert",
    "electra": "encoders:bert",
    "falcon": "decoders:falcon",
    "gemma": "decoders:gemma",
    "gemma2": "decoders:gemma2",
    "gemma3_text": "decoders:gemma3",
    "gpt2": "decoders:gpt2",
    "gpt_neo": "decoders:gpt_neo",
    "gpt_neox": "decoders:gpt_neox",
    "gptj": "decoders:gptj",
    "granite": "decoders:granite",
    "llama": "decoders:llama",
    "mistral": "decoders:llama",
    "mixtral": "decoders:mixtral",
    "modernbert": "encoders:modernbert",
    "mpnet": "encoders:mpnet",
    "olmo2": "decoders:olmo2",
    "olmo3": "decoders:olmo2",
    "opt": "decoders:opt",
    "phi": "decoders:phi",
    "phi3": "decoders:phi3",
    "qwen2": "decoders:llama",
    "qwen3": "decoders:qwen3",
    "roberta": "encoders:bert",
    "t5": "encoders:t5",
    "vit": "encoders:vit",
    "xlm-roberta": "encoders:bert",
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
