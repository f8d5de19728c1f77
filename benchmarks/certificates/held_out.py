"""Write sentences that the built-in classifier ``reviews`` was not trained on, with their labels, as a test set.

python benchmarks/certificates/held_out.py 200 > test.jsonl
howsmooth certify reviews --file test.jsonl

They are the shortest of the thousand held-out ones that have at least 6 tokens with both marks, most of them in the
vocabulary; of equally long ones those that the split has first. They stand in the order of the split.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

import howsmooth

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

from reviews import find_reviews, read_reviews, words

FEWEST_TOKENS = 6
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
    known_ones = [
        (text.strip(), label)
        for text, label in held_out
        if len(words(text)) + 2 >= FEWEST_TOKENS and sum(word in known for word in words(text)) > len(words(text)) / 2
    ]
    if len(known_ones) < given.count:
        print(f"only {len(known_ones)} of the held-out sentences are such", file=sys.stderr)
    lengths = torch.tensor([len(words(text)) for text, _label in known_ones])
    for i in sorted(lengths.argsort(stable=True)[: given.count].tolist()):
        text, label = known_ones[i]
        print(json.dumps({"text": text, "label": ("bad", "good")[label]}))


if __name__ == "__main__":
    main()
