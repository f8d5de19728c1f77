"""The page on mechanisms: ``python docs/figures/mechanisms.py grow|draw|bounds|regimes|split|text``."""

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import altair as alt
import torch

import howsmooth as hs
from howsmooth.errors import HowsmoothError
from howsmooth.models.inputs.text import read_text
from howsmooth.report.saving import save_chart
from howsmooth.search.mechanisms import COUNTING, MECHANISMS, of_kind

HERE = Path(__file__).parent
F64 = torch.float64
D, STEPS = 3, 40
LENGTHS, RADIUS = (3, 6, 12, 24), 2.0
RADII, LENGTH = (0.5, 1.0, 2.0, 4.0), 8
ATTACK = 1e-4
# What counts tokens counts so many, whatever the length.
LONG, COUNT = (10, 100, 1000, 10_000), 10.0


def head(kind: str, seed: int, d: int = D) -> Any:
    """Build one head with Gaussian matrices of norm one, the same for every kind."""
    generator = torch.Generator().manual_seed(seed)
    A, V = (torch.randn(d, d, dtype=F64, generator=generator) for _ in range(2))
    A, V = (x / torch.linalg.matrix_norm(x, ord=2) for x in (A, V))
    return of_kind(hs.Attention.single_head(A=A, V=V), kind)


def worst(f: Any, n: int, radius: float) -> hs.Witness | None:
    """Search a ball; none where a mechanism cannot be computed at some input."""
    generator = torch.Generator().manual_seed(0)
    try:
        return hs.maximise(f, n=n, domain=hs.domains.Ball(radius), steps=STEPS, seed=generator)
    except HowsmoothError:
        return None


def grow() -> None:
    """Find the worst constants against length and radius, and keep them beside the bounds."""
    rows = []
    for kind in MECHANISMS:
        f = head(kind, 0)
        for against, n, radius in [("n", n, RADIUS) for n in LENGTHS] + [("R", LENGTH, r) for r in RADII]:
            found = worst(f, n, radius)
            value = None if found is None else found.value
            bound = hs.bounds.sharp_upper(f, n=n, radius=radius).value
            rows.append({"kind": kind, "against": against, "n": n, "R": radius, "found": value, "bound": bound})
            print(json.dumps(rows[-1]), flush=True)
    (HERE / "mechanisms.json").write_text(json.dumps(rows))


def draw() -> None:
    """Draw what was kept: found in one colour, bounds dashed; one small chart for each mechanism."""
    rows = json.loads((HERE / "mechanisms.json").read_text())
    sides = []
    for against, title in (("n", f"n  (R = {RADIUS:g})"), ("R", f"R  (n = {LENGTH})")):
        some = [
            {"kind": r["kind"], "x": r[against], "y": r[what], "what": what}
            for r in rows
            if r["against"] == against
            for what in ("found", "bound")
            if r[what] is not None
        ]
        ticks = list(LENGTHS if against == "n" else RADII)
        x = alt.X("x:Q", title=title, scale=alt.Scale(type="log", nice=False), axis=alt.Axis(values=ticks))
        y = alt.Y("y:Q", title="Lip", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=4, format=",~g"))
        dash = alt.StrokeDash("what:N", scale=alt.Scale(domain=["found", "bound"], range=[[1, 0], [4, 3]]), legend=None)
        colour = alt.Color(
            "what:N", scale=alt.Scale(domain=["found", "bound"], range=["#d55e00", "#777777"]), legend=None
        )
        base = alt.Chart(alt.Data(values=some)).encode(x=x, y=y, color=colour, strokeDash=dash)
        chart = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=18, opacity=1))
        facet = alt.Facet("kind:N", title=None, sort=list(MECHANISMS), header=alt.Header(labelFontSize=12))
        sides.append(chart.properties(width=105, height=95).facet(facet=facet, columns=6))
    both = alt.vconcat(*sides, background="white", padding=12).resolve_scale(y="shared")
    save_chart(both, str(HERE / "mechanisms.svg"))


def bounds() -> None:
    """Print bound / found for published bounds and ours: the smallest and the largest ratio of a few heads."""
    for n in (4, 16):
        for kind in MECHANISMS:
            found = [(f, worst(f, n, RADIUS)) for f in (head(kind, seed) for seed in range(3))]
            known = [(f, w.value) for f, w in found if w is not None]
            ours = [hs.bounds.sharp_upper(f, n=n, radius=RADIUS).value / value for f, value in known]
            line = f"n = {n}, {kind}: ours {min(ours):.2f} … {max(ours):.2f}" if ours else f"n = {n}, {kind}: —"
            published = [theirs(kind, f, n) / value for f, value in known if theirs(kind, f, n) is not None]
            if published:
                line += f", published {min(published):.1f} … {max(published):.1f}"
            print(line, flush=True)
    cosine = [dataclasses.replace(head("cosine", seed), normalise_values=True) for seed in range(3)]
    for n in (4, 16):
        known = [(f, w.value) for f in cosine if (w := worst(f, n, RADIUS)) is not None]
        ours = [hs.bounds.sharp_upper(f, n=n, radius=RADIUS).value / value for f, value in known]
        published = [hs.bounds.lipsformer_upper(f, n=n).value / value for f, value in known]
        print(
            f"n = {n}, cosine, values normalised: ours {min(ours):.2f} … {max(ours):.2f}, "
            f"published {min(published):.1f} … {max(published):.1f}",
            flush=True,
        )


def theirs(kind: str, f: Any, n: int) -> float | None:
    """Return what was published for a kind on the ball, if anything was."""
    if kind == "softmax":
        return hs.bounds.discrete_upper(f, n=n, radius=RADIUS).value
    return hs.bounds.kim_l2_upper(f, n=n).value if kind == "l2-tied" else None


def regimes() -> None:
    """Print the worst constants that were found from few tokens to many, and the bound for so many tokens."""
    for kind in MECHANISMS:
        f = head(kind, 0)
        f = dataclasses.replace(f, count=COUNT) if kind in COUNTING else f
        rows = hs.regimes(f, RADIUS, LONG).rows
        told = ", ".join(f"{row.n}: {row.found:.3g} (bound {row.upper.value:.3g})" for row in rows)
        print(f"{kind}: {told}", flush=True)


def split() -> None:
    """Print how often measures split: pairs on the line, random heads at random measures, true ratios of attacks."""
    for kind in MECHANISMS:
        spans = 3.0 if kind == "sinkhorn" else 6.0
        shares = [hs.search.splitting_map(A=A, kind=kind, span=spans).share for A in (-1.0, 1.0)]
        generator = torch.Generator().manual_seed(1)
        splits, ratios, true = 0, [], []
        trials = 60
        for seed in range(trials):
            f = head(kind, seed, d=2)
            mu = hs.transport.DiscreteMeasure(3 * torch.randn(4, 2, dtype=F64, generator=generator))
            try:
                found = hs.splitting(f, mu, seed=generator)
            except HowsmoothError:
                continue
            ratios.append(found.split / found.move if found.move > 0 else math.inf)
            if found.splits and found.decided:
                splits += 1
                attack = hs.split_attack(f, mu, eps=ATTACK, seed=generator)
                true.append(attack.split_ratio / attack.move_ratio)
        gain = f"{max(true):.2f}" if true else "—"
        print(
            f"{kind}: line {100 * shares[0]:.1f} % / {100 * shares[1]:.1f} %, random {splits} of {len(ratios)}, "
            f"largest split/move {max(ratios):.2f}, true ratio of the attacks {gain}",
            flush=True,
        )


def text() -> None:
    """Print how often tokens of a text split, for the heads of MiniLM's matrices with every mechanism."""
    model = hs.load("minilm")
    tokens = torch.tensor(model.tokenizer.encode(read_text("alice").content)[:24])
    activations = model.activations(tokens[None])
    for kind in MECHANISMS:
        splits, count, best = 0, 0, 0.0
        for layer in (0, 3):
            f, X = activations.at(layer=layer)
            mu = hs.transport.DiscreteMeasure.from_sequence(X[0].double() if X.ndim == 3 else X.double())
            for h in range(0, 12, 3):
                try:
                    found = hs.splitting(of_kind(f.head(h).to(F64), kind), mu, rtol=1e-3)
                except HowsmoothError:
                    continue
                count += 1
                splits += found.splits and found.decided
                best = max(best, found.split / found.move)
        print(f"{kind}: {splits} of {count} heads split, largest split/move {best:.2f}", flush=True)


if __name__ == "__main__":
    {"grow": grow, "draw": draw, "bounds": bounds, "regimes": regimes, "split": split, "text": text}[sys.argv[1]]()
