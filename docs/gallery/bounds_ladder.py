"""
The ladder of bounds
====================

For this head the paper's two bounds are a factor of 700 apart; ours leave 1.15.
"""

import altair as alt

import howsmooth as hs

f = hs.Attention.random(heads=1, d=64, k=16, seed=0)
ladder = hs.bounds.table(f, n=128, radius=15.0)
witness = hs.inputs.tied_pair(f, 128, 15.0)
print(ladder)
print(witness)

rows = [{"name": b.name, "value": b.value, "kind": f"{b.side.name.lower()} bound"} for b in ladder.bounds]
rows.append({"name": "tied_pair", "value": witness.value, "kind": "measured"})
rows = [row for row in rows if row["value"] < 1e9]  # bounds on measures are astronomical at this radius

base = alt.Chart(alt.Data(values=rows)).encode(
    x=alt.X("value:Q", title="Lipschitz constant on 128 tokens in a ball", scale=alt.Scale(type="log")),
    y=alt.Y("name:N", title=None, sort=alt.SortField("value")),
)
kinds = alt.Color("kind:N", title=None, sort=["lower bound", "measured", "upper bound"])
chart = alt.layer(
    base.mark_point(filled=True, size=110, opacity=1).encode(color=kinds),
    base.mark_text(align="left", dx=10, fontSize=12).encode(text=alt.Text("value:Q", format=",.0f")),
).properties(width=430, height=190)
chart.save("bounds_ladder.svg")
