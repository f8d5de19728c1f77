"""
Every head by itself
====================

The heads of a layer differ by a factor of two to five, and none is as steep as the whole layer.
"""

import altair as alt

import howsmooth as hs
from howsmooth.models.text import read_text

model = hs.load("minilm")
activations = model.activations(model.windows(read_text("alice"), length=64, count=1))
rows = []
for layer, X in enumerate(activations.attention):
    heads = hs.local_lipschitz(model.sites[layer].attention.per_head(), X)  # all heads in one Krylov iteration
    whole = hs.local_lipschitz(model.sites[layer].attention, X)
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
