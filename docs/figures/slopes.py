"""Draw the figure of the page on Lipschitz constants: ``python docs/figures/slopes.py``. Numbers are computed."""

from pathlib import Path

import altair as alt
import torch

import howsmooth as hs

TEXT = """Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do:
once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, 'and
what is the use of a book,' thought Alice, 'without pictures or conversation?'"""
LAYER, RANDOM, STEPS = 4, 20, 8
COLOURS = {"worst direction": "#d55e00", "identity": "#777777", "20 random directions": "#0072b2"}


def moves() -> list[dict[str, object]]:
    """Move the tokens ever further in each direction, and record how far the output goes."""
    model = hs.load("minilm")
    f, X = model.activations(torch.tensor([model.tokenizer.encode(TEXT)])).at(layer=LAYER)
    worst = hs.local_lipschitz(f, X).direction
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(X.shape, generator=generator) for _ in range(RANDOM)]
    directions = [("worst direction", worst), *(("20 random directions", E / E.norm()) for E in noise)]
    return [
        {"line": line, "kind": kind, "x": x, "y": float((f(X + x * E) - f(X)).norm())}
        for line, (kind, E) in enumerate(directions)
        for x in torch.linspace(0, 1, STEPS + 1).tolist()
    ] + [{"line": -1, "kind": "identity", "x": x, "y": x} for x in (0.0, 1.0)]


def chart(rows: list[dict[str, object]]) -> alt.LayerChart:
    """Draw a line for each direction, named at its right end."""
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    colour = alt.Color("kind:N", scale=scale, legend=None)
    dash = alt.condition("datum.kind == 'identity'", alt.value([5, 4]), alt.value([1, 0]))
    x = alt.X("x:Q", title="how far the tokens are moved, ‖E‖", axis=alt.Axis(tickCount=5))
    y = alt.Y("y:Q", title="how far the output moves, ‖f(X + E) − f(X)‖", axis=alt.Axis(tickCount=5))
    drawn = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour, detail="line:N", strokeDash=dash)
    # the names of the two flat lines would overlap: identity stands above its end, noise below
    names = [
        {"x": 1, "y": next(r["y"] for r in rows if r["kind"] == kind and r["x"] == 1), "kind": kind, "up": up}
        for kind, up in (("worst direction", 0), ("identity", 0.5), ("20 random directions", -0.35))
    ]
    text = alt.Chart(alt.Data(values=names)).transform_calculate(y="datum.y + datum.up")
    labels = text.mark_text(align="left", dx=6, fontSize=12).encode(x="x:Q", y="y:Q", text="kind:N", color=colour)
    return alt.layer(drawn.mark_line(strokeWidth=1.8), labels).properties(
        # names are wider in other fonts than in the one that measures them here
        width=440,
        height=280,
        background="white",
        padding={"left": 8, "right": 40, "top": 8, "bottom": 8},
    )


if __name__ == "__main__":
    target = Path(__file__).with_suffix(".svg")
    quiet = chart(moves()).configure_axis(
        gridOpacity=0.35, labelFontSize=12, titleFontSize=13, titleFontWeight="normal"
    )
    quiet.configure_view(stroke=None).save(target)
    print(target)
