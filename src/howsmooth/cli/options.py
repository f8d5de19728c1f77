"""The options that more than one command takes: each is declared, described and checked here, once.

Checks run while the command line is parsed: what cannot work is refused before anything heavy is imported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from howsmooth.errors import AssumptionError
from howsmooth.models.loading.names import check_model_name
from howsmooth.theory.assumptions import require_length, require_radius

T = TypeVar("T")
# More tokens than this are no index of a tensor; what fits into memory is far less.
LARGEST = 2**53


def whole_numbers(text: str, option: str, *, least: int = 0) -> list[int]:
    """Read numbers with commas between them, of which none is below ``least``.

    Raises:
        AssumptionError: If there is anything else, or a number is out of range.

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


def numbers(text: str, option: str) -> list[float]:
    """Read ``0.01,1,10``; refuse anything else."""
    return _listed(text, option, float, "numbers with commas between them, as in 0.1,1,10")


def _listed(text: str, option: str, kind: Callable[[str], T], needed: str) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        field = option.lstrip("-").replace("-", "_")
        raise AssumptionError(f"{option} takes {needed}, got {text!r}.", field=field) from None


def _checked_n(n: int) -> int:
    require_length(n)
    return n


def _checked_radius(radius: float) -> float:
    require_radius(radius)
    return radius


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise AssumptionError(f"--seed must be between 0 and 2^63 - 1, got {seed}.", field="seed")
    return seed


def checked_model(model: str | None) -> str | None:
    """Refuse a name that can stand for no model."""
    if model is not None:
        check_model_name(model)
    return model


def _checked_figure(figure: str | None) -> str | None:
    if figure is not None:
        from howsmooth.report.saving import checked_target

        checked_target(figure)
    return figure


# What comes out.
OptionJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
OptionFigure = Annotated[
    str | None,
    typer.Option("--figure", metavar="FILE", help="Draw it: .html, .svg, .pdf or .png.", callback=_checked_figure),
]
OptionSave = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Keep the worst input found, as .safetensors.", show_default=False),
]

# What is asked about.
ArgumentModel = Annotated[
    str,
    typer.Argument(help="A built-in name, a folder, a .gguf file, a hub id, or random:FAMILY.", callback=checked_model),
]
OptionN = Annotated[int, typer.Option("--n", "-n", help="How many tokens.", show_default=False, callback=_checked_n)]
OptionRadius = Annotated[
    float,
    typer.Option("--radius", "-r", help="The radius of the ball.", show_default=False, callback=_checked_radius),
]
OptionSearch = Annotated[bool, typer.Option("--search", help="Look for a worse input by gradient ascent; slower.")]
OptionSeed = Annotated[int, typer.Option("--seed", help="The seed of everything random.", callback=_checked_seed)]
