"""Small random models that read tokens, built once for all that is asked of them."""

import functools

import torch
from models.small_models import CONFIGS, PICTURES, build

# Every family, and what its default leaves out: narrow embeddings, biases of positions, norms on queries and keys.
NAMES = (
    *(name for name in CONFIGS if name not in PICTURES),
    "deberta-v2, no distances, narrow embeddings",
    "falcon, one part after another, six heads, alibi",
    "opt, the norm behind",
    "phi, norms on queries and keys, stretched by yarn",
)
LENGTH = 6


@functools.cache
def tiny(name):
    """A model and one sequence of tokens."""
    return build(name), torch.randint(3, 50, (LENGTH,), generator=torch.Generator().manual_seed(20240214))
