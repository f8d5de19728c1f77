"""How long proof files of each kind take, how large they are, and whether every claim in them is checked.

``proof_files.py reviews --reviews FILE`` saves and checks the certificates of all words of short reviews;
``proof_files.py exam --folder FOLDER`` those of proven properties of vision transformers; ``proof_files.py bounds`` all
bounds of MiniLM's layers, and the brackets of random heads of it. One line of JSON each; what a log holds is not done
again.
"""

import argparse
import csv
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from reviews import find_reviews, read_reviews

import howsmooth as hs
from howsmooth.check import check_proof


def measured(result: Any, arguments: tuple[Any, ...], model: Any, **domain: Any) -> dict[str, Any]:
    """Save a result, check the file, and return processor times, its size and what came of every claim."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        begun = time.process_time()
        result.save(path, *arguments, **domain)
        saved = time.process_time()
        outcomes = check_proof(path, model)
        checked = time.process_time()
        claims = json.loads(path.read_text(encoding="utf-8"))["claims"]
        return {
            "save": round(saved - begun, 1),
            "check": round(checked - saved, 1),
            "bytes": path.stat().st_size,
            "radii": [claim.get("radius") for claim in claims],
            "outcomes": [str(outcome)[:200] for outcome in outcomes],
        }


def reviews(options: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """Certificates of the words of short sentences."""
    rows = [text for text, _label in read_reviews(find_reviews(options.reviews)).rows]
    short = [text for text in rows if options.least <= len(text.split()) <= options.most][: options.count]
    for sentence in (text for text in short if text not in done):
        certificate = hs.certify("reviews", sentence)
        radii = [radius.certified for radius in certificate.radii]
        yield {"name": sentence, "certified": radii} | measured(certificate, (), "reviews")


def exam(options: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """Verdicts of the competition's properties, those that are proven in the given time."""
    folder = Path(options.folder)
    with (folder / "instances.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if options.only in row[0]]
    for network, wanted, _seconds in rows[:: options.every]:
        if Path(wanted).stem in done:
            continue
        begun = time.process_time()
        found = hs.verify(folder / network, folder / wanted, timeout=options.timeout)
        line = {"name": Path(wanted).stem, "status": found.status, "verify": round(time.process_time() - begun, 1)}
        if found.status == "proven":
            line |= {"level": found.level, "nodes": found.nodes}
            line |= measured(found, (folder / network, folder / wanted), folder / network)
        yield line


def bounds(options: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """All bounds of every layer of MiniLM on a ball, and brackets of some of its heads."""
    model, n, radius = hs.load("minilm"), 64, 13.7
    layers: list[Any] = [layer.map("attention") for layer in model.layers]
    for i, f in enumerate(layers):
        if (name := f"table of layer {i}") not in done:
            found = hs.bounds.table(f, n=n, radius=radius)
            yield {"name": name, "bounds": len(found.bounds)} | measured(found, (f,), model, n=n, radius=radius)
    heads = [(i, h) for i, f in enumerate(layers) for h in range(f.layout.heads)]
    for i, h in random.Random(0).sample(heads, 20):
        if (name := f"bracket of layer {i}, head {h}") not in done:
            head = layers[i].head(h)
            bracket = hs.bracket(head, n=n, radius=radius)
            yield {"name": name, "ratio": bracket.ratio} | measured(bracket, (head,), model, n=n, radius=radius)


def main() -> None:
    """Do what is not in the log yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["reviews", "exam", "bounds"])
    parser.add_argument("--log", default="", help="a file of lines of JSON that grows")
    parser.add_argument("--reviews", default="")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--least", type=int, default=3, help="words of a sentence")
    parser.add_argument("--most", type=int, default=5)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--only", default="", help="a part of the network's name")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=100.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    log = Path(options.log or f"proof_files_{options.kind}.jsonl")
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    done = {json.loads(line)["name"] for line in lines}
    for line in {"reviews": reviews, "exam": exam, "bounds": bounds}[options.kind](options, done):
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main()
