"""The inputs of a model from any source: windows of a text, rows of token ids, sentences, pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.models.families.parameters import token_table
from howsmooth.models.inputs.pictures import NOTE, Pictures, pixels
from howsmooth.models.inputs.sources import Sentences, Source, TokenIds
from howsmooth.models.inputs.text import Text, tokens_of
from howsmooth.models.inputs.windows import cut
from howsmooth.models.loading.pretrained import image_processor
from howsmooth.models.transformer import Transformer


@runtime_checkable
class Inputs(Protocol):
    """A source as a model reads it."""

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """The length of each sequence; none if the source is cut into windows."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that a reader of the numbers needs."""
        ...

    def at(self, indices: Sequence[int], *, length: int, stride: int) -> Tensor:
        """Return some windows, or some sequences, of one length as a batch."""
        ...

    def words(self, index: int, *, length: int, stride: int) -> list[str]:
        """Return the tokens of one of them as strings; for a picture its name."""
        ...


def inputs(source: Source, transformer: Transformer, *, special_tokens: bool = False) -> Inputs:
    """Read a source as a model does.

    Raises:
        AssumptionError: If a sequence is longer than the model has positions for, or a number is beyond its vocabulary.
        UnsupportedModelError: If the model reads something else, or its tokenizer is missing or of another model.
    """
    if isinstance(source, Pictures):
        return _Pixels.of(source, transformer)
    if _reads_pictures(transformer):
        raise UnsupportedModelError(
            f"{transformer.name!r} is a model of pictures, and cannot read {source.name!r}; give a folder of pictures "
            "with images=.",
            field="images",
        )
    rows = _tokens(source, transformer)
    _require_vocabulary(rows, source.name, transformer)
    frame = transformer.require_tokenizer().frame() if special_tokens else ([], [])
    if isinstance(source, Text) or (isinstance(source, TokenIds) and not source.whole):
        return _Windows(tokens=rows[0], name=source.name, transformer=transformer, frame=frame)
    before, behind = frame
    framed = [before + row + behind for row in rows]
    for i, row in enumerate(framed):
        got = f"but sequence {i} of {source.name!r} has {len(row)}; shorten it, or leave it out"
        field = "token_ids" if isinstance(source, TokenIds) else "sentences"
        transformer.require_positions(len(row), got, field=field)
    labelled = isinstance(source, Sentences) and any(label is not None for label in source.labels)
    notes = (f"the labels in {source.name!r} say nothing about a constant, and are not used",) if labelled else ()
    return _Sequences(rows=framed, transformer=transformer, notes=notes)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Windows:
    """One long row of tokens, cut into windows."""

    tokens: list[int]
    name: str
    transformer: Transformer
    frame: tuple[list[int], list[int]]
    lengths: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()

    def at(self, indices: Sequence[int], *, length: int, stride: int) -> Int[Tensor, "windows length"]:
        self.transformer.require_positions(length, f"got a length of {length}", field="length")
        return cut(self.tokens, self.name, indices, length=length, frame=self.frame, stride=stride or None)

    def words(self, index: int, *, length: int, stride: int) -> list[str]:
        return _pieces(self.at([index], length=length, stride=stride)[0].tolist(), self.transformer)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sequences:
    """Rows of tokens, each a sequence."""

    rows: list[list[int]]
    transformer: Transformer
    notes: tuple[str, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.rows))

    def at(self, indices: Sequence[int], *, length: int, stride: int) -> Int[Tensor, "sequences length"]:
        return torch.tensor([self.rows[i] for i in indices])

    def words(self, index: int, *, length: int, stride: int) -> list[str]:
        return _pieces(self.rows[index], self.transformer)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pixels:
    """Pictures, preprocessed for a model."""

    pictures: Pictures
    processor: Any | None
    size: tuple[int, int]
    dtype: torch.dtype
    tokens: int = 0

    @classmethod
    def of(cls, pictures: Pictures, transformer: Transformer) -> "_Pixels":
        if not _reads_pictures(transformer):
            raise UnsupportedModelError(
                f"{transformer.name!r} reads words, not pictures. Of a model of both, name the part for pictures, as "
                "with family='clip_vision_model'.",
                field="images",
            )
        side: Any = transformer.module.config.image_size  # type: ignore[union-attr]
        size = (side, side) if isinstance(side, int) else (side[0], side[1])
        dtype = next(transformer.module.parameters()).dtype
        made = cls(pictures=pictures, processor=image_processor(transformer.name), size=size, dtype=dtype)
        # the model decides how many tokens a picture has
        first = transformer.activations(made.at([0], length=0, stride=0)).attention[0]
        return replace(made, tokens=first.shape[-2])

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.tokens,) * len(self.pictures.files)

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self.processor is not None else (NOTE,)

    def at(
        self, indices: Sequence[int], *, length: int, stride: int
    ) -> Float[Tensor, "pictures channels rows columns"]:
        found = [pixels(self.pictures.open(i), self.processor, size=self.size) for i in indices]
        return torch.stack(found).to(self.dtype)

    def words(self, index: int, *, length: int, stride: int) -> list[str]:
        return [self.pictures.files[index]]


def vocabulary(module: nn.Module) -> int | None:
    """Return the size of the vocabulary of a model; none if it is not known."""
    table = token_table(module)
    if table is not None:
        return table.num_embeddings
    return getattr(getattr(module, "config", None), "vocab_size", None)


def _tokens(source: Text | TokenIds | Sentences, transformer: Transformer) -> list[list[int]]:
    if isinstance(source, TokenIds):
        return [list(row) for row in source.rows]
    tokenizer = transformer.require_tokenizer()
    if isinstance(source, Text):
        return [tokens_of(tokenizer, source.content, source.name)]
    tokens_of(tokenizer, "\n".join(source.lines), source.name)  # raises if it does not know their words
    rows = [tokenizer.encode(line) for line in source.lines]
    if empty := [i for i, row in enumerate(rows) if not row]:
        raise AssumptionError(
            f"the tokenizer makes nothing of sentence {empty[0]} of {source.name!r}; leave it out.", field="sentences"
        )
    return rows


def _pieces(tokens: list[int], transformer: Transformer) -> list[str]:
    known = transformer.tokenizer
    return [str(token) for token in tokens] if known is None else known.pieces(tokens)


def _require_vocabulary(rows: Sequence[Sequence[int]], name: str, transformer: Transformer) -> None:
    size = vocabulary(transformer.module)
    least, most = min(min(row) for row in rows if row), max(max(row) for row in rows if row)
    if least < 0 or (size is not None and most >= size):
        wrong = least if least < 0 else most
        end = "" if size is None else f" to {size - 1:,}"
        raise AssumptionError(
            f"{transformer.name!r} knows the tokens 0{end}, but {name!r} has {wrong}; are its tokens those of another "
            "model?",
            field="token_ids",
        )


def _reads_pictures(transformer: Transformer) -> bool:
    config: Any = getattr(transformer.module, "config", None)
    return getattr(transformer.module, "main_input_name", "") == "pixel_values" and hasattr(config, "image_size")
