"""Proof files of verdicts with a number, a leaf, a unit or a field changed: how many are still checked, by kind.

The bar of a proven property is first lowered as far as its file is checked, so that nothing is left over. Then a file
may claim more (a wider box, a lower bar), claim the same by other numbers (other slopes, multipliers, parts), or be no
proof at all (numbers that are none, empty lists, missing fields, other weights): of the first and the last kind none
may be checked. ``tampered_verdicts.py --count 100`` prints the counts for three networks.
"""

import argparse
import copy
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import howsmooth as hs
from howsmooth.check import check_proof

Proof = dict[str, Any]
MORE, SAME, NONE = "claims more", "claims the same", "is no proof"


def status(proof: Proof, network: Any) -> str:
    """Check a proof file of one claim."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        path.write_text(json.dumps(proof), encoding="utf-8")
        (outcome,) = check_proof(path, network)
    return outcome.status


def at_the_limit(proof: Proof, network: Any) -> Proof:
    """Keep the unsafe set with the most leaves, and lower its bar as far as the file is checked, by bisection."""
    proof = copy.deepcopy(proof)
    (claim,) = proof["claims"]
    unsafe = max(claim["unsafe"], key=lambda each: len(each["leaves"]))
    claim["unsafe"], row = [unsafe], unsafe["row"]
    low, high = unsafe["b"][row] - 16.0, unsafe["b"][row]
    while high - low > 1e-12:
        unsafe["b"][row] = (low + high) / 2
        if status(proof, network) == "checked":
            high = unsafe["b"][row]
        else:
            low = unsafe["b"][row]
    unsafe["b"][row] = high
    return proof


def tampered(proof: Proof, rng: np.random.Generator) -> Iterator[tuple[str, str, Proof]]:
    """Yield changed files without end: what each would be, what was changed, and the file.

    The file has one unsafe set, units, and leaves with sides and slopes.
    """
    while True:
        for way in ("wider", "part", "bar", "part", "scaled", "part", "number", "field"):
            changed, share = copy.deepcopy(proof), 10.0 ** rng.uniform(-6, -1)
            (claim,) = changed["claims"]
            (unsafe,) = claim["unsafe"]
            row, leaves = unsafe["row"], unsafe["leaves"]
            leaf = leaves[rng.integers(len(leaves))]
            if way == "wider":
                width = np.subtract(claim["upper"], claim["lower"])
                chosen = rng.random(len(width)) < rng.choice([0.3, 1.0])
                chosen[rng.integers(len(chosen))] = True
                which, sign = (("upper", 1), ("lower", -1))[rng.integers(2)]
                claim[which] = (np.array(claim[which]) + sign * share * width * chosen).tolist()
                yield MORE, "a wider box", changed
            elif way == "bar":
                unsafe["b"][row] -= share * max(abs(unsafe["b"][row]), 0.1)
                yield MORE, "a lower bar", changed
            elif way == "scaled":
                # Ay ≥ b holds of more outputs where b/A falls. Multipliers are those of the margin and grow with it: as
                # they stand they are others for what they prove, and may be better ones.
                share = max(share, 1e-10 / max(abs(unsafe["b"][row]), 1e-9))  # more than the bisection resolves
                factor = 1 + share if unsafe["b"][row] > 0 else 1 - share
                unsafe["A"][row] = [x * factor for x in unsafe["A"][row]]
                for side in (side for each in leaves for side in each.get("sides", [])):
                    side[2] *= factor
                yield MORE, "a lower bar, by its matrix", changed
            elif way == "part":
                yield from _parts(changed, claim, leaves, leaf, share, rng)
            elif way == "number":
                name = str(rng.choice(["lower", "upper", "A", "b", "alpha", "side", "unit", "level", "row"]))
                bad: Any = [float("nan"), float("inf"), None, [], "1"][rng.integers(5)]
                _broken(claim, unsafe, leaf, name, bad)
                yield NONE, f"{name} with what is no number", changed
            else:
                fields, name = [
                    (claim, str(rng.choice(["kind", "lower", "upper", "level", "units", "unsafe"]))),
                    (unsafe, str(rng.choice(["A", "b", "row", "leaves"]))),
                    (changed["map"], "sha256"),
                ][rng.integers(3)]
                if fields is changed["map"]:
                    fields[name] = fields[name][::-1]
                    yield NONE, "another fingerprint", changed
                elif rng.random() < 0.5:
                    del fields[name]
                    yield NONE, "a missing field", changed
                else:
                    fields[name] = []
                    yield NONE, "an empty list", changed


def _parts(
    changed: Proof, claim: Proof, leaves: list[Proof], leaf: Proof, share: float, rng: np.random.Generator
) -> Iterator[tuple[str, str, Proof]]:
    """Change what a file proves its claim by: parts that are missing are no proof, others may be another one."""
    other = leaves[rng.integers(len(leaves))]
    side = leaf["sides"][rng.integers(len(leaf["sides"]))]
    way = rng.integers(10)
    if way == 0:
        leaves.remove(leaf)
        yield NONE, "a leaf removed", changed
    elif way == 1:
        side[1] *= -1
        yield NONE, "a side turned over", changed
    elif way == 2:
        side[2] = -1.0 - side[2]
        yield NONE, "a negative multiplier", changed
    elif way == 3:
        leaf["alpha"] = [1 + share] * len(leaf["alpha"])
        yield NONE, "slopes above 1", changed
    elif way == 4:
        leaf["sides"].remove(side)
        yield SAME, "a side dropped", changed
    elif way == 5:
        side[0] = int(rng.integers(len(claim["units"])))
        yield SAME, "a side of another unit", changed
    elif way == 6:
        unit = claim["units"][rng.integers(len(claim["units"]))]
        unit[1] += int(rng.choice([-1, 1]))
        yield SAME, "a unit renamed", changed
    elif way == 7:
        side[2] *= 1 + share * rng.choice([-1, 1])
        yield SAME, "a multiplier changed", changed
    elif way == 8:
        leaf["alpha"] = [min(x * (1 + share * rng.choice([-1, 1])), 1.0) for x in leaf["alpha"]]
        yield SAME, "slopes changed", changed
    else:
        leaf["alpha"], other["alpha"] = other["alpha"], leaf["alpha"]
        yield SAME, "slopes of two leaves exchanged", changed


def _broken(claim: Proof, unsafe: Proof, leaf: Proof, name: str, bad: Any) -> None:
    """Put what is no number in the place of one."""
    if name in ("lower", "upper"):
        claim[name][0] = bad
    elif name == "A":
        unsafe["A"][unsafe["row"]][0] = bad
    elif name == "b":
        unsafe["b"][unsafe["row"]] = bad
    elif name == "alpha":
        leaf["alpha"][-1] = bad
    elif name == "side":
        leaf["sides"][0][2] = bad
    elif name == "unit":
        claim["units"][0][1] = bad
    elif name == "level":
        claim["level"] = bad
    else:
        unsafe["row"] = bad


def networks() -> Iterator[tuple[str, Any, Proof]]:
    """Yield three networks with the file of a property each that takes several leaves to prove."""
    kinds = {"two MLPs": (False, 0), "attention between MLPs": (True, 1), "causal attention between MLPs": (True, 2)}
    for name, (attends, seed) in kinds.items():
        rng = torch.Generator().manual_seed(seed)

        def gaussian(*shape: int, rng: torch.Generator = rng) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=rng) / 2

        def mlp(gaussian: Any = gaussian) -> Any:
            parts = {"up": gaussian(12, 6), "up_bias": gaussian(12), "down": gaussian(6, 12) / 2}
            return hs.maps.Residual(hs.maps.MLP(**parts, activation="relu"))

        shapes = {"query": (3, 2, 6), "key": (3, 2, 6), "value": (3, 2, 6), "output": (3, 6, 2)}
        weights: dict[str, Any] = {part: gaussian(*shape) for part, shape in shapes.items()}
        attention = hs.Attention(**weights, positions=hs.maps.Positions(causal=name.startswith("causal")))
        between = [hs.maps.Residual(attention)] if attends else []
        first = hs.maps.Affine(weight=gaussian(4, 6, 1, 8), bias=gaussian(4, 6))
        last = hs.maps.Affine(weight=gaussian(1, 3, 4, 6), bias=gaussian(1, 3))
        network, x = hs.maps.Chain(first, mlp(), *between, mlp(), last), gaussian(8)
        label = int(network(x[None]).argmax())
        with tempfile.TemporaryDirectory() as folder:
            path, found = Path(folder) / "proof.json", None
            low, high = 0.0, 1.0
            for _ in range(12):  # the largest box that is proven
                eps = (low + high) / 2
                wanted = hs.verification.Property.robust(x, eps=eps, label=label, classes=3)
                verdict = hs.verify(network, wanted, timeout=5)
                if verdict.status != "proven":
                    high = eps
                    continue
                low = eps
                verdict.save(path, network, wanted)
                proof = json.loads(path.read_text(encoding="utf-8"))
                if any(len(each["leaves"]) > 1 for each in proof["claims"][0]["unsafe"]):
                    found = proof
            if found is None:
                raise SystemExit(f"no box around the input of {name} is proven by leaves")
        yield name, network, found


def main() -> None:
    """Print the counts of every kind of change, over all networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="files for each network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str, str]] = Counter()
    for number, (name, network, proof) in enumerate(networks()):
        limit = at_the_limit(proof, network)
        claim = limit["claims"][0]
        print(
            f"{name}: {len(claim['unsafe'][0]['leaves'])} leaves of {len(claim['units'])} units, level {claim['level']}"
        )
        stream = tampered(limit, np.random.default_rng(number))
        for _ in range(options.count):
            kind, change, changed = next(stream)
            counts[kind, change, status(changed, network)] += 1
    for (kind, change, outcome), count in sorted(counts.items()):
        print(f"{count:4d} {outcome:13s} {kind}: {change}")
    for kind in (MORE, NONE, SAME):
        of_kind = {key: count for key, count in counts.items() if key[0] == kind}
        passed = sum(count for key, count in of_kind.items() if key[2] == "checked")
        print(f"{kind}: {passed} of {sum(of_kind.values())} checked")
    wrong = sum(count for key, count in counts.items() if key[0] != SAME and key[2] == "checked")
    print(f"{sum(counts.values())} files, {wrong} that claim more or are no proof were checked")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
