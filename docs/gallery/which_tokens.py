"""
Which tokens to move
====================

To move layer 4 of MiniLM furthest, move the first token of this sentence and hardly any other; all of them respond.
"""

import altair as alt
import torch

import howsmooth as hs

model = hs.load("minilm")
sentence = "Alice was beginning to get very tired of sitting by her sister on the bank."
numbers = model.tokenizer.encode(sentence)
f, X = model.activations(torch.tensor([numbers])).at(layer=4)
estimate = hs.local_lipschitz(f, X)[0]
print(estimate)

words = model.tokenizer.pieces(numbers)
shares = zip(words, estimate.token_sensitivity.tolist(), estimate.token_response.tolist(), strict=True)
rows = [
    {"place": place, "token": word, "share": share, "kind": kind}
    for place, (word, moved, moves) in enumerate(shares)
    for kind, share in (("to move", moved), ("that move", moves))
]
chart = (
    alt.Chart(alt.Data(values=rows), width=200, height=340)
    .mark_bar()
    .encode(
        x=alt.X("share:Q", title="share", axis=alt.Axis(format="%", tickCount=4)),
        y=alt.Y("token:N", title=None, sort=alt.SortField("place")),
        color=alt.Color("kind:N", legend=None, sort=["to move", "that move"]),
        column=alt.Column("kind:N", title=None, sort=["to move", "that move"]),
    )
)
chart.save("which_tokens.svg")
