"""Run networks in float32, and compare with what is proven of them: on points, and on boxes.

Networks are those of ``spellings.py``, in as many ways to write them, with weights of 24 bits and inputs, features and
outputs of any scale. A box that is a point leaves rounding alone: outputs of onnxruntime, with and without its
optimisations, on one thread and two, must be within the bound of those in float64, and the bound should not be silly.
On boxes they must be in the proven ranges. A few networks run in the suite; by hand as many as are asked for:
``PYTHONPATH=tests python tests/verification/fuzz_float32.py --networks 300``.
"""

import argparse
import collections
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
import torch
from verification import spellings

from howsmooth.errors import UnsupportedModelError
from howsmooth.verification import Property
from howsmooth.verification.onnx_network import read_and_run
from howsmooth.verification.verdicts import _expanded, _Margins, _Network

EXACT = 1e-12
LEVELS = onnxruntime.GraphOptimizationLevel
FORCED = {"dtype": "float32", "batch": "1", "second output": "none"}
SHARES = (0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.0)  # of forks at which another way is taken, until one is read
SESSIONS = ((LEVELS.ORT_DISABLE_ALL, 1), (LEVELS.ORT_ENABLE_ALL, 1), (LEVELS.ORT_ENABLE_ALL, 2))


@dataclass(frozen=True)
class Compared:
    """What one network gave.

    Attributes:
        found: One of compared, refused, not run.
        said: Why it was refused.
        worst: The largest error of a point, as a share of its bound; more than one is a fault.
        outside: How far an output is outside of its range on a box, as a share of the bound at the centre.
        finite: How many bounds of points are finite, of how many.
    """

    found: str
    said: str = ""
    worst: float = 0.0
    outside: float = 0.0
    finite: tuple[int, int] = (0, 0)


def runs(path, shape):
    """Return the network as onnxruntime runs it, in several ways, on flat inputs."""
    found = []
    for level, threads in SESSIONS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options)
        name = session.get_inputs()[0].name
        found.append(lambda x, s=session, name=name: s.run(None, {name: x.float().numpy().reshape(shape)})[0])
    return lambda x: torch.stack([torch.from_numpy(run(x)).double().flatten() for run in found])


def ranges(network, read, lower, upper, outputs, level=0):
    """Return the proven ranges of all outputs in float32 on a box."""
    rows = torch.eye(outputs, dtype=torch.float64)
    rows = torch.cat([rows, -rows])
    wanted = Property(lower, upper, ((rows, torch.zeros(len(rows))),))
    model = _expanded(network, wanted, level, read=read)
    local = rows.abs() @ model.execution.behind_all()
    least = _Margins.of(model, rows, -local).lower
    return least[outputs:], -least[:outputs]


def network_file(seed, speller, share):
    """Write a network with weights of 24 bits."""
    drawn = spellings.drawn
    spellings.drawn = lambda rng, *shape, size=0.5: (
        size * torch.randn(*shape, generator=rng, dtype=torch.float64)
    ).float().double()  # fmt: skip
    try:
        twin = spellings.Twin.of(seed)
        return spellings.Speller(twin, speller, share, forced=FORCED.items()).file()
    finally:
        spellings.drawn = drawn


def compared(seed, folder, points=8):
    """Compare one network, in the first spelling that is read."""
    for speller, share in enumerate(SHARES):
        found = compared_in(seed, network_file(seed, speller, share), folder, points)
        if found.found == "compared" or "rounding is not followed" in found.said:
            break
    return found


def compared_in(seed, file, folder, points):
    choose = random.Random(seed)
    path, rng = Path(folder) / "network.onnx", torch.Generator().manual_seed(seed)
    onnx.save(file.model, path)
    try:
        run = runs(path, file.shape)
    except Exception as error:
        return Compared("not run", str(error).splitlines()[0])
    inputs = torch.Size(file.shape).numel()
    scale = choose.choice((1.0, 1.0, 1e-3, 30.0, 1e3))
    try:
        f, itself = read_and_run(path)
        centre = file.inputs(scale * torch.randn(inputs, generator=rng, dtype=torch.float64))
        network = _Network.of(f, Property(centre, centre, ((torch.ones(1, len(itself(centre))), torch.zeros(1)),)))
        outputs, worst, outside, finite = len(itself(centre)), 0.0, 0.0, 0
        for point in range(points):
            x = file.inputs(scale * torch.randn(inputs, generator=rng, dtype=torch.float64))
            x = x.float().double() if point % 2 else x
            low, high = ranges(network, itself.read, x, x, outputs)
            y = network.outputs(x)
            bound = torch.minimum(high - y, y - low) + EXACT * y.abs()
            error = (run(x) - y).abs().amax(0)
            shares = torch.where(bound.isfinite(), error / bound.clamp_min(1e-300), 0.0)
            finite += int(bound.isfinite().sum())
            worst = max(worst, float(shares.max()))
            half = file.input_scale * scale * choose.choice((1e-7, 1e-5, 1e-3, 0.03))
            low, high = ranges(network, itself.read, x - half, x + half, outputs, level=point % 2)
            for _other in range(8):
                xi = torch.rand(inputs, generator=rng, dtype=torch.float64) * 2 - 1
                found = run(x + half * (xi.sign() if _other % 2 else xi))
                beyond = torch.maximum((low - found).amax(0), (found - high).amax(0))
                outside = max(outside, float((beyond / (y.abs() + 1e-300)).max()))
    except UnsupportedModelError as error:
        return Compared("refused", str(error))
    return Compared("compared", "", worst, outside, (finite, points * outputs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    counts, said, shares, finite = collections.Counter(), collections.defaultdict(list), [], [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.networks):
            found = compared(seed, folder)
            counts[found.found] += 1
            said[found.said].append(seed)
            if found.found == "compared":
                shares.append(found.worst)
                finite = [a + b for a, b in zip(finite, found.finite, strict=True)]
                if found.worst > 1 or found.outside > EXACT:
                    print(f"network {seed}: {found.worst:.3g} of the bound, outside by {found.outside:.2g}")
    for text, seeds in sorted(said.items(), key=lambda item: -len(item[1])):
        if text:
            print(f"{len(seeds):4} {text[:160]}  {seeds[:4]}")
    shares = torch.tensor(sorted(shares))
    print(dict(counts), f"finite bounds {finite[0]} of {finite[1]}, {time.process_time() - began:.0f} s")
    at = [float(shares[int(q * (len(shares) - 1))]) for q in (0, 0.1, 0.5, 0.9, 1)]
    print("largest share of a bound, quantiles:", " ".join(f"{x:.3g}" for x in at))


if __name__ == "__main__":
    main()
