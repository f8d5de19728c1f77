"""Some 250 numbers of every kind, to the last bit: ``same_numbers.py FILE`` writes them, or compares if FILE is there.

For a change that only moves or renames code: write the file before, compare after. One thread, one processor.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import howsmooth as hs
from howsmooth.errors import HowsmoothError

N, D = 5, 6
Number = tuple[str, Callable[[], list[float]]]


def gaussian(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(seed: int, *, heads: int = 3, groups: int | None = None, biases: bool = True, **options: Any) -> hs.Attention:
    """Return a layer with every parameter random."""
    groups = groups or heads
    parts: dict[str, Any] = {
        "query": gaussian(seed, heads, 4, D, scale=0.5),
        "key": gaussian(seed + 1, groups, 4, D, scale=0.5),
        "value": gaussian(seed + 2, groups, 3, D),
        "output": gaussian(seed + 3, heads, D, 3),
    }
    if biases:
        parts["query_bias"], parts["key_bias"] = gaussian(seed + 4, heads, 4), gaussian(seed + 5, groups, 4)
        parts["value_bias"], parts["output_bias"] = gaussian(seed + 6, groups, 3), gaussian(seed + 7, D)
    return hs.Attention(**parts, **options)


def layers() -> dict[str, Any]:
    causal, rotary = hs.maps.Positions(causal=True), hs.maps.Positions(causal=True, rotary=hs.maps.Rotary())
    head: dict[str, Any] = {"A": gaussian(20, D, D), "V": gaussian(21, D, D)}
    parts: dict[str, Any] = {"Q": gaussian(22, 4, D), "K": gaussian(23, 4, D), "V": gaussian(24, D, D)}
    return {
        "form": hs.Attention.single_head(**head),
        "negative form": hs.Attention.single_head(A=-torch.eye(D).double(), V=torch.eye(D).double()),
        "causal form": hs.Attention.single_head(**head, causal=True),
        "biases": layer(30),
        "no biases": layer(40, biases=False),
        "grouped causal": layer(50, heads=4, groups=2, positions=causal),
        "rotary": layer(60, positions=rotary),
        "soft cap": layer(70, softcap=1.5, positions=causal),
        "relative bias": layer(80, positions=hs.maps.Positions(relative_bias=gaussian(81, 3, 2 * N + 3))),
        "norms": layer(
            90, query_norm=hs.maps.RMSNorm(gain=gaussian(91, 4)), key_norm=hs.maps.RMSNorm(gain=gaussian(92, 4))
        ),
        "sink": layer(100, biases=False, sink=gaussian(101, 3)),
        "cosine": hs.maps.CosineAttention.single_head(**parts),
        "sigmoid": hs.maps.SigmoidAttention.single_head(**parts),
        "L2": hs.maps.L2Attention.single_head(**parts),
        "linear": hs.maps.LinearAttention.single_head(**parts),
        "entmax": hs.maps.EntmaxAttention.single_head(**parts),
    }


def of_layers() -> Iterator[Number]:
    X = gaussian(1, N, D)
    for name, f in layers().items():
        yield f"{name}: local", partial(interval, f, X)
        yield f"{name}: typical", partial(typical, f, X)
        for radius in (0.1, 1.0, 10.0):
            for bound in ("sharp_upper", "smallest_upper", "sharp_lower"):
                yield f"{name}: {bound} {radius}", partial(value, bound, f, n=N, radius=radius)
        yield f"{name}: local_upper", partial(value, "local_upper", f, X)
        for eps in (0.01, 0.3):
            for bound in ("neighbourhood_upper", "displacement_upper"):
                yield f"{name}: {bound} {eps}", partial(value, bound, f, X, eps=eps)
        yield f"{name}: bracket", partial(bracket, f, n=N, radius=2.0)
        yield f"{name}: attack", partial(displacement, f, X)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def interval(f: Any, X: torch.Tensor) -> list[float]:
    found = hs.local_lipschitz(f, X, seed=seeded())
    return [float(found.lower), float(found.upper)]


def typical(f: Any, X: torch.Tensor) -> list[float]:
    return [float(hs.typical_gain(f, X, seed=seeded()).value)]


def value(bound: str, *arguments: Any, **options: Any) -> list[float]:
    return [getattr(hs.bounds, bound)(*arguments, **options).value]


def bracket(f: Any, n: int, radius: float) -> list[float]:
    found = hs.bracket(f, n=n, radius=radius, seed=seeded())
    return [found.lower.value, found.upper.value]


def displacement(f: Any, X: torch.Tensor) -> list[float]:
    return [float(hs.attack(f, X, eps=0.1, budget=40, bounded=False).displacement)]


def of_measures() -> Iterator[Number]:
    mu = hs.transport.DiscreteMeasure(gaussian(2, N, D), torch.softmax(gaussian(3, N), 0))
    nu = hs.transport.DiscreteMeasure(gaussian(4, N, D))
    for p in (1, 2, 3):
        yield f"wasserstein {p}", partial(wasserstein, mu, nu, p)
    for name in ("form", "negative form", "biases"):
        f = layers()[name]
        for bound in ("mean_field_upper", "sharp_mean_field_upper", "mean_field_lower", "sharp_mean_field_lower"):
            yield f"{name}: {bound}", partial(value, bound, f, radius=1.5)
        yield f"{name}: splitting", partial(splitting, f, mu)


def wasserstein(mu: hs.transport.DiscreteMeasure, nu: hs.transport.DiscreteMeasure, p: float) -> list[float]:
    return [float(hs.transport.wasserstein(mu, nu, p=p))]


def splitting(f: Any, mu: hs.transport.DiscreteMeasure) -> list[float]:
    return [float(hs.splitting(f, mu).splitting.lower)]


def of_models(folder: Path) -> Iterator[Number]:
    for model, depth in (("minilm", 6), ("reviews", 3)):
        at = hs.load(model).activations(torch.tensor([[101, 2129, 2521, 2064, 3086, 2693, 102]]) % 4000)
        for i in range(depth):
            for part in ("attention", "residual", "block"):
                f, X = at.at(i, part)
                yield f"{model} {i} {part}: local", partial(interval, f, X[0])
            f, X = at.at(i)
            yield f"{model} {i}: local_upper", partial(value, "local_upper", f, X[0])
            yield f"{model} {i}: sharp_upper", partial(value, "sharp_upper", f, n=16, radius=10.0)
        f, X = at.at(1)
        yield f"{model}: neighbourhood", partial(value, "neighbourhood_upper", f, X[0], eps=0.1)
        yield f"{model}: bracket", partial(bracket, f, n=16, radius=10.0)
    for p, metric in (("1", "sum"), ("2", "total"), ("inf", "entries")):
        yield f"reviews: certify {p}", partial(radii, "a gripping film", metric=metric)
    yield "reviews: certify attention", partial(radii, "a dull film", at="attention")
    found = hs.measure("reviews", layers=[0, 1], lengths=[8, 12], sequences=2, out=str(folder / "run"))
    for i, row in enumerate(json.loads(found.to_json())["records"]):
        yield f"measured {i}", partial(list, [x for x in row.values() if isinstance(x, float)])


def radii(sentence: str, **options: Any) -> list[float]:
    found = hs.certify("reviews", sentence, word=2, **options)
    return [x for radius in found.radii for x in (radius.certified, radius.attacked)]


def outcome(call: Callable[[], list[float]]) -> str:
    """Return numbers in hexadecimal, or the kind of refusal."""
    try:
        return " ".join(float(x).hex() for x in call())
    except HowsmoothError as error:
        return type(error).__name__


def main() -> None:
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        numbers = [*of_layers(), *of_measures(), *of_models(Path(folder))]
        found = {name: outcome(call) for name, call in numbers}
    if not target.exists():
        target.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{len(found)} numbers written to {target}")
        return
    before = json.loads(target.read_text(encoding="utf-8"))
    changed = [name for name in before | found if before.get(name) != found.get(name)]
    for name in changed:
        print(f"{name}: {before.get(name)} -> {found.get(name)}")
    print(f"{len(before)} numbers before, {len(found)} after, {len(changed)} differ")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
