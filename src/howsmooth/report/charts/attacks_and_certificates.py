"""Attacks and certificates: what attacks attain below what the theory allows, and how far words may move."""

import math
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
from howsmooth.studies.runs.certified_accuracy import (
    CertifiedAccuracy,
    CertifiedSentence,
    WordRadius,
    certified_sets,
    summarise_certificates,
)
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
PROVEN, FOUND = "up to here no perturbation changes it: proven", "one that changes it: found"
CLEAN, NOT_FLIPPED, CERTIFIED = "clean", "attacked: no flip found", "certified: no flip possible"
WIDTH, ROW = 520, 19
# Of a test set, so many sentences are drawn word by word.
SENTENCES = 8


def draw_attacks(section: Section) -> Chart:
    """Draw a panel for each map, length and metric."""
    every = summarise_attacks(section.of_kind("attack"))
    rows: Rows = []
    for each in every:
        ends = each.linear_until
        until = "linear throughout" if ends is None else f"linear until ε ≈ {number(ends, 2)}" if ends else "not linear"
        size = f"{count(each.length, 'token')}, metric {each.metric}: {until}"
        at = {"panel": f"{each.model}, {each.where}\n{size}"}
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


def draw_accuracy(section: Section) -> Chart:
    """Draw a panel for each test set: shares of its sentences against the size of the perturbation."""
    rows: Rows = []
    for each in _test_sets(section):
        first, total = each.sentences[0], len(each.sentences)
        panel = f"{first.model}, {count(total, 'sentence')}\n{first.norm} of {first.place}"
        for at in each.curve:
            for series, many in ((CLEAN, each.clean), (NOT_FLIPPED, at.attacked), (CERTIFIED, at.certified)):
                counted = f"{many} of {total}"
                rows.append({"panel": panel, "x": at.eps, "y": many / total, "series": series, "count": counted})
    span = span_of([row["x"] for row in rows])
    styles = {CLEAN: GREY, NOT_FLIPPED: WITNESS, CERTIFIED: CERTIFICATE}
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=list(styles), range=list(styles.values())),
        legend=alt.Legend(title=None, orient="top", labelLimit=300, columns=3),
    )
    told = [alt.Tooltip("series:N"), alt.Tooltip("x:Q", title="ε"), alt.Tooltip("count:N", title="sentences")]
    line = (
        alt.Chart()
        .mark_line(point=True)
        .encode(
            x=alt.X("x:Q", title="ε", scale=log_scale(span), axis=log_axis(span)),
            y=alt.Y("y:Q", title="accuracy", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            color=colour,
            tooltip=told,
        )
    )
    title = "Accuracy while words move by at most ε: proven, and under attack"
    chart = alt.LayerChart(layer=[line]).properties(width=WIDTH, height=240)
    return panels(chart, rows, title=title, columns=1)


def table_accuracy(section: Section) -> Numbers:
    """Return a row for each test set and radius."""
    every = _test_sets(section)
    names = [f"{each.sentences[0].model}, {each.sentences[0].norm} of {each.sentences[0].place}" for each in every]
    rows: list[NumberRow] = [
        (None, (name, *row.values())) for name, each in zip(names, every, strict=True) for row in each.rows
    ]
    return Numbers(head=("test set", *every[0].rows[0]), rows=rows)


def _test_sets(section: Section) -> list[CertifiedAccuracy]:
    found = certified_sets(summarise_certificates(section.of_kind("certificate")))
    return [each for each in found if len(each.sentences) > 1 and each.curve]


def draw_words(section: Section) -> Chart:
    """Draw a panel for each sentence, norm and place: of many sentences, those whose words are the most fragile."""
    every = [each for each in summarise_certificates(section.of_kind("certificate")) if each.words]
    most = sorted(every, key=lambda each: math.inf if each.attacked is None else each.attacked)[:SENTENCES]
    every = [each for each in every if each in most]
    rows = [row for each in every for row in _word_rows(each)]
    span = span_of([row["x"] for row in rows if "x" in row])
    along: dict[str, Any] = {"title": "size of the perturbation", "scale": log_scale(span), "axis": log_axis(span)}
    y = alt.Y("word:N", title=None, sort=alt.EncodingSortField("place", op="min"), axis=alt.Axis(labelLimit=150))
    styles = {PROVEN: CERTIFICATE, FOUND: WITNESS}
    legend = alt.Legend(title=None, orient="top", labelLimit=300, columns=2, symbolOpacity=1, symbolStrokeWidth=0)
    fill = alt.Fill("series:N", scale=alt.Scale(domain=list(styles), range=list(styles.values())), legend=legend)
    # points and a thin line between them: a bar would begin at zero, which a logarithmic axis does not have
    shape = alt.Shape(
        "series:N", scale=alt.Scale(domain=list(styles), range=["circle", "triangle-right"]), legend=legend
    )
    told = [alt.Tooltip(f"{name}:N") for name in ("word", "certified", "attacked", "nearest", "norm", "lost")]
    # no filters: every sentence has its own words, and they are those of all its layers
    base = alt.Chart().encode(y=y, tooltip=told)
    lines = base.mark_point(size=0, opacity=0).encode(x=alt.value(0))  # a word without any radius keeps its line
    between = (
        base.transform_filter("isValid(datum.to)")
        .mark_rule(color=GREY, strokeDash=[2, 3])
        .encode(x=alt.X("x:Q", **along), x2="to:Q")
    )
    marks = (
        base.transform_filter("isValid(datum.x)")
        .mark_point(size=80, opacity=1, strokeWidth=0)
        .encode(x=alt.X("x:Q", **along), fill=fill, shape=shape)
    )
    chart = alt.LayerChart(layer=[lines, between, marks]).properties(width=WIDTH, height=alt.Step(ROW))
    return panels(chart, rows, title=_word_title(every), columns=1).resolve_scale(y="independent")


def table_words(section: Section) -> Numbers:
    """Return a row for each word."""
    every = [each for each in summarise_certificates(section.of_kind("certificate")) if each.words]
    rows: list[NumberRow] = [(None, (each.text, *word.cells.values())) for each in every for word in each.words]
    return Numbers(head=("sentence", *every[0].words[0].cells), rows=rows)


def _word_rows(each: CertifiedSentence) -> Rows:
    """Return a row for each radius that can be drawn; a word without one keeps its line."""
    rows: Rows = []
    for word in each.words:
        known = {
            "panel": f"{each.text}\n{each.model}: {each.predicted}; {each.norm} of {each.place}",
            "word": spelled(word),
            "place": (len(word.places) > 1) * 10**6 + word.places[0],
            "lost": word.slack,
        } | {name: word.cells[name] for name in ("certified", "attacked", "nearest", "norm")}
        proven = word.certified if drawable(word.certified) else None
        found = word.attacked if word.attacked is not None and drawable(word.attacked) else None
        rows.append(dict(known))
        if proven is not None:
            rows.append(known | {"series": PROVEN, "x": proven} | ({} if found is None else {"to": found}))
        if found is not None:
            rows.append(known | {"series": FOUND, "x": found})
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
        name="certified_accuracy",
        short="accuracy",
        sections=("certificate",),
        rank=5,
        about="The share of a test set that is classified well while one word of a sentence moves, against the size of "
        "the perturbation on a logarithmic axis: without a perturbation, where no attack changed the class, and where "
        "it is proven that none can. The truth lies between the last two.",
        wanted=lambda section: bool(_test_sets(section)),
        draw=draw_accuracy,
        table=table_accuracy,
    ),
    ChartKind(
        name="certified_words",
        short="words",
        sections=("certificate",),
        rank=10,
        about="The words of each sentence from top to bottom, against the size of a perturbation on a logarithmic "
        "axis: a dot as far as it is proven that no perturbation of the word changes the prediction, a triangle at the "
        "smallest perturbation that was found to change it, if one was, and a thin line between them, where nothing is "
        "known. Of many sentences, those with the most fragile words.",
        wanted=lambda section: any(
            drawable(r.answer.certified) or drawable(r.answer.attacked) for r in section.of_kind("certificate")
        ),
        draw=draw_words,
        table=table_words,
    ),
)
