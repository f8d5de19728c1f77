"""The options that more than one command takes: each is declared, described and checked here, once.

Settings of a study are declared in ``howsmooth.studies.settings``, and become options by ``howsmooth.cli.declared``.
Checks run while the command line is parsed: what cannot work is refused before anything heavy is imported.
"""

from pathlib import Path
from typing import Annotated

import typer

from howsmooth.cli.numbers import require_seed
from howsmooth.errors import FileError
from howsmooth.models.names import check_model_name
from howsmooth.theory.assumptions import require_length, require_radius


def _checked_n(n: int) -> int:
    require_length(n)
    return n


def _checked_radius(radius: float) -> float:
    require_radius(radius)
    return radius


def _checked_seed(seed: int) -> int:
    require_seed(seed)
    return seed


def checked_model(model: str | None) -> str | None:
    """Refuse a name that can stand for no model."""
    if model is not None:
        check_model_name(model)
    return model


def _checked_out(out: str | None) -> str | None:
    if out is not None and not out.strip():
        raise FileError("--out must name a folder, got nothing; leave it out for the default.", field="out")
    return out


def _checked_figure(figure: str | None) -> str | None:
    if figure is not None:
        from howsmooth.report.saving import checked_target

        checked_target(figure)
    return figure


# What comes out.
OptionJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
OptionOut = Annotated[
    str | None,
    typer.Option(
        "--out", "-o", metavar="DIR", help="Where records and figures go; runs/… by default.", callback=_checked_out
    ),
]
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

# Who computes it.
OptionWorkers = Annotated[
    int, typer.Option("--workers", help="How many processes share the work; 0 does it in this one.", min=0)
]
OptionScheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="tcp://…", help="The address of a Dask scheduler to use.")
]
OptionTls = Annotated[
    str | None,
    typer.Option("--tls", metavar="DIR", help="Speak TLS to it: a folder with ca.pem, cert.pem and key.pem."),
]
OptionRetry = Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")]
