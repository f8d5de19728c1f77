"""Where a certificate loses most, in words: a sub-layer and a token."""

import re
from collections.abc import Sequence

NAME = re.compile(r"(\w+) (\d+), token (\d+)")


def told(slack: str, words: Sequence[str], *, layers: int, first: int = 0) -> str:
    """Say what the name of a remainder stands for.

    Args:
        slack: As :class:`~howsmooth.certificates.scene.Radius` has it: the stage, counted by kind, and the token.
        words: The tokens of the sentence.
        layers: How many layers are behind the place where words move; an MLP behind all of them is the classifier.
        first: The first of these layers.

    Example:
        >>> told("mlp 1, token 2", ["a", "fine", "film"], layers=2), told("mlp 2, token 0", ["a"], layers=2)
        ('mlp of layer 1, film', 'classifier')
    """
    found = NAME.fullmatch(slack)
    if found is None:
        return slack
    kind, place, token = found[1], int(found[2]), int(found[3])
    if kind == "mlp" and place >= layers:
        return "classifier"  # it reads one token, whichever that is
    where = f"norm {place}" if kind == "norm" else f"{kind} of layer {first + place}"
    return f"{where}, {words[token]}"
