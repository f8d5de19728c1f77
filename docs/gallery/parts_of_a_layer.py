"""
Parts of a layer
================

Behind its norm, the sum of attention and its input is less steep than attention alone, in all layers but the first.
"""

import altair as alt

import howsmooth as hs
from howsmooth.models.text import read_text

model = hs.load("minilm")
activations = model.activations(model.windows(read_text("alice"), length=64, count=3))
rows = []
for layer in range(6):
    for part in ("attention", "residual", "block"):
        f, X = activations.at(layer, part)
        estimate = hs.local_lipschitz(f, X, certify=False)
        rows.append({"layer": layer, "part": part, "constant": estimate.lower.mean().item()})

chart = (
    alt.Chart(alt.Data(values=rows), width=480, height=240)
    .mark_bar()
    .encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("part:N", sort=["attention", "residual", "block"]),
        y=alt.Y("constant:Q", title="local Lipschitz constant, n = 64"),
        color=alt.Color("part:N", title=None, sort=["attention", "residual", "block"]),
    )
)
