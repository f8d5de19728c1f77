"""``howsmooth card``: what is known of one model by a fixed protocol, to be put beside its weights."""

from pathlib import Path
from typing import Annotated

import typer

from howsmooth.cli.options import (
    ArgumentModel,
    OptionDevice,
    OptionJson,
    OptionThreads,
    checked,
    require_folder,
    set_threads,
)
from howsmooth.cli.printing import say, visible_console


def card(
    model: ArgumentModel = "minilm",
    *,
    protocol: Annotated[str, typer.Option("--protocol", help="What is measured: protocol-1.")] = "protocol-1",
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Where it goes; cards/MODEL by default.",
            callback=checked(require_folder),
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", "-t", metavar="FILE", help="In place of Alice, for a model that reads no English."),
    ] = None,
    device: OptionDevice = None,
    threads: OptionThreads = None,
    as_json: OptionJson = False,
) -> None:
    """Write the card of a model: how smooth it is, in numbers that can be compared with those of any other.

    It says how long it will take before it begins. A folder gets howsmooth.json with every number and what it is worth,
    smoothness.md for the model card, .eval_results/howsmooth.yaml, and card.html.

    Example: howsmooth card minilm
    """
    set_threads(threads)
    from howsmooth.report.card_page import write_card_page
    from howsmooth.studies.card_measurement import card as measured
    from howsmooth.studies.cards import write_card

    found = measured(
        model, protocol=protocol, text=text, device=device, progress=lambda said: say(f"{said} …", err=True)
    )
    folder = Path("cards") / Path(found.model).name if out is None else Path(out)
    write_card(found, folder)
    page = write_card_page(found, folder / "card.html")
    if as_json:
        typer.echo(found.to_json())
    else:
        visible_console().print(found)
    say(f"The card is in {folder}; {page.name} shows it.", err=as_json)
