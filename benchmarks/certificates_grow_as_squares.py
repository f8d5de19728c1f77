"""A certificate costs the square of the layers and of the tokens, and the cube of the width, to the nearest power.

A size is LAYERSxWIDTHxTOKENS. Random networks as in BERT: the cost does not depend on the weights. The table is paid
for once in a sentence, a word on top of it. With ``--sizes 12x128x20 6x384x10`` any sizes, and no claim.
"""

import math
import resource
import time

import torch
from claims import options, verdict

from howsmooth.certificates.image_norms import EUCLIDEAN
from howsmooth.certificates.radius_search import Proof, Rivals
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.maps.composition import Chain
from howsmooth.models.load import load

# The power of each number; a cost that is nearer to the next one refutes it.
POWERS = {"layers": 2, "width": 3, "tokens": 2}
# The size that is doubled, and how often a table is made: the fastest counts.
FULL, QUICK, TURNS = (2, 64, 10), (1, 8, 3), 3


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


def row(size: tuple[int, int, int], turns: int) -> float:
    """Print what one size costs; return the processor time of its table, in seconds."""
    layers, width, tokens = size
    f, X = network(layers, width, tokens)
    began, best = time.perf_counter(), float("inf")
    for _turn in range(turns):
        busy = time.process_time()
        table = RemainderTable(f, X)
        best = min(best, time.process_time() - busy)
    middle = time.perf_counter()
    radius = Proof(table, Rivals.of(f(X)[0]), torch.tensor([tokens // 2]), EUCLIDEAN).radius()
    word, memory = time.perf_counter() - middle, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    cost = f"{(middle - began) / turns:.1f} | {best:.2f} | {word:.1f}"
    print(f"| {layers} | {width} | {tokens} | {cost} | {radius:.3g} | {memory:.0f} |", flush=True)
    return best


def main() -> None:
    """Print one row for each size, and whether doubling costs no more than it should."""
    parser = options(__doc__)
    parser.add_argument("--sizes", nargs="+", metavar="LAYERSxWIDTHxTOKENS")
    asked = parser.parse_args()
    print("| layers | width | tokens | table, s | table, CPU s | a word, s | radius | MB so far |")
    print("|---" * 8 + "|")
    if asked.sizes:
        for layers, width, tokens in (map(int, size.split("x")) for size in asked.sizes):
            row((layers, width, tokens), 1)
        return
    torch.set_num_threads(1)
    base = layers, width, tokens = QUICK if asked.quick else FULL
    doubled = {
        "layers": (2 * layers, width, tokens),
        "width": (layers, 2 * width, tokens),
        "tokens": (layers, width, 2 * tokens),
    }
    once = row(base, TURNS)
    powers = {what: math.log2(row(size, TURNS) / once) for what, size in doubled.items()}
    claims = {
        f"a table grows as the power {POWERS[what]} of the {what}, to the nearest: {power:.1f}": power
        < POWERS[what] + 0.5
        for what, power in powers.items()
    }
    verdict(claims, quick=asked.quick)


if __name__ == "__main__":
    main()
