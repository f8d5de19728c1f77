"""Attack certificates of random classifiers: every activation, norm, mask, place of the norms, depth and ball.

Points inside the ball, and far beyond it, are sampled and then moved down the gradient of the margin; none may have a
margin below what is proven at its radius. A share of seconds runs in the suite; by hand it takes as long as it is
given: ``PYTHONPATH=tests python tests/certificates/fuzz.py --minutes 3``, and ``--seed`` to begin elsewhere.
"""

import argparse
import dataclasses
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from networks import classifier

import howsmooth as hs
from howsmooth.certificates.flips import _descent, _unit
from howsmooth.certificates.radius import Proof, Rivals
from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.table import Table
from howsmooth.maps.activations import ACTIVATIONS

SAMPLES, ATTACKS, STEPS = 100, 16, 12
# Where points lie, in certified radii.
RADII = (0.3, 1.0, 2.0, 6.0)
# Two margins in floats are compared: both are sums of numbers of size one.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Found:
    """What one network gave.

    Attributes:
        points: How many points were looked at.
        certified: The radius.
        worst: The smallest distance of a margin from what is proven, as a share of the margin at the centre.
        what: The network.
    """

    points: int
    certified: float
    worst: float
    what: str


def draw(seed: int) -> tuple[hs.Chain, torch.Tensor, torch.Tensor, float, str]:
    """Draw a classifier, an input, tokens that move and a ball; the same for the same seed."""
    choose = np.random.default_rng(seed)
    options = {
        "layers": 1 + seed % 6,
        "activation": sorted(ACTIVATIONS)[seed % len(ACTIVATIONS)],
        "norm": ("layer", "rms")[int(choose.integers(2))],
        "before": bool(choose.integers(2)),
        "gated": bool(choose.random() < 0.25),
        "causal": bool(choose.integers(2)),
        "n": int(choose.integers(2, 6)),
    }
    if choose.random() < 0.2:
        options["rotary"] = hs.Rotary(base=100.0)
    rng = torch.Generator().manual_seed(seed)
    f = classifier(rng, **options)
    # trained networks attend more sharply than random ones, and their MLPs are steeper
    sharp = float(choose.choice([1.0, 1.0, 3.0]))
    f = hs.Chain(*(_sharper(part, sharp) for part in f.maps))
    n, p = options["n"], float(choose.choice([1.0, 2.0, 2.0, math.inf]))
    X = float(choose.choice([0.1, 1.0, 1.0, 5.0])) * torch.randn(n, 8, generator=rng, dtype=torch.float64)
    tokens = torch.tensor(sorted(choose.choice(n, size=1 if choose.random() < 0.8 else 2, replace=False).tolist()))
    return f, X, tokens, p, f"seed {seed}: {options}, times {sharp:g}, tokens {tokens.tolist()}, p = {p:g}"


def _sharper(part: object, times: float) -> object:
    if isinstance(part, hs.Residual):
        return hs.Residual(_sharper(part.map, times))
    if isinstance(part, hs.Chain):
        return hs.Chain(*(_sharper(inner, times) for inner in part.maps))
    if isinstance(part, hs.Attention):
        return dataclasses.replace(part, query=times * part.query, value=times * part.value)
    return dataclasses.replace(part, up=times * part.up) if isinstance(part, hs.MLP) else part


def attack(seed: int) -> Found:
    """Certify a network and look for margins below what is proven."""
    f, X, tokens, p, what = draw(seed)
    rivals = Rivals.of(f(X)[0])
    proof = Proof(Table(f, X), rivals, tokens, Ball(p))
    certified, rng = proof.radius(), torch.Generator().manual_seed(seed)
    points, worst = 0, math.inf
    for eps in [times * certified for times in RADII if certified > 0]:
        proven = proof.margins(eps)
        E = torch.randn(SAMPLES, len(tokens), X.shape[1], generator=rng, dtype=X.dtype)
        for step in range(STEPS + 1):
            E = eps * E / torch.linalg.vector_norm(E.flatten(1), p, dim=1)[:, None, None]
            Z = X.repeat(len(E), 1, 1)
            Z[:, tokens] += E
            margins = f(Z)[:, 0] @ rivals.functionals.mT
            points += len(E)
            worst = min(worst, float(((margins - proven + ROUNDING) / rivals.margins).min()))
            if step < STEPS:
                E = E[margins.amin(1).argsort()[:ATTACKS]] if step == 0 else E
                _margins, gradient = _descent(f, X, E, tokens, rivals.functionals)
                E = E - 0.5 * E.flatten(1).norm(dim=1)[:, None, None] * _unit(gradient)
    return Found(points, certified, worst, what)


def main() -> None:
    """Attack for as long as is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    end, seed, points, empty, closest = time.time() + 60 * asked.minutes, asked.seed, 0, 0, math.inf
    while time.time() < end:
        found = attack(seed)
        points, empty, closest = points + found.points, empty + (found.certified == 0), min(closest, found.worst)
        if found.worst < 0:
            print(f"VIOLATION by {-found.worst:.3g} of the margin: {found.what}", flush=True)
        seed += 1
    print(f"{seed - asked.seed} networks, {points} points, closest {closest:.3g} of the margin, {empty} radii of zero")


if __name__ == "__main__":
    main()
