"""A probe of every head costs at most a quarter of a forward pass; every 50 steps at most 2 % of training.

A model of BERT-base width (d = 768, 12 heads) with two layers, 1,024 tokens, torch's fused attention: the time of a
forward pass that is probed against that of a plain one, and of a training step whose every 50th pass is probed. Minima
of process time on one thread, in turn.
"""

import time

import torch
import transformers
from claims import quick, verdict
from timing import best_times

import howsmooth as hs

EVERY = 50


def main() -> None:
    small = quick(__doc__)
    d, n = (48, 16) if small else (768, 1024)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=d, intermediate_size=4 * d, num_hidden_layers=2, max_position_embeddings=n, vocab_size=1000,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False)
    tokens = torch.randint(5, 1000, (1, n))

    @torch.no_grad()
    def forward() -> None:
        model(tokens)

    def probed() -> None:
        with hs.probe(model, every=1, limit=1e9):
            forward()

    def train() -> None:
        model(tokens)[0].square().mean().backward()

    torch.set_num_threads(1)
    t = best_times(
        {"forward": forward, "probed forward": probed, "training": train},
        seconds=0.0 if small else 20.0,
        clock=time.process_time,
    )
    for name, seconds in t.items():
        print(f"{name:15s} {1e3 * seconds:8.1f} ms")
    ratio = t["probed forward"] / t["forward"]
    share = 1 + (t["probed forward"] - t["forward"]) / (EVERY * t["training"])
    verdict(
        {
            f"probing every pass takes at most 1.25 forward passes ({ratio:.2f})": ratio <= 1.25,
            f"probing every {EVERY} steps takes at most 1.02 of training ({share:.4f})": share <= 1.02,
        },
        quick=small,
    )


if __name__ == "__main__":
    main()
