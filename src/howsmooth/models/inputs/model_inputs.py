"""The inputs of a model from any source: windows of a text, rows of token ids, sentences, pictures."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.models.families.parameters import token_table
from howsmooth.models.inputs.sources import NOTE, Pictures, Sentences, Source, TokenIds, pixels
from howsmooth.models.inputs.text import SpecialTokens, Text, cut, tokens_of, window_count
from howsmooth.models.loading.pretrained import image_processor
from howsmooth.models.transformer import Transformer

# Returns some windows, or some sequences, as a batch, given their indices, a length and a stride.
ReadBatch = Callable[[Sequence[int], int, int], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """A source as a model reads it."""

    read: ReadBatch  # reads a batch
    named: Callable[[int, Tensor], list[str]]  # the strings of a row, given its index and tokens; a picture's name
    lengths: tuple[int, ...] | None = None  # the length of each sequence; none if the source is cut into windows
    notes: tuple[str, ...] = ()  # remarks that a reader of the numbers needs
    room: Callable[[int, int], int] | None = None  # how many windows of a length and stride a text has

    def at(self, indices: Sequence[int], *, length: int, stride: int) -> Tensor:
        """Return some windows, or some sequences, of one length as a batch."""
        return self.read(indices, length, stride)

    def words(self, index: int, *, length: int, stride: int) -> list[str]:
        """Return the tokens of one of them as strings; for a picture its name."""
        return self.named(index, self.at([index], length=length, stride=stride)[0])


def inputs(source: Source, transformer: Transformer, *, special_tokens: bool = False) -> Inputs:
    """Read a source as a model does."""
    if isinstance(source, Pictures):
        return _pictures(source, transformer)
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
        return _windows(rows[0], source.name, transformer, frame)
    return _sequences(rows, source, transformer, frame)


def _windows(tokens: list[int], name: str, transformer: Transformer, frame: SpecialTokens) -> Inputs:
    """Return one long row of tokens, cut into windows."""

    def read(indices: Sequence[int], length: int, stride: int) -> Int[Tensor, "windows length"]:
        transformer.require_positions(length, f"got a length of {length}", field="length")
        return torch.tensor(cut(tokens, name, indices, length=length, frame=frame, stride=stride or None))

    def room(length: int, stride: int) -> int:
        return window_count(tokens, length=length, frame=frame, stride=stride or None)

    return Inputs(read=read, named=_pieces(transformer), room=room)


def _sequences(
    rows: list[list[int]], source: TokenIds | Sentences, transformer: Transformer, frame: SpecialTokens
) -> Inputs:
    """Return rows of tokens, each a sequence."""
    before, behind = frame
    framed = [before + row + behind for row in rows]
    for i, row in enumerate(framed):
        got = f"but sequence {i} of {source.name!r} has {len(row)}; shorten it, or leave it out"
        field = "token_ids" if isinstance(source, TokenIds) else "sentences"
        transformer.require_positions(len(row), got, field=field)
    labelled = isinstance(source, Sentences) and any(label is not None for label in source.labels)
    notes = (f"the labels in {source.name!r} say nothing about a constant, and are not used",) if labelled else ()
    return Inputs(
        read=lambda indices, _length, _stride: torch.tensor([framed[i] for i in indices]),
        named=_pieces(transformer),
        lengths=tuple(map(len, framed)),
        notes=notes,
    )


def _pictures(pictures: Pictures, transformer: Transformer) -> Inputs:
    """Return pictures, preprocessed for a model."""
    if not _reads_pictures(transformer):
        raise UnsupportedModelError(
            f"{transformer.name!r} reads words, not pictures. Of a model of both, name the part for pictures, as "
            "with family='clip_vision_model'.",
            field="images",
        )
    module: Any = transformer.module
    side, dtype = module.config.image_size, next(module.parameters()).dtype
    size = (side, side) if isinstance(side, int) else (side[0], side[1])
    processor = image_processor(transformer.name)

    def read(
        indices: Sequence[int], _length: int = 0, _stride: int = 0
    ) -> Float[Tensor, "pictures channels rows columns"]:
        return torch.stack([pixels(pictures.open(i), processor, size=size) for i in indices]).to(dtype)

    # the model decides how many tokens a picture has
    tokens = transformer.activations(read([0])).attention[0].shape[-2]
    return Inputs(
        read=read,
        named=lambda index, _pixels: [pictures.files[index]],
        lengths=(tokens,) * len(pictures.files),
        notes=() if processor is not None else (NOTE,),
    )


def read_sentence(model: Transformer, text: str) -> list[int]:
    """Return a sentence as a model reads it, between its special tokens.

    Raises:
        AssumptionError: If it holds no words, or more tokens than the model has positions.
        UnsupportedModelError: If the model has no tokenizer, or it knows less than half of the words.
    """
    tokenizer = model.require_tokenizer()
    if not text.strip():
        raise AssumptionError("a sentence must hold words, got nothing.", field="text")
    if os.path.isfile(text):
        raise AssumptionError(
            f"{text!r} is a file, not a sentence; certified_accuracy(model, FILE) and sentences=FILE read files.",
            field="text",
        )
    before, behind = tokenizer.frame()
    tokens = [*before, *tokens_of(tokenizer, text, text[:60]), *behind]
    model.require_positions(len(tokens), f"and the sentence has {len(tokens)}; shorten it", field="text")
    return tokens


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


def _pieces(transformer: Transformer) -> Callable[[int, Tensor], list[str]]:
    known = transformer.tokenizer
    return lambda _index, row: list(map(str, row.tolist())) if known is None else known.pieces(row.tolist())


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
