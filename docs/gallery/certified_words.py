"""
Certified words
===============

The word that carries the verdict is the one that may move least, by proof and by attack alike.
"""

import altair as alt

import howsmooth as hs

words = ["a", "gripping", "film"]
rows = []
for place, word in enumerate(words, start=1):  # token 0 is the model's own
    (radius,) = hs.certify("reviews", " ".join(words), word=place).radii
    rows.append({"word": word, "certified": radius.certified, "attacked": radius.attacked})

base = alt.Chart(alt.Data(values=rows), width=480, height=120)
y = alt.Y("word:N", sort=words, title=None)
scale = alt.Scale(type="log", domain=[0.01, 1], nice=False)
x = alt.X("certified:Q", scale=scale, title="size of the perturbation of one word's embedding")
chart = alt.layer(
    base.mark_bar(height=14, color="#c4c4c4").encode(y=y, x=x, x2="attacked:Q"),  # nobody knows
    base.mark_bar(height=14, color="#0072b2").encode(y=y, x=x, x2=alt.datum(0.01)),  # no change: proven
    base.mark_point(shape="diamond", filled=True, opacity=1, size=110, color="#d55e00").encode(
        y=y,
        x=alt.X("attacked:Q", scale=scale),  # a change: found
    ),
)
chart.save("certified_words.svg")
