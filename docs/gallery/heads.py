"""
Every head by itself
====================

The heads of a layer differ by a factor of two to seven, and none is as steep as the whole layer.
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
for layer, X in enumerate(activations.attention):
    heads = hs.local_lipschitz(model.layers[layer].attention.per_head(), X)  # all heads in one Krylov iteration
    whole = hs.local_lipschitz(model.layers[layer].attention, X)
    print(f"layer {layer}: heads {heads.lower.min():.1f} to {heads.lower.max():.1f}, all {whole.lower.item():.1f}")
    rows += [{"layer": layer, "head": h, "constant": c} for h, c in enumerate(heads.lower.flatten().tolist())]

base = alt.Chart(alt.Data(values=rows)).encode(
    x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)), y=alt.Y("layer:O", title="layer")
)
colour = alt.Color("constant:Q", title="constant", scale=alt.Scale(scheme="blues", type="log"), legend=None)
chart = alt.layer(
    base.mark_rect(stroke="white").encode(color=colour),
    base.mark_text(fontSize=12).encode(
        text=alt.Text("constant:Q", format=".1f"),
        color=alt.condition("datum.constant > 9", alt.value("white"), alt.value("#222222")),
    ),
).properties(width=480, height=220)
chart.save("heads.svg")
