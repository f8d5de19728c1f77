"""
Many directions, not one
========================

The worst direction is not alone: the tenth singular value is still more than two thirds of the first.
"""

import altair as alt
import torch

import howsmooth as hs

model = hs.load("minilm")
sentence = "Alice was beginning to get very tired of sitting by her sister on the bank."
activations = model.activations(torch.tensor([model.tokenizer.encode(sentence)]))
rows = []
for layer in (0, 2, 4):
    f, X = activations.at(layer)
    found = hs.singular_values(f.jacobian(X[0]), k=10, rtol=1e-2, seed=0)
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
chart.save("singular_values.svg")
