"""Every window against its length: the radius of its tokens, its growth in place, and the tokens that matter."""

from collections.abc import Callable

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.panels import Mark
from howsmooth.report.drawing.places import (
    MeasuredLayer,
    WindowValue,
    factors,
    places,
    radius,
    window_panels,
    window_table,
)
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.tables import Chart, extent
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.wording import number


def relative_to_the_shortest(found: list[MeasuredLayer]) -> WindowValue:
    """Return what divides the constant of a window by that of the same window at the shortest length of its layer."""

    def window(r: TextRecord) -> tuple[str, str, int, int]:
        return r.ask.model, r.ask.map, r.ask.layer, r.ask.window.index

    first = {window(r): r.answer.lower for place in found for r in place.records if r.ask.length == place.lengths[0]}

    def relative(record: TextRecord) -> float | None:
        start = first.get(window(record))
        return record.answer.lower / start if start is not None and drawable(start) else None

    return relative


def effective_tokens(record: TextRecord) -> float | None:
    """Return how many equal shares would be as spread out, if shares are kept."""
    squares = sum(share**2 for share in record.answer.sensitivity)
    return 1 / squares if squares else None


def _changes(said: str) -> Callable[[list[MeasuredLayer], WindowValue], str]:
    return lambda found, value: said + factors([factor for place in found for factor in place.change(value)])


def _rests(found: list[MeasuredLayer], value: WindowValue) -> str:
    records = [r for place in found for r in place.records if value(r)]
    longest = max(r.ask.length for r in records)
    numbers = [v for r in records if r.ask.length == longest and (v := value(r))]
    return f"At n = {number(longest)} the worst perturbation rests on {extent(numbers)} tokens"


def _chart(
    name: str,
    section: str,
    about: str,
    value: Callable[[list[MeasuredLayer]], WindowValue],
    *,
    rank: int,
    mark: Mark,
    up: str,
    title: Callable[[list[MeasuredLayer], WindowValue], str],
    column: str,
) -> ChartKind:
    """Declare a chart of something that every window has: a panel for each layer."""

    def wanted(section: Section) -> bool:
        found = places(section)
        each = value(found)
        return any(drawable(each(r)) for place in found for r in place.records)

    def draw(section: Section) -> Chart:
        found = places(section)
        each = value(found)
        return window_panels(found, each, mark=mark, up=up, title=title(found, each))

    return ChartKind(
        name=name,
        sections=(section,),
        rank=rank,
        about=about,
        wanted=wanted,
        draw=draw,
        table=lambda section: window_table(found := places(section), value(found), column),
    )


CHARTS = (
    _chart(
        "radius_against_length",
        "real",
        "The mean radius of the tokens against their number, one panel for each layer: a dot for each window, and the "
        "geometric mean of all windows of a length.",
        lambda _found: radius,
        rank=30,
        mark="points",
        up="mean radius",
        title=_changes("From the shortest to the longest windows the radius changes by "),
        column="radius",
    ),
    _chart(
        "relative_growth",
        "robustness",
        "How the constant changes as windows grow at the same places of a text, relative to the shortest: a thread for "
        "each window, and their geometric mean, one panel for each layer.",
        relative_to_the_shortest,
        rank=10,
        mark="threads",
        up="relative to the shortest",
        title=_changes("As windows grow in place, the constant changes by "),
        column="ratio",
    ),
    _chart(
        "concentration",
        "robustness",
        "On how many tokens the worst perturbation rests, 1/Σs² for shares s, against the number of tokens: a thread "
        "for each window, and their geometric mean, one panel for each layer.",
        lambda _found: effective_tokens,
        rank=20,
        mark="threads",
        up="effective number of tokens",
        title=_rests,
        column="number of tokens",
    ),
)
