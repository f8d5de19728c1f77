"""
More tokens, larger constants
=============================

The layers of MiniLM do not grow alike on a book: layer 0 stays as it is, layer 4 grows like the cube root of n.
"""

import altair as alt

import howsmooth as hs
from howsmooth.models.text import read_text

model, text, lengths = hs.load("minilm"), read_text("alice"), [8, 16, 32, 64, 128]
found = {layer: {} for layer in range(6)}
for n in lengths:
    activations = model.activations(model.windows(text, length=n, count=3))
    for layer, constants in found.items():
        constants[n] = hs.local_lipschitz(*activations.at(layer), certify=False).lower.tolist()

for layer, constants in found.items():
    law = hs.growth(constants)
    print(f"layer {layer} grows like n^{law.exponent:.2f}, 95 % interval [{law.low:.2f}, {law.high:.2f}]")

rows = [
    {"n": n, "constant": constant, "layer": layer}
    for layer, constants in found.items()
    for n, values in constants.items()
    for constant in values
]
base = alt.Chart(alt.Data(values=rows)).encode(
    x=alt.X("n:Q", title="number of tokens", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=lengths)),
    color=alt.Color("layer:N", title="layer"),
)
y = {"title": "local Lipschitz constant", "scale": alt.Scale(type="log", domain=[3, 30], nice=False)}
chart = alt.layer(
    base.mark_line().encode(y=alt.Y("mean(constant):Q", **y)),
    base.mark_point(filled=True, size=30).encode(y=alt.Y("constant:Q", **y)),
).properties(width=420, height=280)
