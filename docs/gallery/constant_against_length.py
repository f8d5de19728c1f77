"""
More tokens, larger constants
=============================

The layers of MiniLM do not grow alike on a book: layer 0 stays as it is, layer 4 grows like the cube root of n.
"""

import altair as alt

import howsmooth as hs

lengths = [8, 16, 32, 64, 128]
found = hs.measure("minilm", layers=[0, 2, 4], lengths=lengths, sequences=3, certify=False)
for layer in found.layers:
    law = layer.growth
    print(f"layer {layer.layer} grows like n^{law.exponent:.2f}, 95 % interval [{law.low:.2f}, {law.high:.2f}]")

rows = [
    {"n": n, "constant": record.answer.lower, "layer": layer.layer}
    for layer in found.layers
    for n in lengths
    for record in found.at(layer=layer.layer, length=n)
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
chart.save("constant_against_length.svg")
