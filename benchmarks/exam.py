"""Of the vision transformers of VNN-COMP 2023 more properties are proven on two cores than by any tool there.

The files are not ours to ship: ``--folder`` is ``benchmarks/vit`` of the competition's benchmarks of 2023, unpacked.
Published verdicts on the same files with 100 seconds each: alpha-beta-CROWN 42 + 37, NeuralSAT 49 + 18, PyRAT 29 + 54.
"""

import argparse
import csv
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from claims import options, verdict

import howsmooth as hs
from howsmooth.maps.affine import Affine

PUBLISHED = 79  # proven by alpha-beta-CROWN in 2023, of both networks together
SECONDS = 100.0
# How second orders were bounded where the Taylor model alone decides; later ways stand on the last of these.
LEVELS = ("boxes, a form for the margin", "+ forms of scores and units", "+ forms of queries, keys and values")
ATTACK_STARTS, ATTACK_STEPS = 20, 40  # against the two nearest rivals of every proven instance


def instances(folder: Path, every: int, only: str) -> list[tuple[Path, Path]]:
    """Return the networks and properties of the competition's list."""
    with (folder / "instances.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if only in row[0]][::every]
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


def attacked(network: Any, wanted: hs.verification.Property) -> float:
    """Return how far attacks get into the unsafe sets: above zero, the property does not hold.

    A short attack on every set says which two are nearest; these are attacked from many starts.
    """
    embedding, rest = network.maps[0], hs.maps.Chain(*network.maps[1:])
    lower, upper = wanted.lower.flatten().double(), wanted.upper.flatten().double()
    centre, half = (upper + lower) / 2, (upper - lower) / 2
    generator = torch.Generator().manual_seed(1)

    def depth(A: torch.Tensor, b: torch.Tensor, starts: int, steps: int) -> float:
        xi, best = torch.rand(starts, len(centre), dtype=torch.float64, generator=generator) * 2 - 1, -torch.inf
        for step in range(steps):
            xi = xi.detach().requires_grad_()
            tokens = embedding((centre + half * xi).unflatten(-1, embedding.weight.shape[2:]))
            inside = (rest(tokens).flatten(-2) @ A.double().mT - b.double()).amin(-1)
            best = max(best, float(inside.detach().max()))
            (gradient,) = torch.autograd.grad(inside.sum(), xi)
            xi = (xi.detach() + 0.5 * (1 - step / steps) * gradient.sign()).clamp(-1, 1)
        return best

    reached = {k: depth(A, b, 2, 10) for k, (A, b) in enumerate(wanted.unsafe)}
    nearest = sorted(reached, key=lambda k: -reached[k])[:2]
    return max(*reached.values(), *(depth(*wanted.unsafe[k], ATTACK_STARTS, ATTACK_STEPS) for k in nearest))


def judged(network: Any, wanted: Path, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """Verify one instance."""
    started = time.process_time()
    found = hs.verify(network, wanted, timeout=seconds, clock=clock)
    spent = time.process_time() - started
    return {
        "instance": wanted.stem,
        "status": found.status,
        "seconds": round(found.seconds, 1),
        "processor seconds": round(spent, 1),
        "level": found.level,
        "pieces": found.nodes,
        "margin": float(found.margins.min()),
        "uses": {name: round(value, 4) for name, value in (found.uses or {}).items()},
        "attacked": None,
    }


def way(row: dict[str, Any]) -> str:
    """Say what decided an instance: second orders at a level, slopes of lines, or splitting."""
    if row["status"] != "proven":
        return row["status"]
    uses = row["uses"]
    if 2 * uses["centre"] > sum(uses.values()):  # more than all that is taken off it
        return LEVELS[row["level"]]
    # a margin whose last piece is excluded has no number of its own
    return "+ slopes" if row["margin"] > 1e-300 else "+ splitting"


def table(rows: list[dict[str, Any]]) -> str:
    """Return how many instances of each network are decided in which way, with processor seconds, as Markdown."""
    lines = ["| network | decided by | instances | median s | most s |", "|---|---|---|---|---|"]
    ways = [*LEVELS, "+ slopes", "+ splitting", "falsified", "unknown"]
    for name in sorted({row["instance"].rsplit("_", 1)[0] for row in rows}):
        of_network = [row for row in rows if row["instance"].rsplit("_", 1)[0] == name]
        for kind in ways:
            seconds = [row["processor seconds"] for row in of_network if way(row) == kind]
            if seconds:
                lines.append(f"| {name} | {kind} | {len(seconds)} | {statistics.median(seconds)} | {max(seconds)} |")
        proven = sum(row["status"] == "proven" for row in of_network)
        lines.append(f"| {name} | **proven** | **{proven} of {len(of_network)}** | | |")
    return "\n".join(lines)


def judged_rows(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Verify every instance that the log does not have yet, and attack the proven ones if asked to."""
    known, clock = {}, time.process_time if given.processor_time else time.monotonic
    if given.log is not None and given.log.exists():
        known = {row["instance"]: row for row in map(json.loads, given.log.read_text().splitlines())}
    networks: dict[Path, Any] = {}
    rows = []
    for path, wanted in instances(given.folder, given.every, given.only):
        row = known.get(wanted.stem)
        open_ = row is None or (given.attack and row["status"] == "proven" and row["attacked"] is None)
        if open_ and path not in networks:
            networks[path] = hs.verification.read_onnx(path)
        if row is None:
            row = judged(networks[path], wanted, given.seconds, clock)
        if open_:
            if given.attack and row["status"] == "proven":
                row["attacked"] = attacked(networks[path], hs.verification.read_vnnlib(wanted))
            if given.log is not None:
                with given.log.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(*(f"{name} {value}" for name, value in row.items()), sep="  ", flush=True)
    return rows


def main() -> None:
    """Verify every instance and count."""
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, help="the folder with instances.csv, onnx/ and vnnlib/")
    parser.add_argument("--every", type=int, default=1, help="take every so-many-th instance")
    parser.add_argument("--only", default="", help="take the networks whose name contains this: ibp or pgd")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each instance")
    parser.add_argument("--attack", action="store_true", help="attack every proven instance hard")
    parser.add_argument("--log", type=Path, help="a file of JSON lines, which a second call goes on with")
    parser.add_argument("--logs", type=Path, nargs="+", help="only the table of these logs of earlier runs")
    parser.add_argument("--processor-time", action="store_true", help="limit processor time instead, on a busy machine")
    given = parser.parse_args()
    if given.folder is None and not given.logs:
        network, box = small_instance()
        print("no --folder: a small random network instead of the competition's")
        holds = hs.verify(network, box).status == "proven" and attacked(network, box) < 0
        verdict({"a small property is proven": holds}, quick=given.quick)
        return
    if given.logs:
        rows = list({row["instance"]: row for log in given.logs for row in map(json.loads, log.open())}.values())
    else:
        rows = judged_rows(given)
    print(table(rows))
    proven = sum(row["status"] == "proven" for row in rows)
    flipped = sum(row["attacked"] is not None and row["attacked"] >= 0 for row in rows)
    share = PUBLISHED // given.every
    claims = {f"{proven} proven, more than {share}, the share of {PUBLISHED}": proven > share}
    claims["no proven instance is flipped by an attack"] = flipped == 0
    verdict(claims, quick=given.quick)


if __name__ == "__main__":
    main()
