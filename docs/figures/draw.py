"""Draw the figures of the theory page: ``python docs/figures/draw.py [name…]``. Numbers are computed, not stored."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import altair as alt
import torch

import howsmooth as hs
from howsmooth.report.charts.mass_splitting import splitting_chart
from howsmooth.report.charts.transition import regimes_chart
from howsmooth.report.saving import save_chart

HERE = Path(__file__).parent
INK, GREY, BLUE, ORANGE, GREEN = "#222222", "#9a9a9a", "#0072b2", "#d55e00", "#009e73"
EYE = torch.eye(2, dtype=torch.float64)
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
NILPOTENT = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)

Rows = list[dict[str, Any]]


def spaced(low: float, high: float, count: int) -> list[float]:
    """Return numbers in geometric progression."""
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]


def lines(
    rows: Rows, x: str, y: str, colours: dict[str, str], dashed: set[str], *, log_x: bool = True
) -> alt.LayerChart:
    """Draw one line for each kind, named at its right end; the paper's are dashed."""
    data = alt.Data(values=rows)
    kinds = list(colours)
    colour = alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[colours[k] for k in kinds]), legend=None)
    dash = alt.StrokeDash(
        "kind:N", scale=alt.Scale(domain=kinds, range=[[5, 4] if k in dashed else [1, 0] for k in kinds]), legend=None
    )
    axis_x = alt.X("x:Q", title=x, scale=alt.Scale(type="log" if log_x else "linear", nice=False))
    plain = "datum.value >= 1e5 || datum.value < 1e-3 ? format(datum.value, '.0e') : format(datum.value, ',~g')"
    axis_y = alt.Y("y:Q", title=y, scale=alt.Scale(type="log"), axis=alt.Axis(labelExpr=plain, tickCount=6))
    drawn = alt.Chart(data).mark_line(strokeWidth=2).encode(x=axis_x, y=axis_y, color=colour, strokeDash=dash)
    names = (
        alt.Chart(alt.Data(values=labels(rows)))
        .mark_text(align="left", dx=6, fontSize=12)
        .encode(x="x:Q", y="y:Q", text="kind:N", color=colour)
    )
    return alt.layer(drawn, names)


def labels(rows: Rows) -> Rows:
    """Return the last point of every kind, moved apart where names would overlap."""
    last = max(row["x"] for row in rows)
    ends = sorted((row for row in rows if row["x"] == last), key=lambda row: row["y"])
    values = [row["y"] for row in rows]
    apart = (max(values) / min(values)) ** 0.06
    placed: Rows = []
    for row in ends:
        y = max(row["y"], placed[-1]["y"] * apart) if placed else row["y"]
        placed.append(row | {"y": y})
    return placed


def radius() -> alt.LayerChart:
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    rows, band, n = [], [], 128
    for R in spaced(0.3, 10, 40):
        sharp = hs.bounds.table(f, n=n, radius=R).upper.value
        tied = hs.inputs.tied_pair(f, n, R).value
        rows += [
            {"x": R, "y": hs.bounds.discrete_upper(f, n=n, radius=R).value, "kind": "paper's upper bound"},
            {"x": R, "y": sharp, "kind": "our upper bound"},
            {"x": R, "y": tied, "kind": "measured at the tied pair"},
            {"x": R, "y": hs.bounds.kim_lower(f, n=n, radius=R).value, "kind": "token at the origin"},
            {"x": R, "y": hs.bounds.discrete_lower(f, n=n, radius=R).value, "kind": "paper's lower bound"},
        ]
        band.append({"x": R, "low": tied, "high": sharp})
    colours = {
        "paper's upper bound": GREY,
        "our upper bound": BLUE,
        "measured at the tied pair": ORANGE,
        "token at the origin": GREEN,
        "paper's lower bound": GREY,
    }
    area = alt.Chart(alt.Data(values=band)).mark_area(opacity=0.15, color=BLUE).encode(x="x:Q", y="low:Q", y2="high:Q")
    paper = {"paper's upper bound", "paper's lower bound"}
    return alt.layer(area, lines(rows, "radius R", "Lipschitz constant", colours, paper))


def brackets() -> alt.LayerChart:
    forms = {"A = I": EYE, "A = −I": -EYE, "rotation": TURN, "nilpotent": NILPOTENT}
    colours = dict(zip(forms, (GREEN, ORANGE, BLUE, INK), strict=True))
    rows = []
    for kind, A in forms.items():
        f = hs.Attention.single_head(A=A, V=EYE)
        for c in spaced(1, 1000, 25):
            rows.append({"x": c, "y": hs.bracket(f, n=128, radius=math.sqrt(c)).ratio, "kind": kind})
    paper = []
    for kind in ("A = I", "A = −I"):
        f = hs.Attention.single_head(A=forms[kind], V=EYE)
        for c in spaced(1, 1000, 25):
            bounds = {"n": 128, "radius": math.sqrt(c)}
            ratio = hs.bounds.discrete_upper(f, **bounds).value / hs.bounds.discrete_lower(f, **bounds).value
            paper.append({"x": c, "y": ratio, "kind": f"paper, {kind}"})
    dashed = {"paper, A = I": GREEN, "paper, A = −I": ORANGE}
    return lines(rows + paper, "R²‖A‖", "upper bound / lower bound", colours | dashed, set(dashed))


def together() -> alt.LayerChart:
    colours = {"heads added up": ORANGE, "heads together": BLUE, "found": INK}
    rows: Rows = []
    for heads in (1, 2, 3, 4, 6, 8, 12, 16):
        f = hs.Attention.random(heads=heads, d=64, k=8, seed=torch.Generator().manual_seed(heads))
        ball = {"n": 32, "radius": 20.0}
        bracket = hs.bracket(f, **ball)
        added = sum(hs.bounds.sharp_upper(f.head(h), **ball).value for h in range(heads))
        values = (added, bracket.upper.value, bracket.lower.value)
        rows += [{"x": heads, "y": y, "kind": kind} for kind, y in zip(colours, values, strict=True)]
    return lines(rows, "heads", "Lipschitz constant", colours, set())


def local() -> alt.LayerChart:
    rng = torch.Generator().manual_seed(0)
    f = hs.Attention.random(heads=1, d=16, dtype=torch.float64, seed=rng)
    X = torch.randn(32, 16, dtype=torch.float64, generator=rng)
    rows = []
    for scale in spaced(0.05, 30, 40):
        value = float(hs.local_lipschitz(f, scale * X, rtol=1e-6).lower)
        R = float((scale * X).norm(dim=-1).max())
        rows += [
            {"x": scale, "y": hs.bounds.local_upper(f, scale * X).value / value, "kind": "Theorem 3"},
            {"x": scale, "y": hs.bounds.attention_map_upper(f, scale * X).value / value, "kind": "attention map"},
            {"x": scale, "y": hs.bounds.sharp_upper(f, n=32, radius=R).value / value, "kind": "ball of that radius"},
        ]
    colours = {"Theorem 3": BLUE, "attention map": ORANGE, "ball of that radius": GREY}
    return lines(rows, "scale of the tokens", "bound / measured", colours, {"ball of that radius"})


def neighbourhood() -> alt.LayerChart:
    rng = torch.Generator().manual_seed(0)
    Q, K, V = (torch.randn(1, 16, 16, generator=rng).double() / 4 for _ in range(3))
    X = 0.5 * torch.randn(8, 16, generator=rng).double()
    f = hs.Attention(query=Q, key=K, value=V)
    rows, dots = [], []
    for eps in spaced(0.01, 1, 25):
        for kind, per_token in (("Theorem 5, total", False), ("Theorem 5, per token", True)):
            bound = hs.bounds.neighbourhood_upper(f, X, eps=eps, metric=("total", "token")[per_token])
            rows.append({"x": eps, "y": bound.value, "kind": kind})
    for eps in spaced(0.01, 1, 9):
        for per_token in (False, True):
            domain = hs.domains.Neighbourhood(X, eps=eps, metric=("total", "token")[per_token])
            found = hs.maximise(f, n=8, domain=domain, starts=4, steps=60, seed=rng)
            kind = "Theorem 5, per token" if per_token else "Theorem 5, total"
            dots.append({"x": eps, "y": found.value, "kind": kind})
    colours = {"Theorem 5, total": BLUE, "Theorem 5, per token": ORANGE}
    points = (
        alt.Chart(alt.Data(values=dots))
        .mark_point(filled=True, size=45)
        .encode(x="x:Q", y="y:Q", color=alt.Color("kind:N", legend=None))
    )
    return alt.layer(lines(rows, "radius ε", "local constant", colours, set()), points)


def large_radius() -> alt.LayerChart:
    one = torch.ones(1, 1, dtype=torch.float64)
    f, X = hs.Attention.single_head(A=one, V=one), torch.tensor([[1.0], [0.8]], dtype=torch.float64)
    limit = hs.bounds.large_radius_limit(f, X)
    rows = []
    for i in range(60):
        R = 1 + i / 5
        distance = abs(float(hs.local_lipschitz(f, R * X, rtol=1e-12).lower) - limit.value)
        rows.append({"x": R, "y": limit.error(R), "kind": "bound"})
        rows.append({"x": R, "y": max(distance, 1e-12), "kind": "measured"})
    colours = {"bound": GREY, "measured": BLUE}
    return lines(rows, "radius R", "distance to the limit", colours, {"bound"}, log_x=False)


def mean_field() -> alt.LayerChart:
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    theorems: dict[str, Callable[..., hs.Bound]] = {
        "paper's upper bound": hs.bounds.mean_field_upper,
        "our upper bound": hs.bounds.sharp_mean_field_upper,
        "our lower bound": hs.bounds.sharp_mean_field_lower,
        "paper's lower bound": hs.bounds.mean_field_lower,
    }
    rows = [
        {"x": R, "y": theorem(f, radius=R).value, "kind": kind}
        for kind, theorem in theorems.items()
        for R in spaced(0.3, 3.5, 40)
    ]
    colours = dict(zip(theorems, (GREY, BLUE, ORANGE, GREY), strict=True))
    paper = {"paper's upper bound", "paper's lower bound"}
    return lines(rows, "radius R", "Lipschitz constant on measures", colours, paper)


def splitting() -> Any:
    return splitting_chart(hs.search.splitting_map(A=-1.0, step=0.1))


def regimes() -> Any:
    one = torch.ones(1, 1, dtype=torch.float64)
    lengths = [round(n) for n in spaced(3, 1e6, 45)]
    return regimes_chart(hs.regimes(hs.Attention.single_head(A=-one, V=one), 2.0, lengths))


FIGURES: dict[str, Callable[[], Any]] = {
    "splitting": splitting,
    "regimes": regimes,
    "radius": radius,
    "brackets": brackets,
    "together": together,
    "local": local,
    "neighbourhood": neighbourhood,
    "large_radius": large_radius,
    "mean_field": mean_field,
}


def styled(chart: alt.LayerChart) -> alt.LayerChart:
    """Set the size and a quiet look."""
    # who opens the file may have wider letters: room on the right, so that no name is cut off
    quiet = chart.properties(width=480, height=300, padding={"left": 5, "right": 40, "top": 5, "bottom": 5})
    return quiet.configure_axis(
        gridOpacity=0.35, labelFontSize=12, titleFontSize=13, titleFontWeight="normal"
    ).configure_view(stroke=None)


def chosen(names: list[str]) -> Iterator[str]:
    for name in names or FIGURES:
        if name not in FIGURES:
            raise SystemExit(f"no figure {name!r}; there are {', '.join(FIGURES)}.")
        yield name


if __name__ == "__main__":
    for name in chosen(sys.argv[1:]):
        chart, target = FIGURES[name](), HERE / f"{name}.svg"
        if name in ("splitting", "regimes"):
            save_chart(chart, target)
        else:
            styled(chart).save(target)
        print(HERE / f"{name}.svg")
