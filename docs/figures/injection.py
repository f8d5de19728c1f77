"""Round the weights of one block after the other, and compare what happens at the output with what gains predict."""

import copy
import math
from pathlib import Path

import altair as alt
import torch

import howsmooth as hs
from howsmooth.models.inputs.text import read_text

HERE = Path(__file__).parent
BITS, LENGTH, WINDOWS, SAMPLES = (8, 4), 32, 8, 32


def rounded(module: torch.nn.Module, bits: int) -> torch.nn.Module:
    """Return a block with every matrix rounded, row by row, to as many levels as ``bits`` can tell apart."""
    found = copy.deepcopy(module)
    for parameter in found.parameters():
        if parameter.ndim == 2:
            step = parameter.detach().abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
            parameter.data = (parameter / step).round() * step
    return found


@torch.no_grad()
def states(transformer: hs.Transformer, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what enters each block, and the output."""
    return transformer.module(tokens, output_hidden_states=True).hidden_states


def rows(transformer: hs.Transformer) -> list[dict[str, float | str]]:
    """Return the change of the output for each layer and number of bits, and what is predicted."""
    tokens = transformer.windows(read_text(), length=LENGTH, count=WINDOWS)
    activations, clean = transformer.activations(tokens), states(transformer, tokens)
    layers, generator, found = len(transformer.layers), torch.Generator().manual_seed(0), []
    for layer in range(layers - 1):
        f, X = activations.at(layer + 1, f"from:{layer + 1}")
        typical = hs.typical_gain(f, X, samples=SAMPLES, seed=generator).value
        worst = hs.local_lipschitz(f, X, rtol=0.01, seed=generator).lower
        for bits in BITS:
            other = copy.deepcopy(transformer.module)
            other.encoder.layer[layer] = rounded(transformer.module.encoder.layer[layer], bits)
            with torch.no_grad():
                moved = other(tokens, output_hidden_states=True).hidden_states
            entered = (moved[layer + 1] - clean[layer + 1]).flatten(1).norm(dim=1)
            left = (moved[-1] - clean[-1]).flatten(1).norm(dim=1)
            found.append(
                {
                    "layer": layer,
                    "bits": f"{bits} bits",
                    "size": mean(entered / X.flatten(1).norm(dim=1)),
                    "true": mean(left / entered),
                    "typical": mean(typical),
                    "worst": mean(worst),
                }
            )
    return found


def mean(values: torch.Tensor) -> float:
    """Return the geometric mean over the windows."""
    return math.exp(float(values.double().log().mean()))


def chart(found: list[dict[str, float | str]]) -> alt.Chart:
    """Draw what an error is multiplied by against the layer that it comes from."""
    names = {"worst": "worst error", "true": "rounding, as it happens", "typical": "random noise"}
    values = [
        {"layer": row["layer"], "bits": row["bits"], "what": names[name], "gain": row[name]}
        for row in found
        for name in names
    ]
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("layer:O", title="rounded layer", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("gain:Q", title="multiplied on the way to the output", scale=alt.Scale(type="log")),
        color=alt.Color(
            "what:N",
            title=None,
            scale=alt.Scale(domain=list(names.values()), range=["#0072b2", "#d55e00", "#009e73"]),
            legend=alt.Legend(orient="top"),
        ),
    )
    layered = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=40))
    return layered.properties(width=240, height=200).facet(column=alt.Column("bits:N", title=None, sort="descending"))


def main() -> None:
    """Print the table and write the picture."""
    found = rows(hs.load("minilm"))
    head = ("layer", "bits", "relative size of the error", "true gain", "typical gain", "worst gain")
    print(f"| {' | '.join(head)} |")
    print("|---" * len(head) + "|")
    for row in found:
        numbers = (f"{row[name]:.3g}" for name in ("size", "true", "typical", "worst"))
        print(f"| {row['layer']} | {row['bits']} | {' | '.join(numbers)} |")
    chart(found).save(HERE / "injection.svg")


if __name__ == "__main__":
    main()
