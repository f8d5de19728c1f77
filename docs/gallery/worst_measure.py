"""
A search over measures
======================

However many atoms it may use, ascent ends at two places, one of which holds almost all of the mass.
"""

import altair as alt
import torch

import howsmooth as hs

one = torch.ones(1, 1, dtype=torch.float64)
f = hs.Attention.single_head(A=-one, V=one)
rows = []
for n in (2, 3, 4):
    worst = hs.maximise(f, n=n, domain=hs.domains.Ball(2.0), starts=4, steps=40, weights=True)
    print(f"{n} atoms: {worst.value:.2f}, the lightest of mass {worst.weights.min():.3g}")
    atoms = zip(worst.tokens.flatten().tolist(), worst.weights.tolist(), strict=True)
    rows += [{"atoms": n, "place": place, "mass": mass} for place, mass in atoms]

chart = (
    alt.Chart(alt.Data(values=rows), width=420, height=170)
    .mark_circle(opacity=0.6)
    .encode(
        x=alt.X("place:Q", title="place of the atom, A = −1, R = 2", scale=alt.Scale(domain=[-2.4, 2.4])),
        y=alt.Y("atoms:O", title="atoms allowed"),
        size=alt.Size("mass:Q", title="mass", scale=alt.Scale(type="log", domain=[1e-4, 1], range=[30, 700])),
    )
)
chart.save("worst_measure.svg")
