"""One sequence over two processes: the same constant as one process, at half the memory each.

One causal head of width 64, float32, processes of gloo on this machine. For each length every process's peak memory is
read, less what it had before the tokens came, and the time of a product stands beside that of its bare matrix products.
From these the script calculates what 128k tokens take; ``--full`` runs them. How many scores each of several processes
computes is counted for consecutive pieces and for two pieces each, as far from either end.
"""

import datetime
import json
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from claims import options, verdict

import howsmooth as hs
from howsmooth.ring_attention import RingAttention
from howsmooth.token_ring import TokenRing, even_pieces

K, RTOL, LONG = 64, 0.01, 131_072
ONE_HOUR = datetime.timedelta(hours=1)


def attention() -> hs.Attention:
    return hs.Attention.random(heads=1, d=K, causal=True, seed=0)


def part(n: int, rank: int, size: int) -> torch.Tensor:
    """Return the tokens of one process."""
    X = torch.randn(n, K, generator=torch.Generator().manual_seed(1))
    return X[rank * n // size : (rank + 1) * n // size].clone()


def share(rank: int, size: int, lengths: list[int], place: str) -> None:
    """Measure together with other processes, and write what came of it for each length."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.FileStore(  # type: ignore[attr-defined]
        f"{place}/store-{size}-{lengths[0]}", size
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=ONE_HOUR)
    f = attention()
    # what is loaded once does not count
    hs.local_lipschitz(f, part(8, rank, size), rtol=RTOL, seed=0, group=dist.group.WORLD)
    for n in lengths:
        X = part(n, rank, size)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, used = time.perf_counter(), time.process_time()
        found = hs.local_lipschitz(f, X, rtol=RTOL, seed=0, group=dist.group.WORLD)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told = {
            "lower": float(found.lower),
            "products": found.products,
            "seconds": time.perf_counter() - started,
            "cpu": time.process_time() - used,
            "peak": 1024 * peak,
            "own": 1024 * (peak - before),
        }
        Path(f"{place}/{size}-{n}-{rank}.json").write_text(json.dumps(told))
    dist.barrier()


def shared(lengths: list[int], size: int, place: str) -> dict[tuple[int, int], list[dict[str, float]]]:
    """Measure with some processes, which are started once; return what each found by length and number of processes."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=share, args=(rank, size, lengths, place)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return {
        (n, size): [json.loads(Path(f"{place}/{size}-{n}-{rank}.json").read_text()) for rank in range(size)]
        for n in lengths
    }


def bare(n: int) -> float:
    """Return the CPU seconds of the matrix products in one product with the causal derivative of n tokens."""
    side, q = 724, torch.randn(724, K)
    S, best = torch.randn(side, side), float("inf")
    for _repeat in range(20):
        started = time.process_time()
        for _product in range(3):
            q @ q.mT
        for _product in range(2):
            S @ q
        best = min(best, time.process_time() - started)
    return best * (n / side) ** 2 / 2


def imbalance(n: int, size: int, *, even: bool) -> float:
    """Return how many times the mean the busiest process computes of the scores of a causal mask."""
    pieces = even_pieces(n, size, causal=even)
    counts = []
    for rank in range(size):
        ring = TokenRing(group=None, rank=rank, pieces=pieces)
        own = torch.zeros(1, ring.lengths[rank], 1)
        parts: dict[str, Any] = {"q": own[None], "k": own, "v": own, "o": own[None], "log_sum_exp": own[None]}
        counts.append(RingAttention(ring=ring, causal=True, **parts).scores)
    return max(counts) * size / sum(counts)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--full", action="store_true", help=f"run {LONG:,} tokens too: hours on two cores")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lengths = [512, 1024] if arguments.quick else [4096, 8192]
    # memory that was used once stays in the peak; at the smallest size nothing is claimed about it
    starts = [lengths] if arguments.quick else [[n] for n in lengths]
    found: dict[tuple[int, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for size in (1, 2):
            for together in starts:
                found |= shared(together, size, place)
        if arguments.full:
            found |= shared([LONG], 2, place)
    for (n, size), told in sorted(found.items()):
        cpu, products = sum(each["cpu"] for each in told), told[0]["products"]
        own = ", ".join(f"{each['own'] / 1e6:.0f} MB" for each in told)
        print(
            f"n = {n:,}, {size} processes: {told[0]['lower']:.6g} in {products} products, {told[0]['seconds']:.0f} s, "
            f"{cpu / products:.2f} CPU s each (bare {bare(n):.2f}); memory {own}, with torch "
            f"{sum(each['peak'] for each in told) / 1e9:.2f} GB"
        )
    (first, last), two = lengths, {n: found[n, 2] for n in lengths}
    cpu = sum(each["cpu"] for each in two[last])
    most = [max(each["own"] for each in two[n]) for n in lengths]
    slope = max(most[1] - most[0], 0) / (last - first)
    print(
        f"calculated for {LONG:,}: {cpu * (LONG / last) ** 2 / 3600:.1f} CPU hours, "
        f"{2 * (most[1] + slope * (LONG - last)) / 1e9:.1f} GB beside torch in two processes"
    )
    shares = {(size, even): imbalance(LONG, size, even=even) for size in (2, 8) for even in (False, True)}
    for size in (2, 8):
        one, two_each = (f"{shares[size, how]:.3f} times the mean" for how in (False, True))
        print(f"of {LONG:,} causal tokens, the busiest of {size} has {one} in one piece each, {two_each} in two")
    apart = max(abs(found[n, 2][0]["lower"] / found[n, 1][0]["lower"] - 1) for n in lengths)
    claims = {
        "two processes find what one finds to 1e-5": apart <= 1e-5,
        "with two pieces each, no process computes a hundredth more than the mean": max(
            shares[2, True], shares[8, True]
        )
        <= 1.01,
        "each of two takes for twice the tokens what one takes, to 15 %": most[1] <= 1.15 * found[first, 1][0]["own"],
    }
    if arguments.full:
        claims["128k tokens take less than 4 GB"] = sum(each["peak"] for each in found[LONG, 2]) < 4e9
    verdict(claims, quick=arguments.quick)


if __name__ == "__main__":
    main()
