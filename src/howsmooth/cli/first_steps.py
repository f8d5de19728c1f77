"""``howsmooth models`` and ``howsmooth lab``: what needs neither a model nor a run."""

import importlib.util
from typing import Annotated, Any

import typer

from howsmooth.cli.options import OptionJson
from howsmooth.cli.printing import print_json
from howsmooth.files import is_printed

# What a kind of model needs beside its weights.
TEXT = "a tokenizer in its folder, or --tokenizer, or --token-ids"
IMAGES = "--images with a folder of pictures"


def models(as_json: OptionJson = False) -> None:
    """List built-in models, families that are read exactly, families that go by autograd, and what each of them needs.

    Example: howsmooth models
    """
    found = _found()
    if as_json:
        print_json(found)
        return
    typer.echo("Built in:")
    for row in found["built_in"]:
        fetched = f"; fetched from {row['hub']}, or run" if row["hub"] else "; run"
        state = "installed" if row["installed"] else f"not installed{fetched}: {row['install']}"
        typer.echo(f"  {row['name']:<9} {row['about']} ({state})")
    pictures = set(found["pictures"])
    typer.echo(f"Read exactly, on text: {', '.join(name for name in found['families'] if name not in pictures)}.")
    typer.echo(f"  need {TEXT}.")
    typer.echo(f"Read exactly, on pictures: {', '.join(found['pictures'])}.")
    typer.echo(f"  need {IMAGES}.")
    typer.echo(f"By autograd: {', '.join(found['by_autograd'])}.")
    typer.echo("  and others of the transformers library, as far as their parts are found; what is not is refused.")
    typer.echo("Any of these as a folder or a hub id; random:FAMILY has random weights, for those read exactly.")
    state = "installed" if found["gguf"]["installed"] else f"not installed; run: {found['gguf']['install']}"
    typer.echo(f"GGUF files of these need gguf and accelerate ({state}).")


def _found() -> dict[str, Any]:
    from howsmooth.models.families.registry import FAMILIES, PICTURES, TRIED
    from howsmooth.models.loading.names import BUILT_IN

    gguf = all(importlib.util.find_spec(part) is not None for part in ("gguf", "accelerate"))
    return {
        "built_in": [
            {
                "name": name,
                "about": known.about,
                "installed": known.home is not None,
                "install": known.install,
                "hub": known.hub,
            }
            for name, known in BUILT_IN.items()
        ],
        "families": sorted(FAMILIES),
        "pictures": sorted(PICTURES),
        "by_autograd": sorted(TRIED),
        "needs": {"text": TEXT, "pictures": IMAGES},
        "gguf": {"installed": gguf, "install": "pip install howsmooth[gguf]"},
    }


def lab(
    output: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Where it goes, - to print it.")
    ] = "lab.html",
) -> None:
    """Write one HTML file where tokens are dragged by hand, and the constant, its bounds and worst inputs follow.

    It needs no network and no model: open it in a browser.

    Example: howsmooth lab -o lab.html
    """
    from howsmooth.lab.page import write_lab

    target = write_lab(output)
    if not is_printed(target):
        typer.echo(f"The lab is {target}.")
