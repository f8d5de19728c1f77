"""Draw what is proven of remainders and what is found: ``python docs/figures/remainders.py``.

Every map at one random input; tokens move by ε along three random columns. Bounds of the whole remainder, of what is
left beyond the exact second order where there is one, and along chords where there are kinks; and the longest ones
among steps that go up the gradient from random points.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import torch
from torch import Tensor

import howsmooth as hs
from howsmooth.certificates.attention_stage import AttentionStage
from howsmooth.certificates.image_norms import EUCLIDEAN, SquaredBall, packed_pairs
from howsmooth.certificates.mlp_stage import GatedStage, SmoothMLPStage
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.relu_stage import ReLUStage
from howsmooth.certificates.stages import FirstOrder, SmoothStage, Stage
from howsmooth.maps.protocols import Map
from howsmooth.report.saving import save_chart

HERE = Path(__file__).parent
COLOURS = {
    f"{part}, {what}": colour
    for part, colour in {"all": "#0072b2", "beyond": "#d55e00", "chords": "#009e73"}.items()
    for what in ("bound", "found")
}
RADII = [0.01 * 300 ** (i / 9) for i in range(10)]
STARTS, STEPS = 16, 25


def problems(rng: torch.Generator) -> dict[str, tuple[Map, Stage, Tensor]]:
    """Return maps of every kind with an input."""
    d, n = 8, 4

    def gauss(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    X = gauss(n, d)
    norm = hs.maps.LayerNorm(gain=torch.ones(d, dtype=torch.float64), eps=1e-12)
    q, k, v = (gauss(2, 4, d) / d**0.5 for _ in range(3))
    attention = hs.Attention(query=q, key=k, value=v, output=gauss(2, d, 4) / d**0.5)
    up, down, gate = gauss(2 * d, d) / d**0.5, gauss(d, 2 * d) / d**0.5, gauss(2 * d, d) / d**0.5
    mlp, kinked = (hs.maps.MLP(up=up, down=down, activation=name) for name in ("gelu", "relu"))
    gated = hs.maps.GatedMLP(gate=gate, up=up, down=down, activation="silu")
    return {
        "LayerNorm": (norm, NormStage(norm, X), X),
        "attention, 2 heads": (attention, AttentionStage(attention, X), X),
        "MLP, GELU": (mlp, SmoothMLPStage(mlp, X), X),
        "MLP, ReLU": (kinked, ReLUStage(kinked, X), X),
        "gated MLP, SiLU": (gated, GatedStage(gated, X), X),
    }


def length(f: Map, stage: Stage, X: Tensor, columns: Tensor, *, beyond: bool) -> Callable[[Tensor], Tensor]:
    """Return a function from coefficients of columns to the first token's remainder, or what is beyond second order."""
    a, b, times = packed_pairs(len(columns))
    pairs = stage.second_order(columns[None]) if beyond and isinstance(stage, SmoothStage) else None
    _sizes, pushed = stage.propagate(columns[:, None], EUCLIDEAN)
    centre = f(X) if stage.shift is None else f(X) + stage.shift

    def measured(xi: Tensor) -> Tensor:
        delta = torch.einsum("sr,rnd->snd", xi, columns)
        left = f(X + delta) - centre - torch.einsum("sr,rnd->snd", xi, pushed[:, 0])
        if pairs is not None:
            left = left - torch.einsum("sp,pnd->snd", times * xi[:, a] * xi[:, b], pairs[0])
        return left[:, 0].norm(dim=1)

    return measured


def longest(measured: Callable[[Tensor], Tensor], eps: float, rng: torch.Generator) -> float:
    """Climb from random points on the sphere."""
    xi = torch.randn(STARTS, 3, generator=rng, dtype=torch.float64)
    best = 0.0
    for _ in range(STEPS):
        xi = (eps * xi / xi.norm(dim=1, keepdim=True)).detach().requires_grad_()
        found = measured(xi)
        best = max(best, float(found.detach().max()))
        (slope,) = torch.autograd.grad(found.sum(), xi)
        xi = xi.detach() + 0.3 * eps * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return best


def rows() -> list[dict[str, Any]]:
    """Return bounds and finds of every map at every radius, for the first token."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for name, (f, stage, X) in problems(rng).items():
        columns = torch.randn(3, *X.shape, generator=rng, dtype=torch.float64) / X.shape[1] ** 0.5
        sizes = stage.image_norms(columns[None], EUCLIDEAN)[0]
        for eps in RADII:
            bounds = {"all": (stage, stage.remainder(eps * sizes, FirstOrder(sizes, columns[None], eps, EUCLIDEAN)))}
            if isinstance(stage, SmoothStage):
                inside = stage.score_forms(eps * columns[None], SquaredBall())
                bounds["beyond"] = (stage, stage.third_order_remainder(eps * sizes, torch.zeros_like(sizes), inside))
            if isinstance(stage, ReLUStage) and isinstance(f, hs.maps.MLP):
                along = ReLUStage(f, X, stage.unit_ranges(eps * sizes))
                bounds["chords"] = (
                    along,
                    along.remainder(eps * sizes, FirstOrder(sizes, columns[None], eps, EUCLIDEAN)),
                )
            values = {}
            for part, (at, bound) in bounds.items():
                reach = torch.cat([torch.linalg.matrix_norm(bundle[:, :, 0].mT, 2) for bundle in at.directions()])
                values[f"{part}, bound"] = float((bound * reach)[at.tokens == 0].sum())
                values[f"{part}, found"] = longest(length(f, at, X, columns, beyond=part == "beyond"), eps, rng)
            # a kink out of reach leaves nothing, which has no place on a logarithmic axis
            values = {kind: value for kind, value in values.items() if value > 0}
            found += [{"map": name, "eps": eps, "kind": kind, "length": value} for kind, value in values.items()]
    return found


def chart(data: list[dict[str, Any]]) -> alt.FacetChart:
    """Draw one panel for each map."""
    kinds = list(COLOURS)
    dash = [[1, 0] if "bound" in kind else [4, 4] for kind in kinds]
    base = alt.Chart(alt.Data(values=data)).mark_line(strokeWidth=2)
    legend = alt.Legend(title=None, orient="bottom", symbolStrokeWidth=2)
    drawn = base.encode(
        x=alt.X("eps:Q", title="ε", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("length:Q", title="length of the remainder", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=6)),
        color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=list(COLOURS.values())), legend=legend),
        strokeDash=alt.StrokeDash("kind:N", scale=alt.Scale(domain=kinds, range=dash), legend=legend),
    )
    panel = drawn.properties(width=230, height=230)
    order = list(dict.fromkeys(row["map"] for row in data))
    facet = alt.Facet("map:N", title=None, header=alt.Header(labelFontSize=13), sort=order)
    return panel.facet(facet=facet, columns=3)


if __name__ == "__main__":
    save_chart(chart(rows()), Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "remainders.svg")
