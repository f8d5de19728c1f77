"""
Certified words
===============

The word that carries the verdict is the one that may move least, by proof and by attack alike.
"""

import altair as alt

import howsmooth as hs

words = ["a", "gripping", "film"]
_mark, *radii, _end = hs.certify("reviews", " ".join(words)).radii  # the first and the last token are the model's own
rows = [
    {"word": word, "certified": radius.certified, "attacked": radius.attacked}
    for word, radius in zip(words, radii, strict=True)
]

base = alt.Chart(alt.Data(values=rows), width=480, height=120)
y = alt.Y("word:N", sort=words, title=None)
scale = alt.Scale(type="log", domain=[0.01, 1], nice=False)
x = alt.X("certified:Q", scale=scale, title="size of the perturbation of one word's embedding")
chart = alt.layer(
    base.mark_rule(color="#808080", strokeDash=[2, 3]).encode(y=y, x=x, x2="attacked:Q"),  # nobody knows
    base.mark_point(filled=True, opacity=1, size=110, color="#0072b2").encode(y=y, x=x),  # up to here no change: proven
    base.mark_point(shape="diamond", filled=True, opacity=1, size=110, color="#d55e00").encode(
        y=y,
        x=alt.X("attacked:Q", scale=scale),  # a change: found
    ),
)
chart.save("certified_words.svg")
