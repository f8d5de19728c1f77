"""
A tied pair against two points
==============================

In large balls two tokens that tie for attention follow the upper bound; the paper's two points level off.
"""

import altair as alt
import torch

import howsmooth as hs

A = -torch.eye(2, dtype=torch.float64)
f = hs.Attention.single_head(A=A, V=-A)
rows = []
for radius in [0.5 * 1.25**i for i in range(14)]:
    inputs = {
        "smallest upper bound": hs.bounds.smallest_upper(f, n=128, radius=radius),
        "tied pair": hs.inputs.tied_pair(f, 128, radius),
        "two points": hs.inputs.two_point(f, 128, radius),
    }
    rows += [{"radius": radius, "value": x.value, "kind": kind} for kind, x in inputs.items()]

chart = (
    alt.Chart(alt.Data(values=rows), width=430, height=280)
    .mark_line(strokeWidth=2)
    .encode(
        x=alt.X("radius:Q", title="radius of the ball, n = 128", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("value:Q", title="Lipschitz constant", scale=alt.Scale(type="log", domain=[1, 800])),
        color=alt.Color("kind:N", title=None, sort=["smallest upper bound", "tied pair", "two points"]),
    )
)
chart.save("tied_pair.svg")
