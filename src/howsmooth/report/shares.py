"""How much of the worst perturbation and of the response each token of a window holds, layer by layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from howsmooth.report.drawing.token_text import words
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.wording import percent

# How many tokens a cell names.
MOST = 8
# How many tokens of a long window are shown.
LONGEST = 1024


@dataclass(frozen=True, kw_only=True)
class ShadedWord:
    """A token as it stands in running text.

    Attributes:
        text: What a reader sees.
        space: Whether a space comes before it.
        shade: How dark it is, from 0 to 1.
    """

    text: str
    space: bool
    shade: float


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The shares of all tokens of the first of the longest windows in one layer.

    Attributes:
        layer: Which one.
        sensitivity: Of the worst perturbation.
        response: Of the response to it.
        tokens: The tokens in words.
    """

    layer: int
    sensitivity: tuple[float, ...]
    response: tuple[float, ...]
    tokens: tuple[str, ...]

    @property
    def sensitive(self) -> str:
        """The tokens that hold most of the worst perturbation."""
        return self._largest(self.sensitivity)

    @property
    def responding(self) -> str:
        """The tokens that respond most."""
        return self._largest(self.response)

    def as_dict(self) -> dict[str, tuple[float, ...]]:
        """Return the shares of the tokens that are shown, by name."""
        return {"sensitivity": self.sensitivity[:LONGEST], "response": self.response[:LONGEST]}

    def _largest(self, values: Sequence[float]) -> str:
        order = sorted(range(len(values)), key=lambda i: -values[i])[:MOST]
        return ", ".join(f"“{self.tokens[i]}” ({i}, {percent(values[i])})" for i in order)


def shares(m: Measurement) -> list[Shares]:
    """Return the shares of every layer that was measured at the window whose tokens are kept."""
    texts = tuple(text for _space, text in words(m.tokens))
    here = [record for record in m.at(length=len(texts)) if len(record.answer.sensitivity) == len(texts)]
    # of sentences, the longest need not be the first
    first = min((record.ask.window.index for record in here), default=0)
    shown = [record for record in here if record.ask.window.index == first]
    return [
        Shares(
            layer=record.ask.layer,
            sensitivity=record.answer.sensitivity,
            response=record.answer.response,
            tokens=texts,
        )
        for record in shown
    ]


def words_of(m: Measurement, shown: Shares | None) -> list[ShadedWord]:
    """Return the window as running text, shaded as one layer has it; without shades if that layer has none."""
    some = shown.sensitivity if shown is not None else (0.0,) * len(m.tokens)
    most = max(some, default=0.0) or 1.0
    return [
        ShadedWord(text=text, space=space, shade=math.sqrt(share / most))
        for (space, text), share in islice(zip(words(m.tokens), some, strict=True), LONGEST)
    ]
