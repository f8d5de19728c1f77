"""Compare certified radii: ours, the best attack, and peers, on the same networks, sentences and positions.

    python benchmarks/certificates/compare.py --networks 3x64-gelu 3x64-relu --python PEERS/bin/python \
        --crown auto_LiRPA --baf Robustness-Verification-for-Transformers --deept DeepT

Networks are trained first (``train.py``) where they are not in the cache. Peers are read from checkouts of their
repositories and run by ``peers.py`` under ``--python``; what is not given is left out. Every radius is bisected to 1 %,
as far as ``--seconds`` reach: a row says which radius holds and which does not. Rows are kept beside the networks, and
what is there is not computed again, so that a long comparison can be continued.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import train

from howsmooth.certificates.certificate import certify_map
from howsmooth.maps.composition import Chain
from howsmooth.models.base import load

Row = dict[str, Any]
# Peers begin the search for a radius here.
BEGIN = 0.005
# BaF and DeepT hold rectified networks only.
RECTIFIED = ("baf", "deept")


def sentences(home: Path, tokens: int, positions: int) -> tuple[Any, list[Row]]:
    """Return a network, and held-out sentences of some length that it tells right, with positions to look at."""
    from transformers import AutoTokenizer, BertForSequenceClassification

    module = BertForSequenceClassification.from_pretrained(home).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(home)
    rows = train.reviews()
    torch.manual_seed(0)  # as in training: the first thousand are held out
    held_out = [rows[i] for i in torch.randperm(len(rows)).tolist()[:1000]]
    found: list[Row] = []
    for number, (text, label) in enumerate(held_out):
        ids = tokenizer(text)["input_ids"]
        if len(ids) == tokens and _predicted(module, ids) == label:
            words = list(range(1, tokens - 1))[: positions - sum(len(row["words"]) for row in found)]
            found.append({"number": number, "label": label, "ids": ids, "words": words})
        if sum(len(row["words"]) for row in found) >= positions:
            break
    return module, found


def _predicted(module: Any, ids: list[int]) -> int:
    with torch.no_grad():
        return int(module(torch.tensor([ids])).logits.argmax())


def ours(module: Any, chosen: list[Row], into: Path) -> None:
    """Certify and attack every position."""
    model = load(module)
    for sentence in chosen:
        f, X = model.activations(torch.tensor([sentence["ids"]])).at(0, "classes")
        assert isinstance(f, Chain)
        sentence["embeddings"] = X[0].tolist()
        left = [word for word in sentence["words"] if (sentence["number"], word) not in _done(into)]
        if not left:
            continue
        found = certify_map(f, X[0], groups=[(word,) for word in left])
        shared = (found.seconds - sum(radius.seconds for radius in found.radii)) / len(left)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        for word, radius in zip(left, found.radii, strict=True):
            row = {"sentence": sentence["number"], "word": word, "radius": radius.certified}
            timing = {"seconds": radius.seconds + shared, "megabytes": memory, "attacked": radius.attacked}
            _keep(into, {**row, **timing})


def theirs(peer: str, checkout: Path, python: str, home: Path, chosen: list[Row], into: Path, seconds: float) -> None:
    """Let a peer bisect every position that it has not bisected yet."""
    left = [
        {**row, "words": [word for word in row["words"] if (row["number"], word) not in _done(into)]} for row in chosen
    ]
    left = [row for row in left if row["words"]]
    if not left:
        return
    task = into.with_suffix(".task")
    task.write_text(json.dumps({"home": str(home), "begin": BEGIN, "sentences": left}))
    script = str(Path(__file__).with_name("peers.py"))
    command = [python, script, peer, str(task), "--checkout", str(checkout), "--seconds", str(seconds)]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                _keep(into, json.loads(line))


def table(networks: list[str], kept: Path) -> str:
    """Return what is kept as a table: geometric means over the positions that both have."""
    lines = ["| network | by | positions | radius | ours / it | attack / it | s a position | MB |", "|---" * 8 + "|"]
    for name in networks:
        own = {(row["sentence"], row["word"]): row for row in _rows(kept / f"{name}-ours.jsonl")}
        for by in ("ours", "crown", "baf", "deept"):
            rows = _rows(kept / f"{name}-{by}.jsonl")
            both = [(row, own[row["sentence"], row["word"]]) for row in rows if (row["sentence"], row["word"]) in own]
            if not both:
                continue
            radius, ratio, gap = (
                _mean([value(row, mine) for row, mine in both])
                for value in (
                    lambda row, _mine: row["radius"],
                    lambda row, mine: mine["radius"] / max(row["radius"], 1e-12),
                    lambda row, mine: mine["attacked"] / max(row["radius"], 1e-12),
                )
            )
            seconds, memory = _mean([row["seconds"] for row in rows]), max(row["megabytes"] for row in rows)
            measured = f"{radius:.4g} | {ratio:.2f} | {gap:.1f} | {seconds:.1f} | {memory:.0f}"
            lines.append(f"| {name} | {by} | {len(both)} | {measured} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    """Return the geometric mean of what is finite: attacks may find nothing."""
    finite = [max(value, 1e-12) for value in values if value < math.inf]
    return math.exp(sum(map(math.log, finite)) / max(1, len(finite)))


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _done(path: Path) -> set[tuple[int, int]]:
    return {(row["sentence"], row["word"]) for row in _rows(path)}


def _keep(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Train, certify, attack, let peers certify, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["3x64-gelu", "3x64-relu"], help="LAYERSxWIDTH-ACTIVATION")
    parser.add_argument("--positions", type=int, default=10, help="for every network")
    parser.add_argument("--peer-positions", type=int, default=None, help="for peers, if fewer")
    parser.add_argument("--tokens", type=int, default=8, help="the length of sentences, with both marks")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of peers")
    parser.add_argument("--seconds", type=float, default=900.0, help="the longest a peer may take for a position")
    for peer in ("crown", "baf", "deept"):
        parser.add_argument(f"--{peer}", type=Path, help="a checkout")
    asked = parser.parse_args()
    kept = train.CACHE / "comparison"
    kept.mkdir(parents=True, exist_ok=True)
    for name in asked.networks:
        layers, _x, rest = name.partition("x")
        width, _dash, activation = rest.partition("-")
        home = train.trained(int(layers), int(width), activation)
        module, chosen = sentences(home, asked.tokens, asked.positions)
        began = time.time()
        ours(module, chosen, kept / f"{name}-ours.jsonl")
        print(f"{name}: ours in {time.time() - began:.1f} s", file=sys.stderr, flush=True)
        few = chosen if asked.peer_positions is None else _some(chosen, asked.peer_positions)
        for peer in ("crown", "baf", "deept"):
            checkout = getattr(asked, peer)
            if checkout is not None and (activation == "relu" or peer not in RECTIFIED):
                theirs(peer, checkout, asked.python, home, few, kept / f"{name}-{peer}.jsonl", asked.seconds)
    print(table(asked.networks, kept))


def _some(chosen: list[Row], positions: int) -> list[Row]:
    """Keep the first positions of sentences."""
    found: list[Row] = []
    for row in chosen:
        words = row["words"][: positions - sum(len(other["words"]) for other in found)]
        if words:
            found.append({**row, "words": words})
    return found


if __name__ == "__main__":
    main()
