"""A product with the Jacobian costs about what its matrix products cost.

For a 12-head layer (d = 768, float32) each product is timed against the bare matrix products that it cannot avoid, run
without anything in between, and against ``torch.func.jvp`` of the same layer written by hand. Other attentions are
timed against the bare products of their own; of balancing weights the steps are counted.

Short sequences are a case of their own, since what stands between matrix products is felt there: windows of MiniLM, one
alone and ten together, in processor time of one thread. A product is timed as the solver takes it, a Krylov step by two
of these, and a whole bracket by as many bare products as its steps take.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from claims import quick, verdict
from mechanisms import Bare, mechanisms
from plain import plain_attention
from timing import best_times

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.operators import compressed, flat, random_start

HEADS, D = 12, 768
# What a whole bracket may take, in bare products, by the number of tokens of its window.
MOST = {8: 2.1, 16: 1.75, 24: 1.6, 32: 1.6, 64: 1.5}


def measure(n: int, seconds: float) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    f = hs.Attention.random(heads=HEADS, d=D, seed=generator)
    X, E = torch.randn(2, n, D, generator=generator).unbind()
    J, plain = f.jacobian(X), plain_attention(f)
    k = D // HEADS
    W_in, W_out, Y = torch.randn(3 * D, D), torch.randn(D, D), torch.randn(n, 3 * D)
    narrow, wide, P = torch.randn(HEADS, n, k), torch.randn(HEADS, n, 2 * k), torch.rand(HEADS, n, n)

    def bare_jvp() -> None:
        E @ W_in.mT
        wide @ wide.mT
        P @ narrow
        P @ narrow
        E @ W_out.mT

    def bare_vjp() -> None:
        E @ W_out
        narrow @ narrow.mT
        P @ narrow
        P.mT @ narrow
        P.mT @ narrow
        Y @ W_in

    return best_times(
        {
            "bare jvp": bare_jvp,
            "jvp": lambda: J.jvp(E),
            "bare vjp": bare_vjp,
            "vjp": lambda: J.vjp(E),
            "torch.func.jvp": lambda: torch.func.jvp(plain, (X,), (E,)),
        },
        seconds=seconds,
    )


def measure_others(n: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Return for every other attention its jvp and vjp over their bare products."""
    generator = torch.Generator().manual_seed(0)
    X, E = torch.randn(2, n, D, generator=generator).unbind()
    bare = Bare(n, HEADS, D // HEADS)
    kinds = {"scores": bare.by_scores(), "two": Bare(n, HEADS, D // HEADS, 2).by_scores(), "linear": bare.linear()}
    candidates: dict[str, Callable[[], object]] = {}
    for kind, (jvp, vjp) in kinds.items():
        candidates |= {f"jvp {kind}": jvp, f"vjp {kind}": vjp}
    found = mechanisms(HEADS, D // HEADS, generator)
    for name, f in found.items():
        J = f.jacobian(X)
        candidates |= {f"jvp of {name}": partial(J.jvp, E), f"vjp of {name}": partial(J.vjp, E)}
        if isinstance(f, hs.maps.SinkhornAttention):
            ((weights, _slope),) = J.pattern.kept  # type: ignore[attr-defined]
            print(f"n = {n}: weights balanced in {weights.balanced.steps} steps, {weights.balanced.solves} of Newton's")
    t = best_times(candidates, seconds=seconds)
    own = {"differential": "two", "linear": "linear"}
    return {
        name: (
            t[f"jvp of {name}"] / t[f"jvp {own.get(name, 'scores')}"],
            t[f"vjp of {name}"] / t[f"vjp {own.get(name, 'scores')}"],
        )
        for name in found
    }


def bare_products(count: int, n: int, heads: int, d: int) -> Callable[[], None]:
    """Return the matrix products of one product with the Jacobian and one with its transpose, by queries and keys."""
    E, Y, W_in, W_out = torch.randn(count, n, d), torch.randn(count, n, 3 * d), torch.randn(3 * d, d), torch.randn(d, d)
    x, P = torch.randn(count * heads, n, d // heads), torch.rand(count * heads, n, n)

    def run() -> None:
        for weight in (W_in, W_out):
            E @ weight.mT
        for left, right in ((x, x.mT), (x, x.mT), (P, x), (P, x), (x, x.mT), (P, x), (P.mT, x), (P.mT, x)):
            torch.bmm(left, right)
        E @ W_out
        Y @ W_in

    return run


def measure_windows(layer: int, count: int, n: int, repeats: int) -> tuple[float, float, float, float]:
    """Return the steps of a window, and products, Krylov steps and brackets over what they are made of."""
    model = hs.load("minilm")
    assert model.tokenizer is not None
    numbers = model.tokenizer.encode(read_text().content[: 40 * count * n])[1 : count * n + 1]
    f, X = model.activations(torch.tensor(numbers).reshape(count, n)).at(layer=layer)
    assert isinstance(f, hs.Attention)
    core, _embed = compressed(f.jacobian(X))
    start = random_start(core, torch.Generator().manual_seed(0))
    E, found = torch.randn_like(start), hs.local_lipschitz(f, X, seed=0)
    steps = found.steps

    def krylov() -> None:
        space = Bidiagonalisation(core, flat(start, core.batch), None)
        for _step in range(steps):
            space.advance()

    t = best_times(
        {
            "bare": bare_products(count, n, f.layout.heads, f.d),
            "products": lambda: core.vjp(core.jvp(E)),
            "steps": krylov,
            "bracket": lambda: hs.local_lipschitz(f, X, seed=0),
        },
        seconds=0.0,
        least=repeats,
        clock=time.process_time,
    )
    taken = sum(found.step_counts) / count  # those of the last window to be done are not those of all
    return taken, t["products"] / t["bare"], t["steps"] / steps / t["products"], t["bracket"] / taken / t["bare"]


def windows(small: bool) -> dict[str, bool]:
    """Print what short windows of MiniLM take, one alone and ten together; return the claims."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lengths, layer, repeats = ((8,), 3, 1) if small else (tuple(MOST), 3, 40)
    worst = dict.fromkeys(lengths, 0.0)
    print("    n  windows  steps  product / bare  step / two products  bracket / bare products")
    for n in lengths:
        for count in (1,) if small else (1, 10):
            steps, product, step, bracket = measure_windows(layer, count, n, repeats)
            print(f"{n:5d} {count:8d} {steps:6.1f} {product:15.2f} {step:20.2f} {bracket:24.2f}")
            worst[n] = max(worst[n], bracket)
    torch.set_num_threads(threads)
    return {f"a bracket at {n} tokens within {MOST[n]} of its bare products": worst[n] <= MOST[n] for n in lengths}


@torch.no_grad()
def main() -> None:
    small = quick(__doc__)
    short = windows(small)
    rows = {n: measure(n, 0.0 if small else 20.0) for n in ((8,) if small else (128, 512, 1024, 2048))}
    print("    n   jvp ms  / bare   vjp ms  / bare   torch.func.jvp / jvp")
    ratios: list[tuple[float, float, float]] = []
    for n, t in rows.items():
        ratios.append((t["jvp"] / t["bare jvp"], t["vjp"] / t["bare vjp"], t["torch.func.jvp"] / t["jvp"]))
        jvp, vjp, func = ratios[-1]
        print(f"{n:5d} {1e3 * t['jvp']:8.2f} {jvp:7.2f} {1e3 * t['vjp']:8.2f} {vjp:7.2f} {func:14.1f}")
    others = {n: measure_others(n, 0.0 if small else 20.0) for n in ((8,) if small else (128, 512, 2048))}
    print("others, jvp and vjp / bare:" + "".join(f"{f'n = {n}':>16}" for n in others))
    for name in next(iter(others.values())):
        print(f"{name:26} " + "".join(f"{found[name][0]:9.2f} {found[name][1]:6.2f}" for found in others.values()))
    worst = max(max(found[name]) for found in others.values() for name in found if name != "sinkhorn")
    verdict(
        {
            "jvp within 1.25 of its bare matrix products": max(jvp for jvp, _, _ in ratios) <= 1.25,
            "vjp within 1.25 of its bare matrix products": max(vjp for _, vjp, _ in ratios) <= 1.25,
            "at least 2.5 times faster than torch.func.jvp": min(func for _, _, func in ratios) >= 2.5,
            "products of other attentions within 1.4 of theirs, those that balance weights excepted": worst <= 1.4,
            **short,
        },
        quick=small,
    )


if __name__ == "__main__":
    main()
