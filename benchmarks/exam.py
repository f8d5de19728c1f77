"""Of the vision transformers of VNN-COMP 2023 more properties are proven on two cores than by any tool there.

The files are not ours to ship: ``--folder`` is ``benchmarks/vit`` of the competition's benchmarks of 2023, unpacked.
Published verdicts on the same files with 100 seconds each: alpha-beta-CROWN 42 + 37, NeuralSAT 49 + 18, PyRAT 29 + 54.
"""

import csv
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from claims import options, verdict

import howsmooth as hs
from howsmooth.maps.affine import Affine

PUBLISHED = 79  # proven by alpha-beta-CROWN in 2023, of both networks together
SECONDS = 100.0


def instances(folder: Path, every: int) -> list[tuple[Path, Path]]:
    """Return the networks and properties of the competition's list."""
    with (folder / "instances.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[::every]
    return [(folder / network, folder / wanted) for network, wanted, _seconds in rows]


def small_instance() -> tuple[hs.maps.Chain, hs.verification.Property]:
    """Return a small random network and a box around one input."""
    rng = torch.Generator().manual_seed(0)

    def gaussian(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng) / 2

    attention = hs.Attention(
        query=gaussian(2, 2, 4), key=gaussian(2, 2, 4), value=gaussian(2, 2, 4), output=gaussian(2, 4, 2)
    )
    network = hs.maps.Chain(
        Affine(weight=gaussian(3, 4, 1, 6), bias=gaussian(3, 4)),
        hs.maps.Residual(attention),
        hs.maps.Residual(hs.maps.MLP(up=gaussian(5, 4), down=gaussian(4, 5), activation="relu")),
        Affine(weight=gaussian(1, 3, 3, 4), bias=gaussian(1, 3)),
    )
    x = gaussian(6)
    label = int(network(x[None]).argmax())
    return network, hs.verification.Property.robust(x, eps=0.01, label=label, classes=3)


def main() -> None:
    """Verify every instance and count."""
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, help="the folder with instances.csv, onnx/ and vnnlib/")
    parser.add_argument("--every", type=int, default=1, help="take every so-many-th instance")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each instance")
    given = parser.parse_args()
    if given.folder is None:
        network, box = small_instance()
        print("no --folder: a small random network instead of the competition's")
        verdict({"a small property is proven": hs.verify(network, box).status == "proven"}, quick=given.quick)
        return
    counts: dict[str, Counter[str]] = {}
    networks = {}
    for path, wanted in instances(given.folder, given.every):
        if path not in networks:
            networks[path] = hs.verification.read_onnx(path)
        started = time.process_time()
        found = hs.verify(networks[path], wanted, timeout=given.seconds)
        counts.setdefault(path.stem, Counter())[found.status] += 1
        spent = time.process_time() - started
        uses = {name: round(value, 3) for name, value in (found.uses or {}).items()}
        print(
            f"{wanted.stem:24} {found.status:9} {found.seconds:6.1f} s {spent:6.1f} s of CPU  level {found.level}  "
            f"pieces {found.nodes}  margin {found.margins.min():.4f}  {uses}"
        )
        sys.stdout.flush()
    for name, count in counts.items():
        print(name, dict(count))
    proven = sum(count["proven"] for count in counts.values())
    share = PUBLISHED // given.every
    verdict({f"{proven} proven, more than {share}, the share of {PUBLISHED}": proven > share}, quick=given.quick)


if __name__ == "__main__":
    main()
