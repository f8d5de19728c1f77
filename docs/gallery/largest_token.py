"""
The same head in three metrics
==============================

The worst constant grows with √n, between measures exponentially with R, and between largest tokens it does neither.
"""

import altair as alt
import torch

import howsmooth as hs

one = torch.ones(1, 1, dtype=torch.float64)
f = hs.Attention.single_head(A=-one, V=one)


def attained(n, R):
    return {
        "all tokens": hs.bracket(f, n=n, radius=R).lower.value,
        "largest token": hs.bracket(f, n=n, radius=R, metric="token").lower.value,
        "measures": hs.bounds.sharp_mean_field_lower(f, radius=R).value,
    }


cases = {"n, with R = 2": [(n, n, 2.0) for n in (4, 16, 64, 256)]}
cases["R, with n = 64"] = [(R, 64, R) for R in (0.5, 1, 2, 3)]
rows = [
    {"x": x, "panel": panel, "metric": metric, "value": value}
    for panel, places in cases.items()
    for x, n, R in places
    for metric, value in attained(n, R).items()
]
print([round(row["value"], 2) for row in rows if row["metric"] == "largest token"])
chart = (
    alt.Chart(alt.Data(values=rows), width=250, height=250)
    .mark_line(point=True)
    .encode(
        x=alt.X("x:Q", title=None, scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("value:Q", title="attained", scale=alt.Scale(type="log"), axis=alt.Axis(values=[1, 10, 100, 1000])),
        color=alt.Color("metric:N", title=None, sort=["all tokens", "largest token", "measures"]),
        column=alt.Column("panel:N", title=None),
    )
    .resolve_scale(x="independent")
)
chart.save("largest_token.svg")
