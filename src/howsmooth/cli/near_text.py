"""The worst input near a window of a text: what is searched, and what is said about it, word by word."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howsmooth.cli.layer import LayerSource
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.text import ALICE, check_text
from howsmooth.models.loading.names import check_tokenizer
from howsmooth.theory.assumptions import require_length
from howsmooth.wording import at_least, count, interval, number, percent

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.search.nearby import Nearby

# How many tokens a window has unless told otherwise, and how many words are named.
LENGTH, NAMED = 16, 3


@dataclass(frozen=True, kw_only=True)
class NearText:
    """Which inputs are searched: those near a window of a text.

    Attributes:
        text: A file, or ``alice``.
        window: Which window of it, from 0.
        n: How many tokens it has.
        eps: How far tokens may move, in the Euclidean norm.
        together: Whether ``eps`` bounds all of them together, or each one.
        tokenizer: A folder or hub id whose tokenizer reads the text; nothing for the model's own.
    """

    text: str = ALICE
    window: int = 0
    n: int = LENGTH
    eps: float
    together: bool = False
    tokenizer: str = ""

    def check(self, source: LayerSource) -> None:
        """Refuse what cannot be searched, before anything is loaded.

        Raises:
            AssumptionError: If a number is out of range, or there is no model to read the text.
            FileError: If there is no such text.
            UnsupportedModelError: If there is no such family or tokenizer.
        """
        if not 0 < self.eps < math.inf:
            raise AssumptionError(f"--eps must be positive and finite, got {self.eps}.", field="eps")
        if self.window < 0:
            raise AssumptionError(f"--window counts from 0, got {self.window}.", field="window")
        require_length(self.n)
        if source.model is None:
            raise AssumptionError("--eps searches near a text, which a model reads; give --model and --layer.")
        source.check()
        if self.tokenizer:
            check_tokenizer(self.tokenizer)
        check_text(self.text)

    def read(self, source: LayerSource) -> "tuple[Any, Tensor, list[str]]":
        """Return a map of the model, what enters it at the window, and what the tokens of the window look like."""
        import howsmooth as hs
        from howsmooth.models.inputs.text import read_text

        model, layer = source.model or "", source.layer or 0
        transformer = hs.load(model, tokenizer=self.tokenizer or None, family=source.family or "")
        transformer.layer(layer).check(source.map)
        tokens = transformer.windows(read_text(self.text), length=self.n, count=self.window + 1)[self.window :]
        f, batch = transformer.activations(tokens).at(layer, source.map)
        assert transformer.tokenizer is not None  # there would be no windows
        pieces = transformer.tokenizer.pieces(tokens[0].tolist())
        return f if isinstance(f, hs.Attention) else _AtMany.of(f, batch), batch[0], pieces

    @property
    def about(self) -> dict[str, str]:
        """What is kept beside the input that was found."""
        norm = "all tokens together" if self.together else "each token"
        tokenizer = {"tokenizer": self.tokenizer} if self.tokenizer else {}
        return {"text": self.text, "window": str(self.window), "eps": f"{self.eps!r} for {norm}"} | tokenizer


@dataclass(frozen=True)
class _AtMany:
    """A module that the model called with one window, at any number of inputs."""

    call: "Callable[[Tensor], Tensor]"
    together: bool

    @classmethod
    def of(cls, call: "Callable[[Tensor], Tensor]", X: "Tensor") -> "_AtMany":
        """Try whether its other arguments, masks and positions of one window, fit several inputs as well."""
        import torch

        with torch.no_grad():
            alone = call(X)
            try:
                fits = torch.allclose(call(X.expand(2, -1, -1)), alone.expand(2, -1, -1), rtol=1e-4, atol=1e-6)
            except RuntimeError:
                fits = False
        return cls(call, fits)

    def __call__(self, X: "Tensor") -> "Tensor":
        import torch

        rows = X.reshape(-1, *X.shape[-2:])
        found = self.call(rows) if self.together else torch.cat([self.call(row[None]) for row in rows])
        return found.reshape(*X.shape[:-2], *found.shape[-2:])

    def __repr__(self) -> str:
        return "attention by autograd"


def as_dict(near: NearText, found: "Nearby", pieces: Sequence[str]) -> dict[str, Any]:
    """Return everything but the tensors as plain values, with a row for each word."""
    there, measured = found.there, found.witness.measured
    columns = {
        "word": _readable(pieces),
        "moved": found.moved,
        "alone": found.alone,
        "sensitivity": measured.token_sensitivity.tolist(),
        "response": measured.token_response.tolist(),
    }
    rows = zip(*columns.values(), strict=True)
    return {
        "at_text": {"lower": float(there.lower), "upper": float(there.upper), "confidence": there.confidence},
        "witness": found.witness.as_dict(),
        "growth": found.growth,
        "upper": None if found.upper is None else found.upper.as_dict(),
        "refused": found.refused or None,
        **dataclasses.asdict(near),
        "words": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def answer(found: "Nearby") -> str:
    """Say in a line how large the constant is at the text, how large it gets near it, and what is proven."""
    there = interval(float(found.there.lower), float(found.there.upper), digits=5)
    times = "" if found.growth is None else f" (at least {at_least(found.growth, 4)} times that)"
    proven = "" if found.upper is None else f"; no input so near exceeds {found.upper.digits}"
    return (
        f"Lip is {there} at the text, and ≥ {at_least(found.witness.value)} at the worst input near it{times}{proven}"
    )


def details(near: NearText, found: "Nearby", pieces: Sequence[str]) -> list[str]:
    """Say what was searched, and which words do it."""
    from howsmooth.report.drawing.token_text import running_text

    words = _readable(pieces)
    radius = float(found.centre.double().norm(dim=-1).mean())
    may = "all tokens together may move" if near.together else "every token may move"
    share = f"{percent(near.eps / radius)} of the mean norm of a token, {number(radius)}"
    measured = found.witness.measured
    said = [
        f"Text: window {near.window} of {near.text}, {count(near.n, 'token')}: {running_text(pieces)}",
        f"Near: {may} by {number(near.eps)} in the Euclidean norm: {share}.",
        f"Moved furthest: {_most(words, found.moved, number)}.",
        f"Moved alone, worth most: {_most(words, found.alone, at_least)}.",
        f"Most sensitive there: {_most(words, measured.token_sensitivity.tolist(), percent)} of the worst direction.",
        f"Most moved there: {_most(words, measured.token_response.tolist(), percent)} of the response.",
    ]
    return said + ([f"Nothing is proven: {found.refused}"] if found.upper is None else [])


def _most(words: Sequence[str], values: Sequence[float], written: Callable[[float], str]) -> str:
    """Name the words with the largest values, by their places; or say that all are alike."""
    most, least = max(values), min(values)
    if len(values) > 1 and most - least <= 1e-4 * most:
        return f"all {len(values)} tokens alike, each {written(most)}"
    order = sorted(range(len(values)), key=lambda i: -values[i])
    return ", ".join(f"{words[i]!r} (token {i}) {written(values[i])}" for i in order[:NAMED])


def _readable(pieces: Sequence[str]) -> list[str]:
    from howsmooth.report.drawing.token_text import words

    return [word for _space, word in words(pieces)]
