"""``howsmooth audit``: does a layer keep the Lipschitz constant that is claimed for it?"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from howsmooth.cli.ascent_bar import ascent_bar
from howsmooth.cli.named_code import check_code, run_code
from howsmooth.cli.options import OptionJson, OptionN, OptionSave, OptionSeed
from howsmooth.cli.printing import print_json, say
from howsmooth.cli.reach import require_room, too_large
from howsmooth.cli.witnesses import require_writable
from howsmooth.errors import AssumptionError, FileError, HowsmoothError
from howsmooth.theory.assumptions import require_radius

if TYPE_CHECKING:
    from howsmooth.search.audit import Audit

FINDING = 1
STEPS, STARTS = 60, 4


def _checked_claim(claimed: float) -> float:
    if not 0 < claimed < math.inf:
        raise AssumptionError(f"--claimed must be positive and finite, got {claimed}.", field="claimed")
    return claimed


def _checked_radius(radius: float | None) -> float | None:
    if radius is not None:
        require_radius(radius)
    return radius


ArgumentCode = Annotated[
    str, typer.Argument(metavar="FILE.py:NAME", help="A function that makes the layer, or the layer. The file is run.")
]
OptionClaimed = Annotated[
    float,
    typer.Option("--claimed", help="The constant that is claimed.", show_default=False, callback=_checked_claim),
]
OptionRadius = Annotated[
    float | None,
    typer.Option("--radius", "-r", help="Tokens in this ball; in all of space if left out.", callback=_checked_radius),
]
OptionD = Annotated[int | None, typer.Option("--d", help="The dimension of a token, where the layer does not tell.")]


def audit(
    code: ArgumentCode,
    *,
    claimed: OptionClaimed,
    n: OptionN,
    radius: OptionRadius = None,
    d: OptionD = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps of the ascent.")] = STEPS,
    starts: Annotated[int, typer.Option("--starts", help="Inputs of each pattern to start from.")] = STARTS,
    seed: OptionSeed = 0,
    save: OptionSave = None,
    as_json: OptionJson = False,
) -> None:
    """Search for an input where a layer exceeds the Lipschitz constant that is claimed for it.

    The file is imported, so its code is run: name only files that you trust. Exit code 0 if the claim was not refuted,
    1 if it was; the input is then kept beside the call, or where --save says.

    Example: howsmooth audit layer.py:make_layer --claimed 3.2 -n 16 --radius 4
    """
    path, name = check_code(code)
    for option, many, least in (("steps", steps, 0), ("starts", starts, 1), ("d", 1 if d is None else d, 1)):
        if many < least:
            raise AssumptionError(f"--{option} must be at least {least}, got {many}.", field=option)
    require_room(n, d or 1)
    target = Path(f"{name}-refuted.safetensors") if save is None else save
    require_writable(target, [path])
    layer = run_code(path, name)

    import torch

    import howsmooth as hs

    domain = None if radius is None else hs.Ball(radius)
    width = _width(layer) if d is None else d
    with ascent_bar(True, steps) as progress, _told(code):
        found = hs.audit(
            layer,
            claimed=claimed,
            n=n,
            domain=domain,
            input_shape=None if width is None else (n, width),
            starts=starts,
            steps=steps,
            generator=torch.Generator().manual_seed(seed),
            progress=progress,
        )
    kept = found.refuted or save is not None
    if kept:
        _save(found, target)
    if as_json:
        print_json(found.as_dict() | {"code": code, "n": n, "radius": radius, "saved": str(target) if kept else None})
    else:
        say(found.summary + (f" (saved to {target})" if kept else ""))
    if found.refuted:
        raise typer.Exit(FINDING)


@contextmanager
def _told(code: str) -> Iterator[None]:
    """Say in one sentence what code of others raised on the way."""
    try:
        yield
    except (HowsmoothError, MemoryError):
        raise
    except Exception as error:
        if too_large(error) is not None:
            raise
        said = f"{type(error).__name__}: {error}"
        raise AssumptionError(f"{code} failed while it was searched: {said}", field="code") from error


def _width(layer: Any) -> int | None:
    """Guess the dimension of a token from the first linear layer of a module; maps tell it themselves."""
    from torch import nn

    if not isinstance(layer, nn.Module):
        return None
    widths = (part.in_features for part in layer.modules() if isinstance(part, nn.Linear))
    found = next(widths, None)
    if found is None:
        raise AssumptionError("the dimension of a token cannot be told from this module; give it as --d.", field="d")
    return int(found)


def _save(found: "Audit", target: Path) -> None:
    from safetensors import SafetensorError

    try:
        found.save(target)
    except HowsmoothError:
        raise
    except (OSError, SafetensorError) as error:
        raise FileError(f"{str(target)!r} could not be written: {error}", field="save") from error
