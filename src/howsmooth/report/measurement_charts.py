"""Charts of a measured model: constants against lengths and radii, layers and heads side by side, tokens to move."""

from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any

import altair as alt
import numpy as np

from howsmooth.report.charts import BLUE, GREEN, GREY, ORANGE, Chart, Rows
from howsmooth.report.heat_maps import heads_by_layer, layers_by_length
from howsmooth.report.ladder_chart import bounds_ladder
from howsmooth.report.scales import drawable, log_scale, round_ticks, span_of
from howsmooth.report.token_chart import running_text, sensitive_tokens, window_record
from howsmooth.report.wording import error_bar
from howsmooth.studies.growth import DOUBTFUL, Growth
from howsmooth.studies.measurement import LayerSummary, Measurement, least_smooth
from howsmooth.studies.records import Record

PLACES = 25
COLUMNS, PANEL = 3, {"width": 215, "height": 165}
ATTAINED, LAW, CERTIFICATE, RELEASED = "attained in a window", "power law", "certificate", "released quantity"
COLOURS = {ATTAINED: BLUE, LAW: ORANGE, CERTIFICATE: GREEN, RELEASED: GREY}


def figures(measurement: Measurement) -> dict[str, Chart]:
    """Draw every chart that the measurement has data for, by name; none if nothing was measured."""
    if not measurement.records:
        return {}
    charts = {
        "constant_against_length": constant_against_length(measurement),
        "constant_against_radius": constant_against_radius(measurement),
        "layers_by_length": layers_by_length(measurement),
        "bounds_ladder": bounds_ladder(measurement, least_smooth(measurement.layers).layer),
    }
    if measurement.heads:
        charts["heads_by_layer"] = heads_by_layer(measurement)
    explained = [layer for layer in measurement.layers if window_record(measurement, layer.layer)]
    if explained:
        charts["sensitive_tokens"] = sensitive_tokens(measurement, least_smooth(explained).layer)
    return charts


def constant_against_length(measurement: Measurement) -> Chart:
    """Draw, for each layer, every window's constant against the length, the fitted power law and the certificates."""
    panels = {layer.layer: _length_panel(layer) for layer in measurement.layers}
    rows: Rows = []
    for layer in measurement.layers:
        records = measurement.at(layer=layer.layer)
        points = [described(measurement, r) | {"kind": ATTAINED} for r in records if drawable(r.lower)]
        found = [{}, *points, *_law(layer.growth, records), *_means(records)]
        rows += [row | {"panel": panels[layer.layer], "layer": layer.layer} for row in found]
    lengths, heights = span_of(measurement.lengths), span_of(_values(rows, "value", "low", "high"))
    x = alt.X("n:Q", title="number of tokens n", scale=log_scale(lengths), axis=_ticks(measurement.lengths))
    y = alt.Y("value:Q", title="local Lipschitz constant", scale=log_scale(heights), axis=round_ticks(heights))
    plain = alt.Chart().encode(x=x, y=y, color=_colour({row["kind"] for row in rows if "kind" in row}))
    band = alt.Chart().mark_area(color=ORANGE, opacity=0.22)
    layers = [
        _only(band.encode(x=x, y=alt.Y("low:Q", scale=log_scale(heights)), y2="high:Q"), LAW),
        _only(plain.mark_line(strokeWidth=1.2), CERTIFICATE),
        _only(plain.mark_line(strokeWidth=1.5, strokeDash=[5, 3]), RELEASED),
        _only(plain.mark_line(strokeWidth=2), LAW),
        # on top, so that a pointer finds them
        _only(plain.mark_point(filled=True, size=24, opacity=0.8).encode(tooltip=told_on_hover()), ATTAINED),
    ]
    return _facets(alt.LayerChart(layer=layers), rows, list(panels.values()), title=_growth_title(measurement.layers))


def constant_against_radius(measurement: Measurement) -> Chart:
    """Draw, for each layer, every window's constant against the mean radius of its tokens, coloured by the length."""
    rows: Rows = [
        described(measurement, r) | {"panel": f"layer {r.task.layer}", "layer": r.task.layer}
        for r in measurement.records
    ]
    heights = span_of(_values(rows, "value"))
    radii = alt.Scale(zero=False, padding=8)
    plain = alt.Chart().encode(
        x=alt.X("radius:Q", title="mean radius of the tokens", scale=radii, axis=alt.Axis(tickCount=4)),
        y=alt.Y("value:Q", title="local Lipschitz constant", scale=log_scale(heights), axis=round_ticks(heights)),
    )
    # the rim keeps the darkest dots visible on a dark page
    points = plain.mark_point(filled=True, size=24, opacity=0.9, stroke=GREY, strokeWidth=0.6).encode(
        color=_length_colour(measurement.lengths), tooltip=told_on_hover()
    )
    # Zero has no place on a logarithmic axis: it is written at the foot.
    zeros = plain.mark_text(text="0", color=GREY, baseline="bottom").encode(
        y=alt.value(PANEL["height"]), tooltip=told_on_hover(drawn=False)
    )
    valid = "isValid(datum.value)"
    drawn = alt.LayerChart(layer=[points.transform_filter(valid), zeros.transform_filter(f"!{valid}")])
    panels = [f"layer {layer.layer}" for layer in measurement.layers]
    return _facets(drawn, rows, panels, title=_spread_title(measurement)).resolve_scale(x="independent")


def described(measurement: Measurement, record: Record) -> dict[str, Any]:
    """Return what is drawn and told of one window: its constant, the error bar, and which sequence it is."""
    task = record.task
    opening = measurement.openings.get((task.length, task.window), ())
    return {
        "n": task.length,
        "window": task.window,
        "error": error_bar(record),
        "radius": record.radius,
        "begins": f"{running_text(opening)} …" if opening else "—",
        # zero has no place on a logarithmic axis
        **({"value": record.lower} if drawable(record.lower) else {}),
    }


def told_on_hover(*, drawn: bool = True) -> list[alt.Tooltip]:
    """Return what :func:`described` says, line by line."""
    constant = [alt.Tooltip("value:Q", title="constant", format=".5~r")] if drawn else []
    return [
        alt.Tooltip("layer:Q", title="layer"),
        alt.Tooltip("n:Q", title="tokens"),
        *constant,
        alt.Tooltip("error:N", title="error bar"),
        alt.Tooltip("radius:Q", title="mean radius", format=".4~r"),
        alt.Tooltip("window:Q", title="window"),
        alt.Tooltip("begins:N", title="sequence"),
    ]


def _law(growth: Growth | None, records: Sequence[Record]) -> Rows:
    if growth is None:
        return []
    # Least squares passes through the mean of log n, taken over windows: the slopes turn around that point.
    centre = geometric_mean(r.task.length for r in records)
    rows: Rows = []
    lengths = [r.task.length for r in records]
    # enough places for the law to look smooth on linear axes too
    between = np.geomspace(min(lengths), max(lengths), PLACES).tolist()
    for n in sorted({centre, *between}):
        ends = [growth.at(centre) * (n / centre) ** slope for slope in (growth.low, growth.high)]
        rows.append({"kind": LAW, "n": n, "value": growth.at(n), "low": min(ends), "high": max(ends)})
    return rows


def _means(records: Sequence[Record]) -> Rows:
    rows: Rows = []
    for n in sorted({r.task.length for r in records}):
        here = [r for r in records if r.task.length == n]
        for kind, values in (
            (CERTIFICATE, [r.local_upper for r in here]),
            (RELEASED, [r.released for r in here]),
        ):
            positive = [v for v in values if v is not None and drawable(v)]
            rows += [{"kind": kind, "n": n, "value": geometric_mean(positive)}] if positive else []
    return rows


def _length_panel(layer: LayerSummary) -> str:
    growth, bound = layer.growth, layer.sharp_upper
    notes = [] if bound is None else [f"sharp bound {bound:.3g}"]
    if growth is None:
        return f"layer {layer.layer}: {layer.constant:.3g} at {layer.length} tokens\n{', '.join(notes)}".rstrip()
    if growth.lack_of_fit is not None and growth.lack_of_fit < DOUBTFUL:
        notes.append("no power law")
    exponent = f"n^{growth.exponent:.2f} [{growth.low:.2f}, {growth.high:.2f}]"
    return f"layer {layer.layer}: {exponent}\n{', '.join(notes)}".rstrip()


def _growth_title(layers: Sequence[LayerSummary]) -> str:
    fitted = [(layer.growth.exponent, layer.layer) for layer in layers if layer.growth is not None]
    if not fitted:
        return "The constants that the windows attain"
    exponent, fastest = max(fitted)
    return f"The constant grows fastest in layer {fastest}: like n^{exponent:.2f}"


def _spread_title(measurement: Measurement) -> str:
    records = [[r for r in measurement.at(layer=s.layer) if drawable(r.lower)] for s in measurement.layers]
    radius = _widest([[r.radius for r in layer if r.radius is not None and drawable(r.radius)] for layer in records])
    constant = _widest([[r.lower for r in layer] for layer in records])
    if constant == 1:
        return "The constants of the windows against the radius of their tokens"
    return f"Within a layer the radius varies up to {radius:.2f}-fold, the constant up to {constant:.2f}-fold"


def _widest(values: Iterable[Sequence[float]]) -> float:
    return max((max(v) / min(v) for v in values if v), default=1.0)


def _facets(chart: alt.LayerChart, rows: Rows, panels: list[str], *, title: str) -> alt.FacetChart:
    header = alt.Header(
        labelExpr="split(datum.value, '\\n')", labelFontSize=12, labelAnchor="start", labelLineHeight=15
    )
    facet = alt.Facet("panel:N", title=None, sort=panels, header=header)
    return (
        chart.properties(**PANEL)
        .facet(facet=facet, data=alt.Data(values=rows), columns=COLUMNS)
        .properties(title=alt.TitleParams(title, offset=12))
    )


def _only(chart: alt.Chart, kind: str) -> alt.Chart:
    return chart.transform_filter(f"datum.kind == '{kind}'")


def _colour(kinds: set[str]) -> alt.Color:
    drawn = {kind: colour for kind, colour in COLOURS.items() if kind in kinds}
    scale = alt.Scale(domain=list(drawn), range=list(drawn.values()))
    legend = alt.Legend(orient="top", labelFontSize=12, symbolOpacity=1) if drawn else None
    return alt.Color("kind:N", title=None, scale=scale, legend=legend)


def _length_colour(lengths: Sequence[int]) -> alt.Color:
    scale = alt.Scale(type="log", scheme="viridis", domain=span_of(lengths, room=1.0))
    legend = alt.Legend(values=list(lengths), format="d") if len(lengths) > 1 else None
    return alt.Color("n:Q", title="tokens", scale=scale, legend=legend)


def _ticks(values: Sequence[int]) -> alt.Axis:
    return alt.Axis(values=list(values), format="d", labelOverlap="greedy")


def _values(rows: Rows, *names: str) -> list[float]:
    return [row[name] for row in rows for name in names if row.get(name) is not None]
