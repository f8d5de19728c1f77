"""Mixtral: Mistral with several MLPs for each token to choose from; its attention is Llama's."""

from typing import Any

import torch

from howsmooth.models import llama
from howsmooth.models.differentiated import Differentiated
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward
from howsmooth.models.reading import rms_norm
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    if model.dtype == torch.float64:
        model.set_experts_implementation("eager")  # torch's product of many small matrices knows no float64
    return [llama.site(i, layer, model, _experts(layer)) for i, layer in enumerate(model.layers)]


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return llama.ends(model)


def _experts(layer: Any) -> FeedForward:
    """Read the experts, which autograd differentiates: which of them a token chooses depends on the token."""
    return FeedForward(map=Differentiated(module=layer.mlp), before=rms_norm(layer.post_attention_layernorm))
