"""Frozen values that are written as JSON and read back, every field checked; equal values have equal fingerprints."""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from howsmooth.errors import FieldError, HowsmoothError, nearest

T = TypeVar("T")
# A field that is stored but not part of the key: where a text lies, how many threads summed.
NOT_IN_KEY = msgspec.Meta(extra={"not_in_key": True})


def described(text: str | None = None, **extra: str) -> msgspec.Meta:
    """Describe a field: its help on the command line, its ``metavar`` and ``option``, the ``plural`` of study files.

    A bound at one input that declares a ``column`` is summed up for each layer, printed and drawn beside the constant.
    """
    return msgspec.Meta(description=text, extra=dict(extra))


# A number that stays true when it is rounded down (attained, or certified as a radius), or up (not exceeded).
ROUND_DOWN, ROUND_UP = (msgspec.Meta(extra={"rounded": side}) for side in ("down", "up"))
# What msgspec calls a type, in the words of a refusal.
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


class JsonValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A frozen value. Fields at their defaults are not written: a field that is added later changes no fingerprint."""

    def to_json(self) -> str:
        """Return one JSON object; it has no infinity, so a number without end is null."""
        return to_json(self)


def to_json(value: Any) -> str:
    """Return strict JSON of values, numbers, lists and dictionaries; a number without end is null."""
    return msgspec.json.encode(value).decode()


def finite(value: float) -> float | None:
    """Return a number, or none where it has no end: JSON has no infinity."""
    return float(value) if abs(value) < float("inf") else None


def from_json(text: str, kind: type[T] | GenericAlias) -> T:
    """Read what :func:`to_json` wrote."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise misfit(error) from error


def misfit(error: Exception) -> FieldError:
    """Say in our words what msgspec found, and keep the field apart from the sentence."""
    if isinstance(error, RecursionError):
        return FieldError("it is nested too deeply to be read.")
    cause = error.__cause__
    if isinstance(cause, HowsmoothError):  # a check of our own knows its field better than the path does
        return FieldError(str(cause), field=cause.field)
    said, _at, path = str(error).partition(" - at `$")
    field = path.rstrip("`").lstrip(".") or None
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said):
        place = f"{field}." if field else ""
        return FieldError(f"there is no {unknown[1]!r}.", field=place + unknown[1])
    if missing := re.fullmatch(r"Object missing required field `(.*)`", said):
        return FieldError(f"{missing[1]!r} is missing.", field=missing[1])
    found = re.fullmatch(r"Expected `([^`]*)`, got `([^`]*)`", said)
    if not found:
        return FieldError(f"{field or 'it'} does not fit: {said}.", field=field)
    needed, given = (
        " or ".join(WORDS.get(name.strip(), name.strip()) for name in names.split("|")) for names in found.groups()
    )
    return FieldError(f"{field or 'it'} must be {needed}, got {given}.", field=field)


def fingerprint(value: Any) -> str:
    """Hash a value, or anything that JSON can hold; the order of keys and fields that are not in the key do not matter.

    Example:
        >>> fingerprint({"a": 2, "b": 0.0}) == fingerprint({"b": -0.0, "a": 2.0})
        True
    """
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Write equal things alike: 2 and 2.0 are one number, 0.0 and -0.0 too."""
    if isinstance(value, JsonValue):
        tag = value.__struct_config__
        fields = {name: _canonical(getattr(value, name)) for name in _key_fields(type(value))}
        given = {name: entry for name, entry in fields.items() if entry != _canonical(default_of(type(value), name))}
        return given | ({} if tag.tag is None else {str(tag.tag_field): tag.tag})
    if isinstance(value, dict):
        return {name: _canonical(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@functools.cache
def _key_fields(kind: type[JsonValue]) -> tuple[str, ...]:
    """Return the fields that are part of the key."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        name for name in kind.__struct_fields__ if not any(extra.get("not_in_key") for extra in extras(hints[name]))
    )


def default_of(kind: type[JsonValue], name: str) -> Any:
    """Return what a field holds unless it is given; ``msgspec.NODEFAULT`` if it must be given."""
    return _defaults(kind)[name]


@functools.cache
def _defaults(kind: type[JsonValue]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


def extras(hint: Any) -> Iterator[dict[str, Any]]:
    """Yield what the annotation of a field declares beside its type."""
    if get_origin(hint) is Annotated:
        for meta in get_args(hint)[1:]:
            if isinstance(meta, msgspec.Meta):
                yield {"description": meta.description} | (meta.extra or {})


def columns(value: JsonValue) -> dict[str, Any]:
    """Return a value as one row: fields of values inside it by their own names, lists left out."""
    row: dict[str, Any] = {}
    for name in value.__struct_fields__:
        entry = getattr(value, name)
        if isinstance(entry, JsonValue):
            row |= columns(entry)
        elif not isinstance(entry, tuple | list | dict):
            row[name] = entry
    return row


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A field of a value, or of a value inside it."""

    name: str  # what it is called, everywhere
    path: tuple[str, ...]  # the fields that lead to it
    type: Any
    default: Any  # what it holds unless it is given; ``msgspec.NODEFAULT`` if it must be given
    declared: dict[str, Any]  # what else its declaration says: ``description``, ``metavar``, ``plural``, ``option``

    @property
    def option(self) -> str:
        """What the command line calls it, without the dashes in front."""
        return str(self.declared.get("option", self.name)).replace("_", "-")

    @property
    def item(self) -> Any:
        """The type of its entries, if it holds a list of them; none otherwise."""
        lists = (hint for hint in (self.type, *get_args(self.type)) if get_origin(hint) is tuple)
        return next((get_args(hint)[0] for hint in lists), None)


def settings_of(kind: type[JsonValue], path: tuple[str, ...] = ()) -> dict[str, Setting]:
    """Return every field of a value and of the values inside it, by its name."""
    found: dict[str, Setting] = {}
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        hint, here = hints[name], (*path, name)
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(bare, type) and issubclass(bare, JsonValue):
            found |= settings_of(bare, here)
            continue
        declared = {key: value for extra in extras(hint) for key, value in extra.items() if value is not None}
        found[name] = Setting(name=name, path=here, type=bare, default=default_of(kind, name), declared=declared)
    return found


V = TypeVar("V", bound=JsonValue)


def from_settings(kind: type[V], given: Mapping[str, Any]) -> V:
    """Build a value from its settings, in whatever values they lie; what is not given keeps its default."""
    known, nested = settings_of(kind), dict[str, Any]()
    for name, value in given.items():
        if name not in known:
            raise FieldError(f"there is no {name!r}{nearest(name, known)}", field=name)
        if value == "" and known[name].declared.get("metavar") in ("FILE", "DIR"):
            raise FieldError(f"{name} must name a file or a folder, got nothing; leave it out.", field=name)
        if isinstance(value, str) and not value.strip() and known[name].declared.get("metavar") == "SENTENCE":
            raise FieldError(f"{name} must hold words, got nothing.", field=name)
        *above, last = known[name].path
        functools.reduce(lambda inner, step: inner.setdefault(step, {}), above, nested)[last] = value
    try:
        return msgspec.convert(nested, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        found = misfit(error)
        # the reader knows settings, not the values that they lie in
        setting = (found.field or "").rpartition(".")[2] or None
        raise FieldError(str(found).replace(found.field or "", setting or "", 1), field=setting) from error
