"""Commands that take settings: an option for every field of a value, described where the field is declared."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec import NODEFAULT

from howsmooth.cli.numbers import LARGEST, numbers, whole_numbers
from howsmooth.studies.values import Leaf, Value, from_leaves, leaves

Command = Callable[..., None]


def takes(kind: type[Value], *, argument: tuple[str, Any]) -> Callable[[Command], Command]:
    """Let a command take a value: it gets the value as its first parameter, and the command line one option a field.

    Args:
        kind: The type of the value.
        argument: The field that comes without an option's name, and how typer is to read it.
    """

    def make(command: Command) -> Command:
        _value, *declared = inspect.signature(command, eval_str=True).parameters.values()
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in declared]
        fields = leaves(kind)

        @functools.wraps(command)
        def called(**given: Any) -> None:
            said = {name: _read(fields[name], given.pop(name)) for name in fields}
            command(from_leaves(kind, {name: value for name, value in said.items() if value is not None}), **given)

        options = [_parameter(leaf, argument) for leaf in fields.values()]
        called.__signature__ = inspect.Signature([*options, *own])  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*options, *own)}
        return called

    return make


def _parameter(leaf: Leaf, argument: tuple[str, Any]) -> inspect.Parameter:
    name, how = argument
    annotation = how if leaf.name == name else Annotated[_plain(leaf), _option(leaf)]
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
    """Return the type that typer reads: lists of numbers come as one word."""
    if "tuple" not in str(leaf.type):
        return str | None if leaf.default == "" else leaf.type
    return str | None if leaf.default is None else str


def _option(leaf: Leaf) -> Any:
    flag = f"--{leaf.name.replace('_', '-')}"
    both = f"{flag}/--no-{leaf.name.replace('_', '-')}" if leaf.default is True else flag
    return typer.Option(
        both,
        help=leaf.declared.get("description"),
        metavar=leaf.declared.get("metavar"),
        show_default=leaf.default not in ("", None, False),
    )


def _read(leaf: Leaf, value: Any) -> Any:
    if "tuple" in str(leaf.type) and isinstance(value, str):
        # what a number may be, the declaration of the setting says
        option = f"--{leaf.name.replace('_', '-')}"
        if "str" in str(leaf.type):
            return [word.strip() for word in value.split(",")]
        return numbers(value, option) if "float" in str(leaf.type) else whole_numbers(value, option, least=-LARGEST)
    return value
