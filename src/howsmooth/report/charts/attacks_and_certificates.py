"""Attacks and certificates: what attacks attain below what the theory allows, and how far words may move."""

from typing import Any

import altair as alt

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, BOUND, CERTIFICATE, GREEN, GREY, INK, PINK, TYPICAL, WITNESS, YELLOW
from howsmooth.report.drawing.panels import Style, Styles, panels, points, series_panels
from howsmooth.report.drawing.scales import drawable, log_axis, log_scale, span_of
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, extent
from howsmooth.report.drawing.token_text import words as readable
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.attack import summarise_attacks
from howsmooth.studies.kinds.certified_radii import CertifiedSentence, WordRadius, summarise_certificates
from howsmooth.theory.results import Side
from howsmooth.wording import at_least, at_most, count, number

PREDICTED, CEILING = "predicted", "what the theory allows"
METHODS: Styles = {
    CEILING: Style(mark="line", colour=BOUND, dash=(2, 3), side=Side.UPPER),
    PREDICTED: Style(mark="line", colour=INK, dash=(6, 4)),
    "random": Style(mark="dotted line", colour=TYPICAL, side=Side.LOWER),
    "fgsm": Style(mark="dotted line", colour=YELLOW, side=Side.LOWER),
    "pgd": Style(mark="dotted line", colour=PINK, side=Side.LOWER),
    "singular": Style(mark="dotted line", colour=GREEN, side=Side.LOWER),
    "ascent": Style(mark="dotted line", colour=BLUE, side=Side.LOWER),
}
PROVEN, OPEN, FOUND = "no perturbation changes it: proven", "not known", "one that changes it: found"
WIDTH, ROW = 520, 19


def draw_attacks(section: Section) -> Chart:
    """Draw a panel for each map, length and metric."""
    every = summarise_attacks(section.of_kind("attack"))
    rows: Rows = []
    for each in every:
        ends = each.linear_until
        until = "linear throughout" if ends is None else f"linear until ε ≈ {number(ends, 2)}" if ends else "not linear"
        size = f"{count(each.length, 'token')}, metric {each.metric}: {until}"
        at = {"panel": f"{each.model}, {each.map} of layer {each.layer}\n{size}"}
        # the first row keeps the panel of a map that nothing moves
        rows.append(dict(at))
        for line in each.lines:
            rows += points([(line.eps, line.attained)], series=line.method, **at)
        for line in each.best:
            rows += points([(line.eps, line.predicted)], series=PREDICTED, **at)
            rows += points([(line.eps, line.ceiling)], series=CEILING, **at)
    ratios = [line.ratio for each in every for line in each.best if line.ratio is not None]
    title = "What attacks attain"
    if ratios:
        attained = extent(ratios, lambda value: number(value, 3))
        title = f"The best attacks attain {attained} times what the derivative predicts"
    return series_panels(rows, METHODS, title=title, across="ε", up="attained / ε")


def table_attacks(section: Section) -> Numbers:
    """Return a row for each map, radius and method."""
    every = summarise_attacks(section.of_kind("attack"))
    rows: list[NumberRow] = [(each.layer, (each.name, *line.cells.values())) for each in every for line in each.lines]
    return Numbers(head=("where", *every[0].lines[0].cells), rows=rows)


def draw_words(section: Section) -> Chart:
    """Draw a panel for each sentence, norm and place."""
    every = summarise_certificates(section.of_kind("certificate"))
    words = [word for each in every for word in each.words]
    sizes = [size for word in words for size in (word.certified, word.attacked) if size is not None and drawable(size)]
    low, high = min(sizes) / 2, 2 * max(sizes)
    rows = [row for each in every for row in _word_rows(each, low, high)]
    span = span_of([low, high])
    along: dict[str, Any] = {"title": "size of the perturbation", "scale": log_scale(span), "axis": log_axis(span)}
    y = alt.Y("word:N", title=None, sort=alt.EncodingSortField("place", op="min"), axis=alt.Axis(labelLimit=150))
    styles = {PROVEN: CERTIFICATE, OPEN: GREY, FOUND: WITNESS}
    scale = alt.Scale(domain=list(styles), range=list(styles.values()))
    legend = alt.Legend(title=None, orient="top", labelLimit=300, columns=3, symbolOpacity=1, symbolStrokeWidth=0)
    fill = alt.Fill("series:N", scale=scale, legend=legend)
    told = [alt.Tooltip(f"{name}:N") for name in ("word", "certified", "attacked", "lost")]
    base = alt.Chart().encode(y=y, fill=fill, tooltip=told)
    # no filters: every sentence has its own words, and they are those of all its layers
    faint = alt.condition(alt.datum.series == OPEN, alt.value(0.35), alt.value(1))
    bars = base.mark_bar(height=11).encode(x=alt.X("x:Q", **along), x2="to:Q", opacity=faint)
    ticks = base.mark_point(shape="triangle-right", size=80, opacity=1, strokeWidth=0)
    ticks = ticks.encode(x=alt.X("found:Q", **along))
    chart = alt.LayerChart(layer=[bars, ticks]).properties(width=WIDTH, height=alt.Step(ROW))
    return panels(chart, rows, title=_word_title(every), columns=1).resolve_scale(y="independent")


def table_words(section: Section) -> Numbers:
    """Return a row for each word."""
    every = summarise_certificates(section.of_kind("certificate"))
    rows: list[NumberRow] = [(None, (each.text, *word.cells.values())) for each in every for word in each.words]
    return Numbers(head=("sentence", *every[0].words[0].cells), rows=rows)


def _word_rows(each: CertifiedSentence, low: float, high: float) -> Rows:
    rows: Rows = []
    for word in each.words:
        known = {
            "panel": f"{each.text}\n{each.model}: {each.predicted}; {each.norm} of {each.place}",
            "word": spelled(word),
            "place": (len(word.places) > 1) * 10**6 + word.places[0],
            "certified": at_least(word.certified, 3),
            "attacked": "none found" if word.attacked is None else at_most(word.attacked, 3),
            "lost": word.slack,
        }
        proven = word.certified if drawable(word.certified) else low
        found = word.attacked if word.attacked is not None and drawable(word.attacked) else None
        rows.append(known | {"series": OPEN, "x": proven, "to": high if found is None else found})
        if proven > low:
            rows.append(known | {"series": PROVEN, "x": low, "to": proven})
        if found is not None:
            rows.append(known | {"series": FOUND, "found": found})
    return rows


def spelled(word: WordRadius) -> str:
    """Return a word as a reader wants it, with its place, since it may stand there twice."""
    if len(word.places) > 1:
        return f"{len(word.places)} words together"
    ((_space, text),) = readable([word.spelled])
    return f"{text} ({word.places[0]}{', fragile' if word.fragile else ''})"


def _word_title(every: list[CertifiedSentence]) -> str:
    alone = [word for each in every for word in each.words if len(word.places) == 1]
    found = [(word.attacked, word) for word in alone if word.attacked is not None]
    if not found:
        return "How far words may move before the prediction could change"
    attacked, worst = min(found, key=lambda pair: pair[0])
    least = at_least(min(word.certified for word in alone), 3)
    name = spelled(worst).rpartition(" (")[0]
    return f"A word moved by less than {least} changes no prediction; ‘{name}’ moved by {at_most(attacked, 3)} does"


CHARTS = (
    ChartKind(
        name="attained_against_eps",
        short="attained",
        sections=("attack",),
        rank=10,
        about="How far attacks move the output for each unit of eps, against eps on logarithmic axes: a line for each "
        "method, a dashed line for what the derivative predicts, and one above for what the theory allows; one panel "
        "for each map.",
        wanted=lambda section: any(drawable(r.answer.attained) for r in section.of_kind("attack")),
        draw=draw_attacks,
        table=table_attacks,
    ),
    ChartKind(
        name="certified_words",
        short="words",
        sections=("certificate",),
        rank=10,
        about="The words of each sentence from top to bottom, against the size of a perturbation on a logarithmic "
        "axis: a dark bar as far as it is proven that no perturbation of the word changes the prediction, a light one "
        "from there to the smallest perturbation that was found to change it, and a mark there.",
        wanted=lambda section: any(
            drawable(r.answer.certified) or drawable(r.answer.attacked) for r in section.of_kind("certificate")
        ),
        draw=draw_words,
        table=table_words,
    ),
)
