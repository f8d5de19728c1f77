"""Which families of transformers are known: the type in a model's configuration → the function that reads it."""

import importlib
from collections.abc import Callable
from typing import Any

from howsmooth.models.sites import Site

FAMILIES = {
    "albert": "albert:sites",
    "bert": "bert:sites",
    "distilbert": "distilbert:sites",
    "electra": "bert:sites",
    "gemma2": "gemma2:sites",
    "gpt2": "gpt2:sites",
    "gpt_neox": "gpt_neox:sites",
    "llama": "llama:sites",
    "mistral": "llama:sites",
    "mpnet": "mpnet:sites",
    "opt": "opt:sites",
    "qwen2": "llama:sites",
    "qwen3": "qwen3:sites",
    "roberta": "bert:sites",
    "vit": "vit:sites",
}


def reader(model_type: str) -> Callable[[Any], list[Site]] | None:
    """Return the function that reads models of a type, or ``None``."""
    if model_type not in FAMILIES:
        return None
    module, function = FAMILIES[model_type].split(":")
    return getattr(importlib.import_module(f"howsmooth.models.{module}"), function)
