"""Groups of options: a command takes a value, and the command line one option for every field of it."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec import NODEFAULT

from howsmooth.cli.options import LARGEST, ArgumentModel, numbers, whole_numbers
from howsmooth.cli.printing import in_options
from howsmooth.studies.json_values import JsonValue, Setting, from_settings, settings_of

Command = Callable[..., None]


def option_groups(command: Command) -> Command:
    """Replace the parameters of a command that are settings, or dataclasses of options, by the options they hold.

    Settings declare their descriptions themselves (``howsmooth.studies.settings``); the fields of a dataclass are
    annotated with options. Typer reads flat signatures alone, and no command has to repeat what others take too.
    """
    groups: dict[str, type] = {}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        is_settings = isinstance(kind, type) and issubclass(kind, JsonValue)
        if is_settings or dataclasses.is_dataclass(kind):
            groups[parameter.name] = kind
            flat += _settings(kind) if is_settings else _fields(kind)
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        values = {name: _value(kind, given) for name, kind in groups.items()}
        command(**values, **given)

    called.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return called


def _value(kind: type, given: dict[str, Any]) -> Any:
    """Take the fields of a group out of what was given, and build the group."""
    if dataclasses.is_dataclass(kind):
        return kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
    said = {name: _read(setting, given.pop(name)) for name, setting in settings_of(kind).items()}
    return from_settings(kind, {name: value for name, value in said.items() if value is not None})


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(kind)
    ]


def _settings(kind: type[JsonValue]) -> list[inspect.Parameter]:
    settings = settings_of(kind)
    flags = {name: _flag(name) for name in settings}
    return [_setting(setting, flags) for setting in settings.values()]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _setting(setting: Setting, flags: dict[str, str]) -> inspect.Parameter:
    annotation = ArgumentModel if setting.name == "model" else Annotated[_plain(setting), _option(setting, flags)]
    default = ",".join(map(str, setting.default)) if isinstance(setting.default, tuple) else setting.default
    if default == "":
        default = None  # so that nothing at all and an empty word can be told apart
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is NODEFAULT else default,
        annotation=annotation,
    )


def _plain(setting: Setting) -> Any:
    """Return the type that typer reads: lists come as one word."""
    if setting.item is None:
        return str | None if setting.default == "" else setting.type
    return str | None if setting.default is None else str


def _option(setting: Setting, flags: dict[str, str]) -> Any:
    flag = flags[setting.name]
    return typer.Option(
        f"{flag}/--no{flag[1:]}" if setting.default is True else flag,
        help=in_options(setting.declared.get("description", ""), flags),
        metavar=setting.declared.get("metavar"),
        show_default=setting.default not in ("", None, False),
    )


def _read(setting: Setting, value: Any) -> Any:
    if setting.item is None or not isinstance(value, str):
        return value
    # which numbers make sense, the declaration of the setting says
    option = _flag(setting.name)
    if setting.item is str:
        return [word.strip() for word in value.split(",")]
    return numbers(value, option) if setting.item is float else whole_numbers(value, option, least=-LARGEST)
