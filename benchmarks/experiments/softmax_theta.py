r"""How steep the softmax is at real attention weights: :math:`\theta(p) = 4\max_Sp(S)(1-p(S))`, claimed to be near one.

Ten windows of 64 tokens of Alice for each model, or as many as it has positions for; the interval is that of the mean
over windows.
"""

import sys

import torch
from scipy import stats

import howsmooth as hs
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.weighting import unstack
from howsmooth.models.inputs.text import read_text

WINDOWS, LENGTH = 10, 64


def softmax_theta(J: AttentionJacobian) -> torch.Tensor:
    r"""Return :math:`\theta(p) = \|\mathrm{diag}\,p - pp^\top\|_{\infty\to1}` of the weights of every head and row.

    It is :math:`4\max_Sp(S)(1-p(S)) = 1 - \min_S(p(S)-p(S^c))^2`: how far scores that move by at most one move the
    weights. Weights are put into the lighter of two halves, largest first, which attains it where one weight is at
    least one half; elsewhere it is a lower bound, and one an upper bound.
    """
    parts = []
    for tile, P, _slope in J.pattern.weights():
        difference = torch.zeros_like(P[..., :1])
        for weight in P.sort(-1, descending=True).values.split(1, dim=-1):
            difference = (difference - weight).abs()
        parts.append(unstack(1 - difference.square(), tile))
    return torch.cat(parts, dim=-2).reshape(*J.batch, -1, J.domain[0])


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
