"""Allowed replacements of tokens: no special ones; optionally whole words, given candidates, or spellable text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.models.families.parameters import token_table
from howsmooth.models.inputs.text import HubTokenizer
from howsmooth.models.parts.ends import require_known
from howsmooth.models.transformer import Transformer

Words = Mapping[str, Sequence[str]] | Mapping[int, Sequence[int]] | Sequence[str] | Sequence[int]
# Where configurations name tokens that stand for no word.
SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
# How vocabularies mark a word that goes on, and a space before a word.
GOES_ON, BEGINS = "##", ("Ġ", "▁")


@dataclass(frozen=True, kw_only=True, eq=False)
class Replacements:
    """What may be swapped for what."""

    allowed: Bool[Tensor, "n v"]  # true where a token may come to a position; never the token that stands there
    # tells whether a sequence is one that its own text is read as; none where that does not matter
    spelled: Callable[[Sequence[int]], bool] | None = None

    @property
    def positions(self) -> Int[Tensor, " m"]:
        """Where anything may be swapped."""
        return self.allowed.any(-1).nonzero()[:, 0]

    def fitting(self, rows: Int[Tensor, "b n"]) -> Int[Tensor, "c n"]:
        """Return the sequences that a text has."""
        if self.spelled is None:
            return rows
        return rows[[self.spelled(row) for row in rows.tolist()]]


def replacements(
    model: Transformer,
    tokens: Int[Tensor, " n"],
    *,
    candidates: Words | None = None,
    whole_words: bool = False,
    round_trip: bool = False,
) -> Replacements:
    """Return which tokens may take whose place.

    Special tokens are never swapped and never come in: those that the tokenizer or the configuration calls so.
    Candidates are a list for every position, or for each token a list of its own, as words or as numbers of tokens;
    words that are not one token are passed over. Whole words have letters alone.
    """
    table = token_table(model.module)
    if table is None:
        raise UnsupportedModelError(f"{model.name!r} reads no tokens, so there is none to swap.", field="model")
    known = table.num_embeddings
    special = sorted(token for token in _special(model) if 0 <= token < known)
    require_known(model, tokens)
    allowed = torch.ones(len(tokens), known, dtype=torch.bool)
    if candidates is not None:
        allowed &= _listed(model, tokens, candidates, known)
    if whole_words:
        allowed &= _words(model, tokens, known)
    if isinstance(model.tokenizer, HubTokenizer):
        allowed[:, model.tokenizer.size :] = False  # tables are often longer than vocabularies
    allowed[:, special] = False
    allowed[[i for i, token in enumerate(tokens.tolist()) if token in special]] = False
    allowed[range(len(tokens)), tokens.cpu()] = False
    if not bool(allowed.any()):
        raise AssumptionError(
            "no token may be swapped for another: the candidates leave none"
            f"{' that is one token of the vocabulary' if candidates is not None else ''}; give others.",
            field="candidates",
        )
    spelled = _Spelled(_tokenizer(model), frozenset(special)) if round_trip else None
    return Replacements(allowed=allowed, spelled=spelled)


@dataclass(frozen=True)
class _Spelled:
    """Whether the text of a sequence is read as that sequence; special tokens around it are no text."""

    tokenizer: HubTokenizer
    special: frozenset[int]

    def __call__(self, tokens: Sequence[int]) -> bool:
        inner = stripped(tokens, self.special)
        return self.tokenizer.encode(self.tokenizer.decode(inner)) == inner


def stripped(tokens: Sequence[int], special: frozenset[int]) -> list[int]:
    """Return a sequence without the special tokens in front of it and behind it."""
    kept = [i for i, token in enumerate(tokens) if token not in special]
    return list(tokens[kept[0] : kept[-1] + 1]) if kept else []


def _special(model: Transformer) -> frozenset[int]:
    config = getattr(model.module, "config", None)
    if not isinstance(model.tokenizer, HubTokenizer):
        named = (getattr(config, name, None) for name in SPECIAL)
        return frozenset(token for token in named if isinstance(token, int))
    padding = getattr(config, "pad_token_id", None)  # some families count positions by it
    return model.tokenizer.special | ({padding} if isinstance(padding, int) else set())


def _tokenizer(model: Transformer) -> HubTokenizer:
    if not isinstance(model.tokenizer, HubTokenizer):  # numbered words of random weights are none either
        raise UnsupportedModelError(
            f"{model.name!r} comes without a tokenizer, so its tokens are no words; leave out what asks for words.",
            field="tokenizer",
        )
    return model.tokenizer


def _listed(model: Transformer, tokens: Tensor, candidates: Words, known: int) -> Bool[Tensor, "n v"]:
    allowed = torch.zeros(len(tokens), known, dtype=torch.bool)
    if isinstance(candidates, Mapping):
        for word, others in candidates.items():
            for form in _forms(model, word):
                places = (tokens == form.token).nonzero()[:, 0].cpu()
                coming = [number for other in others for number in form.alike(other)]
                _require_known(coming, known)
                allowed[places[:, None], torch.tensor(coming, dtype=torch.long)] = True
        return allowed
    coming = [form.token for word in candidates for form in _forms(model, word)]
    _require_known(coming, known)
    allowed[:, coming] = True
    return allowed


@dataclass(frozen=True)
class _Form:
    """One way in which a word is a token: as it stands, or behind a space."""

    token: int
    before: str = ""
    tokenizer: HubTokenizer | None = None

    def alike(self, other: str | int) -> list[int]:
        """Return another word in the same form; nothing if it is not one token."""
        if isinstance(other, int):
            return [other]
        if self.tokenizer is None:
            return []
        found = self.tokenizer.encode(self.before + other)
        return found if len(found) == 1 else []


def _forms(model: Transformer, word: str | int) -> list[_Form]:
    if isinstance(word, int):
        return [_Form(word)]
    tokenizer = _tokenizer(model)
    found: dict[int, _Form] = {}
    for before in ("", " "):
        tokens = tokenizer.encode(before + word)
        if len(tokens) == 1 and tokens[0] != tokenizer.unknown:
            found.setdefault(tokens[0], _Form(tokens[0], before, tokenizer))
    return list(found.values())


def _words(model: Transformer, tokens: Tensor, known: int) -> Bool[Tensor, "n v"]:
    """Tell which tokens are words by themselves, and which of those that are there."""
    tokenizer = _tokenizer(model)
    pieces = tokenizer.pieces(range(min(known, tokenizer.size)))
    marked = any(piece.startswith(BEGINS) for piece in pieces)

    def is_word(piece: str) -> bool:
        begins = piece.startswith(BEGINS) if marked else not piece.startswith(GOES_ON)
        return begins and piece.lstrip("".join(BEGINS)).isalpha()

    def goes_on(piece: str) -> bool:
        return piece[:1].isalnum() if marked else piece.startswith(GOES_ON)

    word = torch.zeros(known, dtype=torch.bool)
    word[: len(pieces)] = torch.tensor([is_word(piece) for piece in pieces])
    here = tokenizer.pieces(tokens.tolist())
    # the first word of a text has no space before it
    whole = [is_word(piece) or (i == 0 and piece.isalpha()) for i, piece in enumerate(here)]
    last = [not goes_on(piece) for piece in (*here[1:], "")]
    return torch.tensor([a and b for a, b in zip(whole, last, strict=True)])[:, None] & word


def _require_known(tokens: Sequence[int], known: int) -> None:
    wrong = [token for token in tokens if not 0 <= token < known]
    if wrong:
        raise AssumptionError(f"candidates must be tokens 0 to {known - 1:,}, got {wrong[0]}.", field="candidates")
