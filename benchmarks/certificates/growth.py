"""How the cost of a certificate grows with the number of tokens, the width and the depth.

    python benchmarks/certificates/growth.py
    python benchmarks/certificates/growth.py --sizes 12x128x20 6x384x10

A size is LAYERSxWIDTHxTOKENS. Random networks as in BERT: the cost does not depend on the weights. The table is paid
for once in a sentence, a word on top of it.
"""

import argparse
import resource
import time

import torch

from howsmooth.certificates.radius import Proof, Rivals
from howsmooth.certificates.sizes import ROUND
from howsmooth.certificates.table import Table
from howsmooth.maps.composition import Chain
from howsmooth.models.base import load

SIZES = ["1x64x10", "2x64x10", "4x64x10", "2x32x10", "2x128x10", "2x64x5", "2x64x20"]


def network(layers: int, width: int, tokens: int) -> tuple[Chain, torch.Tensor]:
    """Return a random classifier and the embeddings of a random sentence."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 32),
        intermediate_size=2 * width if width < 256 else 4 * width,
        initializer_range=0.05,
    )
    model = load(BertForSequenceClassification(config).eval())
    f, X = model.activations(torch.randint(0, 100, (1, tokens))).at(0, "classes")
    assert isinstance(f, Chain)
    return f.to(torch.float64, "cpu"), X[0].detach().double()


def main() -> None:
    """Print one row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    print("| layers | width | tokens | table, s | table, CPU s | a word, s | radius | MB so far |")
    print("|---" * 8 + "|")
    for size in parser.parse_args().sizes:
        layers, width, tokens = (int(part) for part in size.split("x"))
        f, X = network(layers, width, tokens)
        began, busy = time.perf_counter(), time.process_time()
        table = Table(f, X)
        middle, work = time.perf_counter(), time.process_time() - busy
        radius = Proof(table, Rivals.of(f(X)[0]), torch.tensor([tokens // 2]), ROUND).radius()
        end, memory = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        row = f"{layers} | {width} | {tokens} | {middle - began:.1f} | {work:.1f} | {end - middle:.1f}"
        print(f"| {row} | {radius:.3g} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
