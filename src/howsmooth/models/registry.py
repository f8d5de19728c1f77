"""Which families of transformers are known: the type in a model's configuration → the function that reads it."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # sites are torch's, and the names of families are asked for without it
    from howsmooth.models.ends import Ends
    from howsmooth.models.sites import Site

FAMILIES = {
    "albert": "albert:sites",
    "bart": "bart:sites",
    "bert": "bert:sites",
    "bloom": "bloom:sites",
    "camembert": "bert:sites",
    "clip_text_model": "clip:text_sites",
    "clip_vision_model": "clip:vision_sites",
    "deberta-v2": "deberta_v2:sites",
    "deit": "vit:sites",
    "distilbert": "distilbert:sites",
    "electra": "bert:sites",
    "falcon": "falcon:sites",
    "gemma": "gemma:sites",
    "gemma2": "gemma2:sites",
    "gemma3_text": "gemma3:sites",
    "gpt2": "gpt2:sites",
    "gpt_neo": "gpt_neo:sites",
    "gpt_neox": "gpt_neox:sites",
    "gptj": "gptj:sites",
    "granite": "granite:sites",
    "llama": "llama:sites",
    "mistral": "llama:sites",
    "mixtral": "mixtral:sites",
    "modernbert": "modernbert:sites",
    "mpnet": "mpnet:sites",
    "olmo2": "olmo2:sites",
    "olmo3": "olmo2:sites",
    "opt": "opt:sites",
    "phi": "phi:sites",
    "phi3": "phi3:sites",
    "qwen2": "llama:sites",
    "qwen3": "qwen3:sites",
    "roberta": "bert:sites",
    "t5": "t5:sites",
    "vit": "vit:sites",
    "xlm-roberta": "bert:sites",
}
# These see pictures; all others read text.
PICTURES = ("clip_vision_model", "deit", "vit")
# Among the families without a reader, these are compared with their modules; others are understood, or refused, alike.
TRIED = (
    *("biogpt", "codegen", "cohere", "ctrl", "data2vec-text", "deberta", "ernie", "esm", "exaone4", "glm4"),
    *("gpt_bigcode", "mbart", "megatron-bert", "mpt", "mt5", "nemotron", "olmo", "openai-gpt", "pegasus", "rembert"),
    *("roformer", "stablelm", "starcoder2", "xlm"),
)
# Their modules heed is_causal = False in a configuration for some kernels, windows or lengths only.
ONE_SIDED = ("clip_text_model", "gemma3_text", "gpt_neo")


def reader(model_type: str) -> "Callable[[Any], list[Site]] | None":
    """Return the function that reads models of a type, or ``None``."""
    if model_type not in FAMILIES:
        return None
    module, function = FAMILIES[model_type].split(":")
    return getattr(importlib.import_module(f"howsmooth.models.{module}"), function)


def ends_reader(model_type: str) -> "Callable[[Any], Ends] | None":
    """Return the function that reads what stands around the blocks of models of a type, or ``None``.

    It stands beside the one that reads the layers: ``ends`` beside ``sites``.
    """
    if model_type not in FAMILIES:
        return None
    module, function = FAMILIES[model_type].split(":")
    return getattr(importlib.import_module(f"howsmooth.models.{module}"), function.replace("sites", "ends"), None)
