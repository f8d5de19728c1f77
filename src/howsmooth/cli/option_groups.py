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
from howsmooth.studies.values import Leaf, Value, from_leaves, leaves

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
        is_settings = isinstance(kind, type) and issubclass(kind, Value)
        if is_settings or dataclasses.is_dataclass(kind):
            groups[parameter.name] = kind
            flat += map(_setting, leaves(kind).values()) if is_settings else _fields(kind)
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
    said = {name: _read(leaf, given.pop(name)) for name, leaf in leaves(kind).items()}
    return from_leaves(kind, {name: value for name, value in said.items() if value is not None})


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(kind)
    ]


def _setting(leaf: Leaf) -> inspect.Parameter:
    annotation = ArgumentModel if leaf.name == "model" else Annotated[_plain(leaf), _option(leaf)]
    default = ",".join(map(str, leaf.default)) if isinstance(leaf.default, tuple) else leaf.default
    if default == "":
        default = None  # so that nothing at all and an empty word can be told apart
    return inspect.Parameter(
        leaf.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is NODEFAULT else default,
        annotation=annotation,
    )


def _plain(leaf: Leaf) -> Any:
    """Return the type that typer reads: lists come as one word."""
    if leaf.item is None:
        return str | None if leaf.default == "" else leaf.type
    return str | None if leaf.default is None else str


def _option(leaf: Leaf) -> Any:
    flag = f"--{leaf.name.replace('_', '-')}"
    return typer.Option(
        f"{flag}/--no-{leaf.name.replace('_', '-')}" if leaf.default is True else flag,
        help=leaf.declared.get("description"),
        metavar=leaf.declared.get("metavar"),
        show_default=leaf.default not in ("", None, False),
    )


def _read(leaf: Leaf, value: Any) -> Any:
    if leaf.item is None or not isinstance(value, str):
        return value
    # which numbers make sense, the declaration of the setting says
    option = f"--{leaf.name.replace('_', '-')}"
    if leaf.item is str:
        return [word.strip() for word in value.split(",")]
    return numbers(value, option) if leaf.item is float else whole_numbers(value, option, least=-LARGEST)
