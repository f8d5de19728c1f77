"""What enters a model, whatever it comes from: windows of a text, rows of token ids, sentences, pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.models.loading import image_processor
from howsmooth.models.pictures import NOTE, Pictures, pixels
from howsmooth.models.reading import token_table
from howsmooth.models.sentences import Sentences
from howsmooth.models.sources import Source
from howsmooth.models.text import OTHER_WAYS, Text, Tokenizer, tokens_of
from howsmooth.models.token_ids import TokenIds
from howsmooth.models.transformer import Transformer
from howsmooth.models.windows import cut


@runtime_checkable
class Inputs(Protocol):
    """A source as a model reads it."""

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """How many tokens each sequence has, where they are measured whole; none for what is cut into windows."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        ...

    def at(self, indices: Sequence[int], *, length: int, stride: int) -> Tensor:
        """Return some windows of a length, or some sequences of that length, as the model takes them."""
        ...

    def words(self, index: int, *, length: int, stride: int) -> list[str]:
        """Return what the tokens of one of them look like; of a picture its name."""
        ...


def inputs(source: Source, transformer: Transformer, *, special_tokens: bool = False) -> Inputs:
    """Read a source as a model does.

    Raises:
        AssumptionError: If a sequence is longer than the model has positions for, or a number is beyond its vocabulary.
        UnsupportedModelError: If the model reads something else, or its tokenizer is missing or of another model.
    """
    if isinstance(source, Pictures):
        return _Prepared.of(source, transformer)
    _require_words(source, transformer)
    rows = _tokens(source, transformer)
    _require_vocabulary(rows, source.name, transformer)
    frame = _tokenizer(transformer).frame() if special_tokens else ([], [])
    if isinstance(source, Text) or (isinstance(source, TokenIds) and not source.whole):
        return _Cut(tokens=rows[0], name=source.name, transformer=transformer, frame=frame)
    before, behind = frame
    framed = [before + row + behind for row in rows]
    for i, row in enumerate(framed):
        said = f"but sequence {i} of {source.name!r} has {len(row)}; shorten it, or leave it out"
        _require_positions(len(row), transformer, said, field=_field(source))
    labelled = isinstance(source, Sentences) and any(label is not None for label in source.labels)
    notes = (f"the labels in {source.name!r} say nothing about a constant, and are not used",) if labelled else ()
    return _Whole(rows=framed, transformer=transformer, notes=notes)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cut:
    """One long row of tokens, cut into windows."""

    tokens: list[int]
    name: str
    transformer: Transformer
    frame: tuple[list[int], list[int]]
    lengths: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()

    def at(self, indices: Sequence[int], *, length: int, stride: int) -> Int[Tensor, "windows length"]:
        _require_positions(length, self.transformer, f"got a length of {length}", field="length")
        return cut(self.tokens, self.name, indices, length=length, frame=self.frame, stride=stride or None)

    def words(self, index: int, *, length: int, stride: int) -> list[str]:
        return _pieces(self.at([index], length=length, stride=stride)[0].tolist(), self.transformer)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Whole:
    """Rows of tokens that are sequences of their own."""

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
class _Prepared:
    """Pictures, as a model wants them."""

    pictures: Pictures
    processor: Any | None
    size: tuple[int, int]
    dtype: torch.dtype
    tokens: int

    @classmethod
    def of(cls, pictures: Pictures, transformer: Transformer) -> "_Prepared":
        size = _picture_size(transformer)
        dtype = next(transformer.module.parameters()).dtype
        made = cls(pictures=pictures, processor=image_processor(transformer.name), size=size, dtype=dtype, tokens=0)
        # how many tokens a picture is, the model knows best
        first = transformer.activations(made.at([0], length=0, stride=0)).attention[0]
        return cls(pictures=pictures, processor=made.processor, size=size, dtype=dtype, tokens=first.shape[-2])

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
    """Return how many tokens a model knows; none if it does not say."""
    table = token_table(module)
    if table is not None:
        return table.num_embeddings
    return getattr(getattr(module, "config", None), "vocab_size", None)


def _tokens(source: Text | TokenIds | Sentences, transformer: Transformer) -> list[list[int]]:
    if isinstance(source, TokenIds):
        return [list(row) for row in source.rows]
    tokenizer = _tokenizer(transformer)
    if isinstance(source, Text):
        return [tokens_of(tokenizer, source.content, source.name)]
    tokens_of(tokenizer, "\n".join(source.lines), source.name)  # whether it knows their words at all
    rows = [tokenizer.encode(line) for line in source.lines]
    if empty := [i for i, row in enumerate(rows) if not row]:
        raise AssumptionError(
            f"the tokenizer makes nothing of sentence {empty[0]} of {source.name!r}; leave it out.", field="sentences"
        )
    return rows


def _pieces(tokens: list[int], transformer: Transformer) -> list[str]:
    known = transformer.tokenizer
    return [str(token) for token in tokens] if known is None else known.pieces(tokens)


def _tokenizer(transformer: Transformer) -> Tokenizer:
    if transformer.tokenizer is None:
        raise UnsupportedModelError(
            f"{transformer.name!r} comes without a tokenizer, so it cannot read a text. {OTHER_WAYS}", field="tokenizer"
        )
    return transformer.tokenizer


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


def _require_positions(length: int, transformer: Transformer, said: str, *, field: str) -> None:
    limit = transformer.max_length
    if limit is not None and length > limit:
        raise AssumptionError(f"{transformer.name!r} has positions for {limit} tokens, {said}.", field=field)


def _require_words(source: Source, transformer: Transformer) -> None:
    if _reads_pictures(transformer):
        raise UnsupportedModelError(
            f"{transformer.name!r} is a model of pictures, and cannot read {source.name!r}; give a folder of pictures "
            "with --images.",
            field="images",
        )


def _reads_pictures(transformer: Transformer) -> bool:
    config: Any = getattr(transformer.module, "config", None)
    return getattr(transformer.module, "main_input_name", "") == "pixel_values" and hasattr(config, "image_size")


def _picture_size(transformer: Transformer) -> tuple[int, int]:
    if not _reads_pictures(transformer):
        raise UnsupportedModelError(
            f"{transformer.name!r} reads words, not pictures. Of a model of both, name the part for pictures, as with "
            "--family clip_vision_model.",
            field="images",
        )
    size: Any = transformer.module.config.image_size  # type: ignore[union-attr]
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _field(source: Source) -> str:
    return "token_ids" if isinstance(source, TokenIds) else "sentences"
