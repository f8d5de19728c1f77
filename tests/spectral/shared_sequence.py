"""Four processes that share out a sequence; each writes what it measured. Started by test_over_processes.py."""

import datetime
import functools
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.distributed.tensor.experimental import context_parallel

import howsmooth as hs
from howsmooth.errors import HowsmoothError
from howsmooth.maps import MLP, Chain, LayerNorm, Positions, Residual, Rotary

# Of the group and of everything, in seconds.
PROCESSES, TIMEOUT, LONGEST = 4, 60, 400
N, D = 23, 8
# How many tokens each process holds, for groups of one to four.
SHARES = ((23,), (7, 16), (1, 14, 8), (5, 2, 9, 7))
FEW = ("plain", "causal", "window")


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens():
    return drawn(2, N, D, seed=1)


def maps():
    """Return maps by their names: four heads that share two keys, in every kind of order."""
    f = hs.Attention(
        query=drawn(4, 4, D, seed=2) / 2,
        key=drawn(2, 4, D, seed=3) / 2,
        value=drawn(2, 4, D, seed=4),
        output=drawn(4, D, 4, seed=5),
        key_bias=drawn(2, 4, seed=6),
        value_bias=drawn(2, 4, seed=7),
        output_bias=drawn(D, seed=8),
    )
    causal, bias = replace(f, positions=Positions(causal=True)), drawn(4, 2 * N - 1, seed=9)
    mlp = MLP(up=drawn(12, D, seed=10), down=drawn(D, 12, seed=11), activation="gelu")
    norm = LayerNorm(gain=torch.ones(D, dtype=torch.float64), bias=None, eps=1e-5)
    return {
        "plain": f,
        "causal": causal,
        "window": replace(f, positions=Positions(causal=True, window=4, rotary=Rotary())),
        "both sides": replace(f, positions=Positions(window=6, relative_bias=bias, position_bias=bias[:, :N])),
        "sink": replace(causal, sink=drawn(4, seed=12), softcap=2.0),
        "block": Chain(Residual(Chain(norm, causal)), Residual(Chain(norm, mlp))),
    }


def by_sdpa(f, group=None, positions=None):
    """Return causal attention without biases as any user would write it."""

    def attention(X):
        q, k, v = (
            (X @ w.to(X).flatten(0, 1).mT).unflatten(-1, (-1, 4)).transpose(-2, -3) for w in (f.query, f.key, f.value)
        )
        found = hs.sdpa(q, k, v, is_causal=True, enable_gqa=True, group=group, positions=positions)
        return found.transpose(-2, -3).flatten(-2)

    return attention


def measured(f, X, group, positions=None):
    found = hs.local_lipschitz(f, X, group=group, positions=positions, seed=0, rtol=0.1)
    return {"lower": found.lower.tolist(), "upper": found.upper.tolist(), "size": found.direction.square().sum().item()}


def results(rank, size, group):
    """Measure maps over a group of some size: all of them over one and three processes, some over two and four."""
    start = sum(SHARES[size - 1][:rank])
    X = tokens()[:, start : start + SHARES[size - 1][rank]]
    known = maps() | {"callable": by_sdpa(maps()["plain"], group)}
    found = {name: measured(f, X, group) for name, f in known.items() if size in (1, 3) or name in FEW}
    found["float32"] = measured(known["causal"].to(torch.float32), X.float(), group)
    return found


# The same shares as those of three processes, piece by piece from other places.
LAYOUT = (([22],), (range(10, 13), range(3), range(15, 22), [9]), ([14, 13], range(3, 9)))
PLACED = ("plain", "window", "both sides", "sink", "block", "callable")


def placed(rank, group):
    """Measure maps over three processes that hold tokens from here and there."""
    positions = torch.tensor([place for piece in LAYOUT[rank] for place in piece])
    known = maps() | {"callable": by_sdpa(maps()["plain"], group, positions)}
    X = tokens()[:, positions]
    return {name: measured(known[name], X, group, positions) for name in PLACED}


def context_parallel_errors(rank, group):
    """Return how far attention of tensors that torch shared out, and its derivatives, are from those of one process."""
    n, heads = 6 * PROCESSES, 2
    whole = [drawn(1, heads, n, 4, seed=20 + i).requires_grad_() for i in range(3)]
    change, g = [drawn(1, heads, n, 4, seed=30 + i) for i in range(3)], drawn(1, heads, n, 4, seed=40)
    o, do = torch.func.jvp(functools.partial(hs.sdpa, is_causal=True), tuple(whole), tuple(change))
    gradients = torch.autograd.grad(hs.sdpa(*whole, is_causal=True), whole, g)
    positions, parts = torch.arange(n), [x.detach().clone() for x in (*whole, *change, g)]
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (PROCESSES,))
    with context_parallel(mesh, buffers=[*parts, positions], buffer_seq_dims=[2] * len(parts) + [0]):
        own = [x.detach().clone().requires_grad_() for x in parts[:3]]
        attention = functools.partial(hs.sdpa, is_causal=True, group=group, positions=positions)
        with forward_ad.dual_level():
            moved = [forward_ad.make_dual(x.detach(), t.clone()) for x, t in zip(own, parts[3:6], strict=True)]
            there, changed = forward_ad.unpack_dual(attention(*moved))
        pulled = torch.autograd.grad(attention(*own), own, parts[6].clone())
        place = positions.clone()
    pairs = zip((there, changed, *pulled), (o, do, *gradients), strict=True)
    assert sorted(place.tolist()) != list(range(len(place) * rank, len(place) * (rank + 1)))  # two pieces each
    return max(float((mine - every[:, :, place]).abs().max()) for mine, every in pairs)


def refusals(group, rank):
    """Return what is said of mistakes: the same everywhere, and nobody waits."""
    X, f = tokens()[:, 5 * rank : 5 * rank + 5], maps()["plain"]
    masked = replace(f, positions=Positions(mask=torch.ones(N, N, dtype=torch.bool)))
    said = []
    for g, Y, options in (
        (f, X[..., : D - (rank == 1)], {}),
        (masked, X, {}),
        (f, X, {"metric": "token"}),
        (hs.maps.Pooling.mean(n=5, like=X), X, {}),
        (f, X, {"positions": torch.arange(5)}),
    ):
        try:
            hs.local_lipschitz(g, Y, group=group, **options)
        except HowsmoothError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def take_part(rank, place):
    signal.alarm(LONGEST)
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=TIMEOUT)
    store = dist.FileStore(f"{place}/store", PROCESSES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES, timeout=wait)
    groups = {size: dist.new_group(range(size), timeout=wait) for size in range(1, PROCESSES + 1)}
    found = {"refused": refusals(groups[4], rank), 4: results(rank, 4, groups[4])}
    found["context parallel"] = context_parallel_errors(rank, groups[4])
    if rank == 3:
        os._exit(1)  # as if it were killed
    for size in range(3, rank, -1):
        found[size] = results(rank, size, groups[size])
    found["placed"] = placed(rank, groups[3])
    started = time.monotonic()
    try:
        while True:
            hs.local_lipschitz(maps()["causal"], tokens()[:, :5], group=groups[4])
    except HowsmoothError as error:
        found["lost"] = f"{type(error).__name__}: {error}"
    found["waited"] = time.monotonic() - started
    with open(f"{place}/{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os._exit(0)  # what is left of the group would wait for the lost process


def main(place):
    """Start the processes as copies of this one, since every import of torch takes seconds."""
    for rank in range(PROCESSES):
        if os.fork() == 0:
            try:
                take_part(rank, place)
            finally:
                traceback.print_exc()
                os._exit(2)
    for _rank in range(PROCESSES):
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
