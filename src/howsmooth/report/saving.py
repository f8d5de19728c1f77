"""Charts as files: HTML, SVG, PDF or PNG from one specification, without a network."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.errors import AssumptionError, FileError
from howsmooth.files import whole

if TYPE_CHECKING:
    from howsmooth.report.drawing.tables import Chart

ENDINGS = (".html", ".svg", ".pdf", ".png")
# Who opens an SVG may have wider letters than who made it: room at the sides, so that no label is cut off, and between
# the labels of an axis and its title, so that neither is written over the other.
PADDING = {"left": 36, "right": 32, "top": 6, "bottom": 6}
TITLE_PADDING = 16


def save_chart(chart: "Chart", path: str | os.PathLike[str]) -> None:
    """Write a chart; the ending says how. HTML holds everything it needs."""
    target = checked_target(path)
    drawn = _quiet(chart)
    try:
        with whole(target) as partial:
            if target.suffix == ".html":
                # drawing needs long imports, a refused name none of them
                from howsmooth.report.embedding import chart_page

                partial.write_text(chart_page(drawn, target.stem), encoding="utf-8")
            else:
                drawn.save(partial)
    except OSError as error:
        raise FileError(f"the figure cannot be written to {os.fspath(path)!r}: {error.strerror or error}.") from error


def checked_target(path: str | os.PathLike[str]) -> Path:
    """Refuse a file name that no figure can be written to."""
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise AssumptionError(
            f"a figure ends in {', '.join(ENDINGS)}, got {target.name!r}; change the ending.", field="path"
        )
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {os.fspath(target.parent)!r} to write the figure to.", field="path")
    return target


def _quiet(chart: "Chart") -> "Chart":
    """Return a chart with thin grids and large letters."""
    axes = chart.properties(padding=PADDING).configure_axis(
        gridOpacity=0.35, labelFontSize=12, titleFontSize=13, titleFontWeight="normal"
    )
    titles = axes.configure_axisY(titlePadding=TITLE_PADDING).configure_title(
        fontSize=14, fontWeight="normal", anchor="start"
    )
    return titles.configure_legend(titleFontWeight="normal").configure_view(stroke=None)
