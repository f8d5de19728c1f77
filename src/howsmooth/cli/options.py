"""Options that more than one command takes, each declared and checked once; and groups of them, made from settings.

Checks run while the command line is parsed: what cannot work is refused before anything heavy is imported.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from msgspec import NODEFAULT

from howsmooth.cli.printing import in_options
from howsmooth.errors import AssumptionError, FileError
from howsmooth.models.loading.names import BUILT_IN, check_model_name
from howsmooth.spectral.solver_settings import check_metric
from howsmooth.studies.json_values import JsonValue, Setting, from_settings, settings_of
from howsmooth.theory.assumptions import require_length, require_radius

T = TypeVar("T")
# More tokens than this are no index of a tensor; what fits into memory is far less.
LARGEST = 2**53


def whole_numbers(text: str, option: str, *, least: int = 0) -> list[int]:
    """Read numbers with commas between them, of which none is below ``least``.

    Example:
        >>> whole_numbers("8,16", "--lengths")
        [8, 16]
    """
    found = _listed(text, option, int, "whole numbers with commas between them, as in 0,2,5")
    field = option.lstrip("-").replace("-", "_")
    if min(found) < least:
        raise AssumptionError(f"{option} must be at least {least}, got {min(found)}.", field=field)
    if max(found) > LARGEST:
        raise AssumptionError(f"{option} must be at most 2^53, got {max(found)}.", field=field)
    return found


def _listed(text: str, option: str, kind: Callable[[str], T], needed: str) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        field = option.lstrip("-").replace("-", "_")
        raise AssumptionError(f"{option} takes {needed}, got {text!r}.", field=field) from None


def checked(require: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what lets typer refuse a value while it parses the command line; nothing given is not looked at."""

    def callback(value: Any) -> Any:
        if value is not None:
            require(value)
        return value

    return callback


def _require_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise AssumptionError(f"seed must be between 0 and 2^63 - 1, got {seed}.", field="seed")


def require_page(out: str) -> None:
    """Refuse a report that would not open in a browser; elsewhere --out names a folder."""
    if not out.endswith(".html"):
        raise AssumptionError(f"--out is the file of the report here, as in {out or 'report'}.html, got {out!r}.")


def require_folder(out: str) -> None:
    """Refuse what names no folder."""
    if not out.strip() or out == "-":
        got = "standard output" if out == "-" else "nothing"
        raise FileError(f"--out must name a folder, got {got}; leave it out for the default.", field="out")


def _require_figure(figure: str) -> None:
    from howsmooth.report.saving import checked_target

    checked_target(figure)


# What comes out.
OptionJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
OptionFigure = Annotated[
    str | None,
    typer.Option(
        "--figure", metavar="FILE", help="Draw it: .html, .svg, .pdf or .png.", callback=checked(_require_figure)
    ),
]
OptionSave = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Keep the worst input found, as .safetensors.", show_default=False),
]


def model_names(incomplete: str) -> list[str]:
    """Return the models that begin so, for the Tab key: built-in ones, folders and GGUF files here."""
    here = (path for path in Path.cwd().iterdir() if path.suffix == ".gguf" or (path / "config.json").is_file())
    return [name for name in (*BUILT_IN, *sorted(path.name for path in here)) if name.startswith(incomplete)]


# What is asked about.
ArgumentModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A built-in name, a folder, a .gguf file, a hub id, or random:FAMILY.",
        callback=checked(check_model_name),
        autocompletion=model_names,
    ),
]
LENGTH = ("--n", "--lengths", "-n")
OptionN = Annotated[
    int, typer.Option(*LENGTH, help="How many tokens.", show_default=False, callback=checked(require_length))
]
OptionRadius = Annotated[
    float,
    typer.Option(
        "--radius", "-r", help="The radius of the ball.", show_default=False, callback=checked(require_radius)
    ),
]
OptionSearch = Annotated[bool, typer.Option("--search", help="Look for a worse input by gradient ascent; slower.")]
OptionMetric = Annotated[
    str,
    typer.Option(
        "--metric", metavar="NAME", help="How perturbations and changes are measured.", callback=checked(check_metric)
    ),
]
OptionSeed = Annotated[
    int, typer.Option("--seed", help="The seed of everything random.", callback=checked(_require_seed))
]
OptionDevice = Annotated[
    str | None, typer.Option("--device", help="Where to compute, as torch names it; the CPU by default.")
]
OptionThreads = Annotated[int | None, typer.Option("--threads", help="How many threads a product uses.", min=1)]


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads, if it was asked for."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


Command = Callable[..., None]
# Other names of the same option.
ALIASES = {
    "layers": ("--layer",),
    "layer": ("--layers",),
    "lengths": ("--n", "-n"),
    "length": ("--length", "--n", "-n"),
    "file": ("--file",),
}


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
            flat += _options(kind, is_settings)
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


def _options(kind: Any, is_settings: bool) -> list[inspect.Parameter]:
    """Return the options of a group, one for each field."""
    if is_settings:
        settings = settings_of(kind)
        flags = {name: f"--{setting.option}" for name, setting in settings.items()}
        return [_of_setting(setting, flags) for setting in settings.values()]
    hints = typing.get_type_hints(kind, include_extras=True)
    return [_parameter(field.name, field.default, hints[field.name]) for field in dataclasses.fields(kind)]


def _of_setting(setting: Setting, flags: dict[str, str]) -> inspect.Parameter:
    annotation = ArgumentModel if setting.name == "model" else Annotated[_plain(setting), _option(setting, flags)]
    default = ",".join(map(str, setting.default)) if isinstance(setting.default, tuple) else setting.default
    # so that nothing at all and an empty word can be told apart
    return _parameter(setting.name, None if default == "" else default, annotation)


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    missing = default is NODEFAULT or default is dataclasses.MISSING
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if missing else default,
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
        f"{flag}/--no{flag[1:]}" if setting.default is True or setting.type == bool | None else flag,
        *ALIASES.get(setting.name, ()),
        help=in_options(setting.declared.get("description", ""), flags),
        metavar=setting.declared.get("metavar"),
        show_default=setting.default not in ("", None, False),
    )


def _read(setting: Setting, value: Any) -> Any:
    if setting.item is None or not isinstance(value, str):
        return value
    # which numbers make sense, the declaration of the setting says
    if setting.item is str:
        return [word.strip() for word in value.split(",")]
    if setting.item is float:
        return _listed(value, f"--{setting.option}", float, "numbers with commas between them, as in 0.1,1,10")
    return whole_numbers(value, f"--{setting.option}", least=-LARGEST)
