"""Charts as files: HTML, SVG, PDF or PNG from one specification, without a network."""

import os
from pathlib import Path

from howsmooth.errors import AssumptionError, FileError
from howsmooth.files import whole
from howsmooth.report.charts import Chart
from howsmooth.report.embedding import chart_page

ENDINGS = (".html", ".svg", ".pdf", ".png")


def save_chart(chart: Chart, path: str | os.PathLike[str]) -> None:
    """Write a chart; the ending says how. HTML holds everything it needs."""
    target = checked_target(path)
    quiet = chart.configure_axis(
        gridOpacity=0.35, labelFontSize=12, titleFontSize=13, titleFontWeight="normal"
    ).configure_title(fontSize=14, fontWeight="normal", anchor="start")
    drawn = quiet.configure_view(stroke=None)
    try:
        with whole(target) as partial:
            if target.suffix == ".html":
                partial.write_text(chart_page(drawn, target.stem), encoding="utf-8")
            else:
                drawn.save(partial)
    except OSError as error:
        raise FileError(f"the figure cannot be written to {os.fspath(path)!r}: {error.strerror or error}.") from error


def checked_target(path: str | os.PathLike[str]) -> Path:
    """Refuse a file name that no figure can be written to."""
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise AssumptionError(f"a figure ends in {', '.join(ENDINGS)}, got {target.name!r}; change the ending.")
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {os.fspath(target.parent)!r} to write the figure to.")
    return target
