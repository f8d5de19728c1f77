"""Methods, budgets, maps and candidates of searches among tokens, checked without torch."""

import json
import os
from collections.abc import Mapping

from howsmooth.errors import AssumptionError, FileError, nearest
from howsmooth.files import read_bytes
from howsmooth.models.map_names import MapName

# Enumeration is for attention of the first layer; the others run the model.
ENUMERATION = "enumeration"
METHODS = (ENUMERATION, "random", "gradient", "gcg", "singular", "exhaustive")
# How many passes a search takes unless told otherwise.
BUDGET = 1000
# Maps that one row and one column of the scores decide; head:3 stands for any head.
ENUMERATED = ("attention", "normed", "heads", "head:3")
FIELD = "candidates"
Listed = Mapping[str, list[str]] | list[str]


def is_enumerated(name: str, layer: int) -> bool:
    """Tell whether every swap can be compared: a swap changes one token of what the first attention reads, and no more.

    Behind the first layer it changes all of them.
    """
    return layer == 0 and MapName.parse(name).kind in ("attention", "normed", "heads", "head")


def check_search(name: str, *, layer: int, edits: int, method: str | None, budget: int | None) -> str:
    """Refuse what cannot be asked for; return the method."""
    if isinstance(edits, bool) or not isinstance(edits, int) or edits < 1:
        raise AssumptionError(f"edits must be a whole number, at least 1, got {edits}.", field="edits")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1):
        raise AssumptionError(f"budget must be a whole number of passes, at least 1, got {budget}.", field="budget")
    if method is None:
        return ENUMERATION if is_enumerated(name, layer) else "gcg"
    if method not in METHODS:
        raise AssumptionError(f"there is no method {method!r}{nearest(method, METHODS)}", field="method")
    if method == ENUMERATION and not is_enumerated(name, layer):
        raise AssumptionError(
            f"enumeration is for {', '.join(ENUMERATED)} of layer 0, where a swap changes one token; got {name!r} of "
            f"layer {layer}. Use method='gcg', which runs the model.",
            field="method",
        )
    return method


def read_candidates(path: str | os.PathLike[str]) -> Listed:
    """Read JSON: an object with a list of words for each word, or one list of words for every place."""
    name = os.fspath(path)
    content = read_bytes(name, "a file of candidates", field=FIELD)
    try:
        found = json.loads(content.decode("utf-8-sig"))
        json.dumps(found, ensure_ascii=False).encode()  # JSON can write half of a character, and UTF-8 cannot
    except (ValueError, RecursionError) as error:
        raise FileError(f"{name!r} must be JSON in UTF-8: {error}.", field=FIELD) from error
    lists = list(found.values()) if isinstance(found, dict) else [found]
    for words in lists:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise FileError(
                f'{name!r} must hold lists of words, as in {{"king": ["queen"]}} or ["queen"], got '
                f"{str(words)[:40]!r}.",
                field=FIELD,
            )
    if not any(lists):
        raise FileError(f"{name!r} holds no candidate; we need words that may come in.", field=FIELD)
    return found
