r"""How steep the softmax is at real attention weights: :math:`\theta(p) = 4\max_Sp(S)(1-p(S))`, claimed to be near one.

Ten windows of 64 tokens of Alice for each model, or as many as it has positions for; the interval is that of the mean
over windows.
"""

import sys

import torch
from scipy import stats

import howsmooth as hs
from howsmooth.maps.derivative import softmax_theta
from howsmooth.models.inputs.text import read_text

WINDOWS, LENGTH = 10, 64


def main() -> None:
    """Print one line for each model."""
    print("model | n | mean θ | 95 % | least layer | rows below ½ | rows below 0.9")
    for name in sys.argv[1:] or ("minilm", "reviews", "smollm2"):
        model = hs.load(name)
        length = min(LENGTH, model.max_length or LENGTH)
        tokens = model.windows(read_text(), length=length, count=WINDOWS)
        found = []
        for window in tokens:
            activations = model.activations(window[None])
            thetas = []
            for layer in range(len(model.layers)):
                f, X = activations.at(layer, "attention")
                assert isinstance(f, hs.Attention)
                with torch.no_grad():
                    thetas.append(softmax_theta(f.jacobian(X)).double().flatten())
            found.append(torch.stack(thetas))
        theta = torch.stack(found)  # window, layer, head and row
        means = theta.mean((1, 2))
        half = stats.t.ppf(0.975, WINDOWS - 1) * float(means.std()) / WINDOWS**0.5
        low, high = float(means.mean()) - half, float(means.mean()) + half
        least = float(theta.mean((0, 2)).min())
        print(
            f"{name} | {length} | {float(means.mean()):.3f} | {low:.3f}–{high:.3f} | {least:.2f} | "
            f"{float((theta < 0.5).double().mean()):.1%} | {float((theta < 0.9).double().mean()):.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
