"""The tokens of a window as running text, coloured by their share of the worst perturbation."""

from collections.abc import Iterator, Sequence

import altair as alt

from howsmooth.errors import AssumptionError
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import ON_DARK, ON_LIGHT, SHADES
from howsmooth.report.drawing.tables import Chart, Numbers, Rows
from howsmooth.report.drawing.token_text import columns_of, words
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.wording import count, percent

COLUMNS, COLUMN_WIDTH, LINE_HEIGHT, FONT_SIZE = 90, 7.6, 21, 12
DARK, MOST = 0.5, 5


def layers(section: Section) -> list[LayerSummary]:
    """Return the layers at which that window was measured."""
    return [layer for m in section.measurements for layer in m.layers if window_record(m, layer.layer)]


def draw(section: Section, layer: int | None) -> Chart:
    """Draw the first window of the longest length as text, as one layer has it; the least smooth if none is named.

    Raises:
        AssumptionError: If that window was not measured at the layer.
    """
    chosen = least_smooth(layers(section)).layer if layer is None else layer
    for m in section.measurements:
        record = window_record(m, chosen)
        if record is not None:
            return _drawn(m, record)
    raise AssumptionError(
        f"the first of the longest windows was not measured at layer {chosen}, or its tokens are not kept; measure it "
        "first, or choose another layer.",
        field="layer",
    )


def table(section: Section) -> Numbers:
    """Return, for each layer, a row for each token."""
    rows = []
    for m in section.measurements:
        for layer in m.layers:
            if (record := window_record(m, layer.layer)) is not None:
                rows += [(layer.layer, (str(layer.layer), *cells)) for cells in _shares(m, record)]
    return Numbers(head=("layer", "place", "token", "share of the perturbation", "share of the response"), rows=rows)


def window_record(measurement: Measurement, layer: int) -> TextRecord | None:
    """Return the record of a layer that the kept tokens belong to, if there is one."""
    tokens = len(measurement.tokens)
    records = measurement.at(layer=layer, length=tokens)
    here = (record for record in records if len(record.answer.sensitivity) == tokens)
    # of sentences, the longest need not be the first
    return min(here, key=lambda record: record.ask.window.index, default=None)


def _shares(m: Measurement, record: TextRecord) -> Iterator[tuple[str, ...]]:
    """Yield the place of each token, the token, and its shares."""
    answer = record.answer
    for i, (_space, text) in enumerate(words(m.tokens)):
        yield str(i), text, percent(answer.sensitivity[i]), percent(answer.response[i])


def _drawn(m: Measurement, record: TextRecord) -> Chart:
    shares = record.answer.sensitivity
    rows = _placed(m.tokens, shares)
    most = sorted(shares, reverse=True)[:MOST]
    where = f"{m.thing} {record.ask.window.index}, {count(len(rows), 'token')}"
    title = alt.TitleParams(
        f"Layer {record.ask.layer}: which tokens to move ({where})",
        subtitle=f"{count(len(most), 'token')} hold {percent(sum(most))} of the worst perturbation",
    )
    width = max(COLUMNS, *(row["end"] for row in rows)) * COLUMN_WIDTH
    return _text_chart(rows).properties(width=width, height=(rows[-1]["line"] + 1) * LINE_HEIGHT, title=title)


def _text_chart(rows: Rows) -> alt.LayerChart:
    largest = max(row["share"] for row in rows) or 1.0
    right, lines = max(COLUMNS, *(row["end"] for row in rows)), rows[-1]["line"] + 1
    across, down = alt.Scale(domain=[0, right], nice=False), alt.Scale(domain=[lines, 0], nice=False)
    # The square root shows the many small shares too, which a linear scale leaves white.
    colour = alt.Color(
        "share:Q",
        title="share of the worst perturbation",
        scale=alt.Scale(type="sqrt", interpolate="rgb", range=list(SHADES), domain=[0, largest]),
        legend=alt.Legend(format=".2~%", orient="bottom", gradientLength=240, tickCount=4, titleLimit=300),
    )
    base = alt.Chart(alt.Data(values=rows)).encode(tooltip=["text:N", alt.Tooltip("share:Q", format=".2%")])
    boxes = base.mark_rect().encode(
        x=alt.X("start:Q", axis=None, scale=across),
        x2="end:Q",
        y=alt.Y("line:Q", axis=None, scale=down),
        y2="below:Q",
        color=colour,
    )
    words = base.mark_text(font="monospace", fontSize=FONT_SIZE).encode(
        x=alt.X("middle:Q", axis=None, scale=across),
        y=alt.Y("centre:Q", axis=None, scale=down),
        text="text:N",
        color=alt.condition(f"datum.share > {DARK * largest}", alt.value(ON_DARK), alt.value(ON_LIGHT)),
    )
    return alt.LayerChart(layer=[boxes, words])


def _placed(tokens: Sequence[str], shares: Sequence[float]) -> Rows:
    """Return one row for each token: where it stands, in columns and lines of monospace text."""
    rows: Rows = []
    column = line = 0
    for (space, text), share in zip(words(tokens), shares, strict=True):
        column += space if column else 0
        if column and column + columns_of(text) > COLUMNS:
            line, column = line + 1, 0
        end = column + columns_of(text)
        place = {"start": column, "end": end, "middle": (column + end) / 2}
        rows.append({"text": text, "share": share, "line": line, "centre": line + 0.45, "below": line + 0.9, **place})
        column = end
    return rows


CHARTS = (
    ChartKind(
        name="sensitive_tokens",
        short="tokens",
        sections=("measurement",),
        rank=60,
        about="The first of the longest windows as running text: a token is the darker, the more of the worst "
        "perturbation of one layer it holds.",
        wanted=lambda section: bool(layers(section)),
        draw=draw,
        table=table,
        layers=layers,
        on_page=False,
    ),
)
