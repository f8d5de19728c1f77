"""Our upper bound is within a factor of 2 of an explicit input (4 for A = I) wherever R²‖A‖ is at least 100."""

import dataclasses
import functools
import math
import time
from dataclasses import dataclass

import torch
from claims import quick, verdict

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.theory.heads import heads_of

CONTRASTS = (10, 100, 1000)
LENGTHS = (16, 128, 1024)
STEEP = {"−I", "rotation", "nilpotent"}
# Whole layers of MiniLM in a ball as large as their tokens' and, in a ball of their mean length, of SmolLM2, which has
# rotary positions; so many tokens, and how far apart both ends may be.
LAYERS = {"minilm": {0: 1.6, 2: 2.0, 4: 3.2}, "smollm2": {0: 3.5, 10: 3.0, 18: 2.0, 29: 3.0}}
LENGTH, RADIUS = 64, 13.0


@dataclass(frozen=True)
class Cell:
    """One map on one ball: how far apart the paper's two bounds are, and ours."""

    name: str
    contrast: int
    n: int
    paper: float | None
    ours: float


def maps(small: bool) -> dict[str, hs.Attention]:
    identity = torch.eye(2, dtype=torch.float64)
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    forms = {"I": identity, "−I": -identity, "rotation": rotation, "nilpotent": nilpotent}
    found = {name: hs.Attention.single_head(A=A, V=identity) for name, A in forms.items()}
    d, k = (64, 8) if small else (768, 64)
    for seed in range(1 if small else 3):
        generator = torch.Generator().manual_seed(seed)
        found[f"Gaussian head {seed + 1}"] = hs.Attention.random(heads=1, d=d, k=k, seed=generator)
    return found


def cell(name: str, f: hs.Attention, contrast: int, n: int) -> Cell:
    (head,) = heads_of(f)
    radius = math.sqrt(contrast / head.norm_A)
    try:
        lower = hs.bounds.discrete_lower(f, n=n, radius=radius)
        paper = math.exp(hs.bounds.discrete_upper(f, n=n, radius=radius).log_value - lower.log_value)
    except hs.errors.AssumptionError:
        paper = None
    ours = hs.bracket(f, n=n, radius=radius)
    return Cell(name, contrast, n, paper, ours.ratio)


def print_table(cells: list[Cell], lengths: tuple[int, ...]) -> None:
    """Print one row for each map and radius: the paper's ratio, then ours."""
    print("| A | R²‖A‖ |" + "".join(f" n = {n} |" for n in lengths))
    print("|---|---|" + "---|" * len(lengths))
    for first in cells[:: len(lengths)]:
        row = [x for x in cells if (x.name, x.contrast) == (first.name, first.contrast)]
        entries = (f" {'none' if x.paper is None else f'{x.paper:.3g}'} / **{x.ours:.3f}** |" for x in row)
        print(f"| {first.name} | {first.contrast} |{''.join(entries)}")


@dataclass(frozen=True)
class Layer:
    """One whole layer in a ball: upper bounds from the loosest to the tightest, and what an input attains."""

    name: str
    paper: float
    added: float
    together: float
    found: float
    seconds: float
    limit: float

    @property
    def ratio(self) -> float:
        return self.together / self.found


def whole(name: str, f: hs.Attention, n: int, radius: float, limit: float) -> Layer:
    start = time.perf_counter()
    found = hs.bracket(f, n=n, radius=radius)
    seconds = time.perf_counter() - start
    # the paper has no query biases
    plain = dataclasses.replace(f, query_bias=None, key_bias=None)
    return Layer(
        name=name,
        paper=hs.bounds.discrete_upper(plain, n=n, radius=radius).value,
        added=sum(hs.bounds.sharp_upper(f.head(h), n=n, radius=radius).value for h in range(f.layout.heads)),
        together=found.upper.value,
        found=found.lower.value,
        seconds=seconds,
        limit=limit,
    )


def layers(small: bool) -> list[Layer]:
    if small:
        f = hs.Attention.random(heads=3, d=16, k=4, seed=0)
        return [whole("random", f, 8, 5.0, math.inf)]
    return [whole(f"{name} {i}", *_layer(name, i), limit) for name in LAYERS for i, limit in LAYERS[name].items()]


def _layer(name: str, i: int) -> tuple[hs.Attention, int, float]:
    model = _loaded(name)
    f, X = model.activations(model.windows(read_text(), length=LENGTH, count=1)).at(i)
    assert isinstance(f, hs.Attention)
    return f, LENGTH, RADIUS if name == "minilm" else float(X.norm(dim=-1).mean())


@functools.cache
def _loaded(name: str) -> hs.Transformer:
    return hs.load(name)


def print_layers(found: list[Layer]) -> None:
    print("| layer | paper's upper bound | heads added up | heads together | found | ratio | seconds |")
    print("|---|---|---|---|---|---|---|")
    for x in found:
        uppers = f"{x.paper:,.0f} | {x.added:,.0f} | {x.together:,.0f} | {x.found:,.0f}"
        print(f"| {x.name} | {uppers} | **{x.ratio:.2f}** | {x.seconds:.1f} |")


def main() -> None:
    small = quick(__doc__)
    rows = layers(small)
    print_layers(rows)
    lengths, contrasts = (LENGTHS[:1], CONTRASTS[1:2]) if small else (LENGTHS, CONTRASTS)
    cells = [cell(name, f, c, n) for name, f in maps(small).items() for c in contrasts for n in lengths]
    print_table(cells, lengths)
    steep = [x for x in cells if x.contrast >= 100]
    largest = [x for x in cells if x.contrast == 1000 and x.n == 1024 and x.name in STEEP]
    verdict(
        {
            "at most 2 where R²‖A‖ ≥ 100, but for A = I": all(x.ours <= 2 for x in steep if x.name != "I"),
            "at most 4 for A = I there": all(x.ours <= 4 for x in steep if x.name == "I"),
            f"whole layers within {', '.join(str(x.limit) for x in rows)}": all(x.ratio <= x.limit for x in rows),
            "at most 1.2 for −I, rotation, nilpotent at 1000 and 1024": all(x.ours <= 1.2 for x in largest),
        },
        quick=small,
    )


if __name__ == "__main__":
    main()
