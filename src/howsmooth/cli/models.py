"""``howsmooth models``: what can be measured here."""

import json
from typing import Annotated

import typer


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List the built-in models, whether they are installed, and the families that are read exactly.

    Example: howsmooth models
    """
    from howsmooth.models.builtin import BUILT_IN
    from howsmooth.models.registry import FAMILIES

    if as_json:
        built_in = [
            {"name": name, "about": known.about, "installed": known.home is not None, "install": known.install}
            for name, known in BUILT_IN.items()
        ]
        typer.echo(json.dumps({"built_in": built_in, "families": sorted(FAMILIES)}))
        return
    typer.echo("Built in:")
    for name, known in BUILT_IN.items():
        state = "installed" if known.home is not None else f"not installed; run: {known.install}"
        typer.echo(f"  {name:<9} {known.about} ({state})")
    typer.echo(f"Families read exactly: {', '.join(sorted(FAMILIES))}.")
    typer.echo("Any folder or hub id of these, or random:FAMILY for random weights; other families go by autograd.")
