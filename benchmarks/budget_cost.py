"""A budget takes minutes and little memory; more schemes cost products, not passes.

SmolLM2 at windows of 128 tokens of a book, on one thread. Windows and passes all cost the same, so that a window with
two and with six passes is timed, in seconds of processor time, and the time of 4 windows with 32 passes follows. The
alternative is to run the model once for each matrix, scheme and window: a few of these runs are timed. Memory is that
of a process of its own: its peak since the model began to be loaded, less what imports take, against the bytes of the
weights. It is told of the loading, of a first call, and of a second, which shows whether anything is kept.
"""

import multiprocessing
import time
from pathlib import Path

import torch
from claims import options, verdict

import howsmooth as hs
from howsmooth.models.inputs.text import read_text

WINDOWS, PASSES, FEW, MORE = 4, 32, 2, 6
SCHEMES = ("int3:g64", "int4:g64", "int8:channel", "nf4", "fp8")
RUNS = 3
RESET = Path("/proc/self/clear_refs")


def timed(call: object, *args: object, **settings: object) -> float:
    """Return the processor time of a call."""
    assert callable(call)
    start = time.process_time()
    call(*args, **settings)
    return time.process_time() - start


def held(name: str, length: int) -> list[float]:
    """Return the memory over that of the weights, at the peaks of loading a model and of two calls of a budget.

    A budget of a small model comes first, so that everything is imported.
    """
    torch.set_num_threads(1)
    hs.budget("reviews", "alice", schemes=SCHEMES[1:2], passes=FEW)

    def kilobytes(what: str) -> int:
        return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0])

    imports, peaks = kilobytes("VmRSS"), []
    RESET.write_text("5")  # the peak begins anew
    model = hs.load(name)
    peaks.append(kilobytes("VmHWM"))
    weights = sum(p.numel() * p.element_size() for p in (model.with_head or model.module).parameters())
    tokens = model.windows(read_text(), length=length, count=1)
    for _call in range(2):
        RESET.write_text("5")
        hs.budget(model, tokens, schemes=SCHEMES[1:2], passes=FEW)
        peaks.append(kilobytes("VmHWM"))
    return [1024 * (peak - imports) / weights for peak in peaks]


def main() -> None:
    small = options(__doc__).parse_args().quick
    torch.set_num_threads(1)
    model = hs.load("reviews" if small else "smollm2")
    tokens = model.windows(read_text(), length=8 if small else 128, count=1)
    seconds = {}
    for schemes in (SCHEMES[1:2], SCHEMES):
        few, more = (timed(hs.budget, model, tokens, schemes=schemes, passes=passes) for passes in (FEW, MORE))
        a_pass = (more - few) / (MORE - FEW)
        seconds[len(schemes)] = WINDOWS * (few + (PASSES - FEW) * a_pass)
        said = f"a window {few - FEW * a_pass:.1f} s, a pass {a_pass:.2f} s"
        print(
            f"{len(schemes)} schemes: {said}; {WINDOWS} windows, {PASSES} passes {seconds[len(schemes)]:.0f} s",
            flush=True,
        )
    found = hs.budget(model, tokens, schemes=SCHEMES, passes=FEW)
    names = found.names(SCHEMES[0])
    recipes = [{name: scheme} for scheme in SCHEMES for name in names[:: len(names) // RUNS][:RUNS]]
    each = timed(found.measured, *recipes) / (len(recipes) + 1)
    alternative = WINDOWS * (len(SCHEMES) * len(names) + 1) * each
    print(f"a run {each:.2f} s, for each of {len(names)} matrices, schemes and windows {alternative:.0f} s", flush=True)
    claims = {
        "4 windows with 32 passes take less than 4 minutes on two cores": seconds[1] < 2 * 240,
        "five schemes take less than twice the time of one": seconds[5] < 2 * seconds[1],
        "and a fifth of that of single runs": 5 * seconds[5] < alternative,
    }
    if RESET.exists():  # Linux tells the peak of a process
        if small:  # what was used before counts, and a process of its own would take most of the time
            loading, first, second = held("reviews", tokens.shape[1])
        else:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                loading, first, second = pool.apply(held, ("smollm2", tokens.shape[1]))
        print(
            f"memory over that of the weights: loading {loading:.2f}, a first call {first:.2f}, a second {second:.2f}"
        )
        claims["at most 2.5 times the memory of the weights"] = max(first, second) <= 2.5
    verdict(claims, quick=small)


if __name__ == "__main__":
    main()
