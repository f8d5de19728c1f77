"""Windows of a text: consecutive and non-overlapping, of exactly the given length."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.text import Text, Tokenizer, tokens_of

SpecialTokens = tuple[list[int], list[int]]


def windows(
    tokenizer: Tokenizer,
    text: Text,
    *,
    length: int,
    count: int,
    special_tokens: bool = False,
    stride: int | None = None,
) -> Int[Tensor, "count length"]:
    """Cut the first ``count`` windows of exactly ``length`` tokens from a text.

    Window i holds the tokens from ``i * stride`` on; by default the stride is the length. With special tokens, which
    count towards the length, every window begins and ends as an input of the model does.

    Raises:
        AssumptionError: If the text is too short, or ``count`` is 0.
        UnsupportedModelError: If less than half of its words are in the vocabulary.
    """
    frame = tokenizer.frame() if special_tokens else ([], [])
    tokens = tokens_of(tokenizer, text.content, text.name)
    return cut(tokens, text.name, range(count), length=length, frame=frame, stride=stride)


def cut(
    tokens: list[int],
    name: str,
    indices: Sequence[int],
    *,
    length: int,
    frame: SpecialTokens = ([], []),
    stride: int | None = None,
) -> Int[Tensor, "windows length"]:
    """Cut some windows from tokens, as :func:`windows` does from a text.

    Args:
        tokens: The tokens.
        name: The name of the text, for the message.
        indices: The windows, numbered from 0.
        length: The number of tokens in a window.
        frame: The special tokens in front of each window, and behind it.
        stride: The number of tokens between the beginnings of windows.
    """
    if not indices:
        raise AssumptionError("count must be at least 1 window, got 0.", field="sequences")
    inner, step = _layout(frame, length, stride)
    count, enough = max(indices) + 1, _count(len(tokens), inner, step)
    if enough < count:
        raise AssumptionError(
            f"the text {name!r} has {len(tokens):,} tokens, enough for {enough} windows of "
            f"{length}; {count} were asked for. Give a longer text, fewer windows, or shorter ones.",
            field="sequences",
        )
    before, behind = frame
    return torch.tensor([before + tokens[i * step : i * step + inner] + behind for i in indices])


def room(
    tokenizer: Tokenizer, text: Text, *, length: int, special_tokens: bool = False, stride: int | None = None
) -> int:
    """Count the windows of a length in a text, without cutting them."""
    inner, step = _layout(tokenizer.frame() if special_tokens else ([], []), length, stride)
    return _count(len(tokens_of(tokenizer, text.content, text.name)), inner, step)


def _layout(frame: SpecialTokens, length: int, stride: int | None) -> tuple[int, int]:
    """Return how many tokens of the text a window holds, and how far apart windows begin."""
    special = sum(map(len, frame))
    if length <= special:
        raise AssumptionError(
            f"a window of {length} tokens has no room beside {special} special tokens.", field="length"
        )
    if stride is not None and stride < 1:
        raise AssumptionError(f"stride must be at least 1 token, got {stride}.", field="stride")
    return length - special, length - special if stride is None else stride


def _count(tokens: int, inner: int, step: int) -> int:
    return max(0, (tokens - inner) // step + 1)
