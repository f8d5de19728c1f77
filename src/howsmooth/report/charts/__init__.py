"""What can be drawn: each file declares its charts in ``CHARTS``, and nothing else has to know of them."""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from howsmooth.report.drawing.tables import Chart, Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.runs.summary import LayerSummary


@dataclass(frozen=True, kw_only=True)
class ChartKind:
    """One kind of chart."""

    name: str  # what ``howsmooth figure`` calls it
    short: str = ""  # a name that is quicker to type, if there is one
    sections: tuple[str, ...]  # the names of the sections that it stands in
    rank: int  # where it stands among the charts of a section
    about: str  # what is drawn, for readers who do not see it
    wanted: Callable[[Section], bool]  # whether a section has something to draw
    # draws a section; a chart of one layer takes that layer too, where none means all of them, for a page that shows
    # one at a time
    draw: Callable[..., Chart]
    table: Callable[[Section], Numbers]  # the same as numbers
    # the layers that a chart of one layer can show; none for charts of all layers
    layers: Callable[[Section], list[LayerSummary]] | None = None
    # whether a page shows it; not if there is a single dot or cell, or if the page shows it in another way
    on_page: Callable[[Section], bool] = lambda _section: True

    @property
    def per_layer(self) -> bool:
        """Whether it shows one layer at a time."""
        return self.layers is not None


@functools.cache
def charts() -> tuple[ChartKind, ...]:
    """Return every kind of chart, in the order in which they stand."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = (kind for module in modules for kind in module.CHARTS)
    return tuple(sorted(found, key=lambda kind: (kind.rank, kind.name)))


def charts_of(section: Section) -> list[ChartKind]:
    """Return the charts that a section has something to draw in."""
    return [kind for kind in charts() if section.name in kind.sections and kind.wanted(section)]
