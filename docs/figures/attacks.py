"""What attacks attain against what is predicted: ``python docs/figures/attacks.py MODEL layers|model``, then ``draw``.

A model is ``minilm`` or ``smollm2``; rows are kept in ``runs/attacks``, and ``draw`` makes the table and the picture.
"""

import json
import statistics
import sys
from pathlib import Path

import altair as alt
import torch

import howsmooth as hs
from howsmooth.attacks.perturbations import prepare
from howsmooth.models.activations import Activations
from howsmooth.models.inputs.text import read_text

HERE, KEPT = Path(__file__).parent, Path("runs") / "attacks"
LENGTH, BUDGET = 16, 100
# Sizes of perturbations, relative to that of the input: to its norm, or to the root mean square norm of its tokens.
SIZES = (0.001, 0.01, 0.03, 0.1, 0.3)
METHODS = ("random", "singular", "ascent")
LAYERS = {"minilm": range(6), "smollm2": (0, 5, 11, 17, 23, 29)}
# Windows and passes of the whole models: a pass through SmolLM2 takes ten times as long.
WHOLE = {"minilm": (3, 100), "smollm2": (2, 60)}
WINDOWS = 3
NAMES = {"minilm": "MiniLM", "smollm2": "SmolLM2"}
COLOURS = {"random": "#009e73", "singular": "#e69f00", "ascent": "#0072b2"}

Rows = list[dict[str, float | str]]


def attacked(activations: Activations, layer: int, part: str, budget: int, norm: str, methods: tuple[str, ...]) -> Rows:
    """Return what each method attains with each size, relative to what is predicted; means over windows."""
    f, X = activations.at(layer, part)
    scene = prepare(f, X, metric=norm, generator=torch.Generator().manual_seed(0))
    per_token = norm == "token"
    whole = float(X.double().square().sum((-2, -1)).mean().sqrt())
    found: Rows = []
    for size in SIZES:
        eps = size * whole / (LENGTH**0.5 if per_token else 1.0)
        for method in methods:
            generator = torch.Generator().manual_seed(1)
            attack = scene.attack(eps=eps, method=method, budget=budget, generator=generator)
            ratios = (attack.gain / scene.steepest).tolist()
            row = {"layer": layer, "map": part, "norm": norm, "size": size, "method": method}
            numbers = {"eps": eps, "predicted": float(scene.steepest.mean()), "ratio": statistics.mean(ratios)}
            found.append(row | numbers)
            print(found[-1], flush=True)
    return found


def measure(name: str, what: str) -> None:
    """Attack the layers of a model, or all of it, and keep the rows."""
    model = hs.load(name)
    windows, budget = (WINDOWS, BUDGET) if what == "layers" else WHOLE[name]
    activations = model.activations(model.windows(read_text(), length=LENGTH, count=windows))
    places = [(layer, "attention") for layer in LAYERS[name]] if what == "layers" else [(0, "model")]
    # each token by itself: what noise and single directions do is no other question there
    norms = (("total", METHODS), ("token", METHODS if what == "layers" or name == "minilm" else METHODS[2:]))
    found = [
        {"model": name} | row
        for norm, methods in norms
        for layer, part in places
        for row in attacked(activations, layer, part, budget, norm, methods)
    ]
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}-{what}.json").write_text(json.dumps(found), encoding="utf-8")


def tables(rows: Rows) -> None:
    """Print a line for each map, norm and method, a column for each size."""
    print("| model | map | norm | method | " + " | ".join(f"{100 * size:g} %" for size in SIZES) + " |")
    print("|---" * (4 + len(SIZES)) + "|")
    places = dict.fromkeys((row["model"], row["map"], row["norm"], row["method"]) for row in rows)
    for place in places:
        here = [row for row in rows if (row["model"], row["map"], row["norm"], row["method"]) == place]
        cells = []
        for size in SIZES:
            ratios = [float(row["ratio"]) for row in here if row["size"] == size]
            ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
            cells.append(" … ".join(ends))
        print(f"| {' | '.join(str(part) for part in place)} | {' | '.join(cells)} |")


def chart(rows: Rows) -> alt.FacetChart:
    """Draw attained over predicted against the size: a panel for each map and norm, a line for each layer."""
    parts, norms = {"attention": "attention", "model": "whole"}, {"total": "all tokens together", "token": "each token"}
    values = [
        row
        | {"where": f"{NAMES[str(row['model'])]}, {parts[str(row['map'])]}", "how": norms[str(row["norm"])], "one": 1.0}
        for row in rows
    ]
    base = alt.Chart().encode(
        x=alt.X(
            "size:Q",
            title="ε, relative to the input",
            scale=alt.Scale(type="log", domain=[SIZES[0], SIZES[-1]], nice=False),
            axis=alt.Axis(values=SIZES, format="~p"),
        ),
        y=alt.Y(
            "ratio:Q",
            title="attained / predicted",
            scale=alt.Scale(type="log", domain=[0.025, 3.5], nice=False),
            axis=alt.Axis(values=[0.03, 0.1, 0.3, 1, 3]),
        ),
        color=alt.Color(
            "method:N",
            title=None,
            scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
            legend=alt.Legend(orient="top"),
        ),
        detail="layer:N",
    )
    one = alt.Chart().mark_rule(strokeDash=[6, 4], color="#333333").encode(y="mean(one):Q")
    layered = alt.layer(
        one, base.mark_line(strokeWidth=1.5), base.mark_point(filled=True, size=18), data=alt.Data(values=values)
    )
    return layered.properties(width=165, height=150).facet(
        column=alt.Column("where:N", title=None), row=alt.Row("how:N", title=None)
    )


def draw() -> None:
    """Print the tables of all rows that are kept, and draw them."""
    rows = [row for path in sorted(KEPT.glob("*.json")) for row in json.loads(path.read_text(encoding="utf-8"))]
    tables(rows)
    chart(rows).save(HERE / "attacks.svg")


def main() -> None:
    draw() if sys.argv[1] == "draw" else measure(*sys.argv[1:])


if __name__ == "__main__":
    main()
