"""Compare certified radii: ours, the best attack, and peers, on the same networks, sentences and positions.

    python benchmarks/certificates/compare.py --networks 3x64-gelu 3x64-relu --python PEERS/bin/python \
        --crown auto_LiRPA --baf Robustness-Verification-for-Transformers --deept DeepT

Networks are trained first (``train.py``) where they are not in the cache. Peers are read from checkouts of their
repositories and run by ``peers.py`` under ``--python``; what is not given is left out. Every radius is bisected to 1 %,
ours to 0.1 %. Rows are kept beside the networks, one file for each length of sentences, network and peer, and what is
there is not computed again, so that a long comparison can be stopped and continued. Seconds are processor time, ours
with their share of the table and of the attack.
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

from howsmooth.certificates.sentence_certifier import SentenceCertifier
from howsmooth.maps.composition import Chain
from howsmooth.models.load import load

Row = dict[str, Any]
PEERS = ("crown", "baf", "deept")
# BaF and DeepT hold rectified networks only.
RECTIFIED = ("baf", "deept")
# Peers begin the search for their first radius at this share of ours.
SHARE = 0.25
# Radii are called zero below, and count as this.
SMALLEST = 1e-7


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
    """Certify and attack every position, and tell sentences what peers need to know of them."""
    model = load(module)
    for sentence in chosen:
        f, X = model.activations(torch.tensor([sentence["ids"]])).at(0, "classes")
        assert isinstance(f, Chain)
        logits = f(X)[0, 0]
        sentence["embeddings"], sentence["margin"] = X[0].tolist(), float(logits.max() - logits.min())
        left = [word for word in sentence["words"] if (sentence["number"], word) not in _done(into)]
        if not left:
            continue
        began = time.process_time()
        certifier, generator = SentenceCertifier(f, X[0]), torch.Generator().manual_seed(0)
        radii = [certifier.radius((word,), p=2, seed=generator) for word in left]
        seconds, memory = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        for word, radius in zip(left, radii, strict=True):
            row = {"sentence": sentence["number"], "word": word, "radius": radius.certified}
            timing = {"seconds": seconds / len(left), "megabytes": memory}
            _keep(into, {**row, **timing, "attacked": radius.attacked, "linear": radius.linear})


def theirs(peer: str, checkout: Path, python: str, home: Path, chosen: list[Row], kept: Path) -> None:
    """Let a peer bisect every position that it has not bisected yet."""
    own, into = _done(kept / f"{home.name}-ours.jsonl"), kept / f"{home.name}-{peer}.jsonl"
    left = []
    for row in chosen:
        words = [word for word in row["words"] if (row["number"], word) not in _done(into)]
        if words:
            radii = [max(own[row["number"], word]["radius"], SMALLEST) for word in words]
            slope = row["margin"] / own[row["number"], words[0]]["linear"]
            left.append({**row, "words": words, "radii": radii, "slope": slope})
    if not left:
        return
    task = into.with_suffix(".task")
    task.write_text(json.dumps({"home": str(home), "share": SHARE, "sentences": left}))
    command = [python, str(Path(__file__).with_name("peers.py")), peer, str(task), "--checkout", str(checkout)]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                _keep(into, json.loads(line))
    if process.returncode:
        raise SystemExit(f"{peer} failed on {home.name}.")


def table(homes: list[Path], kept: Path) -> str:
    """Return what is kept as a table: geometric means over positions, and the least ratio."""
    heads = ("network", "by", "positions", "radius", "ours / it", "least", "attack / it", "CPU s a position", "MB")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for home in homes:
        own = _done(kept / f"{home.name}-ours.jsonl")
        for by in ("ours", *PEERS):
            # a peer may have been asked for more positions than we were this time
            rows = {at: row for at, row in _done(kept / f"{home.name}-{by}.jsonl").items() if at in own}
            if not rows:
                continue
            radii = [max(row["radius"], SMALLEST) for row in rows.values()]
            ratios = [max(own[at]["radius"], SMALLEST) / radius for at, radius in zip(rows, radii, strict=True)]
            gaps = [own[at]["attacked"] / radius for at, radius in zip(rows, radii, strict=True)]
            seconds, memory = ([row[of] for row in rows.values()] for of in ("seconds", "megabytes"))
            measured = f"{_mean(radii):.3g} | {_mean(ratios):.2f} | {min(ratios):.2f} | {_mean(gaps):.1f}"
            cost = f"{_mean(seconds):.1f} | {max(memory):.0f}"
            lines.append(f"| {home.name.rpartition('-')[0]} | {by} | {len(rows)} | {measured} | {cost} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    """Return the geometric mean of what is finite: attacks may find nothing."""
    finite = [math.log(value) for value in values if value < math.inf]
    return math.exp(sum(finite) / max(1, len(finite)))


def _done(path: Path) -> dict[tuple[int, int], Row]:
    """Return the rows that are kept, by sentence and word."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["sentence"], row["word"]): row for row in rows}


def _keep(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Train, certify, attack, let peers certify, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["3x64-gelu", "3x64-relu"], help="LAYERSxWIDTH-ACTIVATION")
    parser.add_argument("--positions", type=int, default=12, help="for every network")
    parser.add_argument("--tokens", type=int, default=6, help="the length of sentences, with both marks")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of peers")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, help="a checkout")
    asked = parser.parse_args()
    kept = train.CACHE / f"comparison-{asked.tokens}"
    kept.mkdir(parents=True, exist_ok=True)
    homes = []
    for name in asked.networks:
        layers, _x, rest = name.partition("x")
        width, _dash, activation = rest.partition("-")
        home = train.trained(int(layers), int(width), activation)
        homes.append(home)
        module, chosen = sentences(home, asked.tokens, asked.positions)
        ours(module, chosen, kept / f"{home.name}-ours.jsonl")
        for peer in PEERS:
            checkout = getattr(asked, peer)
            if checkout is not None and (activation == "relu" or peer not in RECTIFIED):
                theirs(peer, checkout, asked.python, home, chosen, kept)
    print(table(homes, kept))


if __name__ == "__main__":
    main()
