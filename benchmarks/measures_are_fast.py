"""W_2 of two clouds takes at most 1.2 times POT called directly; splitting at most 3 times one local constant."""

import numpy as np
import ot
import torch
from claims import quick, verdict
from timing import best_times

import howsmooth as hs


def distances(count: int, d: int, seconds: float) -> float:
    """Compare two clouds of points in high dimension, cost matrix included on both sides."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(count, d, dtype=torch.float64, generator=generator) for _ in range(2))
    mu, nu = hs.transport.DiscreteMeasure(x), hs.transport.DiscreteMeasure(y)
    a = np.full(count, 1 / count)

    def ours() -> float:
        return float(hs.transport.wasserstein(mu, nu))

    def direct() -> float:
        return float(np.sqrt(ot.emd2(a, a, ot.dist(x.numpy(), y.numpy()))))

    t = best_times({"ours": ours, "POT": direct}, seconds=seconds)
    print(f"W_2, {count} points in d = {d}: ours {1e3 * t['ours']:.0f} ms, POT {1e3 * t['POT']:.0f} ms")
    print(f"relative difference of the values {abs(ours() / direct() - 1):.1e}; ratio {t['ours'] / t['POT']:.2f}")
    return t["ours"] / t["POT"]


def splitting(n: int, d: int, heads: int, seconds: float) -> float:
    """Compare the whole question of splitting with one measurement of the same layer."""
    generator = torch.Generator().manual_seed(0)
    f = hs.Attention.random(heads=heads, d=d, seed=generator)
    X = torch.randn(n, d, generator=generator)
    mu = hs.transport.DiscreteMeasure(X)

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    def constant() -> hs.NormEstimate:
        return hs.local_lipschitz(f, X, rtol=1e-3, seed=seeded())

    def question() -> object:
        return hs.splitting(f, mu, rtol=1e-3, seed=seeded())

    t = best_times({"splitting": question, "constant": constant}, seconds=seconds)
    ratio = t["splitting"] / t["constant"]
    print(f"splitting, n = {n}, d = {d}, {heads} heads: {t['splitting']:.2f} s; one constant {t['constant']:.2f} s")
    print(f"{question()!r}; {constant().products} products for the constant; ratio {ratio:.2f}")
    return ratio


def main() -> None:
    small = quick(__doc__)
    transport = distances(16 if small else 1024, 16 if small else 768, 0.0 if small else 20.0)
    question = splitting(8 if small else 256, 32 if small else 768, 4 if small else 12, 0.0 if small else 30.0)
    verdict(
        {"W_2 within 1.2 of POT": transport <= 1.2, "splitting within 3 constants": question <= 3},
        quick=small,
    )


if __name__ == "__main__":
    main()
