"""``howsmooth audit``: does a layer of the user's own code keep the Lipschitz constant that is claimed for it?"""

import importlib.util
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import howsmooth as hs
from howsmooth.cli.array_files import require_writable, saving
from howsmooth.cli.memory_errors import require_room, too_large
from howsmooth.cli.options import (
    OptionDevice,
    OptionJson,
    OptionMetric,
    OptionN,
    OptionSave,
    OptionSeed,
    OptionThreads,
    checked,
    set_threads,
)
from howsmooth.cli.printing import ascent_bar, print_json, say
from howsmooth.errors import AssumptionError, FileError, HowsmoothError, nearest
from howsmooth.files import require_size
from howsmooth.theory.assumptions import require_radius

if TYPE_CHECKING:
    pass


def check_code(source: str) -> tuple[Path, str]:
    """Return the file and the name in it, without running anything."""
    file, colon, name = source.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise AssumptionError(f"name code as FILE.py:NAME, got {source!r}.", field="code")
    path = Path(file)
    if path.suffix != ".py":
        raise FileError(f"code is a .py file, got {file!r}.", field="code")
    if not path.is_file():
        raise FileError(f"there is no file {file!r}.", field="code")
    require_size(path, "code", field="code")
    if not os.access(path, os.R_OK):
        raise FileError(f"{file!r} may not be read; see its permissions.", field="code")
    return path, name


def run_code(path: Path, name: str) -> Any:
    """Import the file and return what it calls ``name``; a function or class is called without arguments.

    A map or a module is taken as it is.
    """
    from torch import nn

    from howsmooth.spectral.operators import Differentiable

    spec = importlib.util.spec_from_file_location(f"howsmooth_audited_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise FileError(f"{str(path)!r} cannot be imported.", field="code")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise FileError(f"{str(path)!r} is no Python: {error}.", field="code") from error
    except Exception as error:  # whatever the code of others raises
        raise AssumptionError(f"{path.name} failed: {type(error).__name__}: {error}", field="code") from error
    if not hasattr(module, name):
        known = sorted(known for known in vars(module) if not known.startswith("_"))
        raise AssumptionError(f"{str(path)!r} defines no {name!r}{nearest(name, known)}", field="code")
    found = getattr(module, name)
    try:
        ready = isinstance(found, nn.Module) or (isinstance(found, Differentiable) and not isinstance(found, type))
        made = found if ready or not callable(found) else found()
    except Exception as error:  # whatever the code of others raises
        raise AssumptionError(f"{path.name}:{name} failed: {type(error).__name__}: {error}", field="code") from error
    if not callable(made) and not isinstance(made, Differentiable):
        raise AssumptionError(
            f"{path.name}:{name} must give a map, a module or a callable on tensors, got {type(made).__name__}.",
            field="code",
        )
    return made


FINDING = 1
STEPS, STARTS = 60, 4


def _require_claim(claimed: float) -> None:
    if not 0 < claimed < math.inf:
        raise AssumptionError(f"claimed must be positive and finite, got {claimed}.", field="claimed")


def audit(
    code: Annotated[
        str,
        typer.Argument(metavar="FILE.py:NAME", help="A function that makes the layer, or the layer. The file is run."),
    ],
    *,
    claimed: Annotated[
        float,
        typer.Option(
            "--claimed", help="The constant that is claimed.", show_default=False, callback=checked(_require_claim)
        ),
    ],
    n: OptionN,
    radius: Annotated[
        float | None,
        typer.Option(
            "--radius", "-r", help="Tokens in this ball; any tokens if left out.", callback=checked(require_radius)
        ),
    ] = None,
    d: Annotated[
        int | None, typer.Option("--d", help="The dimension of a token, where the layer does not say it.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps of the ascent.")] = STEPS,
    starts: Annotated[int, typer.Option("--starts", help="Inputs of each pattern to start from.")] = STARTS,
    metric: OptionMetric = "total",
    seed: OptionSeed = 0,
    device: OptionDevice = None,
    threads: OptionThreads = None,
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
    set_threads(threads)
    layer = run_code(path, name)
    if device is not None and hasattr(layer, "to"):
        layer = layer.to(device=device)

    from torch import nn

    domain = None if radius is None else hs.domains.Ball(radius)
    width = d
    if d is None and isinstance(layer, nn.Module):  # maps tell it themselves
        width = next((part.in_features for part in layer.modules() if isinstance(part, nn.Linear)), None)
        if width is None:
            raise AssumptionError(
                "the dimension of a token cannot be told from this module; give it as --d.", field="d"
            )
    shape = None if width is None else (n, width)
    options: dict[str, Any] = {"domain": domain, "input_shape": shape, "starts": starts, "steps": steps}
    options |= {"metric": metric, "seed": seed}
    try:
        with ascent_bar(True, steps) as progress:
            found = hs.audit(layer, claimed=claimed, n=n, progress=progress, **options)
    except (HowsmoothError, MemoryError):
        raise
    except Exception as error:  # whatever the code of others raises on the way
        if too_large(error) is not None:
            raise
        said = f"{type(error).__name__}: {error}"
        raise AssumptionError(f"{code} failed while it was searched: {said}", field="code") from error
    kept = found.refuted or save is not None
    if kept:
        with saving(target):
            found.save(target)
    if as_json:
        print_json(
            found.as_dict()
            | {"code": code, "n": n, "radius": radius, "metric": metric, "saved": str(target) if kept else None}
        )
    else:
        say(found.summary + (f" (saved to {target})" if kept else ""))
    if found.refuted:
        raise typer.Exit(FINDING)
