"""``attn_implementation="howsmooth"``: every recent model of the transformers library with :func:`howsmooth.sdpa`.

Importing this module registers the name. Masks and arguments are those of ``attn_implementation="sdpa"``.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from howsmooth.attention_calls import in_place_of_torch
from howsmooth.torch_internals import inside_transform

NAME = "howsmooth"


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Do what the transformers library does for ``"sdpa"``, with derivatives of every order."""
    if torch.compiler.is_compiling() and not inside_transform():  # torch's function, without leaving the graph
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    with in_place_of_torch():
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
