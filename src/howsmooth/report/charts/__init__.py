"""What can be drawn: one file for each chart, called by the name of its file.

A file holds ``SECTIONS``, the names of the sections that it stands in; ``RANK``, where it stands among the charts of a
section; ``PER_LAYER``, whether it shows one layer at a time (then also ``layers(section)``, those it can show);
``ABOUT``, what is drawn, for those who do not see it; ``wanted(section)``, whether there is something to draw;
``draw(section)``, or ``draw(section, layer)`` if it is per layer, where no layer means all of them, for a page that
shows one at a time; and ``table(section)``, the same as numbers. It may hold ``SHORT``, a name that is quicker to type,
and ``ON_PAGE = False`` if a page shows the same in another way. Nothing else has to know of it.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.runs.summary import LayerSummary


@dataclass(frozen=True, kw_only=True)
class ChartKind:
    """One kind of chart; its file says what the attributes mean."""

    name: str
    short: str
    sections: tuple[str, ...]
    rank: int
    per_layer: bool
    on_page: bool
    about: str
    wanted: Callable[[Section], bool]
    draw: Callable[..., Chart]
    table: Callable[[Section], Numbers]
    layers: Callable[[Section], list[LayerSummary]] | None


@functools.cache
def charts() -> tuple[ChartKind, ...]:
    """Return every kind of chart, in the order in which they stand."""
    found = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(map(kind_of, found), key=lambda kind: (kind.rank, kind.name)))


def charts_of(section: Section) -> list[ChartKind]:
    """Return the charts that a section has something to draw in."""
    return [kind for kind in charts() if section.name in kind.sections and kind.wanted(section)]


def kind_of(module: ModuleType) -> ChartKind:
    """Read what a file declares."""
    name = module.__name__.rpartition(".")[2]
    return ChartKind(
        name=name,
        short=getattr(module, "SHORT", name),
        sections=module.SECTIONS,
        rank=module.RANK,
        per_layer=module.PER_LAYER,
        on_page=getattr(module, "ON_PAGE", True),
        about=module.ABOUT,
        wanted=module.wanted,
        draw=module.draw,
        table=module.table,
        layers=module.layers if module.PER_LAYER else None,
    )
