"""Our upper bound is within a factor of 2 of an explicit input (4 for A = I) wherever R²‖A‖ is at least 100."""

import math
from dataclasses import dataclass

import torch
from claims import quick, verdict

import howsmooth as hs
from howsmooth.theory.heads import heads_of

CONTRASTS = (10, 100, 1000)
LENGTHS = (16, 128, 1024)
STEEP = {"−I", "rotation", "nilpotent"}


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
        found[f"Gaussian head {seed + 1}"] = hs.Attention.random(heads=1, d=d, k=k, generator=generator)
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


def main() -> None:
    small = quick(__doc__)
    lengths = LENGTHS[:1] if small else LENGTHS
    cells = [cell(name, f, c, n) for name, f in maps(small).items() for c in CONTRASTS for n in lengths]
    print_table(cells, lengths)
    steep = [x for x in cells if x.contrast >= 100]
    largest = [x for x in cells if x.contrast == 1000 and x.n == 1024 and x.name in STEEP]
    verdict(
        {
            "at most 2 where R²‖A‖ ≥ 100, but for A = I": all(x.ours <= 2 for x in steep if x.name != "I"),
            "at most 4 for A = I there": all(x.ours <= 4 for x in steep if x.name == "I"),
            "at most 1.2 for −I, rotation, nilpotent at 1000 and 1024": all(x.ours <= 1.2 for x in largest),
        },
        quick=small,
    )


if __name__ == "__main__":
    main()
