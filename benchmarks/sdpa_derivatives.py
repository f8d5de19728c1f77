"""Attention is differentiated forwards, backwards and twice, faster than by the math kernel and in linear memory.

12 heads of dimension 64, float32, one thread, against ``torch.func`` and autograd on torch's math kernel, the only one
of its kernels that has these derivatives; forward and backward passes against torch's fused kernels. Double backward
keeps about eleven n × n matrices for each head of the math kernel: where 12 heads do not fit into ``--memory``, its
time is that of as many heads as do, times 12 over their number. Times are minima of process time, ours and theirs in
turn. Peak memory is that of a process of its own, beyond its inputs, with two heads.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from claims import options, verdict
from timing import best_times
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import howsmooth as hs

HEADS, K, MATRICES = 12, 64, 11
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]


def math_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "hs.sdpa": hs.sdpa,
    "math": math_kernel,
    "torch": functional.scaled_dot_product_attention,
}


def runs(f: Callable[..., Tensor], n: int, heads: int) -> dict[str, Callable[[], Any]]:
    """The three derivatives as functions of nothing."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, dq, dk, dv, g = torch.randn(7, 1, heads, n, K, generator=generator).unbind()
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    cotangent = g.clone().requires_grad_()

    def double() -> None:
        first = torch.autograd.grad(f(*inputs), inputs, cotangent, create_graph=True)
        torch.autograd.grad(first, (*inputs, cotangent), (dq, dk, dv))

    return {
        "jvp": lambda: torch.func.jvp(f, (q, k, v), (dq, dk, dv)),
        "backward": lambda: torch.autograd.grad(f(*inputs), inputs, g),
        "double backward": double,
    }


def peak(kernel: str, what: str, n: int) -> float:
    """Return the bytes that a derivative takes at most, in a process of its own."""
    found = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps([kernel, what, n])], capture_output=True, text=True, check=True
    )
    return float(found.stdout)


def child(kernel: str, what: str, n: int) -> None:
    runs(KERNELS[kernel], 64, 2)[what]()  # what torch loads on first use is not counted
    run = runs(KERNELS[kernel], n, 2)[what]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="numbers of tokens")
    parser.add_argument("--memory", type=float, default=9.0, help="what the math kernel may take, in GiB")
    parser.add_argument("--memory-at", type=int, default=4096, help="the length at which memory is compared")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child)
        return
    claims: dict[str, bool] = {}
    # before anything else: a process begins with the peak of the one that started it
    n = 256 if given.quick else given.memory_at
    # at the smallest size nothing is claimed about memory, and most of the time would go into imports
    for what in ("double backward",) if given.quick else ("jvp", "double backward"):
        short, long, peer = peak("hs.sdpa", what, n // 2), peak("hs.sdpa", what, n), peak("math", what, n)
        print(f"{what}, n = {n}, 2 heads: {long / 2**20:.0f} MiB, at n/2 {short / 2**20:.0f}, math {peer / 2**20:.0f}")
        claims[f"{what}: a quarter of the memory of the math kernel ({long / max(peer, 1):.3f})"] = long <= peer / 4
        claims[f"{what}: memory grows linearly ({long / max(short, 1):.2f} for twice the length)"] = long <= 2.4 * short
    torch.set_num_threads(1)
    print(f"{'n':>5}  jvp: math / ours   double backward: math / ours   forward + backward: ours / torch")
    for n in [64] if given.quick else given.lengths:
        fitting = max(1, min(HEADS, int(given.memory * 2**30 / (4 * MATRICES * n**2))))
        ours, fused = (runs(KERNELS[name], n, HEADS) for name in ("hs.sdpa", "torch"))
        dense = runs(math_kernel, n, fitting)
        t = {
            what: best_times(
                {"ours": ours[what], "peer": peer[what]},
                seconds=0.0 if given.quick else 3.0,
                least=1 if given.quick else max(1, min(40, 10_000 // n)),
                clock=time.process_time,
            )
            for what, peer in (("jvp", dense), ("double backward", dense), ("backward", fused))
        }
        jvp, double = (HEADS / fitting * t[what]["peer"] / t[what]["ours"] for what in ("jvp", "double backward"))
        backward = t["backward"]["ours"] / t["backward"]["peer"]
        spent = "  ".join(f"{what} {1e3 * best['ours']:.0f} ms" for what, best in t.items())
        fewer = f"; math kernel with {fitting} heads" if fitting < HEADS else ""
        print(f"{n:5d}  {jvp:16.2f}   {double:28.2f}   {backward:33.2f}   ({spent}{fewer})", flush=True)
        claims[f"n = {n}: jvp {jvp:.1f} times faster than the math kernel (2.5 from n = 1024 on)"] = (
            n < 1024 or jvp >= 2.5
        )
        claims[f"n = {n}: double backward no slower ({double:.2f} times faster)"] = double >= 1
        claims[f"n = {n}: forward and backward within 1.15 of torch's ({backward:.2f})"] = backward <= 1.15
    verdict(claims, quick=given.quick)


if __name__ == "__main__":
    main()
