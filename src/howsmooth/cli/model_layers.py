"""One attention layer of a model in place of matrices: the options that name it, and the map it is."""

from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.errors import AssumptionError

if TYPE_CHECKING:
    from howsmooth.maps.attention import Attention

BESIDES = ", or --model and --layer"
PANEL = "A layer of a model, in place of weights in files"
OptionModel = Annotated[
    str | None,
    typer.Option("--model", help="A built-in name, a folder, a .gguf file or a hub id.", rich_help_panel=PANEL),
]
OptionLayer = Annotated[int | None, typer.Option("--layer", help="Which attention layer of it.", rich_help_panel=PANEL)]
OptionPart = Annotated[
    str, typer.Option("--map", help="Which part of the layer: attention, heads or head:3.", rich_help_panel=PANEL)
]


def read_layer(model: str, layer: int, part: str) -> "Attention":
    """Load a model and return one attention map of it.

    Raises:
        AssumptionError: If it has no such layer, or the part is more than attention.
    """
    from howsmooth.maps.attention import Attention
    from howsmooth.models.base import load
    from howsmooth.models.sites import check_map

    check_map(part)
    site = load(model).site(layer)
    found = None if part == "block" else site.map(part)
    if not isinstance(found, Attention):
        raise AssumptionError(f"theorems are about attention alone, got --map {part}; use attention, heads or head:3.")
    return found
