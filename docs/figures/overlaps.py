"""Print how far the worst output of a block is from the worst input of the next one."""

import sys

import torch

import howsmooth as hs
from howsmooth.models.inputs.text import read_text


def main(model: str = "minilm", length: int = 16) -> None:
    """Compare the top directions of consecutive blocks, at the first window of Alice."""
    transformer = hs.load(model)
    activations = transformer.activations(transformer.windows(read_text(), length=length, count=1))
    generator = torch.Generator().manual_seed(0)
    before = None
    for layer in range(len(transformer.layers)):
        f, X = activations.at(layer, "block")
        found = hs.local_lipschitz(f, X, rtol=1e-4, seed=generator)
        if before is not None:
            overlap = float((before * found.direction).sum().abs())
            print(f"blocks {layer - 1} and {layer}: overlap {overlap:.3f}, by chance {X[0].numel() ** -0.5:.3f}")
        before = found.response


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((str, int), sys.argv[1:], strict=False)))
