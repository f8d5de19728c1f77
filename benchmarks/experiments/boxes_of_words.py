"""Radii of words in the maximum norm: Taylor models on boxes against the certificates of balls.

python benchmarks/experiments/boxes_of_words.py --sentence "a gripping film" [--model reviews]
"""

import argparse
import time

import torch

import howsmooth as hs
from howsmooth.certificates.sentences import classifier_at, ordinary_positions, read_sentence

# Radii by boxes are known up to this share.
SHARE = 1.1


def proven(network: hs.maps.Chain, X: torch.Tensor, word: int, eps: float) -> bool:
    """Whether no change of a word by ``eps`` in each coordinate changes the prediction, by Taylor models alone."""
    logits = network(X)[0]
    half = torch.zeros_like(X)
    half[word] = eps
    wanted = hs.verification.Property.robust(X, eps=half, label=int(logits.argmax()), classes=len(logits))
    return hs.verify(network, wanted, timeout=60).status == "proven"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="reviews")
    parser.add_argument("--sentence", default="a gripping film")
    given = parser.parse_args()
    model = hs.load(given.model)
    tokens = read_sentence(model, given.sentence)
    f, X = classifier_at(model, torch.tensor(tokens))
    network, X = f.to(torch.float64, "cpu"), X.double()
    words = model.tokenizer.pieces(tokens)
    for word in ordinary_positions(model, tokens):
        began = time.process_time()
        ball = hs.certify(network, X, word=word, metric="entries").radii[0].certified
        middle = time.process_time()
        low, high, box, tries = ball / 4, ball * 4, 0.0, 0
        while high > SHARE * low:
            eps, tries = (low * high) ** 0.5, tries + 1
            if proven(network, X, word, eps):
                low = box = eps
            else:
                high = eps
        seconds = (middle - began, (time.process_time() - middle) / tries)
        print(f"{words[word]}  ball {ball:.4f}  box {box:.4f}  ratio {box / ball:.2f}  seconds {seconds}", flush=True)


if __name__ == "__main__":
    main()
