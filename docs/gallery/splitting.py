"""
Mass splitting on the line
==========================

Cutting an atom in two beats moving whole atoms when one atom sits near the origin and the other far away.
"""

import altair as alt

import howsmooth as hs

step = 0.15
found = hs.search.splitting_map(A=-1.0, step=step)
print(f"{found.share:.1%} of the pairs split")

places, gain = found.grid.tolist(), found.split / found.move - 1
rows = [
    {"x": places[i], "x2": places[i] + step, "y": places[j], "y2": places[j] + step, "gain": gain[i, j].item()}
    for i, j in found.splits.nonzero().tolist()
]
square = alt.Scale(domain=[-6, 6], nice=False)
chart = (
    alt.Chart(alt.Data(values=rows), width=340, height=340)
    .mark_rect(clip=True)
    .encode(
        x=alt.X("x:Q", title="first atom", scale=square),
        x2="x2:Q",
        y=alt.Y("y:Q", title="second atom", scale=square),
        y2="y2:Q",
        color=alt.Color("gain:Q", title="gain", scale=alt.Scale(scheme="oranges"), legend=alt.Legend(format="%")),
    )
)
chart.save("splitting.svg")
