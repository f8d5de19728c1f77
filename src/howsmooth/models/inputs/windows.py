"""Windows of a text: consecutive and non-overlapping, of exactly the given length."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.text import Text, Tokenizer, tokens_of


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

    Window i holds the tokens from ``i * stride`` on; the stride is the length unless it is given. With special tokens,
    which count towards the length, every window begins and ends as an input of the model does.

    Raises:
        AssumptionError: If the text is too short, or no window is asked for.
        UnsupportedModelError: If the tokenizer knows less than half of it.
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
    frame: tuple[list[int], list[int]] = ([], []),
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

    Raises:
        AssumptionError: If there are too few tokens, or no window is asked for.
    """
    if not indices:
        raise AssumptionError("count must be at least 1 window, got 0.", field="sequences")
    count = max(indices) + 1
    layout = _WindowLayout.of(frame, length=length, stride=stride)
    if (enough := layout.room(len(tokens))) < count:
        raise AssumptionError(
            f"the text {name!r} has {len(tokens):,} tokens, enough for {enough} windows of "
            f"{length}; {count} were asked for. Give a longer text, fewer windows, or shorter ones.",
            field="sequences",
        )
    before, behind = frame
    starts = (i * layout.stride for i in indices)
    return torch.tensor([before + tokens[start : start + layout.inner] + behind for start in starts])


def room(
    tokenizer: Tokenizer, text: Text, *, length: int, special_tokens: bool = False, stride: int | None = None
) -> int:
    """Count the windows of a length in a text, without cutting them.

    Raises:
        AssumptionError: If a window has no room for a token of the text.
    """
    layout = _WindowLayout.of(tokenizer.frame() if special_tokens else ([], []), length=length, stride=stride)
    return layout.room(len(tokens_of(tokenizer, text.content, text.name)))


@dataclass(frozen=True, kw_only=True)
class _WindowLayout:
    """How many tokens of the text a window holds, and how far apart windows begin."""

    inner: int
    stride: int

    @classmethod
    def of(cls, frame: tuple[list[int], list[int]], *, length: int, stride: int | None) -> "_WindowLayout":
        inner = length - sum(map(len, frame))
        if inner < 1:
            raise AssumptionError(
                f"a window of {length} tokens has no room beside {length - inner} special tokens.", field="length"
            )
        if stride is not None and stride < 1:
            raise AssumptionError(f"stride must be at least 1 token, got {stride}.", field="stride")
        return cls(inner=inner, stride=inner if stride is None else stride)

    def room(self, tokens: int) -> int:
        return max(0, (tokens - self.inner) // self.stride + 1)
