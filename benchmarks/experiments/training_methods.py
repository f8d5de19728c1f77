"""What keeps a small classifier smooth while it is trained, and what it costs; and how early a monitor sees it break.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    python benchmarks/experiments/training_methods.py --out training

Classifiers of film reviews, two layers, are trained for equal processor time: plainly, with the local constant as a
penalty, with a Frobenius norm by random projections, with normalised weights, and with weight decay. Two more are
trained with a learning rate that grows, and watched. The folder gets ``results.json`` and two charts.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from evaluation import evaluate
from learning import diverge, network, task_of, train
from reviews import Reviews, find_reviews, read_reviews

from howsmooth.report.drawing.palette import BLUE, GREEN, GREY, INK, ORANGE, PINK
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.tables import Chart, Rows
from howsmooth.report.saving import save_chart
from howsmooth.wording import number, percent

# How strongly each method keeps a network smooth: the factor of a penalty, or the decay.
STRENGTHS = {
    "plain": (0.0,),
    "penalty": (0.003, 0.02),
    "Frobenius": (0.001, 0.005),
    "spectral normalisation": (0.0,),
    "weight decay": (1.0,),
}
# A learning rate that breaks training, and one that does not; the monitor looks once in so many steps.
LAST_RATES, EVERY = (0.3, 1e-3), 5
# At how many held-out sentences networks are measured and attacked, and how many swaps of a word are tried at each.
SENTENCES, SWAPS = 32, 100
METHODS: Styles = {
    method: Style(colour=colour) for method, colour in zip(STRENGTHS, (INK, BLUE, ORANGE, PINK, GREEN), strict=True)
}
PANELS = {
    "network": "constant of the network",
    "attention": "constant of attention layers",
    "attained": "scores moved by pgd / ε",
}

Row = dict[str, Any]


def compare_methods(reviews: Reviews, seconds: float, seed: int = 0) -> list[Row]:
    """Train a classifier by every method and strength for so many seconds of the processor, and judge each."""
    task, rows = task_of(reviews, seed), []
    for method, strengths in STRENGTHS.items():
        for strength in strengths:
            model = network(task.words, seed)
            steps = train(model, task, method=method, strength=strength, seconds=seconds)
            generator = torch.Generator().manual_seed(seed)
            scores = evaluate(model, task, sentences=SENTENCES, swaps=SWAPS, generator=generator)
            rows.append({"method": method, "strength": strength, "steps": steps} | asdict(scores))
    return rows


def watch_divergence(reviews: Reviews, updates: int, seed: int = 0) -> list[Row]:
    """Let the learning rate grow to each of two ends, and note when the monitor and when the loss shows it."""
    task, rows = task_of(reviews, seed), []
    for rate in LAST_RATES:
        found = diverge(network(task.words, seed), task, last_rate=rate, steps=updates, every=EVERY)
        rows.append({"rate": rate} | asdict(found))
    return rows


def methods_table(rows: Sequence[Row]) -> str:
    """Return a table in Markdown: a line for each method and strength."""
    shares, values = ("flipped", "swapped"), tuple(PANELS)
    lines = [
        "| method | strength | accuracy | "
        + " | ".join((*PANELS.values(), "flipped by pgd", "by a swap"))
        + " | steps |"
    ]
    lines.append("|" + "---|" * (4 + len(shares) + len(values)))
    for row in rows:
        cells = [row["method"], number(row["strength"]) if row["strength"] else "—", percent(row["accuracy"])]
        cells += [number(row[name], 3) for name in values] + [percent(row[name]) for name in shares]
        lines.append(f"| {' | '.join((*cells, str(row['steps'])))} |")
    return "\n".join(lines)


def divergence_line(row: Row) -> str:
    """Say when the monitor gives its first alarm, and when the loss shows it."""
    alarm = "gives no alarm" if row["alarm_step"] is None else f"gives its first alarm at step {row['alarm_step']}"
    loss = "never" if row["loss_step"] is None else f"at step {row['loss_step']}"
    return f"With a learning rate that grows to {number(row['rate'])} the monitor {alarm}; the loss shows it {loss}."


def methods_chart(rows: Sequence[Row]) -> Chart:
    """Draw a panel for each measure of roughness, against the accuracy."""
    drawn: Rows = []
    for field, panel in PANELS.items():
        for row in rows:
            drawn += points([(row["accuracy"], row[field])], series=row["method"], panel=panel)
    title = "Roughness of classifiers that were trained for equal time"
    return series_panels(drawn, METHODS, title=title, across="accuracy on held-out sentences", up="roughness")


def divergence_chart(rows: Sequence[Row]) -> Chart:
    """Draw the loss and the constant of each layer against the training step, a panel for each learning rate."""
    styles: Styles = {
        "alarm": Style(mark="rule", colour=GREY, dash=(4, 3)),
        "loss": Style(mark="line", colour=INK, dash=(2, 2)),
        "layer 0": Style(mark="line", colour=BLUE),
        "layer 1": Style(mark="line", colour=ORANGE),
    }
    drawn: Rows = []
    for row in rows:
        panel = f"learning rate up to {number(row['rate'])}"
        for step, *values in row["trace"]:
            for series, value in zip(("loss", "layer 0", "layer 1"), values, strict=False):
                drawn += points([(step, value)], series=series, panel=panel)
            drawn += [{"x": step, "series": "alarm", "panel": panel}] if step == row["alarm_step"] else []
    title = "Constants of layers while the learning rate grows"
    return series_panels(drawn, styles, title=title, across="training step", up="constant, loss")


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", default="", help="lines of a number, a rating and a sentence, tabs between")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time of each training")
    parser.add_argument("--updates", type=int, default=200, help="steps of a training that is watched")
    parser.add_argument("--out", type=Path, default=Path("training"), help="the folder of the results")
    options = parser.parse_args()
    reviews = read_reviews(str(find_reviews(options.reviews)))
    options.out.mkdir(parents=True, exist_ok=True)
    methods, watched = compare_methods(reviews, options.seconds), watch_divergence(reviews, options.updates)
    print(methods_table(methods), *map(divergence_line, watched), sep="\n")
    (options.out / "results.json").write_text(json.dumps({"methods": methods, "watched": watched}), encoding="utf-8")
    save_chart(methods_chart(methods), options.out / "training_methods.svg")
    save_chart(divergence_chart(watched), options.out / "constants_over_steps.svg")


if __name__ == "__main__":
    main()
