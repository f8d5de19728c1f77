"""
Around one input
================

A certificate covers every input within ε of this one: it is close for small ε, and ever more cautious as ε grows.
"""

import altair as alt
import torch

import howsmooth as hs

generator = torch.Generator().manual_seed(0)
f = hs.Attention.random(heads=1, d=16, dtype=torch.float64, seed=generator)
X = 0.5 * torch.randn(8, 16, dtype=torch.float64, generator=generator)
here = hs.local_lipschitz(f, X)
print(here)

rows = []
for eps in [0.01 * 3**i for i in range(5)]:
    worst = hs.maximise(f, n=8, domain=hs.domains.Neighbourhood(X, eps), starts=2, steps=8)
    certificate = hs.bounds.neighbourhood_upper(f, X, eps=eps)
    rows += [
        {"eps": eps, "value": certificate.value, "kind": "certificate"},
        {"eps": eps, "value": worst.value, "kind": "worst input found"},
        {"eps": eps, "value": float(here.lower), "kind": "at the input itself"},
    ]

chart = (
    alt.Chart(alt.Data(values=rows), width=430, height=260)
    .mark_line(point=True)
    .encode(
        x=alt.X("eps:Q", title="ε, the distance to the input", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("value:Q", title="local Lipschitz constant", scale=alt.Scale(zero=False)),
        color=alt.Color("kind:N", title=None, sort=["certificate", "worst input found", "at the input itself"]),
    )
)
chart.save("neighbourhood.svg")
