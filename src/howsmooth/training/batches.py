"""What a training batch is, whoever made it: the tokens a model reads, and which of them are real."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from howsmooth.errors import AssumptionError

# Under which names batches of the transformers library hold what the model reads.
NAMES = ("input_ids", "pixel_values", "inputs", "x")


def read_batch(batch: Any) -> tuple[Tensor, Bool[Tensor, "batch n"] | None]:
    """Return the tokens or pixels of a batch, and True for real tokens where some are padding.

    Args:
        batch: A tensor, a dictionary with ``input_ids`` or ``pixel_values`` and perhaps ``attention_mask``, or a tuple
            that begins with one of these, such as inputs and labels.

    Raises:
        AssumptionError: If it is none of these.
    """
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple | list) and batch:
        return read_batch(batch[0])
    if isinstance(batch, Mapping):
        tokens = next((batch[name] for name in NAMES if isinstance(batch.get(name), Tensor)), None)
        if tokens is not None:
            return tokens, real_tokens(batch.get("attention_mask"), tokens)
        raise AssumptionError(
            f"a batch must hold one of {', '.join(NAMES)}, got {', '.join(map(repr, batch)) or 'nothing'}.",
            field="batch",
        )
    raise AssumptionError(
        f"a batch must be a tensor, a dictionary or a tuple that begins with one, got {type(batch).__name__}.",
        field="batch",
    )


def real_tokens(mask: object, tokens: Tensor) -> Bool[Tensor, "batch n"] | None:
    """Return True for real tokens, where a mask of the transformers library says that some are padding."""
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape[:2] or tokens.ndim != 2:
        return None
    real = mask != 0 if mask.dtype != torch.bool else mask
    return None if bool(real.all()) else real
