"""Error budgets: what rounding costs by depth and kind of matrix and by token, and the frontier of size and cost."""

from typing import Any

import altair as alt
import torch

from howsmooth.budgets.effects import half_of_cost
from howsmooth.budgets.error_budget import Budget
from howsmooth.budgets.recipes import RULES, RecipeChoice
from howsmooth.budgets.schemes import COMPUTED
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREEN, GREY, HUES, INK, PINK
from howsmooth.report.drawing.panels import Style, Styles, panels, points, series_panels
from howsmooth.report.drawing.scales import drawable, even_numbers, labelled, log_axis, log_scale, span_of
from howsmooth.report.drawing.tables import Chart, Numbers, Rows
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.budget import BudgetSummary, Suffering, schemes_in, tenth_in_words
from howsmooth.studies.kinds.recipe import summarise_recipes
from howsmooth.wording import count, number, percent

OURS, MEASURED = "chosen recipe", "chosen recipe, measured"
STYLES: Styles = {
    **{rule: Style(mark="dotted line", colour=colour) for rule, colour in zip(RULES, (GREY, PINK, GREEN), strict=True)},
    OURS: Style(mark="dotted line", colour=BLUE),
    MEASURED: Style(mark="points", colour=INK),
}
SIZES = 12
# Where pooler, classifier and tables are drawn.
NO_LAYER = "none"
PANEL = {"width": 560, "height": 240}
# Kinds of matrix: seven colours and six shapes, so that no two of 42 look alike.
CYCLES = {
    "colours": (*HUES, INK, GREY),
    "shapes": ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down"),
}


def _summaries(section: Section) -> list[BudgetSummary]:
    return schemes_in(section.of_kind("budget"))


def _with_recipes(section: Section) -> list[Budget]:
    """Return every budget once that rounds what has a size."""
    budgets = {id(each.budget): each.budget for each in _summaries(section)}.values()
    return [each for each in budgets if any(error.place not in COMPUTED for error in each.products.errors)]


def draw_depths(section: Section) -> Chart:
    """Draw a dot for each matrix: depth across, cost up, coloured by its kind."""
    rows: Rows = []
    for each in _summaries(section):
        for found in each.effects:
            if drawable(found.kl):
                ends = {"kl": found.kl, "low": found.low, "high": found.high}
                told = f"{number(found.kl)} ({number(found.low)} to {number(found.high)})"
                layer = NO_LAYER if found.layer is None else str(found.layer)
                place = {"panel": f"{each.budget.model}: {each.scheme}", "layer": layer, "kind": found.kind}
                rows.append(place | ends | {"name": found.name, "cost": told})
    span = span_of([row[name] for row in rows for name in ("low", "high")])
    up: dict[str, Any] = {"title": f"cost alone, {_cost(section)}", "scale": log_scale(span), "axis": log_axis(span)}
    layers = sorted({row["layer"] for row in rows}, key=lambda layer: (layer == NO_LAYER, layer.zfill(9)))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    cycled = {name: [some[i % len(some)] for i in range(len(kinds))] for name, some in CYCLES.items()}
    legend = alt.Legend(orient="top", columns=4, labelLimit=260)
    base = alt.Chart().encode(
        x=alt.X("layer:O", title="layer", sort=layers, axis=alt.Axis(labelAngle=0)),
        color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=kinds, range=cycled["colours"]), legend=legend),
        tooltip=[alt.Tooltip(f"{name}:N") for name in ("name", "cost")],
    )
    bars = base.mark_rule().encode(y=alt.Y("low:Q", **up), y2="high:Q")
    dots = base.mark_point(filled=True, size=45, opacity=1).encode(
        y=alt.Y("kl:Q", **up),
        shape=alt.Shape("kind:N", title=None, scale=alt.Scale(domain=kinds, range=cycled["shapes"]), legend=legend),
    )
    first = _summaries(section)[0]
    worst = half_of_cost(first.effects)
    title = f"Half of what {first.scheme} costs sits in {len(worst)} of {len(first.effects)} {first.noun}"
    return panels(alt.LayerChart(layer=[bars, dots]).properties(**PANEL), rows, title=title, columns=1)


def _cost(section: Section) -> str:
    return _summaries(section)[0].budget.cost


def table_depths(section: Section) -> Numbers:
    """Return a row for each error."""
    rows = [
        (found.layer, (each.scheme, found.name, number(found.kl, 4), number(found.low), number(found.high)))
        for each in _summaries(section)
        for found in each.effects
    ]
    return Numbers(head=("scheme", "what", "cost alone", "from", "to"), rows=rows)


def frontier(budget: Budget) -> dict[str, list[tuple[float, float]]]:
    """Return sizes and costs of recipes by rule; recipes are chosen by the even passes and judged by the odd ones."""
    errors, positions = budget.products.errors, budget.products.positions
    even, odd = (RecipeChoice.of(errors, budget.products.values[:, start::2], positions) for start in (0, 1))
    whole, least = float(even.bits[:, -1].sum()), float(even.bits.amin(1).sum())

    def judged(chosen: torch.Tensor) -> tuple[float, float]:
        return even.total_bits(chosen) / whole, odd.cost(chosen)

    sizes = [least * (whole / least) ** (step / SIZES) * (1 + 1e-9) for step in range(SIZES)]
    found = {rule: [judged(even.by_rule(rule, bits=bits)) for bits in sizes] for rule in RULES}
    return found | {OURS: [judged(even.within(bits=bits)) for bits in sizes]}


def draw_frontier(section: Section) -> Chart:
    """Draw cost against size, a line for each rule, and what was measured."""
    rows: Rows = []
    for budget in _with_recipes(section):
        for rule, pairs in frontier(budget).items():
            rows += points(pairs, series=rule, panel=budget.model)
        measured = [r for r in summarise_recipes(section.of_kind("recipe")) if r.ask.model == budget.model]
        rows += points([(r.answer.share, r.answer.measured) for r in measured], series=MEASURED, panel=budget.model)
    title, across = "Size and cost of recipes", "share of 16 bits"
    return series_panels(rows, STYLES, title=title, across=across, up=_cost(section), size=PANEL)


def table_frontier(section: Section) -> Numbers:
    """Return a row for each recipe."""
    rows = [
        (None, (rule, percent(size), number(cost, 4)))
        for budget in _with_recipes(section)
        for rule, pairs in frontier(budget).items()
        for size, cost in pairs
    ]
    return Numbers(head=("rule", "share of 16 bits", "cost"), rows=rows)


def draw_tokens(section: Section) -> Chart:
    """Draw a bar for each position: the tokens across, the true cost of all errors together up."""
    rows: Rows = [
        {"panel": panel, "position": t, "context": f"…{each.context}", "cost": each.cost, "told": number(each.cost)}
        for panel, positions in _positions(section).items()
        for t, each in enumerate(positions)
    ]
    most = max(row["cost"] for row in rows)
    ticks = labelled(even_numbers(0.0, most)) if drawable(most) else alt.Axis()
    across = alt.Scale(domain=[-0.5, max(row["position"] for row in rows) + 0.5], nice=False)
    bars = alt.Chart().mark_bar(color=BLUE)
    bars = bars.encode(
        x=alt.X("position:Q", title="position, window behind window", scale=across, axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("cost:Q", title=_cost(section), axis=ticks),
        tooltip=[alt.Tooltip("context:N", title="behind"), alt.Tooltip("told:N", title="cost")],
    )
    first, *_others = _positions(section).values()
    title = f"Of {count(len(first), 'position')}, {tenth_in_words([each.cost for each in first])} of the cost"
    return panels(alt.LayerChart(layer=[bars]).properties(**PANEL), rows, title=title, columns=1)


def _positions(section: Section) -> dict[str, list[Suffering]]:
    """Return the true cost at every position, in the order of the text, by the name of a panel."""
    return {f"{each.budget.model}: {each.scheme}": each.positions for each in _summaries(section) if each.positions}


def table_tokens(section: Section) -> Numbers:
    """Return a row for each position."""
    rows = [
        (None, (panel, f"…{each.context}", number(each.cost)))
        for panel, positions in _positions(section).items()
        for each in positions
    ]
    return Numbers(head=("scheme", "behind", "cost"), rows=rows)


def _some(section: Section) -> bool:
    return any(drawable(effect.kl) for each in _summaries(section) for effect in each.effects)


CHARTS = (
    ChartKind(
        name="cost_by_depth",
        short="costs",
        sections=("budget",),
        rank=10,
        about="What rounding each matrix costs alone, on a logarithmic axis, against its layer: a dot with its "
        "interval, coloured by the kind of matrix; one panel for each scheme.",
        wanted=_some,
        draw=draw_depths,
        table=table_depths,
    ),
    ChartKind(
        name="size_and_cost",
        short="frontier",
        sections=("budget",),
        rank=20,
        about="What recipes cost against their size, on logarithmic axes: chosen by half of the passes, and by rules "
        "of thumb, which are the same scheme everywhere, the first and last two layers finer, and the least sum of "
        "squared weight errors; all judged by the other half of the passes. Dots for what was measured.",
        wanted=lambda section: _some(section) and bool(_with_recipes(section)),
        draw=draw_frontier,
        table=table_frontier,
    ),
    ChartKind(
        name="cost_by_token",
        short="tokens",
        sections=("budget",),
        rank=30,
        about="What all errors of a scheme together truly cost at each position of the text.",
        wanted=lambda section: bool(_positions(section)),
        draw=draw_tokens,
        table=table_tokens,
    ),
)
