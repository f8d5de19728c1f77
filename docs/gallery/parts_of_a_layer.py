"""
Parts of a layer
================

Behind its norm, the sum of attention and its input is less steep than attention alone, in all layers but the first.
"""

import altair as alt
import torch

import howsmooth as hs

text = """Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do:
once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, 'and
what is the use of a book,' thought Alice, 'without pictures or conversation?'"""
model = hs.load("minilm")
activations = model.activations(torch.tensor([model.tokenizer.encode(text)]))
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
        y=alt.Y("constant:Q", title="local Lipschitz constant at this sentence"),
        color=alt.Color("part:N", title=None, sort=["attention", "residual", "block"]),
    )
)
chart.save("parts_of_a_layer.svg")
