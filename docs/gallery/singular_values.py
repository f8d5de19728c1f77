"""
Many directions, not one
========================

The worst direction is not alone: the tenth singular value is still two thirds of the first.
"""

import altair as alt
import torch

import howsmooth as hs
from howsmooth.models.text import read_text

model = hs.load("minilm")
activations = model.activations(model.windows(read_text("alice"), length=16, count=1))
rows = []
for layer in (0, 2, 4):
    f, X = activations.at(layer)
    found = hs.singular_values(f.jacobian(X[0]), k=10, rtol=1e-2, generator=torch.Generator().manual_seed(0))
    print(f"layer {layer}:", found)
    rows += [{"i": i, "value": v, "layer": layer} for i, v in enumerate(found.values.tolist(), start=1)]

chart = (
    alt.Chart(alt.Data(values=rows), width=420, height=240)
    .mark_line(point=True)
    .encode(
        x=alt.X("i:O", title="singular value number", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("value:Q", title="singular value of the Jacobian"),
        color=alt.Color("layer:N", title="layer"),
    )
)
