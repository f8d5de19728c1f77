"""A user's own grid of questions: read from a TOML file, every mistake with its line, and checked before any work."""

import itertools
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from howsmooth.errors import HowsmoothError, StudyError, nearest
from howsmooth.files import read_bytes, require_size
from howsmooth.studies.asks import AboutHead, Ask, AtText
from howsmooth.studies.json_values import Setting, from_settings, misfit, settings_of
from howsmooth.studies.kinds import kind_named
from howsmooth.studies.records import plan_of
from howsmooth.studies.settings import Windows

if TYPE_CHECKING:
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store

# A grid that a person writes is a page long; what is larger is something else.
LARGEST = 1_000_000
# What a study may say beside the fields of its asks.
OWN = {"name": str, "kind": str}
# Axes that are there unless a study says otherwise.
USUAL = {"model": "minilm"}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of questions of one kind."""

    name: str  # what it is called
    kind: str  # which kind of question
    # the values of each field of the asks; those that are not here keep their defaults
    axes: dict[str, tuple[Any, ...]]
    windows: Windows | None  # which windows, for questions at a text
    file: "File"  # where it was read from, to point at

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Which layers; none for all of them."""
        return self.axes.get("layer")

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of the axes but that of layers."""
        names = [name for name in self.axes if name != "layer"]
        for values in itertools.product(*(self.axes[name] for name in names)):
            yield dict(zip(names, values, strict=True))


@dataclass(frozen=True, kw_only=True)
class File:
    """The text of a study file, to point at."""

    name: str  # the file
    text: str  # what it holds
    # what lists of values are called where another letter does not do: radii of radius
    plurals: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, said: str, field: str | None) -> StudyError:
        """Return the error for what stands in a line of the file."""
        key = re.split(r"[.\[]", field)[0] if field else ""
        # an error is about one value; the line may set a list of them
        names = (key, f"{key}s", self.plurals.get(key, key)) if key else ()
        found = (
            number
            for name in map(re.escape, names)
            for number, line in enumerate(self.text.splitlines(), start=1)
            if re.match(rf'\s*["\']?{name}["\']?\s*[=.\]]|\s*\[+\s*{name}\b', line)
        )
        number = next(found, None)
        return StudyError(f"{self.name}, line {number}: {said}" if number else f"{self.name}: {said}", field=field)


def read_study(path: str | os.PathLike[str]) -> Study:
    """Read a study."""
    file = _read(Path(path))
    try:
        values = tomllib.loads(file.text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{file.name}: this is no TOML: {error}.") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or an integer of thousands of digits
        raise StudyError(f"{file.name}: it cannot be read: {error}.") from error
    try:
        return _study(values, file)
    except StudyError:
        raise
    except HowsmoothError as error:
        raise file.refusal(str(error), error.field) from error


def _study(values: Mapping[str, Any], file: File) -> Study:
    name, kind = values.get("name", "study"), values.get("kind", "text")
    for key, value in (("name", name), ("kind", kind)):
        if not isinstance(value, str):
            raise file.refusal(f"{key!r} must be a text, got {value!r}.", key)
    ask = kind_named(kind).ask
    at_text = issubclass(ask, AtText)
    # which windows there are is said otherwise
    fields = {name: setting for name, setting in settings_of(ask).items() if setting.path[0] != "window"}
    windows = settings_of(Windows) if at_text else {}
    file = replace(file, plurals={setting.name: plural(setting) for setting in fields.values()})
    # matrices stand in place of a model
    axes = {key: (value,) for key, value in USUAL.items() if key in fields and "A" not in values}
    of_windows: dict[str, Any] = {}
    for key, value in values.items():
        if key in OWN:
            continue
        if key in windows:
            of_windows[key] = value
            continue
        setting, many = _axis(key, fields, windows, file)
        if at_text and setting.name == "layer" and value == "all":
            continue
        axes[setting.name] = _values(setting, key, value, many, file)
    return Study(
        name=name, kind=kind, axes=axes, windows=from_settings(Windows, of_windows) if at_text else None, file=file
    )


def _axis(key: str, fields: Mapping[str, Setting], windows: Mapping[str, Setting], file: File) -> tuple[Setting, bool]:
    """Return the field that a key sets, and whether to a list of values."""
    if key in fields:
        return fields[key], False
    for setting in fields.values():
        if plural(setting) == key:
            return setting, True
    for setting in fields.values():
        if setting.option == key:  # what the command line calls it
            return setting, False
    known = [*OWN, *windows, *fields]
    near = nearest(key, [*known, *map(plural, fields.values())])
    # where nothing is near, one form of each is enough
    raise file.refusal(f"there is no key {key!r}{near if '?' in near else nearest(key, known)}", key)


def _values(setting: Setting, key: str, value: Any, many: bool, file: File) -> tuple[Any, ...]:
    if many and not isinstance(value, list):
        raise file.refusal(f"{key!r} must be a list, got {value!r}.", key)
    if many and not value:
        raise file.refusal(f"{key!r} is empty, so there is nothing to measure; give at least one.", key)
    try:
        return tuple(msgspec.convert(entry, setting.type) for entry in (value if many else [value]))
    except msgspec.ValidationError as error:
        said = str(misfit(error)).removeprefix("it ")
        raise file.refusal(f"{key!r} {said.rpartition(', got ')[0] or said}, got {value!r}.", key) from error


def plural(setting: Setting) -> str:
    """Return what a list of values of a field is called: models, layers, radii."""
    return setting.declared.get("plural") or f"{setting.name}s"


def _read(path: Path) -> File:
    require_size(path, "a study", most=LARGEST)
    content = read_bytes(path, "a study")
    try:
        return File(name=str(path), text=content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise StudyError(f"{path}, line {line}: this is not UTF-8; is it text? Convert it first.") from error


def parts(study: Study, resources: "Resources", command: str = "") -> "list[PlannedAsks]":
    """List what a study asks for, asks that differ in layers and windows alone together; loads each model once."""
    from howsmooth.studies.plans.at_text import PlannedAsks

    ask = kind_named(study.kind).ask
    try:
        if issubclass(ask, AtText):
            return [_at_text(study, ask, point, resources, command) for point in study.points()]
        return [PlannedAsks(asks=tuple(_elsewhere(study, ask, resources)), command=command)]
    except StudyError:
        raise
    except HowsmoothError as error:
        raise study.file.refusal(str(error), error.field) from error


def _elsewhere(study: Study, kind: type[Ask], resources: "Resources") -> Iterator[Ask]:
    """Yield the asks of a kind that needs no text; a head that there is not is refused here, not once for each ask."""
    seen = set()
    for point in study.points():
        for layer in ({"layer": layer} for layer in study.layers) if study.layers is not None else ({},):
            ask = from_settings(kind, point | layer)
            if (
                isinstance(ask, AboutHead)
                and (head := (ask.model, ask.family, ask.layer, ask.map, ask.A, ask.V)) not in seen
            ):
                resources.attention(ask)
                seen.add(head)
            yield ask


def _at_text(
    study: Study, ask: type[AtText], point: dict[str, Any], resources: "Resources", command: str
) -> "PlannedAsks":
    from howsmooth.studies.plans.at_text import model_and_text

    assert study.windows is not None
    probe = from_settings(ask, point | {"layer": 0, "digest": "", "length": 1})
    base = model_and_text(probe, study.windows, resources, parts=[probe.map])
    layers = base.layers(study.layers, probe.map)
    others = {name: getattr(probe, name) for name in probe.__struct_fields__ if name not in AtText.__struct_fields__}
    return base.planned([*base.each(ask, layers, probe.map, **others)], command)


def keep_bounds(store: "Store", made: "Sequence[PlannedAsks]") -> None:
    """Keep the bounds of every layer that was measured at a text, so that the run can be read without its models."""
    from howsmooth.studies.runs.run import measurement
    from howsmooth.studies.runs.run_metadata import keep_ladders

    for part in made:
        if part.transformer is not None and part.asks[0].kind == "text":
            known = store.find(ask.key for ask in part.asks)
            if known:
                keep_ladders(store, measurement(store, [plan_of(part.asks)], known), part.transformer)
