"""Embeddings back to tokens, and swaps of tokens."""

from howsmooth.tokens.inversion import Inversion as Inversion
from howsmooth.tokens.inversion import invert as invert
from howsmooth.tokens.swaps import Swap as Swap
from howsmooth.tokens.swaps import swap as swap

__all__: list[str]
