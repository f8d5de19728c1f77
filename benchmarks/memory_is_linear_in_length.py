"""Long sequences need memory that grows linearly, at the speed of their matrix products.

One head of dimension 64. Keeping the attention weights would need 4 GB at n = 32k; beyond the memory budget none are
kept, and each tile is rebuilt: one more matrix product, which the bare products include.
Every length runs in a process of its own, whose peak memory is read at the end.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from claims import verdict
from timing import best_times

import howsmooth as hs

K = 64


def bare_products(n: int, rows: int, tiles: int) -> dict[str, Callable[[], object]]:
    q, k, wide_q, wide_k = (
        torch.randn(1, rows, K),
        torch.randn(1, n, K),
        torch.randn(1, rows, 2 * K),
        torch.randn(1, n, 2 * K),
    )
    S, T, total = torch.empty(1, rows, n), torch.rand(1, rows, n), torch.zeros(1, n, K)

    def jvp() -> None:
        for _tile in range(tiles):
            torch.bmm(q, k.mT, out=S)
            torch.bmm(wide_q, wide_k.mT, out=T)
            torch.bmm(T, k).baddbmm_(S, k)

    def vjp() -> None:
        for _tile in range(tiles):
            torch.bmm(q, k.mT, out=S)
            torch.bmm(q, k.mT, out=T)
            torch.bmm(T, k)
            total.baddbmm_(T.mT, q, beta=0.5)
            total.baddbmm_(S.mT, q, beta=0.5)

    return {"bare jvp": jvp, "bare vjp": vjp}


@torch.no_grad()
def measure(n: int, seconds: float) -> dict[str, float]:
    """Return the peak memory and the times for one length."""
    generator = torch.Generator().manual_seed(0)
    f = hs.Attention.random(heads=1, d=K, seed=generator)
    X, E = torch.randn(2, n, K, generator=generator).unbind()
    J = f.jacobian(X, memory=2**30 if n > 16384 else 0)
    products: dict[str, Callable[[], object]] = {"jvp": lambda: J.jvp(E), "vjp": lambda: J.vjp(E)}
    for run in products.values():
        run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tiles = J.pattern.tiles
    bare = bare_products(n, tiles[0].height, len(tiles))
    times = best_times(products | bare, seconds=seconds, least=3)
    return {"peak": peak, "rebuilt": J.pattern.kept is None} | times


def measured_alone(n: int) -> dict[str, float]:
    """Measure one length in a process of its own: memory that was used once stays in the peak."""
    command = [sys.executable, __file__, "--length", str(n)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest size, to see that the script runs")
    parser.add_argument("--length", type=int, help="measure this length only, in this process")
    arguments = parser.parse_args()
    if arguments.length:
        print(json.dumps(measure(arguments.length, arguments.length / 1000)))
        return
    lengths = (64, 128) if arguments.quick else (4096, 8192, 16384, 32768)
    rows = {}
    print("    n   peak MB   weights would need MB   jvp s  / bare   vjp s  / bare")
    for n in lengths:
        # at the smallest size nothing is claimed about memory, and most of the time would go into imports
        row = measure(n, 0.0) if arguments.quick else measured_alone(n)
        row["jvp ratio"], row["vjp ratio"] = row["jvp"] / row["bare jvp"], row["vjp"] / row["bare vjp"]
        rows[n] = row
        print(
            f"{n:6d} {row['peak'] / 2**20:8.0f} {4 * n * n / 2**20:15.0f} "
            f"{row['jvp']:14.3f} {row['jvp ratio']:6.2f} {row['vjp']:9.3f} {row['vjp ratio']:6.2f}"
        )
    first, middle, last = (rows[n]["peak"] for n in (lengths[0], lengths[len(lengths) // 2 - 1], lengths[-1]))
    per_token = (last - first) / (lengths[-1] - lengths[0])
    print(f"{per_token / 1024:.1f} KB for each further token; one row of weights has {4 * lengths[-1] / 1024:.0f} KB")
    verdict(
        {
            "every length rebuilds its weights": all(row["rebuilt"] for row in rows.values()),
            "peak memory is at most 1.5 GB": last <= 1.5 * 2**30,
            "memory grows linearly: doubling the length never more than doubles it": last - middle
            <= 4 * (middle - first) + 2**28,
            "products within 1.5 of their bare matrix products": all(
                max(row["jvp ratio"], row["vjp ratio"]) <= 1.5 for row in rows.values()
            ),
        },
        quick=arguments.quick,
    )


if __name__ == "__main__":
    main()
