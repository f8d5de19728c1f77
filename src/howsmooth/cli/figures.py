"""The figures of a measurement, beside its records."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from howsmooth.studies.measurement import Measurement


def write_figures(found: "Measurement", folder: Path) -> list[Path]:
    """Draw every figure of a measurement into a folder."""
    from howsmooth.report.measurement_charts import figures
    from howsmooth.report.saving import save_chart

    written = []
    for name, chart in figures(found).items():
        save_chart(chart, folder / f"{name}.svg")
        written.append(folder / f"{name}.svg")
    return written
