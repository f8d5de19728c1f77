"""Altair charts of gallery scripts as pictures: what sphinx-gallery calls after every block of code."""

from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from sphinx_gallery.scrapers import figure_rst

GALLERY = Path(__file__).parents[1] / "gallery"
# From the first number to the worst measure; a script that is not named here comes last.
ORDER = (
    "constant_against_length",
    "which_tokens",
    "parts_of_a_layer",
    "heads",
    "singular_values",
    "bounds_ladder",
    "tied_pair",
    "neighbourhood",
    "splitting",
    "regimes",
    "largest_token",
    "worst_measure",
    "certified_words",
    "penalty",
)
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222"]
# White paper in light and dark pages alike.
HOUSE = {
    "background": "white",
    "padding": 18,
    "font": "Helvetica, Arial, sans-serif",
    "mark": {"color": COLOURS[0]},
    "range": {"category": COLOURS},
    "axis": {"gridOpacity": 0.35, "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"},
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "title": {"fontSize": 14, "fontWeight": "normal", "anchor": "start"},
    "header": {"labelFontSize": 12, "titleFontSize": 12},
    "view": {"stroke": None},
}


class Order:
    """Sort the scripts of a gallery."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> tuple[int, str]:
        """Return the place of a script."""
        stem = Path(name).stem
        return (ORDER.index(stem) if stem in ORDER else len(ORDER)), stem


def tidy(gallery_conf: dict[str, Any], fname: str | None) -> None:
    """Remove the file that a script has saved its chart to: the site draws its own, in the style of the house."""
    if fname is not None:  # none where a folder is entered
        (GALLERY / Path(fname).name).with_suffix(".svg").unlink(missing_ok=True)


def charts_of(names: dict[str, Any]) -> list[alt.TopLevelMixin]:
    """Return the charts that a script has left behind; one without a mark is only the beginning of a chart."""
    found = [value for value in names.values() if isinstance(value, alt.TopLevelMixin)]
    return [chart for chart in found if not (isinstance(chart, alt.Chart) and chart.mark is alt.Undefined)]


def draw(chart: alt.TopLevelMixin) -> str:
    """Return the chart as SVG, in the style of the house."""
    spec = chart.to_dict()
    return vl_convert.vegalite_to_svg(spec | {"config": HOUSE | spec.get("config", {}) | {"view": HOUSE["view"]}})


def draw_altair(block: tuple[Any, ...], block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Write the charts that are new since the last block, and return the lines that show them."""
    names = block_vars["example_globals"]
    drawn = names.setdefault("_drawn", set())
    paths = []
    for chart in charts_of(names):
        if id(chart) not in drawn:
            drawn.add(id(chart))
            path = Path(next(block_vars["image_path_iterator"])).with_suffix(".svg")
            path.write_text(draw(chart), encoding="utf-8")
            paths.append(str(path))
    return figure_rst(paths, gallery_conf["src_dir"])
