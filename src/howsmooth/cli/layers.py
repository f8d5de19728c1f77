"""The answer of a measurement in the terminal: one line for each layer, then every length."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from howsmooth.studies.measurement import Measurement


def print_answer(found: "Measurement") -> None:
    """Print the answer for each layer, then the mean constant for every layer and length."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(found)
    if len(found.lengths) > 1:
        _print_lengths(found)


def _print_lengths(found: "Measurement") -> None:
    from rich.console import Console
    from rich.table import Table

    from howsmooth.studies.measurement import mean_constant

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("layer", justify="right")
    for n in found.lengths:
        table.add_column(f"n = {n}", justify="right")
    for layer in found.layers:
        cells = (found.at(layer=layer.layer, length=n) for n in found.lengths)
        table.add_row(str(layer.layer), *(f"{mean_constant(cell):.4g}" if cell else "" for cell in cells))
    console = Console(highlight=False)
    console.print("Mean constant by length", style="italic")
    console.print(table)
