"""
From few tokens to measures
===========================

The worst constant found grows with the number of tokens until masses are light enough, up to what measures attain.
"""

import altair as alt
import torch

import howsmooth as hs

one = torch.ones(1, 1, dtype=torch.float64)
found = hs.regimes(hs.Attention.single_head(A=-one, V=one), radius=2.0, lengths=[4**i for i in range(1, 10)])
print(found.sentence)

rows = []
for regime in found.rows:
    values = {"upper bound": regime.upper.value, "worst found": regime.found, "measures attain": found.lower.value}
    rows += [{"n": regime.n, "value": value, "kind": kind} for kind, value in values.items()]

powers = alt.Axis(values=[1, 10, 100, 1000, 10**4, 10**5])
chart = (
    alt.Chart(alt.Data(values=rows), width=430, height=280)
    .mark_line(point=True)
    .encode(
        x=alt.X("n:Q", title="number of tokens, A = −1, R = 2", scale=alt.Scale(type="log", nice=False), axis=powers),
        y=alt.Y("value:Q", title="Lipschitz constant", scale=alt.Scale(type="log"), axis=powers),
        color=alt.Color("kind:N", title=None, sort=["upper bound", "worst found", "measures attain"]),
    )
)
chart.save("regimes.svg")
