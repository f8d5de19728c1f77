"""The answer of a measurement in the terminal: one line for each layer, then every length."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from howsmooth.studies.growth import Growth
    from howsmooth.studies.measurement import LayerSummary, Measurement


def print_answer(found: "Measurement") -> None:
    """Print the constant, its growth and its bounds for each layer."""
    from rich.console import Console
    from rich.table import Table

    length = max(layer.length for layer in found.layers)
    console = Console(highlight=False, markup=False)  # names may hold brackets
    console.print(_title(found, length), style="bold")
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("layer", "constant", "range", "exponent", "95 % interval", "R", "certificate", "sharp bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in found.layers:
        table.add_row(*_cells(layer))
    console.print(table)
    console.print(_legend(found, length), style="dim")
    for note in notes(found):
        console.print(f"Note: {note}.", style="yellow")


def print_table(found: "Measurement") -> None:
    """Print the mean constant for every layer and length."""
    from rich.console import Console
    from rich.table import Table

    from howsmooth.studies.measurement import mean_constant

    if len(found.lengths) < 2:
        return
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


def notes(found: "Measurement") -> list[str]:
    """Say what a reader of the numbers has to know."""
    said = list(found.notes)
    open_ends = sum(record.status not in ("converged", "invariant", "zero") for record in found.records)
    if open_ends:
        said.append(f"{open_ends} of {len(found.records)} brackets did not close: their upper ends are loose")
    fits = [(layer.layer, layer.growth) for layer in found.layers if layer.growth is not None and layer.growth.note]
    said += [f"layer {layer}: {growth.note}" for layer, growth in fits]
    return said


def _title(found: "Measurement", length: int) -> str:
    windows = len({record.task.window for record in found.records})
    return f"{found.model} on {found.text}: the constant of {found.map!r} at {windows} windows of n = {length} tokens"


def _cells(layer: "LayerSummary") -> list[str]:
    return [
        str(layer.layer),
        f"{layer.constant:.4g}",
        f"{layer.least:.3g}–{layer.most:.3g}",
        *_growth(layer.growth),
        f"{layer.radius:.3g}",
        "—" if layer.local_upper is None else f"{layer.local_upper:.3g}",
        "—" if layer.sharp_upper is None else f"{layer.sharp_upper:.3g}",
    ]


def _growth(growth: "Growth | None") -> tuple[str, str]:
    return ("—", "—") if growth is None else (f"{growth.exponent:.3f}", f"[{growth.low:.2f}, {growth.high:.2f}]")


def _legend(found: "Measurement", length: int) -> str:
    widest = max(
        (record.upper / record.lower for record in found.records if record.upper and record.lower), default=1.0
    )
    confidence = found.records[0].task.confidence
    return (
        f"Each constant is attained, and within a factor of {widest:.4f} of the truth ({100 * confidence:g} % each). "
        f"It grows like n^exponent. Certificate: a proof at these inputs (mean). Sharp bound: for any {length} tokens "
        "of length at most R, the mean radius."
    )
