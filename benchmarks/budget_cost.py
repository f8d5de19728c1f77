"""A budget takes minutes and little memory; more schemes cost products, not passes.

SmolLM2 at windows of 128 tokens of a book, on one thread. Windows and passes all cost the same, so that a window with
two and with six passes is timed, in seconds of processor time, and the time of 4 windows with 32 passes follows. The
alternative is to run the model once for each matrix, scheme and window: a few of these runs are timed. Memory is the
peak of the process above what it had with the model loaded, and counts the weights once more; a second call shows
whether anything is kept.
"""

import resource
import time
from pathlib import Path

import torch
from claims import options, verdict

import howsmooth as hs
from howsmooth.models.inputs.text import read_text

WINDOWS, PASSES, FEW, MORE = 4, 32, 2, 6
SCHEMES = ("int3:g64", "int4:g64", "int8:channel", "nf4", "fp8")
RUNS = 3


def timed(call: object, *args: object, **settings: object) -> float:
    """Return the processor time of a call."""
    assert callable(call)
    start = time.process_time()
    call(*args, **settings)
    return time.process_time() - start


def peak(call: object, *args: object, **settings: object) -> float:
    """Return by how many bytes the memory of the process grows during a call; zero where it cannot be told."""
    assert callable(call)
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return 0.0
    before = int(status.read_text().split("VmRSS:")[1].split()[0])
    reset.write_text("5")  # the peak begins anew
    call(*args, **settings)
    return 1024.0 * (int(status.read_text().split("VmHWM:")[1].split()[0]) - before)


def main() -> None:
    small = options(__doc__).parse_args().quick
    torch.set_num_threads(1)
    model = hs.load("reviews" if small else "smollm2")
    tokens = model.windows(read_text(), length=8 if small else 128, count=1)
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters())
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
    growth = [peak(hs.budget, model, tokens, schemes=SCHEMES[1:2], passes=FEW) for _call in range(2)]
    held = [1 + more / weights for more in growth]
    print(f"memory over that of the weights: {', '.join(f'{share:.2f}' for share in held)} (first, second call)")
    print(f"peak of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")
    claims = {
        "4 windows with 32 passes take less than 4 minutes on two cores": seconds[1] < 2 * 240,
        "at most 2.5 times the memory of the weights": max(held) <= 2.5,
        "five schemes take less than twice the time of one": seconds[5] < 2 * seconds[1],
        "and a fifth of that of single runs": 5 * seconds[5] < alternative,
    }
    verdict(claims, quick=small)


if __name__ == "__main__":
    main()
