"""Attack boxes: of random networks with every activation and norm, masked or not, of one to three layers.

Corners of a box and points inside it are moved against the margins; none may have a margin below what is proven, at any
level of the proof. All inputs move, or all but a third, or two or one of them: where few move, hardly anything is lost
to first and second order, and a remainder that is left out shows. The point that comes furthest is then planted as a
counterexample just inside of an unsafe set, and ``hs.verify`` may find it but not exclude it. A few networks run in the
suite; by hand as many as are asked for:
``PYTHONPATH=tests python tests/verification/fuzz.py --networks 200 --points 500``.
"""

import argparse
import time
from collections import Counter
from dataclasses import dataclass

import torch
from verification.small_networks import gaussian, network, smooth_network

import howsmooth as hs
from howsmooth.verification.properties import Property
from howsmooth.verification.verdicts import _expanded, _Margins, _Network, verify

SIZES = (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
SMOOTH = ("gelu", "gelu_tanh", "silu", "tanh", "relu")
STEPS = 8
# How far inside of the unsafe set a planted counterexample is, as a share of the largest logit.
PLANTED = 1e-7
# Two margins in floats are compared.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Found:
    """What one network gave.

    Attributes:
        points: How many points were attacked.
        bounded: How many margins have a finite bound, at the highest level.
        proven: How many margins are proven to be positive, at the highest level.
        worst: The smallest distance of a margin from what is proven, as a share of the largest logit.
        used: The largest share of a proven range of a margin that an attack attains.
        planted: The verdict on a property that the attacked point violates.
        what: The network and the box.
    """

    points: int
    bounded: int
    proven: int
    worst: float
    used: float
    planted: str
    what: str


def attack(seed: int, *, points: int, levels: tuple[int, ...] = (0, 1, 2)) -> Found:
    """Prove margins on the box of a random network, and look for a point that contradicts them."""
    rng = torch.Generator().manual_seed(seed)
    eps = SIZES[seed % len(SIZES)]
    if seed % 2:
        layers, shared = 1 + seed // 2 % 3, bool(seed // 6 % 2)
        f, x = network(rng, layers=layers, shared_inputs=shared), gaussian(rng, 6)
        what = f"relu, {layers} layers, shared inputs {shared}"
    else:
        activation, norm = SMOOTH[seed // 2 % len(SMOOTH)], (hs.maps.LayerNorm, hs.maps.RMSNorm)[seed // 4 % 2]
        before, causal = bool(seed // 8 % 2), bool(seed // 16 % 2)
        f = smooth_network(rng, activation=activation, norm=norm, before=before, causal=causal)
        x, what = gaussian(rng, 3, 4), f"{activation}, {norm.__name__}, before {before}, causal {causal}"

    def logits(Z: torch.Tensor) -> torch.Tensor:
        return f(Z.unsqueeze(-2) if x.ndim == 1 else Z).flatten(1)

    label = int(logits(x[None]).argmax())
    moving = (x.numel(), 2 * x.numel() // 3, 2, 1, 1)[seed % 5]
    moves = torch.zeros(x.numel(), dtype=torch.float64)
    moves[torch.randperm(x.numel(), generator=rng)[:moving]] = 1.0
    moves, what = moves.view_as(x), f"{what}, {moving} of {x.numel()} inputs move"
    wanted = Property.robust(x, eps=eps * moves, label=label, classes=3)
    rows = torch.cat([A for A, _b in wanted.unsafe])
    found = _attacked(logits, x, eps * moves, rows, points, rng)
    middle, worst, used = -(logits(x[None])[0] @ rows.mT), torch.inf, 0.0
    size = float(logits(x[None]).abs().max())
    for level in levels:
        model = _expanded(_Network.of(f, wanted), wanted, level)
        lower = _Margins.of(model, rows, torch.zeros(len(rows), dtype=torch.float64)).lower
        worst = min(worst, float((found - lower).min()) / size)
        used = max(used, float(((middle - found) / (middle - lower)).max()))
    bounded, proven = int(lower.isfinite().sum()), int((lower > 0).sum())
    k = int(found.argmin())
    violated = Property(wanted.lower, wanted.upper, ((rows[k : k + 1], -found[k : k + 1] - PLANTED * size),))
    planted = verify(f, violated, timeout=10, clock=time.process_time).status
    return Found(points, bounded, proven, worst, used, planted, f"{what}, ε = {eps:g}, seed {seed}")


def _attacked(logits, x: torch.Tensor, eps: torch.Tensor, rows: torch.Tensor, points: int, rng: torch.Generator):
    """Return the smallest margin over every class that points of a box attain, moved by signs of gradients."""
    corner = torch.randint(0, 2, (points, *x.shape), generator=rng).double() * 2 - 1
    E = eps * corner * torch.rand(points, *[1] * x.ndim, generator=rng).double() ** 0.5
    target, best = torch.arange(points) % len(rows), torch.full((len(rows),), torch.inf, dtype=torch.float64)
    for step in range(STEPS):
        E = E.detach().requires_grad_()
        margins = -(logits(x + E) @ rows.mT)
        best = torch.minimum(best, margins.detach().amin(0))
        (gradient,) = torch.autograd.grad(margins[torch.arange(points), target].sum(), E)
        E = (E - 2 * eps / (step + 1) * gradient.sign()).clamp(-eps, eps)
    with torch.no_grad():
        return torch.minimum(best, -(logits(x + E) @ rows.mT).amin(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given, began = parser.parse_args(), time.process_time()
    found = [attack(given.seed + i, points=given.points) for i in range(given.networks)]
    broken = [each for each in found if each.worst < -ROUNDING or each.planted == "proven"]
    points, bounded, proven = (sum(getattr(each, name) for each in found) for name in ("points", "bounded", "proven"))
    print(f"{len(found)} networks, {points:,} attacked points, {2 * len(found)} margins at every level")
    print(f"at the highest level {bounded} have a finite bound, {proven} are proven positive")
    print(f"violations: {len(broken)}; closest {min(each.worst for each in found):.2g} of the largest logit")
    print(f"largest share of a proven range attained: {max(each.used for each in found):.4f}")
    planted = Counter(each.planted for each in found)
    print(
        f"planted counterexamples: {planted['falsified']} found, {planted['unknown']} not, {planted['proven']} excluded"
    )
    print(f"{time.process_time() - began:.0f} s of one core")
    for each in broken:
        print(f"below what is proven by {-each.worst:.2g}, planted and {each.planted}: {each.what}")
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
