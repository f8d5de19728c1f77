"""Error budgets: what rounding costs by depth and kind of matrix, and the frontier of size and cost."""

from typing import Any

import altair as alt
import torch

from howsmooth.budgets.effects import Effect, half_of_cost
from howsmooth.budgets.error_budget import Budget
from howsmooth.budgets.recipes import KEEP, RecipeChoice
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREY, INK, PINK
from howsmooth.report.drawing.panels import Style, Styles, panels, points, series_panels
from howsmooth.report.drawing.scales import drawable, log_axis, log_scale, span_of
from howsmooth.report.drawing.tables import Chart, Numbers, Rows
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.budget import BudgetSummary, budgets, summarise_recipes
from howsmooth.wording import number, percent

OURS, UNIFORM, ENDS, MEASURED = "chosen recipe", "one scheme everywhere", "first and last layers kept", "measured"
STYLES: Styles = {
    UNIFORM: Style(mark="dotted line", colour=GREY),
    ENDS: Style(mark="dotted line", colour=PINK),
    OURS: Style(mark="dotted line", colour=BLUE),
    MEASURED: Style(mark="points", colour=INK),
}
SIZES = 12
PANEL = {"width": 560, "height": 240}


def _summaries(section: Section) -> list[BudgetSummary]:
    found = budgets(section.of_kind("budget"))
    return [BudgetSummary(budget=each, scheme=label) for each in found for label in each.schemes]


def draw_depths(section: Section) -> Chart:
    """Draw a dot for each matrix: depth across, cost up, coloured by its kind."""
    rows: Rows = []
    for each in _summaries(section):
        for found in each.effects:
            if drawable(found.kl):
                ends = {"kl": found.kl, "low": found.low, "high": found.high}
                told = f"{number(found.kl)} ({number(found.low)} to {number(found.high)})"
                place = {"panel": f"{each.budget.model}: {each.scheme}", "layer": found.layer or 0, "kind": found.kind}
                rows.append(place | ends | {"name": found.name, "cost": told})
    span = span_of([row[name] for row in rows for name in ("low", "high")])
    up: dict[str, Any] = {"title": f"cost alone, {_cost(section)}", "scale": log_scale(span), "axis": log_axis(span)}
    base = alt.Chart().encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
        color=alt.Color("kind:N", title=None, legend=alt.Legend(orient="top", columns=4, labelLimit=260)),
        tooltip=[alt.Tooltip(f"{name}:N") for name in ("name", "cost")],
    )
    bars = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", **up), y2="high:Q")
    dots = base.mark_circle(size=45, opacity=1).encode(y=alt.Y("kl:Q", **up))
    first = _summaries(section)[0]
    worst = half_of_cost(first.effects)
    title = f"Half of what {first.scheme} costs sits in {len(worst)} of {len(first.effects)} places"
    return panels(alt.LayerChart(layer=[bars, dots]).properties(**PANEL), rows, title=title, columns=1)


def _cost(section: Section) -> str:
    return budgets(section.of_kind("budget"))[0].cost


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
    every = torch.arange(len(even.names))
    whole = float(even.bits[:, -1].sum())

    def judged(chosen: torch.Tensor) -> tuple[float, float]:
        cost = float(odd.values[:, every, chosen].sum(1).square().sum())
        return even.total_bits(chosen) / whole, cost

    keep = even.options.index(KEEP)
    uniform = [torch.full_like(every, i) for i in range(keep) if bool(even.bits[:, i].isfinite().all())]
    least = min((even.total_bits(chosen) for chosen in uniform), default=whole)
    sizes = [least * (whole / least) ** (step / SIZES) for step in range(SIZES)]
    layers = [Effect(name=name, scheme="", kl=0, low=0, high=0).layer for name in even.names]
    depth = max((layer for layer in layers if layer is not None), default=0)
    ends = torch.tensor([layer is not None and min(layer, depth - layer) < 2 for layer in layers])
    return {
        UNIFORM: sorted(judged(chosen) for chosen in uniform),
        ENDS: sorted(judged(torch.where(ends, keep, chosen)) for chosen in uniform),
        OURS: [judged(even.within(bits=size * (1 + 1e-9))) for size in sizes],
    }


def draw_frontier(section: Section) -> Chart:
    """Draw cost against size, a line for each rule, and what was measured."""
    rows: Rows = []
    for budget in budgets(section.of_kind("budget")):
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
        for budget in budgets(section.of_kind("budget"))
        for rule, pairs in frontier(budget).items()
        for size, cost in pairs
    ]
    return Numbers(head=("rule", "share of 16 bits", "cost"), rows=rows)


def _some(section: Section) -> bool:
    return any(drawable(effect.kl) for each in budgets(section.of_kind("budget")) for effect in each.effects)


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
        about="What recipes cost against their size, on logarithmic axes: one scheme everywhere, the first and last "
        "two layers kept, and recipes that were chosen by half of the passes and judged by the others; dots for what "
        "was measured.",
        wanted=_some,
        draw=draw_frontier,
        table=table_frontier,
    ),
)
