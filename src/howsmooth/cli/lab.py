"""``howsmooth lab``: one page to see why attention is not smooth."""

from typing import Annotated

import typer


def lab(
    output: Annotated[str, typer.Option("-o", "--out", "--output", metavar="FILE", help="Where it goes.")] = "lab.html",
) -> None:
    """Write one HTML file where tokens are dragged by hand, and the constant, its bounds and worst inputs follow.

    It needs no network and no model: open it in a browser.

    Example: howsmooth lab -o lab.html
    """
    from howsmooth.lab.page import write_lab

    typer.echo(f"The lab is {write_lab(output)}.")
