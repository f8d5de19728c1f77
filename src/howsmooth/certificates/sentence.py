"""The words of a sentence as a model reads them: which of its tokens they are."""

from collections.abc import Sequence

from howsmooth.certificates.reading import tokenizer_of
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.text import HubTokenizer, Tokenizer
from howsmooth.models.transformer import Transformer


def inner_places(model: Transformer, tokens: Sequence[int]) -> list[int]:
    """Return where words stand, and no special tokens."""
    special = _special(tokenizer_of(model))
    # a word that is not known is a word too
    return [i for i, token in enumerate(tokens) if token not in special]


def word_places(model: Transformer, tokens: Sequence[int], word: str) -> list[tuple[int, ...]]:
    """Return where a word stands, once for each time: the tokens that it is made of.

    Args:
        model: The model.
        tokens: The sentence.
        word: The number of a token, from 0 on; or a word as it is written.

    Raises:
        AssumptionError: If it does not stand there.
    """
    tokenizer = tokenizer_of(model)
    if word.lstrip("-").isdecimal():
        if not 0 <= int(word) < len(tokens):
            raise AssumptionError(f"the sentence has the tokens 0 to {len(tokens) - 1}, got {word}.", field="word")
        return [(int(word),)]
    found: dict[tuple[int, ...], None] = {}
    for form in (tokenizer.encode(word), tokenizer.encode(f" {word}")):
        if form and tokenizer.unknown not in form:
            starts = (i for i in range(len(tokens) - len(form) + 1) if list(tokens[i : i + len(form)]) == form)
            found |= {tuple(range(i, i + len(form))): None for i in starts}
    if not found:
        words = tokenizer.pieces(tokens)
        there = ", ".join(f"{i} {words[i]}" for i in inner_places(model, tokens))
        raise AssumptionError(f"the sentence has no word {word!r}; its tokens are {there}.", field="word")
    return sorted(found)


def _special(tokenizer: Tokenizer) -> frozenset[int]:
    unknown = set() if tokenizer.unknown is None else {tokenizer.unknown}
    if isinstance(tokenizer, HubTokenizer):
        return tokenizer.special - unknown
    before, behind = tokenizer.frame()
    return frozenset(before + behind) - unknown
