"""The tokens of a window, coloured by their share of the worst perturbation: words as text, patches as a grid."""

import math
from collections.abc import Callable, Sequence

import altair as alt

from howsmooth.errors import AssumptionError
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import ON_DARK, ON_LIGHT, SHADES
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows
from howsmooth.report.drawing.token_text import columns_of, words
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.wording import count, percent

COLUMNS, COLUMN_WIDTH, LINE_HEIGHT, FONT_SIZE = 90, 7.6, 21, 12
DARK, MOST = 0.5, 5
# The side of a picture of patches.
PICTURE = 360


def _layers(records: Callable[[Measurement], dict[int, TextRecord]]) -> Callable[[Section], list[LayerSummary]]:
    """Return what lists the layers of a section at which there is a record to draw."""
    return lambda section: [each for m in section.measurements for each in m.layers if each.layer in records(m)]


def draw(section: Section, layer: int | None) -> Chart:
    """Draw the first window of the longest length as text, as one layer has it; the least smooth if none is named."""
    chosen = least_smooth(_layers(window_records)(section)).layer if layer is None else layer
    for m in section.measurements:
        if (record := window_records(m).get(chosen)) is not None:
            return _drawn(m, record)
    raise AssumptionError(
        f"the first of the longest windows was not measured at layer {chosen}, or its tokens are not kept; measure it "
        "first, or choose another layer.",
        field="layer",
    )


def table(section: Section) -> Numbers:
    """Return, for each layer, a row for each token."""
    rows: list[NumberRow] = []
    for m in section.measurements:
        texts = [text for _space, text in words(m.tokens)]
        for layer, record in window_records(m).items():
            shares = zip(texts, record.answer.sensitivity, record.answer.response, strict=True)
            for i, (text, moved, answered) in enumerate(shares):
                rows.append((layer, (str(layer), str(i), text, percent(moved), percent(answered))))
    return Numbers(head=("layer", "place", "token", "share of the perturbation", "share of the response"), rows=rows)


def window_records(m: Measurement) -> dict[int, TextRecord]:
    """Return the record of each layer at the window whose tokens are kept, where its shares are kept too."""
    return _at_first([r for r in m.at(length=len(m.tokens)) if len(r.answer.sensitivity) == len(m.tokens)])


def _at_first(records: Sequence[TextRecord]) -> dict[int, TextRecord]:
    # of sentences, the longest need not be the first
    first = min((r.ask.window.index for r in records), default=0)
    return {r.ask.layer: r for r in records if r.ask.window.index == first}


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
    base = alt.Chart(alt.Data(values=rows)).encode(tooltip=["text:N", alt.Tooltip("share:Q", format=".2%")])
    boxes = base.mark_rect().encode(
        x=alt.X("start:Q", axis=None, scale=across),
        x2="end:Q",
        y=alt.Y("line:Q", axis=None, scale=down),
        y2="below:Q",
        color=_colour([0, largest]),
    )
    words = base.mark_text(font="monospace", fontSize=FONT_SIZE).encode(
        x=alt.X("middle:Q", axis=None, scale=across),
        y=alt.Y("centre:Q", axis=None, scale=down),
        text="text:N",
        color=alt.condition(f"datum.share > {DARK * largest}", alt.value(ON_DARK), alt.value(ON_LIGHT)),
    )
    return alt.LayerChart(layer=[boxes, words])


def _colour(domain: list[float] | None = None) -> alt.Color:
    # The square root shows the many small shares too, which a linear scale leaves white.
    return alt.Color(
        "share:Q",
        title="share of the worst perturbation",
        scale=alt.Scale(type="sqrt", interpolate="rgb", range=list(SHADES), domain=domain or alt.Undefined),
        legend=alt.Legend(format=".2~%", orient="bottom", gradientLength=240, tickCount=4, titleLimit=300),
    )


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


def patch_records(m: Measurement) -> dict[int, TextRecord]:
    """Return the record of each layer at the first picture, if its patches form a square."""
    pictures = m.records if m.thing == "picture" else ()
    return _at_first([r for r in pictures if patches_in_front(len(r.answer.sensitivity)) is not None])


def patches_in_front(n: int) -> int | None:
    """Return how many of the n tokens of a picture come before its patches, which form a square.

    ViT and CLIP have one such token, DeiT two, some models none; of other shapes nothing is known.

    Example:
        >>> [patches_in_front(n) for n in (197, 198, 196, 40)]
        [1, 2, 0, None]
    """
    return next((k for k in (1, 2, 0) if n > k and math.isqrt(n - k) ** 2 == n - k), None)


def draw_patches(section: Section, layer: int | None) -> Chart:
    """Draw the patches of the first picture at one layer; at all if none is named, for a page that shows one at a time.

    Why the darkest patch is as dark in every layer: which patches matter is asked, and not how much the layer moves.
    """
    found = [(m, r) for m in section.measurements for at, r in patch_records(m).items() if layer in (None, at)]
    m, record = found[0]
    others, n = patches_in_front(len(record.answer.sensitivity)) or 0, len(record.answer.sensitivity)
    side = math.isqrt(n - others)
    rows: Rows = [
        {"layer": r.ask.layer, "row": i // side, "column": i % side, "share": share}
        for _m, r in found
        for i, share in enumerate(r.answer.sensitivity[others:])
    ]
    title = alt.TitleParams("Which patches to move")
    if layer is not None:
        shares, index = record.answer.sensitivity, record.ask.window.index
        most = sorted(shares[others:], reverse=True)[:MOST]
        name = next(iter(m.openings.get((n, index), ())), f"picture {index}")
        beside = f", tokens that are no patches {percent(sum(shares[:others]))}" if others else ""
        held = f"{count(len(most), 'patch', 'patches')} hold {percent(sum(most))} of the worst perturbation{beside}"
        where = f"{name}, {side} × {side} patches"
        title = alt.TitleParams(f"Layer {layer}: which patches to move ({where})", subtitle=held)
    chart = alt.Chart(alt.Data(values=rows)).mark_rect()
    squares = chart.encode(
        x=alt.X("column:O", title="column of patches", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("row:O", title="row of patches", axis=alt.Axis(labelOverlap=True)),
        color=_colour(),
        tooltip=["row:O", "column:O", alt.Tooltip("share:Q", format=".2%")],
    )
    return alt.layer(squares).properties(width=PICTURE, height=PICTURE, title=title)


def patch_table(section: Section) -> Numbers:
    """Return, for each layer, a row for each patch."""
    rows: list[NumberRow] = []
    for m in section.measurements:
        for layer, record in patch_records(m).items():
            answer, others = record.answer, patches_in_front(len(record.answer.sensitivity)) or 0
            side = math.isqrt(len(answer.sensitivity) - others)
            for i, (moved, answered) in enumerate(zip(answer.sensitivity, answer.response, strict=True)):
                place = divmod(i - others, side) if i >= others else ("—", "—")
                rows.append((layer, (str(layer), *map(str, place), percent(moved), percent(answered))))
    return Numbers(head=("layer", "row", "column", "share of the perturbation", "share of the response"), rows=rows)


CHARTS = (
    ChartKind(
        name="sensitive_tokens",
        short="tokens",
        sections=("measurement",),
        rank=60,
        about="The first of the longest windows as running text: a token is the darker, the more of the worst "
        "perturbation of one layer it holds.",
        wanted=lambda section: any(map(window_records, section.measurements)),
        draw=draw,
        table=table,
        layers=_layers(window_records),
        on_page=lambda _section: False,
    ),
    ChartKind(
        name="sensitive_patches",
        short="patches",
        sections=("measurement",),
        rank=60,
        about="The patches of the first picture: a patch is the darker, the more of the worst perturbation of one "
        "layer it holds.",
        wanted=lambda section: any(map(patch_records, section.measurements)),
        draw=draw_patches,
        table=patch_table,
        layers=_layers(patch_records),
    ),
)
