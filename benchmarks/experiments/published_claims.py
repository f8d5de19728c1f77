r"""Published claims about transformers, tested on the models that are at hand: one table for each claim.

``python benchmarks/experiments/published_claims.py [softmax] [clusters] [exponents] [alignment] [MODEL …]``

Intervals are 95 %, of the mean over windows (or pairs of windows, or seeds), by Student's t.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from scipy import stats
from torch import Tensor

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.spectral.autograd import linearise

LENGTH, WINDOWS = 16, 10
MODELS = ("minilm", "smollm2", "random:bert", "random:gpt2")


def with_interval(values: Sequence[float]) -> str:
    """Write the mean with its interval."""
    x = torch.tensor(values, dtype=torch.float64)
    half = float(stats.t.ppf(0.975, len(x) - 1)) * float(x.std()) / len(x) ** 0.5
    return f"{float(x.mean()):.3g} [{float(x.mean()) - half:.3g}, {float(x.mean()) + half:.3g}]"


def softmax() -> None:
    r"""Search for scores at which a softmax moves by more than half of what they move by, in :math:`\ell_p`."""
    print("softmax: largest |J e|_p / |e|_p found, by p and the number of scores")
    generator = torch.Generator().manual_seed(0)
    for p in (1.0, 1.25, 2.0, 4.0, float("inf")):
        found = []
        for k in (2, 3, 8, 64):
            best = 0.0
            for _start in range(40):
                scores = (3 * torch.randn(k, generator=generator, dtype=torch.float64)).requires_grad_()
                E = torch.randn(k, generator=generator, dtype=torch.float64).requires_grad_()
                optimiser = torch.optim.Adam([scores, E], lr=0.1)
                for _step in range(150):
                    P = scores.softmax(0)
                    moved = P * (E - (P * E).sum())
                    ratio = torch.linalg.vector_norm(moved, p) / torch.linalg.vector_norm(E, p)
                    best = max(best, float(ratio.detach()))
                    optimiser.zero_grad()
                    (-ratio.log()).backward()
                    optimiser.step()
            found.append(best)
        print(f"p = {p:g}:", ", ".join(f"{value:.6f}" for value in found), flush=True)


def hidden_states(model: hs.Transformer, tokens: Tensor) -> list[Tensor]:
    """Return what enters each block, and what leaves the last one."""
    activations = model.activations(tokens[None])
    found = [activations.at(layer, "block")[1] for layer in range(len(model.layers))]
    f, X = activations.at(len(model.layers) - 1, "block")
    return [x.reshape(x.shape[-2:]).double() for x in (*found, f(X))]


def clusters(names: Sequence[str]) -> None:
    """Follow how alike tokens are, and how near the tokens of two windows are as measures, from layer to layer."""
    print(
        "model | mean cosine of two tokens of a window: first, middle, last | W2 between two windows over their radius"
    )
    for name in names:
        model = hs.load(name)
        windows = model.windows(read_text(), length=LENGTH, count=2 * WINDOWS)
        cosines: list[list[float]] = []
        apart: list[list[float]] = []
        for first, second in zip(windows[::2], windows[1::2], strict=True):
            with torch.no_grad():
                both = hidden_states(model, first), hidden_states(model, second)
            cosines.append([_cosine(x) for x in both[0]])
            apart.append(
                [
                    float(hs.transport.wasserstein(hs.transport.DiscreteMeasure(x), hs.transport.DiscreteMeasure(y)))
                    / float((x.square().sum(-1).mean() + y.square().sum(-1).mean()).div(2).sqrt())
                    for x, y in zip(*both, strict=True)
                ]
            )
        depth = len(cosines[0])
        at = (0, depth // 2, depth - 1)
        told = "; ".join(", ".join(with_interval([row[i] for row in table]) for i in at) for table in (cosines, apart))
        print(f"{name} | {told}", flush=True)


def _cosine(x: Tensor) -> float:
    unit = x / x.norm(dim=-1, keepdim=True)
    n = len(x)
    return float(((unit @ unit.mT).sum() - n) / (n * (n - 1)))


def exponents(names: Sequence[str]) -> None:
    r"""Fit the typical gain of all blocks to here to :math:`e^{\lambda\ell}`: is it a straight line in depth?"""
    print("model | log gain for each block | share of the variance that the line explains")
    for name in names:
        model = hs.load(name)
        windows = model.windows(read_text(), length=LENGTH, count=WINDOWS)
        slopes, explained = [], []
        for window in windows:
            activations = model.activations(window[None])
            # one random direction goes through all blocks: the logarithms of its sizes on the way
            E, logs = None, [0.0]
            generator = torch.Generator().manual_seed(0)
            for layer in range(len(model.layers)):
                f, X = activations.at(layer, "block")
                with torch.no_grad():
                    J = linearise(f, X)
                    if E is None:
                        E = torch.randn((*J.batch, *J.domain), generator=generator, dtype=J.dtype)
                        E = E / E.norm()
                    E = J.jvp(E)
                logs.append(float(E.norm().log()))
            y = torch.tensor(logs, dtype=torch.float64)
            line = stats.linregress(range(len(y)), y.numpy())
            slopes.append(float(line.slope))
            explained.append(float(line.rvalue) ** 2)
        print(f"{name} | {with_interval(slopes)} | {with_interval(explained)}", flush=True)


def alignment(names: Sequence[str], top: int = 10, tokens: int = 1) -> None:
    """Compare singular vectors of neighbouring blocks: of one token by itself, and of the whole sequence."""
    print(
        "model | one token, with the skip: alignment | one token, without it | "
        "one token: |<u, v of the next>|, without it | whole sequence: |<u, v of the next>|"
    )
    for name in names:
        model = hs.load(name)
        # thirty blocks of SmolLM2 take a minute of processor time for each window, and have pairs enough in one
        windows = model.windows(read_text(), length=LENGTH, count=3 if len(model.layers) <= 12 else 1)
        columns: list[list[float]] = [[], [], [], []]
        for window in windows:
            activations = model.activations(window[None])
            maps = [activations.at(layer, "block") for layer in range(len(model.layers))]
            with torch.no_grad():
                jacobians = [linearise(f, X) for f, X in maps]
            whole = [hs.spectral_norm(J, rtol=1e-2, seed=0) for J in jacobians]
            for worst, after in itertools.pairwise(whole):
                overlap = (worst.response.flatten() @ after.direction.flatten()).abs()
                columns[3].append(float(overlap))
            for token in torch.linspace(LENGTH // 2, LENGTH - 1, tokens).long().tolist():
                blocks = [_one_token(J, token) for J in jacobians]
                bare = [J - torch.eye(len(J), dtype=J.dtype) for J in blocks]
                for column, found in enumerate((blocks, bare)):
                    vectors = [torch.linalg.svd(J) for J in found]
                    for (this, after), following in zip(itertools.pairwise(vectors), found[1:], strict=True):
                        columns[column].append(_alignment(this, following, after[1], top))
                        if found is bare:
                            columns[2].append(float((this[0][:, 0] @ after[2][0]).abs()))
        print(f"{name} | " + " | ".join(map(with_interval, columns)), flush=True)


def _one_token(J: Any, token: int) -> Tensor:
    """Return the derivative of one token's output with respect to that token, as a matrix."""
    n, d = J.domain
    rows = []
    with torch.no_grad():
        for i in range(d):
            E = torch.zeros(*J.batch, n, d, dtype=J.dtype)
            E[..., token, i] = 1.0
            rows.append(J.jvp(E).reshape(n, -1)[token])
    return torch.stack(rows, dim=1).double()


def _alignment(this: Sequence[Tensor], following: Tensor, values: Tensor, top: int) -> float:
    r"""Return :math:`1 - \|U^\top J'V - S'\|_F/\|S'\|_F`, U, V the top singular vectors of J: one if J' shares them."""
    u, _s, v = this
    seen = u[:, :top].mT @ following @ v[:top].mT
    s = torch.diag(values[:top])
    return 1 - float((seen - s).norm() / s.norm())


def main() -> None:
    """Test the claims that are named, or all of them, on the models that are named, or all of them."""
    tests: dict[str, Callable[[Sequence[str]], None]] = {
        "softmax": lambda _names: softmax(),
        "clusters": clusters,
        "exponents": exponents,
        "alignment": alignment,
    }
    models = [name for name in sys.argv[1:] if name not in tests] or MODELS
    for name in [name for name in sys.argv[1:] if name in tests] or tests:
        tests[name](models)


if __name__ == "__main__":
    main()
