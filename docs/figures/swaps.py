"""The tables of docs/findings/swaps.md: ``python docs/figures/swaps.py MODEL search|order|double [WINDOWS [SEEN]]``."""

import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import altair as alt
import torch
from scipy.stats import spearmanr
from token_splitting import token_splitting

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.tokens import methods
from howsmooth.tokens.methods import Outputs, Trials
from howsmooth.tokens.replacements import replacements

HERE = Path(__file__).parent
LENGTH, BUDGET, PAIRS, ORDER = 16, 300, 40, 200
METHODS = ("random", "gradient", "singular", "gcg", "chance")


def search(model: hs.Transformer, windows: torch.Tensor) -> None:
    """Print what each method finds with equally many passes, relative to random swaps."""
    name = "sentence" if not isinstance(model.ends.sentence_embedding, str) else "logits"
    for edits in (1, 3):
        found = {method: [searched(model, tokens, name, edits, method) for tokens in windows] for method in METHODS}
        for method, moved in found.items():
            ratios = [a / b for a, b in zip(moved, found["random"], strict=True)]
            wins = sum(ratio > 1 for ratio in ratios)
            print(
                f"{name}, {edits} edits, {method}: mean {statistics.mean(moved):.3f}, against random "
                f"{statistics.geometric_mean(ratios):.3f} times, better in {wins} of {len(ratios)}",
                flush=True,
            )


def searched(model: hs.Transformer, tokens: torch.Tensor, name: str, edits: int, method: str) -> float:
    """Return how far a method moves the output; ``chance`` is gcg with random numbers in place of gradients."""
    by_chance = patch.object(methods, "_first_order", _at_random) if method == "chance" else nullcontext()
    method = "gcg" if method == "chance" else method
    with by_chance:
        found = hs.swap(model, tokens, map=name, edits=edits, method=method, budget=BUDGET, round_trip=True)
    return found.displacement


def _at_random(trials: Trials, base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    allowed = methods._open(trials, base)
    return torch.rand(allowed.shape, generator=generator).masked_fill(~allowed, -torch.inf)


@torch.no_grad()
def ranked(model: hs.Transformer, tokens: torch.Tensor, name: str, generator: torch.Generator) -> tuple[Any, Any]:
    """Return what the first order says of random swaps, ‖JΔ‖, and how far each moves the output."""
    outputs, allowed = Outputs.of(model, tokens, name=name, layer=0), replacements(model, tokens).allowed
    assert outputs.chain is not None
    assert outputs.lexicon is not None
    pairs = allowed.nonzero()
    places, coming = pairs[torch.randint(len(pairs), (ORDER,), generator=generator)].mT
    rows = tokens.repeat(ORDER, 1)
    rows[torch.arange(ORDER), places] = coming
    X = outputs.lexicon(tokens)
    J = outputs.chain.jacobian(X)
    predicted = torch.stack([J.jvp(move).norm() for move in outputs.lexicon(rows) - X])
    return predicted, (outputs(rows) - outputs(tokens[None])).flatten(1).norm(dim=1)


def maps(model: hs.Transformer) -> tuple[str, ...]:
    """Return which maps are ranked: two of the first layer, two of the whole model."""
    return (
        "attention",
        "block",
        "model",
        "sentence" if not isinstance(model.ends.sentence_embedding, str) else "logits",
    )


def order(model: hs.Transformer, windows: torch.Tensor) -> None:
    """Print how well the first order ranks random swaps, by the rank correlation, and draw the first window."""
    generator, drawn = torch.Generator().manual_seed(0), []
    for name in maps(model):
        found = []
        for tokens in windows:
            predicted, true = ranked(model, tokens, name, generator)
            if not found:
                points = zip(predicted.tolist(), true.tolist(), strict=True)
                drawn += [{"map": name, "predicted": a, "true": b} for a, b in points]
            found.append((float(spearmanr(predicted, true).statistic), float((predicted / true).median())))
        ranks, ratios = zip(*found, strict=True)
        print(
            f"{name}: rank correlation {min(ranks):.2f} … {max(ranks):.2f}, first order / truth "
            f"{min(ratios):.2f} … {max(ratios):.2f} (medians)",
            flush=True,
        )
    chart(drawn, maps(model)).save(HERE / "swaps.svg")


def chart(points: list[dict[str, Any]], names: Sequence[str]) -> alt.HConcatChart:
    """Draw the truth against the first order, one panel for each map; on the dashed line they are equal."""
    panels = []
    for name in names:
        here = [point for point in points if point["map"] == name]
        ends = [min(min(p["predicted"], p["true"]) for p in here), max(max(p["predicted"], p["true"]) for p in here)]
        scale = alt.Scale(type="log", domain=[0.9 * ends[0], 1.1 * ends[1]], nice=False)
        axis = alt.Axis(tickCount=4, format="~g")
        dots = alt.Chart(alt.Data(values=here)).mark_point(filled=True, size=14, color="#0072b2", opacity=0.6)
        dots = dots.encode(
            x=alt.X("predicted:Q", title="first order, ‖JΔ‖", scale=scale, axis=axis),
            y=alt.Y("true:Q", title="true displacement", scale=scale, axis=axis),
        )
        equal = alt.Chart(alt.Data(values=[{"predicted": end, "true": end} for end in ends]))
        line = equal.mark_line(strokeDash=[6, 4], color="#333333").encode(x="predicted:Q", y="true:Q")
        panels.append(alt.layer(line, dots).properties(width=165, height=165, title=name))
    return alt.hconcat(*panels)


def double(model: hs.Transformer, windows: torch.Tensor) -> None:
    """Print how often changing a copy beats changing the token."""
    for name in ("attention", "block", "model"):
        found = [token_splitting(model, tokens, map=name, pairs=PAIRS) for tokens in windows]
        pairs = [pair for some in found for pair in some.pairs]
        share = sum(pair.doubled > pair.moved for pair in pairs) / len(pairs)
        gain = statistics.median(pair.doubled / pair.moved for pair in pairs)
        shifted = [pair for pair in pairs if pair.shifted is not None]
        said = "infinitely far"
        if shifted:
            beats = sum(pair.shifted > pair.moved for pair in shifted) / len(shifted)
            median = statistics.median(pair.shifted / pair.moved for pair in shifted)
            said = f"beats moving in {100 * beats:.0f} %, median {median:.2f}"
        by_edit = sum(pair.doubled_by > pair.moved_by for pair in pairs) / len(pairs)
        best = [sum(getattr(some.best(way), way) for some in found) / len(found) for way in ("moved", "doubled")]
        print(
            f"{name}: doubling beats moving in {100 * share:.1f} % of {len(pairs)}, median ratio {gain:.2f}, largest "
            f"{max(p.doubled / p.moved for p in pairs):.2f}; best of a window {best[0]:.2f} moved, {best[1]:.2f} "
            f"doubled; shifted {said}; for one token edit the copy moves the output further in {100 * by_edit:.1f} %",
            flush=True,
        )


def main() -> None:
    name, what, *numbers = sys.argv[1:]
    model = hs.load(name)
    count, seen = (int(number) for number in (numbers + ["6", "0"][len(numbers) :]))
    windows = model.windows(read_text(), length=LENGTH, count=seen + count)[seen:]
    {"search": search, "order": order, "double": double}[what](model, windows)


if __name__ == "__main__":
    main()
