"""Write sentences that the built-in classifier ``reviews`` was not trained on, with their labels, as a test set.

python benchmarks/certificates/held_out.py 50 > test.jsonl
howsmooth certify reviews --file test.jsonl

They are the first of the thousand held-out ones that have 6 to 10 tokens with both marks, most of them in the
vocabulary, in the order of the split.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

import howsmooth

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

from reviews import find_reviews, read_reviews, words

TOKENS = range(6, 11)
VOCABULARY = "models/data/reviews/tokenizer.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=50)
    parser.add_argument("--reviews", default="", help="the file of reviews")
    given = parser.parse_args()
    rows = read_reviews(find_reviews(given.reviews)).rows
    torch.manual_seed(0)  # as in training
    held_out = [rows[i] for i in torch.randperm(len(rows)).tolist()[:1000]]
    known = json.loads((Path(howsmooth.__file__).parent / VOCABULARY).read_text(encoding="utf-8"))["model"]["vocab"]
    short = [
        (text.strip(), label)
        for text, label in held_out
        if len(words(text)) + 2 in TOKENS and sum(word in known for word in words(text)) > len(words(text)) / 2
    ]
    if len(short) < given.count:
        print(f"only {len(short)} of the held-out sentences are that short", file=sys.stderr)
    for text, label in short[: given.count]:
        print(json.dumps({"text": text, "label": ("bad", "good")[label]}))


if __name__ == "__main__":
    main()
