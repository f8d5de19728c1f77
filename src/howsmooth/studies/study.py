"""A user's own grid of measurements, read from a TOML file; every mistake is reported with its line."""

import difflib
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howsmooth.errors import AssumptionError, FileError, HowsmoothError, StudyError
from howsmooth.studies.measure import LENGTHS, Plan, plan


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid: models × layers × lengths × maps × seeds.

    Attributes:
        name: What it is called.
        models: What ``hs.load`` takes.
        text: A file, or ``alice``.
        layers: Which layers; none for all of them.
        lengths: How many tokens a window has.
        sequences: How many windows of each length.
        maps: Which parts of a layer.
        seeds: The seeds of the solver's random starts.
        special_tokens: Whether windows begin and end as the model's own inputs do.
        rtol: The bracket to reach.
        confidence: The probability with which upper ends hold.
        certify: Whether to go on until brackets close.
        released: Whether to record the quantity of the paper's released scripts too.
    """

    name: str = "study"
    models: tuple[str, ...] = ("minilm",)
    text: str = "alice"
    layers: tuple[int, ...] | None = None
    lengths: tuple[int, ...] = LENGTHS
    sequences: int = 10
    maps: tuple[str, ...] = ("attention",)
    seeds: tuple[int, ...] = (0,)
    special_tokens: bool = False
    rtol: float = 1e-3
    confidence: float = 0.999
    certify: bool = True
    released: bool = False


# What each key of the file holds, in the words of a refusal.
NEEDS = {
    "name": "a text",
    "models": "a list of names",
    "text": "a file name",
    "layers": 'a list of whole numbers, or "all"',
    "lengths": "a list of whole numbers",
    "sequences": "a whole number",
    "maps": "a list of names",
    "seeds": "a list of whole numbers",
    "special_tokens": "true or false",
    "rtol": "a number",
    "confidence": "a number",
    "certify": "true or false",
    "released": "true or false",
}
KINDS_OF_VALUES: dict[str, type | tuple[type, ...]] = {
    "a text": str,
    "a file name": str,
    "a list of names": str,
    "a list of whole numbers": int,
    'a list of whole numbers, or "all"': int,
    "a whole number": int,
    "a number": (int, float),
    "true or false": bool,
}


def read_study(path: str | os.PathLike[str]) -> tuple[Study, "Lines"]:
    """Read a study and where in the file each of its keys is.

    Raises:
        StudyError: If the file is no TOML, or a key is unknown, of the wrong type, or an empty list.
    """
    lines = Lines.of(Path(path))
    try:
        values = tomllib.loads(lines.text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{lines.name}: this is no TOML: {error}.") from error
    for key, value in values.items():
        _check(key, value, lines)
    if values.get("layers") == "all":
        del values["layers"]
    settings: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return Study(**settings), lines


def plans(study: Study, lines: "Lines") -> list[Plan]:
    """Check a study against its models and its text, and list what there is to do; loads each model once."""
    made = []
    for model in study.models:
        for part in study.maps:
            for seed in study.seeds:
                try:
                    made.append(_plan(study, model, part, seed))
                except HowsmoothError as error:
                    raise StudyError(f"{lines.at_first(_blamed(error, study))}: {error}") from error
    return made


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The text of a study file, to point at.

    Attributes:
        name: The file.
        text: What it holds.
    """

    name: str
    text: str

    @classmethod
    def of(cls, path: Path) -> "Lines":
        """Read a file."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise FileError(f"the study {str(path)!r} cannot be read: {error.strerror or error}.") from error
        try:
            return cls(name=str(path), text=content.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            raise StudyError(f"{path}, line {line}: this is not UTF-8; is it text? Convert it first.") from error

    def at(self, key: str) -> str:
        """Return the file and the line in which a key is set; the file alone if it is not."""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if re.match(rf'\s*["\']?{re.escape(key)}["\']?\s*[=.\]]|\s*\[+\s*{re.escape(key)}\b', line):
                return f"{self.name}, line {number}"
        return self.name

    def at_first(self, keys: Sequence[str]) -> str:
        """Return the place of the first of these keys that is set; the file alone if none is."""
        return next((where for key in keys if (where := self.at(key)) != self.name), self.name)


def _check(key: str, value: Any, lines: Lines) -> None:
    where = lines.at(key)
    if key not in NEEDS:
        near = difflib.get_close_matches(key, NEEDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(NEEDS)}."
        raise StudyError(f"{where}: there is no key {key!r}; {hint}")
    needed = NEEDS[key]
    if key == "layers" and value == "all":
        return
    many = needed.startswith("a list")
    entries: Sequence[Any] = value if many and isinstance(value, list) else [value]
    if many is not isinstance(value, list) or not all(_fits(entry, needed) for entry in entries):
        raise StudyError(f"{where}: {key!r} must be {needed}, got {value!r}.")
    if many and not value:
        raise StudyError(f"{where}: {key!r} is empty, so there is nothing to measure; give at least one.")


def _fits(entry: Any, needed: str) -> bool:
    wanted = KINDS_OF_VALUES[needed]
    return isinstance(entry, wanted) and (wanted is bool or not isinstance(entry, bool))


def _plan(study: Study, model: str, part: str, seed: int) -> Plan:
    from howsmooth.studies.resources import transformer_of
    from howsmooth.studies.tasks import Task

    return plan(
        transformer_of(Task(model=model, length=1)),
        text=study.text,
        layers=study.layers,
        lengths=study.lengths,
        sequences=study.sequences,
        map=part,
        per_head=False,
        special_tokens=study.special_tokens,
        rtol=study.rtol,
        confidence=study.confidence,
        certify=study.certify,
        released_estimator=study.released,
        seed=seed,
        device=None,
    )


def _blamed(error: HowsmoothError, study: Study) -> Sequence[str]:
    """Return the keys that an error may be about, the likeliest first: those whose name or value it speaks of."""
    said = str(error)
    for key in ("rtol", "confidence", "sequences", "lengths"):
        if said.startswith(key):
            return (key,)
    if "has the layers" in said:
        return ("layers",)
    if "positions for" in said or "enough for 0 windows" in said:
        return ("lengths", "text")
    if "tokens, enough for" in said:
        return ("sequences", "lengths", "text")
    if isinstance(error, AssumptionError) and re.search(r"\bmaps?\b|\bhead", said):
        return ("maps",)
    clues = {
        "models": ("model", "built-in", "weights", *(repr(name) for name in study.models if "token" not in said)),
        "text": ("the text", repr(study.text)),
        "maps": ("map ", "map=", "head", *(repr(name) for name in study.maps)),
    }
    return [key for key, words in clues.items() if any(word in said for word in words)] or ["models"]
