"""The index of extremal inputs: every one under one name, ``hs.inputs.tied_pair``, and nothing else."""

from howsmooth.theory.worst_inputs.explicit import (
    candidates,
    equal_tokens,
    origin_token,
    tied_pair,
    tied_pair_on_image,
    tied_pair_on_sphere,
    tied_pairs,
    two_point,
)

__all__ = [
    "candidates",
    "equal_tokens",
    "origin_token",
    "tied_pair",
    "tied_pair_on_image",
    "tied_pair_on_sphere",
    "tied_pairs",
    "two_point",
]


def __dir__() -> list[str]:
    return list(__all__)
