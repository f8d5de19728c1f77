"""Measure every number that the README and the documentation quote: ``python tools/make_numbers.py [RUN …]``.

Each run below gives the numbers of one command or script. They go to ``docs/numbers.json`` with the command, the date
and a digest of the sources that gave them, and from there into the pages (``docs/_ext/prose_numbers.py``); notebooks
are executed. Without names, runs that these sources have answered are not answered again. ``--record KEY COMMAND``
keeps what a page says of a section that is measured by hand, since that takes long, and ``--check-release`` fails
where a number is older than the sources.
"""

import argparse
import ast
import contextlib
import datetime
import hashlib
import io
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / folder) for folder in ("docs/_ext", "benchmarks", "docs/figures")]

import prose_numbers  # noqa: E402

import howsmooth  # noqa: E402

Numbers = dict[str, Any]
RUNS: dict[str, tuple[str, Callable[[], Numbers]]] = {}
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "pictures"} & set(page.parts)),
]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# What a page 115 columns wide can show of what a command prints.
COLUMNS = "115"


def run(command: str) -> Callable[[Callable[[], Numbers]], Callable[[], Numbers]]:
    """Register a function by its name; ``command`` is what a reader would type for its numbers."""

    def register(function: Callable[[], Numbers]) -> Callable[[], Numbers]:
        RUNS[function.__name__] = (command, function)
        return function

    return register


def printed(*arguments: str, cwd: str | None = None) -> str:
    """Return what a command of ours prints, without the spaces that fill its lines."""
    command = [sys.executable, "-m", "howsmooth", *arguments]
    environment = os.environ | {"COLUMNS": COLUMNS}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=cwd)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


@contextlib.contextmanager
def measured(*arguments: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Run a command that keeps records; yield its answer and the folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield json.loads(printed(*arguments, "--json", "--out", folder)), folder


def _value(typical: Any) -> float | None:
    return None if typical is None else typical.value


def spread(values: list[float]) -> Numbers:
    """Return what prose says of several windows: their mean and range."""
    return {"mean": statistics.fmean(values), "least": min(values), "most": max(values)}


def ends(values: list[float]) -> list[float]:
    """Return the least and the largest."""
    return [min(values), max(values)]


@run("howsmooth measure")
def demo() -> Numbers:
    """The demo: every layer of MiniLM at ten windows of 8 to 256 tokens."""
    import howsmooth as hs

    with measured("measure") as (answer, folder):
        shown = printed("measure", "--out", folder).partition("\nTypical:")[0]
        records = list(hs.read_run(folder).records)
    layers = answer["layers"]
    # the last two columns: for tokens of which norm something is proven, and what
    rows = [re.findall(r"[\d,]+(?:\.\d+)?", line)[-2:] for line in shown.splitlines()[-len(layers) :]]
    last = [[float(cell.replace(",", "")) for cell in row] for row in rows]
    places = {(r.ask.layer, r.ask.length) for r in records}
    ranges = []
    for layer, length in places:
        found = [r.answer.lower for r in records if (r.ask.layer, r.ask.length) == (layer, length)]
        ranges.append(100 * (max(found) - min(found)) / statistics.fmean(found))
    steps = sorted(r.answer.steps for r in records)
    return {
        "worst": [layer["constant"] for layer in layers],
        "typical": [layer["typical"] for layer in layers],
        "exponent": [layer["exponent"] for layer in layers],
        "radius": [radius for radius, _upper in last],
        "any_input": [upper for _radius, upper in last],
        "windows_differ_percent": [statistics.quantiles(ranges, n=20)[0], statistics.quantiles(ranges, n=20)[-1]],
        "steps": [steps[len(steps) // 20], steps[-1 - len(steps) // 20]],
        "outputs": {"answer": shown},
    }


@run("howsmooth measure minilm --whole --lengths 16")
def whole() -> Numbers:
    """The blocks of MiniLM alone, multiplied and together, at ten windows of 16 tokens."""
    import howsmooth as hs
    from howsmooth.studies.runs.composition import compositions

    with measured("measure", "minilm", "--whole", "--lengths", "16") as (_answer, folder):
        records = [r for r in hs.read_run(folder).records if r.ask.kind == "whole"]
    (composition,) = compositions(records)
    windows = sorted({r.ask.window.index for r in records})
    lower = {(r.ask.map, r.ask.layer, r.ask.window.index): r.answer.lower for r in records}
    typical = {(r.ask.map, r.ask.window.index): r.answer.typical for r in records}
    depths = composition.depths
    products = [math.prod(lower["block", d.layer, w] for d in depths) for w in windows]
    table = [
        [
            *(d.layer, d.block, 10**d.log_product, d.to, 10**d.log_gap),
            *(_value(d.typical_to), d.onward, _value(d.typical_onward)),
        ]
        for d in depths
    ]
    return {
        "product": {"mean": 10 ** depths[-1].log_product, "least": min(products), "most": max(products)},
        "whole": {**spread([lower["model", 0, w] for w in windows]), "mean": depths[0].onward},
        "typical": {**spread([typical["model", w] for w in windows]), "mean": _value(depths[0].typical_onward)},
        "block": ends([d.block for d in depths]),
        "table": table,
        "layer_2": [depths[2].block, depths[2].to / depths[1].to],
    }


def text_windows(name: str, length: int, count: int) -> tuple[Any, Any]:
    """Load a model and run it at the first windows of Alice."""
    import howsmooth as hs
    from howsmooth.models.inputs.text import read_text

    model = hs.load(name)
    return model, model.activations(model.windows(read_text(), length=length, count=count))


def gains(activations: Any, layer: int, name: str) -> dict[str, float]:
    """Return the constant and the typical gain of a map, absolute and relative to sizes: means over windows."""
    import torch

    import howsmooth as hs

    f, X = activations.at(layer, name)
    generator = torch.Generator().manual_seed(0)
    worst = hs.local_lipschitz(f, X, seed=generator).lower
    typical = hs.typical_gain(f, X, samples=64, seed=generator).value
    sizes = X.flatten(1).norm(dim=1) / f(X).flatten(1).norm(dim=1)
    return {
        "worst": float(worst.mean()),
        "typical": float(typical.mean()),
        "relative_worst": float((worst * sizes).mean()),
        "relative_typical": float((typical * sizes).mean()),
    }


def columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Turn one dictionary for each layer into one list for each quantity."""
    return {name: [row[name] for row in rows] for name in rows[0]}


@run("hs.local_lipschitz, hs.typical_gain and hs.bracket at three windows of 64 tokens of MiniLM")
def minilm_64() -> Numbers:
    """What three windows of 64 tokens show in MiniLM, and what any input of their size may do."""
    import torch

    import howsmooth as hs

    model, activations = text_windows("minilm", 64, 3)
    attention = columns([gains(activations, layer, "attention") for layer in range(6)])
    residual = columns([gains(activations, layer, "residual") for layer in range(6)])
    found: Numbers = {"attention": attention, "residual": residual}
    found["values"] = []
    found["bfloat16"] = []
    found["radius"] = []
    found["upper"] = []
    found["attained"] = []
    for layer in range(6):
        f, X = activations.at(layer)
        mixed = sum(f.output[h].double() @ f.value[h].double() for h in range(f.layout.heads))
        found["values"].append(float(torch.linalg.matrix_norm(mixed, 2)))
        rounding = X.bfloat16().float() - X
        moved = f(X + rounding) - f(X)
        found["bfloat16"].append(float((moved.flatten(1).norm(dim=1) / rounding.flatten(1).norm(dim=1)).mean()))
        radius = float(X.norm(dim=-1).max())
        bracket = hs.bracket(f, n=64, radius=radius)
        found["radius"].append(radius)
        found["upper"].append(bracket.upper.value)
        found["attained"].append(bracket.lower.value)
    worst = attention["worst"]
    found["upper_over_worst"] = [a / b for a, b in zip(found["upper"], worst, strict=True)]
    found["upper_over_attained"] = [a / b for a, b in zip(found["upper"], found["attained"], strict=True)]
    found["worst_over_values"] = [a / b for a, b in zip(worst, found["values"], strict=True)]
    found["ranges"] = {
        name: ends(found[name]) for name in ("attained", "upper", "upper_over_worst", "upper_over_attained")
    }
    shares = []
    for layer in (2, 4):
        estimate = hs.local_lipschitz(*activations.at(layer), seed=0)
        shares.append(100 * float(torch.stack([one.token_sensitivity.max() for one in estimate]).mean()))
    found["largest_token_percent"] = shares
    found["steps"] = finite_steps(activations)
    found["swap"] = one_word(model)
    return found


def finite_steps(activations: Any) -> list[list[float]]:
    """Return gain and change of the output, in per cent, for steps of a finite size at layer 4."""
    import torch

    import howsmooth as hs

    f, X = activations.at(4)
    size, there = X.flatten(1).norm(dim=1), f(X).flatten(1).norm(dim=1)
    worst = hs.local_lipschitz(f, X, seed=0).direction
    noise = torch.randn(X.shape, generator=torch.Generator().manual_seed(0))
    noise = noise / noise.flatten(1).norm(dim=1)[:, None, None]

    def moved(E: Any, share: float) -> Any:
        return (f(X + (share * size)[:, None, None] * E) - f(X)).flatten(1).norm(dim=1)

    def numbers(distance: Any, share: float) -> tuple[float, float]:
        return float((distance / (share * size)).mean()), 100 * float((distance / there).mean())

    rows = []
    for share in (0.001, 0.01, 0.1):
        # which of the two directions is the steeper one differs between windows
        both = torch.stack((moved(worst, share), moved(-worst, share)))
        one, other = numbers(both.amax(0), share), numbers(both.amin(0), share)
        rows.append([100 * share, one[0], other[0], one[1], other[1]])
    return [*rows, [1, *numbers(moved(noise, 0.01), 0.01)]]


def one_word(model: Any) -> dict[str, list[float]]:
    """Return how far one other word moves what enters each layer, in per cent, and the gain: least and most."""
    import torch

    sentence = "Alice was beginning to get very {} of sitting by her sister."
    one, other = (
        model.activations(torch.tensor([model.tokenizer.encode(sentence.format(w))])) for w in ("tired", "bored")
    )
    moves, passed = [], []
    for layer in range(6):
        f, X = one.at(layer)
        _f, Y = other.at(layer)
        moves.append(100 * float((Y - X).norm() / X.norm()))
        passed.append(float((f(Y) - f(X)).norm() / (Y - X).norm()))
    return {"moved_percent": ends(moves), "gain": ends(passed)}


@run("hs.local_lipschitz and hs.typical_gain at three windows of 64 tokens of SmolLM2 and of random BERT")
def others_64() -> Numbers:
    """What three windows of 64 tokens show in SmolLM2 and in BERT at random initialisation."""
    _model, activations = text_windows("smollm2", 64, 3)
    layers = (0, 15, 29)
    found: Numbers = {
        "attention": columns([gains(activations, layer, "attention") for layer in layers]),
        "residual": columns([gains(activations, layer, "residual") for layer in layers]),
    }
    f, X = activations.at(15)
    _f, stream = activations.at(15, "residual")
    sizes = stream.norm(dim=-1)
    found["sizes"] = {
        "enters": float(X.norm(dim=-1).mean()),
        "leaves": float(f(X).norm(dim=-1).mean()),
        "stream": float(sizes.median()),
        "largest": float(sizes.max()),
    }
    found["largest_over_stream"] = found["sizes"]["largest"] / found["sizes"]["stream"]
    block, X = activations.at(0, "block")
    first = gains(activations, 0, "block")
    found["first_block"] = {
        "typical": first["typical"],
        "enters": float(X.norm(dim=(-2, -1)).mean()),
        "leaves": float(block(X).norm(dim=(-2, -1)).mean()),
        "relative": first["relative_typical"],
    }
    _bert, activations = text_windows("random:bert", 64, 3)
    found["bert"] = {name: gains(activations, 6, name) for name in ("attention", "residual")}
    found["thirty_over_bert"] = 30 / found["bert"]["attention"]["worst"]
    return found


@run("howsmooth worst-case minilm --layer 4 --text alice --window 3 --eps 0.1")
def near_text() -> Numbers:
    """The worst input near a text, as the command prints it."""
    shown = printed("worst-case", *["minilm", "--layer", "4", "--text", "alice", "--window", "3", "--eps", "0.1"])
    _low, _high, attained, _times, upper = re.findall(r"\d[\d.,]*\d", shown.splitlines()[0].replace(",", ""))[:5]
    return {"attained": float(attained), "upper": float(upper), "outputs": {"answer": shown}}


@run("howsmooth swap minilm --sentence … --whole-words --edits 1")
def swap() -> Numbers:
    """A swap of words, as the command prints it."""
    sentence = "The king was in the garden with his dog."
    return {"outputs": {"answer": printed("swap", "minilm", "--sentence", sentence, "--whole-words", "--edits", "1")}}


@run('howsmooth certify reviews --sentence "a gripping film"')
def certify() -> Numbers:
    """Certified radii of a sentence, and how far two synonyms are apart."""
    import howsmooth as hs

    with tempfile.TemporaryDirectory() as folder:
        lines = printed("certify", "reviews", "--sentence", "a gripping film", "--out", folder).splitlines()
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith("token"))
    width = lines[first].index(" seconds")  # of this machine
    model: Any = hs.load("reviews")
    words = model.module.get_input_embeddings().weight.detach().double()
    film, movie = (model.tokenizer.encode(word)[0] for word in ("film", "movie"))
    apart = float((words[film] - words[movie]).norm())
    radii = [float(line.split()[2]) for line in lines[first + 1 : first + 4]]
    return {
        "apart": apart,
        "apart_over_radius": apart / max(radii),
        "words": len(words),
        "outputs": {"table": "\n".join(line[:width].rstrip() for line in lines[first : first + 4])},
    }


@run("howsmooth attack minilm --eps 0.01,0.1,1,10 --lengths 16 --sequences 3 --method random,singular,ascent")
def attack_layers() -> Numbers:
    """What attacks attain on the attention layers of MiniLM."""
    eps = ["--eps", "0.01,0.1,1,10", "--lengths", "16", "--sequences", "3", "--method", "random,singular,ascent"]
    with measured("attack", "minilm", *eps, "--budget", "100", "--no-bounded") as (answer, _folder):
        attacks = answer["attacks"]
    rows, singular, gain, noise, tenth = [], [], [], [], []
    for layer in attacks:
        by = {(line["method"], line["eps"]): line for line in layer["lines"]}
        sigma = by["ascent", 0.01]["predicted"]
        cells = [("random", 1), ("singular", 1), ("ascent", 0.1), ("ascent", 1), ("singular", 10), ("ascent", 10)]
        rows.append([layer["layer"], sigma, *(by[cell]["attained"] for cell in cells), layer["linear_until"]])
        singular.append(by["singular", 10]["attained"] / sigma)
        gain.append(by["ascent", 10]["attained"] / sigma)
        tenth.append(100 * (by["ascent", 0.1]["attained"] / sigma - 1))
        noise += [sigma / by["random", eps]["attained"] for eps in (0.01, 0.1, 1, 10)]
    return {
        "table": rows,
        "ends": ends([row[-1] for row in rows]),
        "singular_at_10": ends(singular),
        "ascent_at_10": ends(gain),
        "over_noise": ends(noise),
        "off_at_tenth_percent": max(tenth),
    }


@run("howsmooth attack minilm --map model --eps 0.1,1,10 --lengths 16 --sequences 3 --method random,singular,ascent")
def attack_model() -> Numbers:
    """What attacks attain on the whole of MiniLM."""
    eps = ["--eps", "0.1,1,10", "--lengths", "16", "--sequences", "3", "--method", "random,singular,ascent"]
    with measured("attack", "minilm", "--map", "model", *eps, "--budget", "100") as (answer, _folder):
        (found,) = answer["attacks"]
    by = {(line["method"], line["eps"]): line for line in found["lines"]}
    return {
        "table": [
            [
                e,
                by["ascent", e]["predicted"],
                *(by[method, e]["attained"] for method in ("random", "singular", "ascent")),
            ]
            for e in (0.1, 1, 10)
        ]
    }


@run("howsmooth attack minilm --layer 4 --eps 0.1,10 --lengths 12 --sequences 2")
def attack_ceiling() -> Numbers:
    """What is proven of attacks on layer 4 of MiniLM, and the most that any attains."""
    eps = ["--layer", "4", "--eps", "0.1,10", "--lengths", "12", "--sequences", "2"]
    with measured("attack", "minilm", *eps) as (answer, _folder):
        (found,) = answer["attacks"]
    ceiling = [next(line["ceiling"] for line in found["lines"] if line["eps"] == e) for e in (0.1, 10)]
    attained = [max(line["attained"] for line in found["lines"] if line["eps"] == e) for e in (0.1, 10)]
    return {
        "ceiling": ceiling,
        "attained": attained,
        "ratio": [a / b for a, b in zip(ceiling, attained, strict=True)],
    }


@run("hs.bracket on head 0 of layer 2 of MiniLM without its biases, 1,024 tokens of norm up to 12")
def worst_head() -> Numbers:
    """How far apart bounds and inputs are for one head."""
    import dataclasses

    import howsmooth as hs

    head: Any = hs.load("minilm").layers[2].map("head:0")
    f = dataclasses.replace(head, query_bias=None, key_bias=None, value_bias=None)
    lower, upper = (bound(f, n=1024, radius=12.0) for bound in (hs.bounds.discrete_lower, hs.bounds.discrete_upper))
    return {
        "ours": hs.bracket(f, n=1024, radius=12.0).ratio,
        "paper": math.exp(upper.log_value - lower.log_value),
        "radius_2": hs.bracket(f, n=64, radius=2.0).ratio,
    }


@run("python benchmarks/brackets_are_tight.py")
def brackets() -> Numbers:
    """Upper bounds and explicit inputs for forms, Gaussian heads and the layers of MiniLM."""
    import brackets_are_tight as script

    cells = [
        script.cell(name, f, contrast, n)
        for name, f in script.maps(small=False).items()
        for contrast in script.CONTRASTS
        for n in script.LENGTHS
    ]
    layers = [script.whole(f"{i}", *script._layer("minilm", i), math.inf) for i in range(6)]
    rows = [[i, x.paper, x.added, x.together, x.found, x.ratio] for i, x in enumerate(layers)]
    per_row: dict[str, list[float]] = {}
    for cell in cells:
        start = [] if cell.n != script.LENGTHS[0] else [float(cell.contrast)]
        per_row.setdefault(cell.name, []).extend([*start, *([] if cell.paper is None else [cell.paper]), cell.ours])
    return {"forms": list(per_row.values()), "minilm": rows, "together": [x.together for x in layers]}


@run("hs.bracket on every layer of SmolLM2, 64 tokens of the mean norm of those that enter")
def brackets_smollm2() -> Numbers:
    """Upper bounds and explicit inputs for the layers of SmolLM2."""
    import brackets_are_tight as script

    import howsmooth as hs

    rows = []
    for i in range(30):
        f, n, radius = script._layer("smollm2", i)
        found = hs.bracket(f, n=n, radius=radius)
        rows.append([i, radius, found.upper.value, found.lower.value, found.ratio])
    ratios = [row[-1] for row in rows]
    return {
        "table": [[*rows[i], *rows[i + 15]] for i in range(15)],
        "upper": [row[2] for row in rows],
        "within_3": sum(ratio <= 3 for ratio in ratios),
    }


@run("python docs/figures/overlaps.py minilm 16, and minilm 128")
def overlaps() -> Numbers:
    """How far the worst output of a block is from the worst input of the next one."""
    import overlaps as script

    rows = []
    for length in (16, 128):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            script.main("minilm", length)
        pairs = re.findall(r"overlap ([\d.]+), by chance ([\d.]+)", shown.getvalue())
        rows.append([length, *(float(overlap) for overlap, _chance in pairs), float(pairs[0][1])])
    return {"table": [row[1:] for row in rows]}


@run("python docs/figures/injection.py")
def injection() -> Numbers:
    """What rounding one block of MiniLM becomes at the output, and what gains predict."""
    import injection as script

    import howsmooth as hs

    rows = script.rows(hs.load("minilm"))
    off = [max(row["true"] / row["typical"], row["typical"] / row["true"]) for row in rows]
    over = [row["worst"] / row["true"] for row in rows]
    return {
        "table": [
            [row["layer"], int(row["bits"].split()[0]), *(row[name] for name in ("size", "true", "typical", "worst"))]
            for row in rows
        ],
        "typical_off": [max(off), 100 * (statistics.median(off) - 1)],
        "worst_over_true": ends(over),
    }


@run("python docs/figures/slopes.py")
def slopes() -> Numbers:
    """The steepest slope of the figure on Lipschitz constants."""
    import slopes as script

    rows = script.moves()
    step = next(row["x"] for row in rows if row["x"] > 0)
    worst = max(row["y"] / row["x"] for row in rows if row["kind"] == "worst direction" and row["x"] == step)
    return {"worst": worst}


@run("the code blocks of docs/start.md")
def start() -> Numbers:
    """The first number of the page for beginners."""
    import torch

    import howsmooth as hs

    torch.manual_seed(0)
    f = hs.Attention.single_head(A=torch.randn(8, 8), V=torch.randn(8, 8), causal=True)
    estimate = hs.local_lipschitz(f, torch.randn(64, 8), seed=0)
    shown = f"{estimate}"  # rounded outwards
    return {"bracket": [float(end) for end in re.findall(r"\d+\.\d+", shown)[:2]], "outputs": {"estimate": shown}}


@run("howsmooth models")
def families() -> Numbers:
    """How many families are read exactly."""
    from howsmooth.models.families.registry import FAMILIES

    return {"count": len(FAMILIES)}


@run("howsmooth measure minilm --layers 0 --lengths 128,144,192,256")
def jump() -> Numbers:
    """The first layer of MiniLM below and beyond the 128 tokens that it was tuned with."""
    with measured("measure", "minilm", "--layers", "0", "--lengths", "128,144,192,256") as (answer, _folder):
        found: dict[int, list[float]] = {}
        for record in answer["records"]:
            found.setdefault(record["length"], []).append(record["lower"])
    means = {length: statistics.fmean(values) for length, values in found.items()}
    return {"below": means[128], "beyond": ends([mean for length, mean in means.items() if length > 128])}


@run("hs.bounds.local_upper, hs.bounds.neighbourhood_upper and hs.maximise at a window of MiniLM")
def at_text() -> Numbers:
    """Bounds at one input and around it, over what is measured and attained there."""
    import howsmooth as hs

    found: Numbers = {"local": [], "ball": []}
    for length in (32, 256):
        _model, activations = text_windows("minilm", length, 1)
        cells = []
        for layer in (0, 2, 4):
            f, (X,) = activations.at(layer)
            constant = hs.local_lipschitz(f, X, seed=0).lower.item()
            cells.append([hs.bounds.local_upper(f, X, rows=rows).value / constant for rows in (False, True)])
        ratios = {"without": [cell[0] for cell in cells], "with": [cell[1] for cell in cells]}
        found["local"].append({"cells": cells, **ratios})
    _model, activations = text_windows("minilm", 12, 1)
    for eps in (0.01, 0.1, 1.0):
        row = []
        for layer in (0, 2, 4):
            f, (X,) = activations.at(layer)
            ball = hs.domains.Neighbourhood(X, eps)
            attained = hs.maximise(f, n=12, domain=ball, starts=4, steps=60, seed=0)
            row.append(hs.bounds.neighbourhood_upper(f, X, eps=eps).value / attained.value)
        found["ball"].append(row)
    return found


def rows_of(page: str, head: str) -> list[list[str]]:
    """Return the rows of the table of a page whose head starts so; an empty first cell repeats the one above it."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(head)) + 2
    rows: list[list[str]] = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        rows.append([cell or (rows[-1][i] if rows and i < 3 else "") for i, cell in enumerate(cells)])
    return rows


@run("python tools/lab_head.py, whose file the lab shows")
def lab() -> Numbers:
    """The head of MiniLM in the lab."""
    head = json.loads((ROOT / "src" / "howsmooth" / "lab" / "assets" / "minilm.json").read_text(encoding="utf-8"))
    return {name: head[name] for name in ("pair_value", "whole_value", "radius", "text_value", "text_typical")}


@run("the table of certified radii, which was recorded")
def certified() -> Numbers:
    """What the recorded radii say of networks with three layers."""
    rows = [row for row in rows_of("benchmarks.md", "| network | by") if row[0].startswith("3x")]
    ratio = {by: ends([float(row[4]) for row in rows if row[1] == by]) for by in ("BaF", "DeepT-Fast", "CROWN")}
    return {
        "over_baf": ratio["BaF"],
        "over_deept": ratio["DeepT-Fast"],
        "over_crown": ratio["CROWN"],
        "attacked": ends([float(row[6]) for row in rows if row[1] == "ours"]),
    }


@run("the table of growth, which was recorded")
def growth() -> Numbers:
    """What the recorded exponents say of pretrained layers."""
    rows = rows_of("findings/growth.md", "| model | layer | constant at n = 98")
    least, most = ends([float(row[3].replace("−", "-")) for row in rows if not row[0].startswith("random")])
    return {"exponent": {"least": least, "most": most}}


@run("the table of four models, which was recorded")
def four_models() -> Numbers:
    """What the recorded run says of SmolLM2."""
    rows = {(row[0], row[2]): row for row in rows_of("findings/layers-do-not-multiply.md", "| model | blocks")}
    product, together, *_rest = rows["smollm2", "128"][3:]
    gap = rows["smollm2", "128"][6]
    return {"smollm2_128": [math.floor(float(product[3:])), float(together)], "largest_gap": math.floor(float(gap[3:]))}


@run("the table of two models and two norms, which was recorded")
def two_norms() -> Numbers:
    """What the recorded attacks say of SmolLM2."""
    every = rows_of("findings/attacks.md", "| model | map | norm")
    noise = {
        name: [
            float(x)
            for row in every
            if row[1] == name and row[3] == "random"
            for x in re.findall(r"\d\.\d+", " ".join(row[4:]))
        ]
        for name in ("attention", "model")
    }
    rows = [row for row in every if row[0] == "SmolLM2"]
    layers = next(row for row in rows if row[1:4] == ["attention", "total", "ascent"])
    model = next(row for row in rows if row[1:4] == ["model", "total", "ascent"])
    return {
        "smollm2_attention": float(layers[-1].split()[-1]),
        "noise_layer": [1 / max(noise["attention"]), 1 / min(noise["attention"])],
        "noise_model": [1 / max(noise["model"]), 1 / min(noise["model"])],
        "smollm2_missed": 1 / float(model[7]),
        "smollm2_model": [100 * float(model[5]), 100 * float(model[7])],
    }


@run("the benchmark of the penalty, which was recorded")
def penalty() -> Numbers:
    """How many plain steps the penalty adds, with two Krylov steps and with three."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    two = next(row for row in rows_of("benchmarks.md", "| a training step") if "two Krylov" in row[0])
    three = page.partition("default of three it does not**: ")[2].split()[0]
    return {"added": [float(two[2]) - 1, float(three) - 1]}


def sources() -> str:
    """Return a digest of what numbers depend on: the library, the releases it is tested with, and this script."""
    found = hashlib.sha256()
    files = sorted((ROOT / "src" / "howsmooth").rglob("*.py"))
    for path in (*files, ROOT / "constraints.txt", Path(__file__)):
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def rounded(found: Any) -> Any:
    """Keep six digits: more are noise of the solver's start, and would change from machine to machine."""
    if isinstance(found, dict):
        return {name: rounded(inner) for name, inner in found.items()}
    if isinstance(found, list):
        return [rounded(inner) for inner in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found


def in_a_process(name: str) -> tuple[str, Numbers | None]:
    """Answer one run in a process of its own, with one thread: as many run side by side as there are cores."""
    start = time.perf_counter()
    command = [sys.executable, str(Path(__file__)), "--only", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment, cwd=ROOT)
    how = "failed" if done.returncode else "done"
    print(f"{name}: {how} in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return name, None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def measure(names: list[str]) -> None:
    """Answer the runs named, each kept as it is done; then write the pages."""
    before = sources()  # where they change meanwhile, the digest will not be that of the sources
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = pool.map(in_a_process, names)
        failed = [name for name, found in answers if not keep(name, found, before)]
    write_pages(prose_numbers.load())
    if failed:
        raise SystemExit(f"These runs failed, and their numbers are as they were: {', '.join(failed)}.")


def keep(name: str, found: Numbers | None, before: str) -> bool:
    """Write what a run gave into the file; tell whether it gave anything."""
    if found is None:
        return False
    numbers = load()
    outputs = found.pop("outputs", {})
    entry = {"command": RUNS[name][0], "date": today(), "sources": before, "numbers": rounded(found)}
    numbers["runs"][name] = entry | ({"outputs": outputs} if outputs else {})
    numbers["runs"] = {name: numbers["runs"][name] for name in RUNS if name in numbers["runs"]}
    save(numbers)
    return True


def load() -> Numbers:
    """Read the file, or begin one."""
    if not prose_numbers.FILE.exists():
        return {"runs": {}, "notebooks": {}, "recorded": {}}
    return prose_numbers.load()


def save(numbers: Numbers) -> None:
    """Write the file, one number list to a line."""
    text = json.dumps(numbers, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{re.sub(chr(10) + ' *', ' ', found[1])}]", text)
    prose_numbers.FILE.write_text(text + "\n", encoding="utf-8")


def write_pages(numbers: Numbers) -> None:
    """Write what the file has into the pages, and tell what they lack."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        written = prose_numbers.Page(text, numbers).written
        if written != text:
            path.write_text(written, encoding="utf-8")
        for problem in prose_numbers.Page(written, numbers).problems:
            print(f"{path.relative_to(ROOT)}: {problem}", file=sys.stderr)


def execute_all() -> None:
    """Execute every notebook, and keep which sources gave what it shows."""
    for path in NOTEBOOKS:
        before = sources()
        execute(path)
        numbers = prose_numbers.load()
        numbers["notebooks"][path.stem] = {"date": today(), "sources": before, "digest": digest(path)}
        save(numbers)


def digest(path: Path) -> str:
    """Return a short digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def execute(path: Path) -> None:
    """Run the cells of a notebook one after another, and keep what they show."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        cell["execution_count"] = number
        cell["outputs"] = shown("".join(cell["source"]), names, number)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def shown(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the outputs of a cell in the format of notebooks: what it prints, and its last expression."""
    *body, last = ast.parse(source).body
    value, printed_text = None, io.StringIO()
    with contextlib.redirect_stdout(printed_text):
        exec(compile(ast.Module(body=body, type_ignores=[]), f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(body=last.value), f"cell {number}", "eval"), names)
        else:
            exec(compile(ast.Module(body=[last], type_ignores=[]), f"cell {number}", "exec"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed_text.getvalue():
        lines = text.splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = bundle(value)
        result = {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result)
    return outputs


def bundle(value: Any) -> dict[str, list[str]]:
    """Return what a value shows of itself in a notebook."""
    if hasattr(value, "_repr_mimebundle_"):
        found = value._repr_mimebundle_(None, None)
        data = {"text/plain": repr(value)} | (found[0] if isinstance(found, tuple) else found)
        return {kind: text.splitlines(keepends=True) for kind, text in sorted(data.items())}
    data = {"text/plain": [repr(value)]}
    return {"text/html": [value._repr_html_()], **data} if hasattr(value, "_repr_html_") else data


def today() -> str:
    """Return the date as it is written in the file."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def record(key: str, command: str, date: str) -> None:
    """Keep the numbers of a section as they stand on its page."""
    numbers = prose_numbers.load()
    for path in PAGES:
        page = prose_numbers.Page(path.read_text(encoding="utf-8"), numbers)
        if key in page.recorded:
            numbers["recorded"][key] = {"command": command, "date": date, "numbers": page.recorded[key]}
            save(numbers)
            return
    raise SystemExit(f"No page has a section that is marked <!-- recorded: {key} -->.")


def old(kind: str, names: list[str]) -> list[str]:
    """Return the runs or notebooks that are not of these sources."""
    now, known = sources(), load().get(kind, {})
    return [name for name in names if known.get(name, {}).get("sources") != now]


def check_release(tag: str) -> None:
    """Refuse numbers of other sources, and a tag that is not the version."""
    late = [*old("runs", list(RUNS)), *old("notebooks", [path.stem for path in NOTEBOOKS])]
    if late:
        raise SystemExit(f"docs/numbers.json is older than the sources ({', '.join(late)}): run make numbers.")
    if tag not in ("", f"v{howsmooth.__version__}"):
        raise SystemExit(f"A release of version {howsmooth.__version__} is tagged v{howsmooth.__version__}, not {tag}.")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", help=f"of {', '.join(RUNS)}; without, those that are old")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--record", nargs=2, metavar=("KEY", "COMMAND"))
    parser.add_argument("--date", default=today(), help="when what is recorded was measured")
    parser.add_argument("--pages", action="store_true", help="write the pages from the file as it is")
    parser.add_argument("--notebooks", action="store_true", help="execute the notebooks alone")
    parser.add_argument("--check-release", nargs="?", const="", metavar="TAG")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(RUNS[options.only][1]()))
    elif options.record:
        key, command = options.record
        record(key, command, options.date)
    elif options.pages:
        write_pages(prose_numbers.load())
    elif options.notebooks:
        execute_all()
    elif options.check_release is not None:
        check_release(options.check_release)
    else:
        measure(options.runs or old("runs", list(RUNS)))
        if not options.runs:
            execute_all()


if __name__ == "__main__":
    main()
