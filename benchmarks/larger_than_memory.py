"""A model larger than memory is measured block by block: 3 B parameters, 6 GB in bfloat16, within 2.5 GB.

The script writes a model of the shape of Llama with random weights, shard by shard, and a twin with fewer and narrower
layers. The large one is measured in a process of its own, streamed, whose peak memory is read at the end; the twin both
ways, and its values must agree. Beside the time of the run stand that of reading the blocks alone (from the files, into
float32, as every streamed run must) and that of the bare matrix products of its measurements: the products with the
projections that every product with the Jacobian contains, on the same matrices. Every time is that of the processor and
that of the clock: other programs lengthen the latter.

Then all matrices of both are rounded: a budget of errors at one window, streamed, and for the twin in memory, too.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from claims import options, verdict
from safetensors.torch import save_file
from transformers import LlamaConfig

import howsmooth as hs

LAYERS, LENGTHS, PEAK, AGREE = (0, 13, 27), (64, 256), 2.5e9, 1e-6
# Costs are squares of sums in float32, which cancel.
SCHEME, PASSES, COSTS_AGREE = "int4:g64", 8, 1e-3
# Beside the largest part, a budget keeps what one window needs for its backward pass.
BUDGET_PEAK = 0.3
LARGE = {
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 64_000,
}
TWIN = (
    LARGE
    | {"hidden_size": 768, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 4}
    | {
        "intermediate_size": 2048,
        "vocab_size": 4_000,
    }
)
SMALLEST = TWIN | {"hidden_size": 96, "intermediate_size": 256}


def write(folder: Path, shape: dict[str, Any]) -> int:
    """Write a model with random weights, one shard for each layer; return how many parameters it has."""
    config = LlamaConfig(**shape, architectures=["LlamaForCausalLM"], tie_word_embeddings=True, dtype="bfloat16")
    config.save_pretrained(folder)
    d, h = config.hidden_size, config.intermediate_size
    kv = d // config.num_attention_heads * int(config.num_key_value_heads or 1)
    layer = {
        "self_attn.q_proj": (d, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, d),
        "mlp.gate_proj": (h, d),
        "mlp.up_proj": (h, d),
        "mlp.down_proj": (d, h),
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
    }
    shards = {"ends": {"embed_tokens": (config.vocab_size, d), "norm": (d,)}}
    shards |= {
        f"{i:03d}": {f"layers.{i}.{name}": s for name, s in layer.items()} for i in range(config.num_hidden_layers)
    }
    index: dict[str, str] = {}
    generator, count = torch.Generator().manual_seed(0), 0
    for shard, shapes in shards.items():
        tensors = {f"model.{name}.weight": _weight(size, generator) for name, size in shapes.items()}
        save_file(tensors, folder / f"model-{shard}.safetensors", metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, f"model-{shard}.safetensors")
        count += sum(x.numel() for x in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return count


def _weight(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if len(size) == 1:
        return torch.ones(size, dtype=torch.bfloat16)
    return torch.empty(size).normal_(std=size[1] ** -0.5, generator=generator).bfloat16()


def clocks() -> torch.Tensor:
    """Return the seconds of the processor, and those of the clock."""
    return torch.tensor([time.process_time(), time.perf_counter()], dtype=torch.float64)


def peak_memory() -> int:
    """Return the most bytes that this program has held; what a process is told of itself may be its parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@torch.no_grad()
def measured(folder: Path, streamed: bool) -> dict[str, Any]:
    """Measure some layers at two windows of each length in this process; return constants, times and the peak."""
    started = clocks()
    model = hs.load(folder, streamed=streamed)
    words = torch.randint(4_000, (2, max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    batches = {n: model.activations(words[:, :n]) for n in LENGTHS}
    constants, products, measuring = [], [], torch.zeros(2, dtype=torch.float64)
    for layer in LAYERS:
        for n, found in batches.items():
            f, X = found.at(layer)
            began = clocks()
            estimate = hs.local_lipschitz(f, X, rtol=0.01, seed=0)
            measuring += clocks() - began
            constants += estimate.lower.tolist()
            products.append((2 * n, estimate.products))
    seconds = {"seconds": (clocks() - started).tolist(), "measuring": measuring.tolist()}
    return {"constants": constants, "products": products, "peak": peak_memory()} | seconds


def budgeted(folder: Path, streamed: bool) -> dict[str, Any]:
    """Return what four bits for every matrix cost at one window, each alone, with times and the peak."""
    started = clocks()
    words = torch.randint(4_000, (1, min(LENGTHS)), generator=torch.Generator().manual_seed(1))
    model = hs.load(folder, streamed=streamed)
    found = hs.budget(model, words, schemes=[SCHEME], passes=PASSES)
    seconds = (clocks() - started).tolist()
    costs = {effect.name: effect.kl for effect in found.effects}
    reads = 0 if model.stream is None else model.stream.reads
    return {"costs": costs, "reads": reads, "peak": peak_memory(), "seconds": seconds}


def alone(folder: Path, streamed: bool, *options: str) -> dict[str, Any]:
    """Measure in a process of its own: memory that was used once stays in the peak."""
    command = [sys.executable, __file__, "--folder", str(folder), *(["--streamed"] if streamed else []), *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def reading(folder: Path) -> list[float]:
    """Return the seconds that reading the blocks up to the last one that is measured takes."""
    stream = hs.load(folder, streamed=True).stream
    assert stream is not None
    started = clocks()
    for layer in range(max(LAYERS) + 1):
        stream.fill(layer)
    return (clocks() - started).tolist()


@torch.no_grad()
def bare(folder: Path, products: list[tuple[int, int]]) -> list[float]:
    """Return the seconds that the projections in products with the Jacobian take: of how many tokens, and how many."""
    attention = hs.load(folder, streamed=True).layer(0).closed_form
    d = attention.query.shape[-1]
    weights = [w.reshape(-1, d) for w in (attention.query, attention.key, attention.value)]
    assert attention.output is not None
    weights.append(attention.output.reshape(-1, d))
    total = torch.zeros(2, dtype=torch.float64)
    for length, count in products:
        X, repeats = torch.randn(length, d), []
        for _repeat in range(3):
            started = clocks()
            for W in weights:
                X @ W.mT
            repeats.append(clocks() - started)
        total += count * torch.stack(repeats).amin(0)
    return total.tolist()


def both(seconds: list[float]) -> str:
    processor, clock = seconds
    return f"{processor:.0f} s of the processor ({clock:.0f} s by the clock)"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--streamed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--budget", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.folder:
        function = budgeted if arguments.budget else measured
        print(json.dumps(function(arguments.folder, arguments.streamed)))
        return
    with tempfile.TemporaryDirectory() as place:
        large, twin = Path(place) / "large", Path(place) / "twin"
        needed = 1e9 if arguments.quick else 1e10
        if shutil.disk_usage(place).free < needed:
            sys.exit(f"this needs {needed / 1e9:.0f} GB of disk in {place}")
        count = write(large, SMALLEST if arguments.quick else LARGE)
        write(twin, SMALLEST if arguments.quick else TWIN)
        # at the smallest size nothing is claimed about memory, and most of the time would go into imports
        of_twin = measured if arguments.quick else alone
        here, there = of_twin(twin, True), of_twin(twin, False)
        apart = max(abs(a / b - 1) for a, b in zip(here["constants"], there["constants"], strict=True))
        print(f"twin: streamed {here['peak'] / 1e9:.2f} GB, in memory {there['peak'] / 1e9:.2f} GB, {apart:.1e} apart")
        costs, expected = (budgeted(twin, streamed)["costs"] for streamed in (True, False))
        costs_apart = max(abs(costs[name] / expected[name] - 1) for name in expected)
        print(f"twin: {len(costs)} costs of errors, streamed and in memory {costs_apart:.1e} apart")
        found, budget = alone(large, True), alone(large, True, "--budget")
        read, products = reading(large), bare(large, found["products"])
    size = f"{count / 1e9:.2f} B parameters, {2 * count / 1e9:.1f} GB"
    print(f"{size}: {both(found['seconds'])}, peak {found['peak'] / 1e9:.2f} GB")
    print(f"  budget: {both(budget['seconds'])}, peak {budget['peak'] / 1e9:.2f} GB, {budget['reads']} parts read")
    print(f"  measuring {both(found['measuring'])}; reading {both(read)}; bare products {both(products)}")
    claims = {
        f"peak memory is at most {PEAK / 1e9} GB": found["peak"] <= PEAK,
        f"that of a budget is at most {BUDGET_PEAK} of the weights in float32": budget["peak"]
        <= BUDGET_PEAK * 4 * count
        or arguments.quick,
        f"a twin has the same constants in memory to {AGREE}": apart <= AGREE,
        f"and the same costs of errors to {COSTS_AGREE}": costs_apart <= COSTS_AGREE,
    }
    verdict(claims, quick=arguments.quick)


if __name__ == "__main__":
    main()
